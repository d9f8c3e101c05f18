"""The facts of a request: every name looked up, every default filled in. What plans and estimates are made from."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from astra.catalog import runtimes
from astra.catalog.clusters import parse_cluster, read_cluster
from astra.catalog.models import is_known
from astra.catalog.models import model as find_model
from astra.catalog.prices import book
from astra.errors import InputError
from astra.money.objectives import Goal, goal_of, is_rate
from astra.money.objectives import find as find_objective
from astra.money.tags import wanted
from astra.rules.can import usual_runtime
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.rules.table import Rule, rule_lines, rules_of
from astra.spec.cluster import Cluster, Pool
from astra.spec.job import Job
from astra.spec.kinds import batch_tokens
from astra.spec.model import ModelSpec
from astra.spec.money import Money
from astra.spec.request import PlanRequest, tokens_of
from astra.spec.runtime import Runtime
from astra.spec.workload import PEAKS, Precision, Workload, whole_samples
from astra.units import show_count

USUAL_SEQ: Final = 4096
_MOST_TOKENS: Final = 1e9  # of a step: several times what anybody has trained with
_USUAL: Final = Workload(global_batch=1, seq=1)
A_BILLION: Final = 1e9  # tokens, where an objective is a rate and none are given


class World(NamedTuple):
    """A request with the records its names stand for."""

    request: PlanRequest  # as it was asked; fp8 by the name its runtime has for it
    model: ModelSpec
    cluster: Cluster
    workload: Workload
    runtime: Runtime
    because: str  # why the runtime is not the first choice, where nobody named one
    lines: tuple[str, ...]  # of the user's rules
    rules: tuple[Rule, ...]
    restrictions: Restrictions
    rented: bool  # the request leaves the GPUs open

    @classmethod
    def of(cls, request: PlanRequest, cluster: Cluster | None = None) -> World:
        """Look everything up, once; ``cluster`` is one to begin with, where the request leaves the GPUs open."""
        if request.objective is not None:
            find_objective(request.objective)
        if request.money.providers or request.money.regions or request.money.prices:
            wanted(request.money, book(request.money.prices))  # what nobody knows, whatever is priced
        spec = find_model(request.model)
        length = seq_of(spec, request.seq)
        lines, rules = _rules(request)
        pools = cluster or cluster_of(request)
        workload = Workload(
            global_batch=_samples(request.batch, length), seq=length, tokens=_tokens(request),
            precision=request.precision, optimizer=request.optimizer, task=request.task, lora_rank=request.lora_rank,
            lora_targets=request.lora_targets, imbalance=request.imbalance,
            packed=0 if spec.vision else request.packed, mtp=request.mtp,
        )  # fmt: skip
        runtime, because = (
            usual_runtime(spec, workload, several=len(pools.pools) > 1)
            if request.runtime is None
            else (runtimes.runtime(request.runtime), "")
        )
        if own := _own_fp8(runtime, pools, request.precision):
            request, workload = replace(request, precision=own), replace(workload, precision=own)
            because = "; ".join(filter(None, (because, f"fp8 is {own} with {runtime.name} on these GPUs")))
        return cls(
            request=request,
            model=spec,
            cluster=pools,
            workload=workload,
            runtime=runtime,
            because=because,
            lines=lines,
            rules=rules,
            restrictions=parse_restrictions(request.fix, request.forbid, request.maximum, request.minimum),
            rented=cluster is not None,
        )

    @property
    def upper(self) -> bool:
        """Whether plans are ranked by the upper ends of their steps' intervals."""
        return self.request.rank == "upper"

    @property
    def several(self) -> bool:
        """Whether there is more than one pool."""
        return len(self.cluster.pools) > 1

    @property
    def money(self) -> Money:
        """What a GPU-hour costs."""
        return self.request.money

    @property
    def goal(self) -> Goal:
        """What is best; an InputError where the request contradicts itself."""
        asked = self.request
        return goal_of(asked.objective, asked.budget, asked.deadline, self.workload.tokens)

    @property
    def job(self) -> Job:
        """The work on the first pool."""
        return self.job_on(self.cluster.pools[0])

    def job_on(self, pool: Pool) -> Job:
        """The work on a pool."""
        return Job(
            model=self.model, pool=pool, workload=self.workload, runtime=self.runtime, headroom=self.request.headroom
        )

    @property
    def resolved(self) -> PlanRequest:
        """The request by itself: own models, clusters and rules are in it, not in files, and no default is left."""
        by_name = bool(self.request.gpus)
        gpus = tuple(map(_pool_text, self.cluster.pools)) if by_name else ()
        fleet = {} if self.rented else {"gpus": gpus, "cluster": None if by_name else self.cluster, "node": None}
        return replace(
            self.request,
            model=self.model.name if is_known(self.model) else self.model,
            batch=self.workload.global_batch,
            seq=self.workload.seq,
            runtime=self.runtime.standing_for or self.runtime.name,
            rules=self.lines or None,
            money=_with_whole_path(self.money),
            **fleet,
        )

    @property
    def notes(self) -> list[str]:
        """What was assumed, and what was asked that changes nothing."""
        rate, work = self.request.tokens is None and self.workload.tokens is not None, self.workload
        notes = ["no --tokens: days and dollars are of a billion tokens"] * rate
        if isinstance(self.request.batch, int) and work.tokens_per_step > _MOST_TOKENS:
            said = f"--batch {self.request.batch:,} is in samples, {show_count(work.tokens_per_step)} tokens a step"
            notes.append(f"{said}: tokens are written as --batch 4Mtok")
        if self.request.packed and self.model.vision is not None:
            notes.append(f"--packed changes nothing: {self.model.name} has images, which nobody packs")
        if work.imbalance > 1 and self.model.moe is None:
            notes.append(f"--imbalance changes nothing: {self.model.name} has no experts")
        if self.runtime.standing_for:
            who = f"runtime {self.runtime.name} stands in for {self.runtime.standing_for}"
            notes.append(f"{who}, of which no published run sets bars")
        adapters = (work.lora_rank, work.lora_targets) != (_USUAL.lora_rank, _USUAL.lora_targets)
        if adapters and work.task != "lora":
            notes.append(f"--lora-rank and --lora-targets change nothing: the task is {work.task}, not lora")
        return notes

    def record(self) -> dict[str, Any]:
        """What every answer tells of its request."""
        return {
            "model": self.model.name,
            "workload": msgspec.to_builtins(self.workload),
            "runtime": self.runtime.name,
            **({"runtime_because": self.because} if self.because else {}),
            "headroom": self.request.headroom,
            "model_spec": msgspec.to_builtins(self.model),
        }

    def limits_record(self) -> dict[str, Any]:
        """What plans tell besides."""
        rules = self.request.rules
        return {
            "restrictions": self.restrictions.describe(),
            "rules": list(rules) if isinstance(rules, tuple) else rules,
            "top": self.request.top,
        }


