"""The search space: every way to factor the GPUs, with micro-batches, chunks, schedules and recompute and sharding.

Rows are made in widening steps (degrees; sequence parallelism; micro-batches; then chunks, schedules and switches) and
the rules that can be checked are checked at each step, so an illegal factorisation is refused once for all that would
follow from it. The ledger counts what would have followed: nothing disappears unseen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, Final

import numpy as np

from astra.columns import Column, Columns, code, cross, distinct
from astra.cost.gathered import Layout, Layouts, layout
from astra.cost.layers import modules_in
from astra.cost.memory import Sharding
from astra.cost.recompute import Recomputes, module_bits
from astra.cost.stage import Meshes
from astra.layers import split
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints
from astra.rules.can import able_rules, rules_of
from astra.rules.names import ALIASES, DERIVED, Names, facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule, Verdict, check
from astra.schedule.registry import find
from astra.search.words import module_choices, moment_choices, offload_choices, overlaps_experts, settled, word_facts
from astra.spec.job import Job
from astra.spec.strategy_fields import CHOICES, MODULES, OVERLAPS, SCHEDULES

FLAGS: Final = (*(f"overlap_{name}" for name in OVERLAPS), "flash")
RECOMPUTE: Final = (
    "recompute",
    "method",
    "recompute_layers",
    "offload_layers",
    *(f"recompute_{name}" for name in MODULES),
)
LATE: Final = frozenset((*RECOMPUTE, *Sharding._fields))
_NONE, _SELECTIVE, _FULL = (code("recompute", name) for name in ("none", "selective", "full"))


@lru_cache(maxsize=256)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return tuple(sorted({*small, *(number // n for n in small)}))


def chunk_counts(depth: int, pp: int) -> list[int]:
    """Chunks a stage may be cut into: one for each size of the largest chunk."""
    per_stage = -(-depth // pp)
    counts = sorted({-(-per_stage // size) for size in range(1, per_stage + 1)})
    return [n for n in counts if n == 1 or pp * n <= depth]


class Space:
    """The legal grids of a job, and the meshes that follow from each.

    A *grid* is a strategy's degrees, micro-batch and sequence parallelism; ``expand`` adds chunks, schedule, layer
    split and switches. ``strategies`` is how many strategies each grid stands for. ``refused`` and ``dominated`` count
    what was turned away so far; ``dominated`` are those with an overlap or flash attention switched off, which is
    never better than having it on.
    """

    def __init__(
        self, job: Job, restrictions: Restrictions, user_rules: Sequence[Rule] = (), like: Space | None = None
    ) -> None:
        """``like`` is a space of the same job but for its batch and number of GPUs: their pipelines are the same."""
        job = settled(job, restrictions)
        self.job, self.restrictions = job, restrictions
        self.rules: Sequence[Rule] = (*rules_of(job.runtime), *user_rules)  # those that no row has met yet
        self.facts: dict[str, Any] = facts_in(job)
        self.refused: dict[str, int] = {}
        self.dominated = 0
        self.layouts: Layouts = Layouts() if like is None else like.layouts
        self._layout_places: dict[Layout, int] = {} if like is None else dict(like._layout_places)
        # pp -> rows of (vp, schedule, layout, number of recomputes)
        self._pipelines: dict[int, Ints] = {} if like is None else dict(like._pipelines)
        self.mbs: Ints = np.array(self.allowed("mbs", divisors(job.workload.global_batch)), dtype=np.int64)
        self._sp = self.allowed("sp", (False, True))
        self._depth = len(layer_kinds(job.model))
        self._all_recomputes = self._every_recompute()
        self._flag_space = math.prod(len(self.allowed(name, options)) for name, options in self.switches().items())
        self._flag_sets = self._switch_settings(user_rules)
        self.shardings = self._make_shardings()
        self.late_rules = (*self._joint_rules(), *(rule for rule in user_rules if rule.needs & LATE))
        # Those that join a mesh to what its state is held with, whatever is recomputed.
        self.pair_rules = [rule for rule in self.late_rules if not rule.needs.intersection(RECOMPUTE)]
        self.degrees, self.degree, self.grids, self.strategies, self.considered = self._make_cores()
        self.recomputes = self._make_recomputes()
        self.offloads = bool(self.recomputes.offload_layers.any())

    @property
    def empty(self) -> bool:
        """Whether there is nothing to choose from."""
        return not min(len(self.strategies), len(self.shardings), len(self.recomputes), len(self.flash_settings))

    def check_pairs(self, meshes: Columns, weights: Floats | None = None) -> Verdict:
        """The rules that join the two, on every mesh and sharding."""
        spoken = spoken_of(self.pair_rules) | {"pp"}
        some = {name: column for name, column in meshes.items() if name in spoken}
        return check(cross(some, self.shardings._asdict())[0], self.facts, self.pair_rules, weights=weights)

    def allowed_pairs(self, meshes: Columns) -> Bools:
        """[mesh, sharding] whether rules allow the two, whatever is recomputed."""
        spoken = spoken_of(self.pair_rules) | {"pp"}
        first, place = distinct(*(column for name, column in meshes.items() if name in spoken))
        verdict = self.check_pairs({name: column[first] for name, column in meshes.items()})
        return np.asarray(verdict.ok.reshape(-1, len(self.shardings))[place])

    def allowed(self, field: str, candidates: Sequence[Any]) -> list[Any]:
        """Candidates the user's restrictions leave."""
        return list(self.restrictions.filter(field, list(candidates)))

    def switches(self) -> dict[str, tuple[bool, ...]]:
        """Settings of each switch that the runtime has."""
        can = self.job.runtime.can
        has: dict[str, tuple[bool, ...]] = {"flash": (False, True) if can.unfused else (True,)}
        overlapped = {f"overlap_{name}": (False, True) if name in can.overlap else (False,) for name in OVERLAPS}
        overlapped["overlap_ep"] = (False, True) if overlaps_experts(self.job) else (False,)
        return {name: (overlapped | has)[name] for name in FLAGS}

    def _joint_rules(self) -> list[Rule]:
        """Rules of the runtime that join what every mesh may be held with to the mesh itself, and that may break."""
        early = {*FLAGS, *self.facts}
        flags = np.array(self._flag_sets, dtype=bool).reshape(-1, len(FLAGS))
        columns: dict[str, Column] = {name: flags[:, place] for place, name in enumerate(FLAGS)}
        columns, _ = cross(columns, self.shardings._asdict())
        columns, _ = cross(columns, recompute_columns(self.job, self._all_recomputes))
        found = []
        for rule in able_rules(self.job.runtime):
            if not rule.needs & LATE or not rule.needs - LATE - {*self.facts}:
                continue  # decided by columns of a mesh alone, or by what holds its state alone
            if rule.needs <= early | LATE and check(columns, self.facts, [rule]).ok.all():
                continue
            if "moe" not in rule.needs or self.facts["moe"]:
                found.append(rule)
        return found

    def _make_cores(self) -> tuple[dict[str, Column], Ints, dict[str, Column], Floats, int]:
        """Degrees, then sequence parallelism, then micro-batches; rules refuse at each step.

        The grids, and before them their degrees with sequence parallelism and which of these each grid has.
        """
        columns = self._degrees()
        if self.job.model.moe is not None:
            sends = columns["ep"] > 1
            columns["dispatch"] = np.where(sends, code("dispatch", self.job.words.dispatch), 0).astype(np.int16)
            columns["dispatch_fp8"] = sends & self.job.words.dispatch_fp8
        depths, at = np.unique(columns["pp"], return_inverse=True)
        below = np.array([self._below(int(pp)) for pp in depths], dtype=np.float64)[at]
        considered = below.sum() * len(self.mbs) * len(self._sp)
        columns, below, _ = self._with(columns, below, {}, times=len(self.mbs) * len(self._sp))
        sp = np.array(self._sp, dtype=bool)
        degrees, below, _ = self._with(columns, below, {"sp": sp}, times=len(self.mbs))
        grids, below, degree = self._with(degrees, below, {"mbs": self.mbs}, times=1)
        return degrees, degree, grids, below, round(float(considered))

    def _degrees(self) -> dict[str, Column]:
        """Every factorisation tp * cp * pp * dp of the GPUs, with expert degrees for a MoE model."""
        gpus, model = self.job.pool.gpus, self.job.model
        depth = len(layer_kinds(model))
        depths = set(self.allowed("pp", [n for n in divisors(gpus) if n <= depth]))
        rows = [
            (tp, cp, pp, gpus // (tp * cp * pp))
            for tp in self.allowed("tp", divisors(gpus))
            for pp in divisors(gpus // tp)
            if pp in depths
            for cp in self.allowed("cp", divisors(gpus // (tp * pp)))
        ]
        allowed_dp = set(self.allowed("dp", sorted({row[3] for row in rows})))
        table = np.array([row for row in rows if row[3] in allowed_dp], dtype=np.int64).reshape(-1, 4)
        columns = dict(zip(("tp", "cp", "pp", "dp"), table.T, strict=True))
        if model.moe is None:
            one = {name: np.array(self.allowed(name, (1,)), dtype=np.int64) for name in ("ep", "etp")}
            return cross(cross(columns, {"ep": one["ep"]})[0], {"etp": one["etp"]})[0]
        ep = np.array(self.allowed("ep", expert_candidates(self.job, self.restrictions)), dtype=np.int64)
        etp = np.array(self.allowed("etp", divisors(gpus)), dtype=np.int64)
        return cross(columns, {"ep": np.repeat(ep, len(etp)), "etp": np.tile(etp, len(ep))})[0]

    def _below(self, pp: int) -> float:
        """Strategies that follow from one grid: over pipelines, switches, recomputes and shardings."""
        if pp not in self._pipelines:
            self._pipelines[pp] = self._pipelines_of(pp)
        return float(self._pipelines[pp][:, 3].sum()) * len(self.shardings) * self._flag_space

    def _pipelines_of(self, pp: int) -> Ints:
        """Chunks, schedules and layer splits of a pipeline depth."""
        model = self.job.model
        depth = len(layer_kinds(model))
        found = []
        for vp in self.allowed("vp", chunk_counts(depth, pp)):
            recomputes = np.count_nonzero(self._recomputes(-(-depth // (pp * vp)), -(-depth // pp)))
            known = [name for name in SCHEDULES if name in self.job.runtime.can.schedules]
            for schedule in self.allowed("schedule", known):
                if not find(schedule).takes(vp):
                    continue
                for layers in _splits(self.job, pp, vp):
                    place = self._layout_places.setdefault(layout(schedule, pp, vp, layers), len(self._layout_places))
                    found.append((vp, code("schedule", schedule), place, recomputes))
        self.layouts = Layouts(self._layout_places)
        return np.array(found, dtype=np.int64).reshape(-1, 4)

    def _recompute_methods(self) -> list[tuple[int, int, int]]:
        """Recompute kinds with their methods, as codes, and modules, as bits."""
        can = self.job.runtime.can
        has = [kind for kind in CHOICES["recompute"] if kind in can.recompute]
        kinds = [code("recompute", kind) for kind in self.allowed("recompute", has)]
        ways = [method for method in CHOICES["method"] if method in (can.methods or CHOICES["method"][:1])]
        methods = [code("method", method) for method in self.allowed("method", ways)]
        found = [(kind, 0, 0) for kind in kinds if kind == _NONE]
        found += [(kind, 0, bits) for kind in kinds if kind == _SELECTIVE for bits in self._module_sets()]
        return found + [(_FULL, method, 0) for method in methods if _FULL in kinds]

    def _module_sets(self) -> list[int]:
        """Sets of modules that selective recompute is tried with, as bits."""
        return [module_bits(self.job, names) for names in module_choices(self.job, self.restrictions)]

    def _every_recompute(self) -> Recomputes:
        """Legal ones, were the whole model one chunk of one stage; only full recompute has layers to choose."""
        most = self._depth if self.job.runtime.can.methods else 1
        some = self.allowed("recompute_layers", range(1, most + 1))
        rows = [
            (kind, method, n, bits, offloaded)
            for kind, method, bits in self._recompute_methods()
            for n in (some if kind == _FULL else [1])
            for offloaded in offload_choices(self.job, self.restrictions)
        ]
        found = Recomputes(*np.array(rows, dtype=np.int64).reshape(-1, len(Recomputes._fields)).T)
        return found.take(check(recompute_columns(self.job, found), self.facts).ok)

    def _recomputes(self, chunk_layers: int, stage_layers: int) -> Bools:
        """Which of them a chunk of a stage has layers for."""
        every = self._all_recomputes
        return np.asarray((every.layers <= max(chunk_layers, 1)) & (every.offload_layers <= stage_layers))

    def _make_shardings(self) -> Sharding:
        can = self.job.runtime.can
        zero = self.allowed("zero", can.zero)
        offload, moments, reshard = (
            [code(name, word) for word in self.allowed(name, [w for w in CHOICES[name] if w in known])]
            for name, known in (
                ("offload", can.offload),
                ("moments", moment_choices(self.job, self.restrictions)),
                ("reshard", can.reshard),
            )
        )
        rows = list(product(zero, offload, moments, reshard))
        table = np.array(rows, dtype=np.int64).reshape(-1, len(Sharding._fields))
        shardings = Sharding(*table.T)
        return Sharding(*table[check(shardings._asdict(), self.facts).ok].T)

    def _switch_settings(self, user_rules: Sequence[Rule]) -> list[tuple[bool, ...]]:
        """Switch settings to cost: everything on, unless a rule speaks of a switch or it hangs on ZeRO; then all."""
        choices = [self.allowed(name, options) for name, options in self.switches().items()]
        spoken = {name for rule in user_rules for name in rule.needs} | {"overlap_ep"}
        if {1, 2, 3} & {*self.job.runtime.can.zero} - {*self.job.runtime.can.prefetch}:
            spoken.add("overlap_param")
        sets: list[tuple[bool, ...]] = [()]
        for name, options in zip(FLAGS, choices, strict=True):
            kept = options if name in spoken else options[-1:]
            sets = [(*chosen, bool(option)) for chosen in sets for option in kept]
        return sets

    def _make_recomputes(self) -> Recomputes:
        """All recompute choices, for the deepest chunk there is."""
        depth = len(layer_kinds(self.job.model))
        chunk = max((-(-depth // (layout.pp * layout.vp)) for layout in self.layouts), default=1)
        stage = max((-(-depth // layout.pp) for layout in self.layouts), default=1)
        return self._all_recomputes.take(self._recomputes(chunk, stage))

    @property
    def flash_settings(self) -> Bools:
        """Whether flash attention is on, in the settings of the switches: on before off where there are both."""
        return np.array(sorted({flags[FLAGS.index("flash")] for flags in self._flag_sets}, reverse=True), dtype=bool)

    def expand(self, rows: Ints) -> tuple[Meshes, Floats, Ints]:
        """Meshes of some grids, how many strategies each stands for, and the grid of each."""
        choices = [self._pipelines[pp] for pp in self.grids["pp"][rows].tolist()]
        table = np.concatenate(choices)
        grid = np.repeat(rows, [len(choice) for choice in choices])
        wide = {name: column[grid] for name, column in self.grids.items()}
        wide |= {"vp": table[:, 0], "schedule": table[:, 1].astype(np.int16)}
        flags = np.array(self._flag_sets, dtype=bool).reshape(-1, len(FLAGS))
        wide, origin = cross(wide, {name: flags[:, place] for place, name in enumerate(FLAGS)})
        wide["overlap_tp"] = wide["overlap_tp"] & wide["sp"] & (wide["tp"] <= self.facts["scaleup_gpus"])
        wide["overlap_p2p"] = wide["overlap_p2p"] & (wide["vp"] > 1)
        wide["overlap_param"] = wide["overlap_param"] & wide["overlap_grad"]
        strategies = np.asarray(table[:, 3][origin] * float(len(self.shardings)), dtype=np.float64)
        self.dominated += round(float(strategies.sum()) / max(len(flags), 1) * (self._flag_space - len(flags)))
        layouts = table[origin, 2]
        if wide["overlap_ep"].any():
            once = self._overlap_experts(wide)
            self.dominated += round(float(strategies[~once].sum()))
            wide, strategies = {name: column[once] for name, column in wide.items()}, strategies[once]
            origin, layouts = origin[once], layouts[once]
        kept = self.verdict(wide, self.rules, strategies).ok
        meshes = Meshes({name: column[kept] for name, column in wide.items()}, layouts[kept], self.layouts)
        return meshes, strategies[kept], grid[origin][kept]

    def _overlap_experts(self, wide: dict[str, Column]) -> Bools:
        """Switch the overlap of expert exchanges off where there is none; which rows are then not there twice.

        Where it is fixed, rows that cannot have it are left to the rules, which refuse them.
        """
        if len({flags[FLAGS.index("overlap_ep")] for flags in self._flag_sets}) == 1:
            return np.ones(len(wide["ep"]), bool)
        several = self.job.workload.global_batch > wide["dp"] * wide["mbs"]
        possible = (wide["ep"] > 1) & several & ((wide["pp"] == 1) | (wide["vp"] > 1))
        twice = wide["overlap_ep"] & ~possible
        wide["overlap_ep"] = wide["overlap_ep"] & possible
        return np.asarray(~twice)

    def _with(
        self, columns: dict[str, Column], below: Floats, more: dict[str, Column], *, times: int
    ) -> tuple[dict[str, Column], Floats, Ints]:
        """Every row with every entry of ``more`` that no rule refuses, and the row each came from."""
        known = Names({**columns, **more}, self.facts).known
        met = [rule for rule in self.rules if rule.needs <= known]
        self.rules = [rule for rule in self.rules if not rule.needs <= known]
        spoken = spoken_of(met)
        read, rows = cross({name: column for name, column in columns.items() if name in spoken} or columns, more)
        ok = np.flatnonzero(self.verdict(read, met, below.take(rows) * times).ok)  # rows are taken sooner than masked
        kept = rows.take(ok)
        wide = {name: column.take(kept) for name, column in columns.items()}
        return wide | {name: read[name].take(ok) for name in more}, below.take(kept), kept

    def verdict(self, columns: Columns, rules: Sequence[Rule], weights: Floats) -> Verdict:
        """Rows no rule refuses; the ledger counts the strategies of those refused."""
        verdict = check(columns, self.facts, rules, weights=weights)
        for name, count in verdict.ledger.items():
            self.refused[name] = self.refused.get(name, 0) + round(count)
        return verdict


def last_layers(job: Job) -> float:
    """What follows the last layer, in units of an average layer: the head, and layers of multi-token prediction."""
    head = split.head_layers(job.model, job.workload.span)
    return head + job.workload.mtp * (1 + head)


def _splits(job: Job, pp: int, vp: int) -> list[tuple[int, ...]]:
    """Even stages where layers divide, balanced ones where they differ, also by what each kind of layer has to do.

    The rules refuse what is left.
    """
    model, stages = job.model, pp * vp
    depth = len(layer_kinds(model))
    equal = split.even(depth, stages)
    if equal is not None and not job.runtime.can.uneven:
        return [equal]
    found = [equal, split.split(depth, stages, last_layers(job))]
    work, front, _ = split.layer_work(model, job.workload.span)
    if 1 < stages <= depth and (front > 0 or max(work) > split.EVEN_WORK * min(work)):
        found.append(split.weighted(work, stages, front, last_layers(job)))
    return list(dict.fromkeys(layers for layers in found if layers is not None))


def expert_candidates(job: Job, restrictions: Restrictions) -> list[int]:
    """Expert-parallel degrees; a dispatcher that must send once has nothing to do with one of them."""
    assert job.model.moe is not None
    sends = not restrictions.allows("dispatch", "alltoall")
    return [ep for ep in divisors(job.model.moe.experts) if ep > 1 or not sends]


def spoken_of(rules: Iterable[Rule]) -> set[str]:
    """The names that rules speak of, and those that these are worked out from."""
    spoken = set[str]().union(*(rule.needs for rule in rules))
    spoken.update(ALIASES[name] for name in spoken & ALIASES.keys())
    return spoken.union(*(DERIVED[name].inputs for name in spoken & DERIVED.keys()))


def facts_in(job: Job) -> dict[str, Any]:
    """What rules read of a job besides the columns of its strategies."""
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    return facts | word_facts(job)


def recompute_columns(job: Job, recomputes: Recomputes) -> dict[str, Column]:
    """Recomputes under the names that rules use."""
    found: dict[str, Column] = {"recompute": recomputes.recompute, "method": recomputes.method}
    found["recompute_layers"] = recomputes.layers
    found["offload_layers"] = recomputes.offload_layers
    for place, name in enumerate(modules_in(job)):
        found[f"recompute_{name}"] = (recomputes.modules >> place & 1) > 0
    absent = [name for name in MODULES if f"recompute_{name}" not in found]
    return found | {f"recompute_{name}": np.zeros(len(recomputes), bool) for name in absent}
