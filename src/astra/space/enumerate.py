"""The search space: every way to factor the GPUs, with micro-batches, chunks, schedules and memory savers.

Rows are made in three widening steps (degrees; micro-batch sizes; sequence parallelism, chunks and schedules) and the
rules that can be checked are checked at each step, so an illegal factorisation is refused once for all that would
follow from it. The ledger counts what would have followed: nothing disappears unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from astra.cost.stage import Layout, Meshes
from astra.cost.step import Holders, Savers
from astra.families import split
from astra.families import weights as weights_of
from astra.families.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints
from astra.space.names import facts_of
from astra.space.restrictions import Restrictions
from astra.space.rules import RULES, Rule, check
from astra.spec.job import Job
from astra.spec.strategy import OVERLAPS, SCHEDULES
from astra.table import CHOICES, Column, code

FLAGS: Final = (*(f"overlap_{name}" for name in OVERLAPS), "flash")
_FULL: Final = code("recompute", "full")


class Space(NamedTuple):
    """The legal meshes and what each of them may be combined with."""

    meshes: Meshes
    savers: Savers
    holders: Holders
    strategies: Floats  # [mesh] how many strategies each stands for
    considered: int
    refused: dict[str, int]  # by rule
    dominated: int  # strategies with an overlap or flash attention switched off, never better than with it


def enumerate_space(job: Job, restrictions: Restrictions, user_rules: Sequence[Rule] = ()) -> Space:
    """All legal meshes of a job."""
    return _Enumeration(job, restrictions, user_rules).run()


@lru_cache(maxsize=256)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


class _Enumeration:
    """Working state of one enumeration."""

    def __init__(self, job: Job, restrictions: Restrictions, user_rules: Sequence[Rule]) -> None:
        self.job, self.restrictions = job, restrictions
        self.rules = (*RULES, *user_rules)
        self.facts: dict[str, Any] = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
        self.refused: dict[str, int] = {}
        self.mbs = self.allowed("mbs", divisors(job.workload.global_batch))
        self.sp = self.allowed("sp", (False, True))
        self.holders = self._holders()
        self.flag_sets = self._flag_sets(user_rules)
        self.flag_space = self._flag_space()
        self.layouts: list[Layout] = []
        self.pipelines: dict[int, list[tuple[int, int, int, int]]] = {}  # pp -> (vp, schedule, layout, savers)
        self.methods = self._methods()

    def allowed(self, field: str, candidates: Sequence[Any]) -> list[Any]:
        """Candidates the user's restrictions leave."""
        return list(self.restrictions.filter(field, list(candidates)))

    def run(self) -> Space:
        """Degrees, then micro-batches, then pipelines."""
        columns = self._degrees()
        below = np.array([self._below(int(pp)) for pp in columns["pp"]], dtype=np.float64)
        considered = float(below.sum()) * len(self.mbs) * len(self.sp)
        columns, below = self._keep(columns, below, len(self.mbs) * len(self.sp))
        columns, rows = _cross(columns, {"mbs": np.array(self.mbs, dtype=np.int64)})
        columns, below = self._keep(columns, below[rows], len(self.sp))
        meshes, strategies = self._pipelines(columns)
        per_flag_set = float(strategies.sum()) / max(len(self.flag_sets), 1)
        dominated = per_flag_set * (self.flag_space - len(self.flag_sets))
        columns, weights, kept = self._keep_rows(dict(meshes.columns), strategies)
        savers = _savers(max((max(layout.layers) for layout in self.layouts), default=1), self)
        return Space(
            meshes=Meshes(columns, meshes.layout[kept], self.layouts),
            savers=savers,
            holders=self.holders,
            strategies=weights,
            considered=round(considered),
            refused=self.refused,
            dominated=round(dominated),
        )

    def _degrees(self) -> dict[str, Column]:
        """Every factorisation tp * cp * pp * dp of the GPUs, with expert degrees for a MoE model."""
        gpus, model = self.job.pool.gpus, self.job.model
        depth = len(layer_kinds(model))
        rows = [
            (tp, cp, pp, gpus // (tp * cp * pp))
            for tp in self.allowed("tp", divisors(gpus))
            for pp in self.allowed("pp", [n for n in divisors(gpus // tp) if n <= depth])
            for cp in self.allowed("cp", divisors(gpus // (tp * pp)))
        ]
        allowed_dp = set(self.allowed("dp", sorted({row[3] for row in rows})))
        table = np.array([row for row in rows if row[3] in allowed_dp], dtype=np.int64).reshape(-1, 4)
        columns = dict(zip(("tp", "cp", "pp", "dp"), table.T, strict=True))
        experts = model.moe.experts if model.moe else 1
        inside = [n for n in divisors(gpus) if n <= self.facts["scaleup_gpus"]] if model.moe else [1]
        ep = np.array(self.allowed("ep", divisors(experts)), dtype=np.int64)
        etp = np.array(self.allowed("etp", inside), dtype=np.int64)
        columns, _ = _cross(columns, {"ep": np.repeat(ep, len(etp)), "etp": np.tile(etp, len(ep))})
        return columns

    def _below(self, pp: int) -> float:
        """Strategies for one factorisation and micro-batch size: over pipelines, flags, savers and holders."""
        if pp not in self.pipelines:
            self.pipelines[pp] = self._pipelines_of(pp)
        return sum(savers for *_, savers in self.pipelines[pp]) * len(self.holders) * self.flag_space

    def _pipelines_of(self, pp: int) -> list[tuple[int, int, int, int]]:
        """Chunks, schedules and layer splits of a pipeline depth."""
        model = self.job.model
        depth = len(layer_kinds(model))
        per_stage = -(-depth // pp)
        chunks = sorted({-(-per_stage // size) for size in range(1, per_stage + 1)})
        found = []
        for vp in self.allowed("vp", [n for n in chunks if n == 1 or pp * n <= depth]):
            for schedule in self.allowed("schedule", SCHEDULES):
                if (schedule == "interleaved") != (vp > 1):
                    continue
                for layers in _splits(model, self.job.workload.seq, pp, vp):
                    layout = Layout(pp, vp, layers)
                    if layout not in self.layouts:
                        self.layouts.append(layout)
                    savers = self._count_savers(max(layers))
                    found.append((vp, code("schedule", schedule), self.layouts.index(layout), savers))
        return found

    def _methods(self) -> list[tuple[int, int]]:
        """Recompute kinds with their methods, as codes."""
        kinds = [code("recompute", kind) for kind in self.allowed("recompute", CHOICES["recompute"])]
        methods = [code("method", method) for method in self.allowed("method", CHOICES["method"])]
        found = [(kind, 0) for kind in kinds if kind != _FULL]
        return found + [(_FULL, method) for method in methods if _FULL in kinds]

    def _count_savers(self, chunk_layers: int) -> int:
        return sum(len(self.saver_layers(kind, method, chunk_layers)) for kind, method in self.methods)

    def saver_layers(self, kind: int, method: int, chunk_layers: int) -> list[int]:
        """Numbers of layers a saver may have: block any, uniform divisors of the chunk or less than it, otherwise one."""
        del method
        if kind != _FULL:
            return [1]
        return self.allowed("recompute_layers", range(1, max(chunk_layers, 1) + 1))

    def _holders(self) -> Holders:
        zero = self.allowed("zero", self.job.runtime.zero_stages)
        offload = [code("offload", name) for name in self.allowed("offload", CHOICES["offload"])]
        pairs = [(z, o) for z in zero for o in offload if z >= 1 or o == 0]
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return Holders(table[:, 0], table[:, 1])

    def _flag_space(self) -> int:
        """How many settings of the overlap switches and flash attention the restrictions leave."""
        count = 1
        for name in FLAGS:
            count *= len(self.allowed(name, (False, True)))
        return count

    def _flag_sets(self, user_rules: Sequence[Rule]) -> list[tuple[bool, ...]]:
        """Switch settings to cost: everything on, unless a user's rule speaks of a switch; then all of them."""
        choices = [self.allowed(name, (False, True)) for name in FLAGS]
        spoken = {name for rule in user_rules for name in rule.needs}
        sets: list[tuple[bool, ...]] = [()]
        for name, options in zip(FLAGS, choices, strict=True):
            kept = options if name in spoken else options[-1:]
            sets = [(*chosen, bool(option)) for chosen in sets for option in kept]
        return sets

    def _pipelines(self, columns: dict[str, Column]) -> tuple[Meshes, Floats]:
        """Cross with sequence parallelism, chunks, schedules, splits and the switches."""
        choices = {pp: self.pipelines[int(pp)] for pp in np.unique(columns["pp"]).tolist()}
        sizes = np.array([len(choices[int(pp)]) for pp in columns["pp"]], dtype=np.int64)
        rows = np.repeat(np.arange(len(sizes)), sizes)
        wide = {name: column[rows] for name, column in columns.items()}
        flat = [choice for pp in columns["pp"].tolist() for choice in choices[pp]]
        table = np.array(flat, dtype=np.int64).reshape(-1, 4)
        wide |= {"vp": table[:, 0], "schedule": table[:, 1].astype(np.int16), "_layout": table[:, 2], "_n": table[:, 3]}
        wide, _ = _cross(wide, {"sp": np.array(self.sp, dtype=bool)})
        flags = np.array(self.flag_sets, dtype=bool).reshape(-1, len(FLAGS))
        wide, _ = _cross(wide, {name: flags[:, place] for place, name in enumerate(FLAGS)})
        interleaved = wide["schedule"] == code("schedule", "interleaved")
        wide["overlap_tp"] = wide["overlap_tp"] & wide["sp"]
        wide["overlap_p2p"] = wide["overlap_p2p"] & interleaved
        wide["overlap_param"] = wide["overlap_param"] & wide["overlap_grad"]
        layout, savers = wide.pop("_layout"), wide.pop("_n")
        return Meshes(wide, layout, self.layouts), savers * float(len(self.holders))

    def _keep(self, columns: dict[str, Column], below: Floats, times: int) -> tuple[dict[str, Column], Floats]:
        kept_columns, weights, _ = self._keep_rows(columns, below * times)
        return kept_columns, weights / times

    def _keep_rows(self, columns: dict[str, Column], weights: Floats) -> tuple[dict[str, Column], Floats, Bools]:
        """Rows no rule refuses; the ledger counts the strategies of those refused."""
        verdict = check(columns, self.facts, self.rules, weights=weights)
        for name, count in verdict.ledger.items():
            self.refused[name] = self.refused.get(name, 0) + round(count)
        return {name: column[verdict.ok] for name, column in columns.items()}, weights[verdict.ok], verdict.ok


def _splits(model: Any, seq: int, pp: int, vp: int) -> list[tuple[int, ...]]:
    """Even stages where layers divide, and the balanced split where that differs."""
    depth = len(layer_kinds(model))
    balanced = split.split(depth, pp * vp, head_layers(model, seq))
    equal = split.even(depth, pp * vp)
    return list(dict.fromkeys(layers for layers in (equal, balanced) if layers is not None))


@lru_cache(maxsize=64)
def head_layers(model: Any, seq: int) -> float:
    """The head's forward work in units of an average layer."""
    depth = len(layer_kinds(model))
    head = (
        2.0 * weights_of.head_weights(model).sharded if not model.tied_embeddings else 2.0 * model.vocab * model.hidden
    )
    layers = (weights_of.forward_flops_per_token(model, seq) - head) / depth
    return max(head / layers, 0.0) if layers > 0 else 0.0


def _cross(columns: dict[str, Column], more: dict[str, Column]) -> tuple[dict[str, Column], Ints]:
    """Every row with every entry of ``more``; also the row each result came from."""
    rows = len(next(iter(columns.values())))
    width = len(next(iter(more.values())))
    index = np.repeat(np.arange(rows), width)
    wide = {name: column[index] for name, column in columns.items()}
    wide |= {name: np.tile(column, rows) for name, column in more.items()}
    return wide, index


def _savers(deepest: int, enumeration: _Enumeration) -> Savers:
    """All recompute choices for chunks of up to ``deepest`` layers."""
    rows = [
        (kind, method, layers)
        for kind, method in enumeration.methods
        for layers in enumeration.saver_layers(kind, method, deepest)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return Savers(table[:, 0], table[:, 1], table[:, 2])
