"""The public functions: ``plan``, ``estimate`` and ``describe_model``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import astra
from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus, read_cluster
from astra.catalog.hardware import catalog_hash
from astra.catalog.models import model as find_model
from astra.errors import InputError, NoCoverage, NoFeasiblePlan
from astra.families import weights as weights_of
from astra.result import Estimate, Plan, PlanSet, PriceTag, Reject, Result, Search
from astra.search.afford import against, parts_of, price, use_notes, with_run
from astra.search.bill import Money, tag_of
from astra.search.counts import on
from astra.search.detail import estimate as estimate_job
from astra.search.detail import legality
from astra.search.hunt import Hunt, Refined
from astra.search.ledger import lost_by, no_coverage, nothing_fits, nothing_simulated, rejects_of
from astra.search.mixed_api import Wanted, estimate_mixed, plan_fleet, requested, several
from astra.search.mixed_detail import Fleet
from astra.search.objectives import Goal, goal_of, is_rate
from astra.search.planner import search
from astra.space.expression import read_rules
from astra.space.restrictions import Restrictions, parse_restrictions
from astra.space.rules import Rule
from astra.spec.cluster import Cluster, Pool
from astra.spec.job import Job
from astra.spec.mixed import MixedStrategy, OnePool, is_mixed
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy, parse_strategy
from astra.spec.workload import PRECISIONS, Workload, whole_samples
from astra.units import parse_count

MODEL_SCHEMA: Final = "astra.model/1"
SPARE: Final = 3  # groups refined by the simulator beyond those shown
DEFAULT_BATCH: Final = 1024
DEFAULT_SEQ: Final = 4096


class ModelReport(Result, frozen=True, kw_only=True):
    """What was understood of a model."""

    schema: str = MODEL_SCHEMA
    name: str
    family: str
    shape: dict[str, Any]
    parameters: dict[str, int]
    flops_per_token: dict[str, float]
    source: str
    date: str

    def __str__(self) -> str:
        from astra.report.text import render_model  # noqa: PLC0415

        return render_model(self)


def plan(
    model: str | ModelSpec,
    *,
    gpus: str | Sequence[str] | None = None,
    cluster: str | Path | Cluster | None = None,
    node: str | None = None,
    batch: int | str = DEFAULT_BATCH,
    seq: int | None = None,
    tokens: float | str | None = None,
    precision: str = "bf16",
    optimizer: str = "adam",
    task: str = "pretrain",
    lora_rank: int = 16,
    top: int = 5,
    fix: Sequence[str] = (),
    forbid: Sequence[str] = (),
    maximum: Sequence[str] = (),
    minimum: Sequence[str] = (),
    rules: str | Path | None = None,
    runtime: str = runtimes.DEFAULT,
    headroom: float = 0.08,
    strict: bool = False,
    objective: str | None = None,
    budget: float | str | None = None,
    deadline: float | str | None = None,
    baseline: str | Strategy | None = None,
    money: Money | None = None,
    counts: str = "at-most",
    launchable: bool = False,
    progress: Callable[[float], None] | None = None,
) -> PlanSet:
    """The best strategies for a model on some GPUs, and why the others lost.

    Objectives other than ``fastest`` may leave some of the GPUs unused, in whole nodes. With several pools the answer
    is a ``MixedPlanSet``: ``counts`` says whether all GPUs must be used (``exact``), ``launchable`` keeps to what the
    runtime can run as it is.
    """
    if isinstance(top, bool) or not isinstance(top, int) or not 1 <= top <= 100:
        raise InputError("top", top, want="a number of plans between 1 and 100")
    started, options = time.perf_counter(), money or Money()
    gpus, mixed = several(gpus, cluster, node)
    if mixed is not None:
        work = {"batch": batch, "seq": seq, "tokens": tokens, "precision": precision, "optimizer": optimizer,
                "task": task, "lora_rank": lora_rank, "runtime": runtime, "headroom": headroom}  # fmt: skip
        asked = objective, budget, deadline
        wanted = Wanted(
            counts=counts, top=top, launchable=launchable, strict=strict, money=options, rules=rules, goal=asked,
            restrictions=parse_restrictions(fix=fix, forbid=forbid, maximum=maximum, minimum=minimum),
            baseline=None if baseline is None else str(baseline),
        )  # fmt: skip
        return plan_fleet(*_fleet(model, mixed, work, counts), wanted)
    a_billion = ["no --tokens: days and dollars are of a billion tokens"] * (tokens is None and is_rate(objective))
    job = make_job(
        model, gpus=gpus, cluster=cluster, node=node, batch=batch, seq=seq, tokens=1e9 if a_billion else tokens,
        precision=precision, optimizer=optimizer, task=task, lora_rank=lora_rank, runtime=runtime, headroom=headroom,
    )  # fmt: skip
    restrictions = parse_restrictions(fix=fix, forbid=forbid, maximum=maximum, minimum=minimum)
    user_rules = read_rules(rules) if rules is not None else ()
    goal = goal_of(objective, budget, deadline, job.workload.tokens)
    tag = price(job, options, goal)
    now = _baseline(job, baseline, user_rules)
    found = _answer(job, goal, options, tag, restrictions, user_rules, top, progress)
    ranked = [(strategy, with_run(part, result, options, tag)) for part, strategy, result in found.ranked]
    if strict and ranked[0][1].provenance_worst == "assumed":
        raise NoCoverage(no_coverage(ranked[0][1]))
    request = request_record(found.ranked[0][0], restrictions.describe(), str(rules) if rules else None, top)
    return PlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=request | goal.record() | {"gpus_given": job.pool.gpus},
        plans=[
            Plan(rank=place, strategy=str(strategy), estimate=result, lost_by=lost_by(ranked[0][1], result))
            for place, (strategy, result) in enumerate(ranked, start=1)
        ],
        search=found.search_record(time.perf_counter() - started),
        rejects=found.rejects,
        notes=[*_notes(job, gpus), *found.notes, *a_billion],
        objective=goal.objective.name,
        baseline=against(ranked[0][1], with_run(job, now, options, tag)) if now is not None else None,
    )


class _Answer(NamedTuple):
    """Plans with the part of the pool each uses, and the account of the search."""

    ranked: list[tuple[Job, Strategy, Estimate]]
    considered: int
    evaluated: int
    feasible: int
    rejects: list[Reject]
    notes: list[str]

    def search_record(self, seconds: float) -> Search:
        return Search(
            considered=self.considered, evaluated=self.evaluated, feasible=self.feasible, seconds=seconds,
            strategies_per_s=self.considered / seconds,
        )  # fmt: skip


def _answer(
    job: Job,
    goal: Goal,
    options: Money,
    tag: PriceTag | None,
    restrictions: Restrictions,
    user_rules: Sequence[Rule],
    top: int,
    progress: Callable[[float], None] | None,
) -> _Answer:
    """The plans of a goal: the front, or the best strategies on as many GPUs as the goal makes use of."""
    notes: list[str] = []
    if goal.objective.name != "fastest" and tag is not None:
        chosen, state = parts_of(
            job, goal, options, tag, restrictions=restrictions, user_rules=user_rules, progress=progress
        )
        if goal.objective.direction == "front":
            return _front(job, chosen, state)
        notes = use_notes(job, chosen[0])
        job = on(job, chosen[0].gpus)
    found = search(job, restrictions, user_rules=user_rules, keep=top + SPARE, progress=progress)
    if not found.candidates:
        raise NoFeasiblePlan(nothing_fits(job, found, restrictions))
    strategies = [candidate.strategy for candidate in found.candidates]
    estimates = list(zip(strategies, estimate_job(job, strategies, user_rules=user_rules), strict=True))
    fitting = [pair for pair in estimates if pair[1].fits and pair[1].legal]
    if not fitting:
        raise NoFeasiblePlan(nothing_simulated(job, [result for _, result in estimates]))
    ranked = sorted(fitting, key=lambda pair: pair[1].step_s)[:top]
    rejects = rejects_of(found, user_rules, job)
    plans = [(job, strategy, result) for strategy, result in ranked]
    return _Answer(plans, found.considered, found.evaluated, found.feasible, rejects, notes)


def _front(job: Job, chosen: list[Refined], state: Hunt) -> _Answer:
    """Every trade of time for money on parts of the pool, fastest first; all of them, whatever ``top`` is."""
    ranked = [(on(job, one.gpus), parse_strategy(one.estimate.strategy), one.estimate) for one in chosen]
    sentence = "refused, too large, or no better than the plans shown in both time and money"
    rest = max(state.considered - len(ranked), 0)
    rejects = [Reject(reason="front", sentence=sentence, strategies=rest)] if rest else []
    return _Answer(ranked, state.considered, state.evaluated, len(state.found), rejects, [])


def _baseline(job: Job, baseline: str | Strategy | None, user_rules: Sequence[Rule]) -> Estimate | None:
    """What is done now, on all of the GPUs."""
    if baseline is None:
        return None
    try:
        strategy = parse_strategy(baseline, gpus=job.pool.gpus) if isinstance(baseline, str) else baseline
    except InputError as error:
        raise InputError("baseline", error.got, want=error.want, fix=error.fix) from None
    _check_computable(job, strategy, user_rules, where="baseline")
    return estimate_job(job, [strategy], user_rules=user_rules)[0]


def estimate(
    model: str | ModelSpec,
    *,
    strategy: str | Strategy | MixedStrategy | OnePool,
    gpus: str | Sequence[str] | None = None,
    cluster: str | Path | Cluster | None = None,
    node: str | None = None,
    batch: int | str = DEFAULT_BATCH,
    seq: int | None = None,
    tokens: float | str | None = None,
    precision: str = "bf16",
    optimizer: str = "adam",
    task: str = "pretrain",
    lora_rank: int = 16,
    rules: str | Path | None = None,
    runtime: str = runtimes.DEFAULT,
    headroom: float = 0.08,
    strict: bool = False,
    money: Money | None = None,
) -> Estimate:
    """How a given strategy would do, legal or not; one in brackets is over several pools (docs/mixed.md)."""
    gpus, mixed = several(gpus, cluster, node)
    if mixed is None and (
        isinstance(strategy, MixedStrategy | OnePool) or (isinstance(strategy, str) and is_mixed(strategy))
    ):
        mixed = Cluster(pools=(_pool(gpus, cluster, node),))
    if mixed is not None:
        work = {"batch": batch, "seq": seq, "tokens": tokens, "precision": precision, "optimizer": optimizer,
                "task": task, "lora_rank": lora_rank, "runtime": runtime, "headroom": headroom}  # fmt: skip
        fleet, _ = _fleet(model, mixed, work, "at-most")
        strategy = str(strategy) if isinstance(strategy, Strategy) else strategy
        own_rules = read_rules(rules) if rules is not None else ()
        return estimate_mixed(fleet, strategy, money=money or Money(), strict=strict, user_rules=own_rules)
    assert not isinstance(strategy, MixedStrategy | OnePool)
    job = make_job(
        model, gpus=gpus, cluster=cluster, node=node, batch=batch, seq=seq, tokens=tokens, precision=precision,
        optimizer=optimizer, task=task, lora_rank=lora_rank, runtime=runtime, headroom=headroom,
    )  # fmt: skip
    user_rules = read_rules(rules) if rules is not None else ()
    chosen = parse_strategy(strategy, gpus=job.pool.gpus) if isinstance(strategy, str) else strategy
    _check_computable(job, chosen, user_rules)
    options = money or Money()
    result = with_run(job, estimate_job(job, [chosen], user_rules=user_rules)[0], options, tag_of(options, job.pool))
    if strict and result.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(result))
    return result


def _fleet(model: str | ModelSpec, cluster: Cluster, work: dict[str, Any], counts: str) -> tuple[Fleet, dict[str, str]]:
    """Several pools with a job each, and those that cannot take part."""
    return requested(cluster, counts, lambda one: make_job(model, gpus=None, cluster=one, node=None, **work),
                     work["precision"])  # fmt: skip


def describe_model(model: str | ModelSpec, *, seq: int | None = None) -> ModelReport:
    """Shape, parameters and FLOPs of a model."""
    spec = find_model(model)
    length = _seq(spec, seq)
    counts = weights_of.count(spec)
    forward = weights_of.forward_flops_per_token(spec, length)
    shape = {
        k: v for k, v in msgspec.to_builtins(spec).items() if k not in ("name", "family", "source", "date", "aliases")
    }
    return ModelReport(
        name=spec.name,
        family=spec.family,
        shape=shape,
        parameters={
            "total": counts.total,
            "active": counts.active,
            "embedding": counts.embedding,
            "expert": counts.expert,
        },
        flops_per_token={
            "seq": float(length),
            "forward": forward,
            "attention": weights_of.attention_flops_per_token(spec, length),
            "training": 3 * forward,
        },
        source=spec.source,
        date=spec.date,
    )


def make_job(
    model: str | ModelSpec,
    *,
    gpus: str | None,
    cluster: str | Path | Cluster | None,
    node: str | None,
    batch: int | str,
    seq: int | None,
    tokens: float | str | None,
    precision: str,
    optimizer: str,
    task: str,
    lora_rank: int,
    runtime: str,
    headroom: float,
) -> Job:
    """Resolve names and check every input once."""
    spec = find_model(model)
    pool = _pool(gpus, cluster, node)
    length = _seq(spec, seq)
    fields: dict[str, Any] = {
        "global_batch": _batch(batch, length),
        "seq": length,
        "tokens": _tokens(tokens),
        "precision": _choice("precision", precision, PRECISIONS),
        "optimizer": _choice("optimizer", optimizer, ("adam", "sgd")),
        "task": _choice("task", task, ("pretrain", "finetune", "lora")),
        "lora_rank": lora_rank,
    }
    return Job(
        model=spec, pool=pool, workload=Workload(**fields), runtime=runtimes.framework(runtime), headroom=headroom
    )


def request_record(job: Job, restricted: list[str], rules: str | None, top: int) -> dict[str, Any]:
    """The resolved request, for the record."""
    workload: dict[str, Any] = msgspec.to_builtins(job.workload)
    return {
        "model": job.model.name,
        "gpus": job.pool.gpus,
        "gpu": job.pool.device.name,
        "node": job.pool.node.name,
        "workload": workload,
        "runtime": job.runtime.name,
        "headroom": job.headroom,
        "restrictions": restricted,
        "rules": rules,
        "top": top,
        "model_spec": msgspec.to_builtins(job.model),
        "pool": msgspec.to_builtins(job.pool),
    }


def _pool(gpus: str | None, cluster: str | Path | Cluster | None, node: str | None) -> Pool:
    if (gpus is None) == (cluster is None):
        raise InputError("gpus", gpus, want="either --gpus such as 512xH100 or --cluster FILE, and not both")
    if gpus is not None:
        return parse_gpus(gpus, node=node)
    found = cluster if isinstance(cluster, Cluster) else read_cluster(Path(str(cluster)))
    if len(found.pools) != 1:
        raise InputError(
            "cluster", f"{len(found.pools)} pools", want="one pool of GPUs", fix="Several are for plan and estimate."
        )
    return found.pools[0]


def _seq(spec: ModelSpec, seq: int | None) -> int:
    if spec.vision is not None:
        return spec.vision.tokens if seq is None else seq
    length = min(DEFAULT_SEQ, spec.max_seq) if seq is None else seq
    if isinstance(length, bool) or not isinstance(length, int) or length < 1:
        raise InputError("seq", seq, want="a whole number of tokens above zero")
    return length


def _batch(batch: int | str, seq: int) -> int:
    """Samples per step; ``4M tokens`` is divided by the sequence length."""
    if isinstance(batch, int) and not isinstance(batch, bool):
        return batch
    text = str(batch).strip().lower()
    for ending in ("tokens", "token", "tok"):
        if text.endswith(ending):
            count = parse_count(text.removesuffix(ending))
            if count is None or count < seq:
                raise InputError("batch", batch, want=f"at least one sample of {seq} tokens, such as 4M tokens")
            return whole_samples(count, seq)
    count = parse_count(text)
    if count is None or count != round(count) or count < 1:
        raise InputError("batch", batch, want="samples per step, such as 1024, or tokens, such as '4M tokens'")
    return round(count)


def _tokens(tokens: float | str | None) -> float | None:
    if tokens is None or isinstance(tokens, (int, float)):
        return None if tokens is None else float(tokens)
    count = parse_count(tokens)
    if count is None or count <= 0:
        raise InputError("tokens", tokens, want="tokens to train, such as 1T or 15.6e12")
    return count


def _choice(where: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise InputError(where, value, want=f"one of {', '.join(choices)}")
    return value


def _check_computable(job: Job, strategy: Strategy, user_rules: Sequence[Rule], where: str = "strategy") -> None:
    """An illegal strategy is still estimated, unless its numbers do not define a run at all."""
    broken = legality(job, strategy, user_rules)
    depth = job.model.layers + (job.model.encoder.layers if job.model.encoder else 0)
    replicas = strategy.tp * strategy.cp * strategy.dp
    undefined = (
        strategy.gpus != job.pool.gpus
        or strategy.pp * strategy.vp > depth
        or strategy.dp * strategy.mbs > job.workload.global_batch
        or (strategy.layers and sum(strategy.layers) != depth)
        or replicas % (strategy.ep * strategy.etp)
    )
    if undefined:
        raise InputError(
            where, str(strategy), want="a strategy that defines a run", fix="It breaks: " + "; ".join(broken) + "."
        )


def _notes(job: Job, gpus: str | None) -> list[str]:
    del gpus
    return [f"node type {job.pool.node.name}", f"runtime {job.runtime.title}"]