def cluster_of(request: PlanRequest) -> Cluster:
    """The pools of a request."""
    gpus, cluster, node = request.gpus, request.cluster, request.node
    if bool(gpus) == (cluster is not None):
        raise InputError("gpus", gpus or None, want="either --gpus such as 512xH100 or --cluster FILE, and not both")
    if node is not None and (len(gpus) != 1):
        fix = "Write 64xH100@node for each pool." if gpus else "The file says which nodes it has."
        raise InputError("node", node, want="no --node with several pools or a cluster file", fix=fix)
    if isinstance(cluster, str):
        with _file_of("cluster"):
            return read_cluster(Path(cluster))
    if cluster is not None:
        return cluster
    return parse_cluster("+".join(gpus), node)


def _own_fp8(runtime: Runtime, cluster: Cluster, asked: str) -> Precision | None:
    """What ``fp8`` is where a runtime knows it by other names alone: as the GPUs scale it, else the first it has."""
    can, devices = runtime.can.precision, [pool.device for pool in cluster.pools]
    if asked != "fp8" or "fp8" in can:
        return None
    own = [name for name in can if PEAKS.get(name) == "fp8" and all(device.computes(name) for device in devices)]
    usual = "mxfp8" in own and all(device.fp8_recipe == "mxfp8" for device in devices)
    return msgspec.convert("mxfp8" if usual else own[0], Precision) if own else None


@contextmanager
def figures_of(field: str) -> Iterator[None]:
    """Errors in a strategy name the field that gives it."""
    try:
        yield
    except InputError as error:
        if not error.where.startswith("strategy") or field == "strategy":
            raise
        raise InputError(field, error.got, want=error.want, fix=error.fix) from None


def seq_of(spec: ModelSpec, seq: int | str | None) -> int:
    """Tokens per sample, as given or as the model is made for."""
    if seq is not None:
        return tokens_of(seq)
    return spec.vision.tokens if spec.vision is not None else min(USUAL_SEQ, spec.max_seq)


def _samples(batch: int | str, seq: int) -> int:
    """Samples per step; ``4M tokens`` are 4,000,000, or 4,194,304 where only these are whole samples, or nearly so."""
    if isinstance(batch, int):
        return batch
    for count in batch_tokens(batch):
        if count >= seq and abs(count / seq - round(count / seq)) <= 0.05:
            return round(count / seq)
    near = whole_samples(batch_tokens(batch)[0], seq)
    if near:
        return near
    want = f"at least one sample of {seq} tokens" if batch_tokens(batch)[1] < seq else f"a multiple of seq={seq} tokens"
    raise InputError("batch", batch, want=f"{want}, such as {8 * seq} tokens")


def _tokens(request: PlanRequest) -> float | None:
    return A_BILLION if request.tokens is None and is_rate(request.objective) else request.tokens


def _rules(request: PlanRequest) -> tuple[tuple[str, ...], tuple[Rule, ...]]:
    if request.rules is None:
        return (), ()
    if isinstance(request.rules, tuple):
        return request.rules, rules_of(request.rules, "rules")
    with _file_of("rules"):
        lines = tuple(rule_lines(request.rules))
    return lines, rules_of(lines, request.rules)


@contextmanager
def _file_of(field: str) -> Iterator[None]:
    """Errors in a file name the field beside it."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{field} {error.where}", error.got, want=error.want, fix=error.fix) from None


def _pool_text(pool: Pool) -> str:
    return f"{pool.gpus}x{pool.device.name}@{pool.node.name}"


def _with_whole_path(money: Money) -> Money:
    return money if money.prices is None else replace(money, prices=str(Path(money.prices).absolute()))
