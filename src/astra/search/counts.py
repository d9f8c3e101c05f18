"""The best strategy of every number of nodes of one kind, found together.

What a plan costs depends on the number of GPUs only through its degrees, so one table holds the grids of every count
and one pass costs them. As in ``engine`` it is best first and exact: a grid or mesh is left uncosted only if a lower
bound of its step time is at or above the limit of its count, which is the best step found for that count or the
longest step that could still matter to the caller, whichever is shorter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from copy import copy
from typing import Final, NamedTuple

import numpy as np

from astra.columns import Column, Columns, cross, distinct, joined, take
from astra.cost import memory, step
from astra.cost.pipeline import work_bound_s
from astra.cost.recompute import UNSAVED, Recomputes
from astra.cost.stage import (
    SHARD_COLUMNS,
    Gathered,
    Meshes,
    StageCosts,
    gather_parts,
    join_meshes,
    least_s,
    over_model,
    stage_costs,
)
from astra.cost.step import States, evaluate, needed_bound_s
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.bounds import grids_may_fit, may_fit
from astra.search.degrees import degrees, expert_degrees
from astra.search.doubts import Doubts
from astra.search.engine import Leaders
from astra.search.least import least_passes, waits_on
from astra.search.settle import FIRST_GRIDS, blocks, by_depth, entries_of, growing, join_parts
from astra.search.space import Space, facts_in
from astra.search.words import settled
from astra.spec.job import Job
from astra.spec.strategy import Strategy

AT_ONCE: Final = 16  # strategies of a block that are simulated before all are costed
MOST_PENDING: Final = 4096  # meshes put aside before the recomputes are tried on them
PROVEN: Final = 2048  # grids costed together where other offers set the limits
MESHES, STRATEGIES = 6.0, 85.0  # costed in a unit of effort
GRIDS: Final = 100.0  # whose room is looked at in a unit of effort
_LOOSE: Final = 1 - 1e-9
SHARDINGS: Final = 15.0  # whose parts are timed in a unit of effort
OF_THE_GPU: Final = frozenset(("memory_gib", "blackwell"))  # facts no built-in rule reads

Hopeful = Callable[[Columns], Bools]  # degrees, with or without those of experts and micro-batches -> may they matter
WithExperts = Callable[[dict[str, Column], dict[str, Column]], tuple[dict[str, Column], Ints]]  # as ``cross``
Limits = Callable[[Floats], Floats]  # best step so far of each count -> the longest step of interest


class BestByCount(NamedTuple):
    """What was found for each count; infinite where nothing fits or nothing could matter."""

    counts: Ints
    step_s: Floats  # by which it was ranked: the upper end of its interval, or the expected one
    strategies: list[Strategy | None]
    evaluated: int  # strategies costed in full
    open_s: Floats  # the least bound of what the effort did not reach; infinite where nothing was left


class CountSpace(Space):
    """The legal grids of every count at once; ``counts`` ascend."""

    def __init__(
        self, job: Job, counts: Ints, restrictions: Restrictions | None = None, hopeful: Hopeful | None = None,
        with_experts: WithExperts = cross,
    ) -> None:  # fmt: skip
        self.counts, self._hopeful, self._with_experts, self._unopened = counts, hopeful, with_experts, 0.0
        self._known_below: dict[int, float] = {}
        super().__init__(job, restrictions or Restrictions())
        self.considered += round(self._unopened * len(self.mbs) * len(self._sp))
        flash = self.flash_settings[0] if len(self.flash_settings) else True
        columns = self.grids | {"flash": np.full(len(self.strategies), flash)}
        first, self.shard = distinct(*(columns[name] for name in SHARD_COLUMNS))  # the sharding of each grid
        self.shards = {name: columns[name][first] for name in SHARD_COLUMNS}
        self.place = np.searchsorted(counts, self.gpus())  # of each grid's count
        self.microbatches: Ints = job.workload.global_batch // (columns["dp"] * columns["mbs"])

    def _degrees(self) -> dict[str, Column]:
        """Every tp * cp * pp * dp that is one of the counts and deals the batch; expert degrees for a MoE model."""
        self.rules = tuple(rule for rule in self.rules if rule.name != "gpus")  # the table has many numbers of GPUs
        columns = degrees(self.job, self.counts, self.restrictions)
        experts = expert_degrees(self.job, self.restrictions)
        if self._hopeful is None:
            return cross(columns, experts)[0]
        kept = np.flatnonzero(self._hopeful(columns))
        opened, rows = self._with_experts({name: column[kept] for name, column in columns.items()}, experts)
        good = self._hopeful(opened)
        # Strategies of the others are counted all the same.
        depths, place = np.unique(columns["pp"], return_inverse=True)
        left = len(experts["ep"]) * np.bincount(place) - np.bincount(place[kept][rows[good]], minlength=len(depths))
        self._unopened = sum(self._below(pp) * many for pp, many in zip(depths.tolist(), left.tolist(), strict=True))
        return {name: column[good] for name, column in opened.items()}

    def _with(
        self, columns: dict[str, Column], below: Floats, more: dict[str, Column], *, times: int
    ) -> tuple[dict[str, Column], Floats, Ints]:
        """Of whole grids, those that are worth a look."""
        columns, below, rows = super()._with(columns, below, more, times=times)
        if self._hopeful is None or "mbs" not in more:
            return columns, below, rows
        kept = self._hopeful(columns)
        return {name: column[kept] for name, column in columns.items()}, below[kept], rows[kept]

    def _below(self, pp: int) -> float:
        """As for one count, worked out once for each depth."""
        if pp not in self._known_below:
            self._known_below[pp] = super()._below(pp)
        return self._known_below[pp]

    def gpus(self) -> Ints:
        """GPUs of each grid."""
        return np.asarray(self.grids["tp"] * self.grids["cp"] * self.grids["pp"] * self.grids["dp"])

    def of(self, job: Job, counts: Ints) -> CountSpace | None:
        """The same grids for another job, or None if it has others."""
        job = settled(job, self.restrictions)
        facts = facts_in(job)
        same = all(facts[name] == value for name, value in self.facts.items() if name not in OF_THE_GPU)
        if not same or not np.array_equal(counts, self.counts):
            return None
        other = copy(self)
        other.job, other.facts, other.refused = job, facts, dict(self.refused)
        return other


class CountTable(NamedTuple):
    """Cores of one job that may fit, their parts, and a lower bound of the step time of each."""

    space: CountSpace
    grids: Ints  # rows of the space, ascending
    place: Ints  # where each grid's count is in the space's
    gathered: Gathered
    bound_s: Floats
    waits: Floats  # by count: time with waiting for the slowest node, over time without


def tabulate(job: Job, space: CountSpace, effort: Effort | None = None) -> CountTable:
    """Cost the parts of a job once for all counts."""
    fits = may_fit(job, space.shards)
    grids = np.flatnonzero(fits[space.shard])
    gathered = gather_parts(job, {name: column[fits] for name, column in space.shards.items()})
    (effort or Effort()).spend(fits.sum() / SHARDINGS)
    # Where each sharding went: gather_parts keeps the distinct ones in an order of its own.
    moved = np.full(len(fits), -1)
    moved[fits] = gathered.place
    gathered = gathered._replace(place=moved[space.shard[grids]])
    place = space.place[grids]
    waits = waits_on(job, space.counts)
    bound_s = step.least_seconds(job, grid_bound_s(job, space, grids, gathered), waits[place])
    return CountTable(space, grids, place, gathered, bound_s, waits)


def grid_bound_s(job: Job, space: CountSpace, grids: Ints, gathered: Gathered) -> Floats:
    """No pipeline of a grid is faster: some rank holds an even share, ceil(L/p) layers, and as many of each kind."""
    order, pp = layer_kinds(job.model), space.grids["pp"][grids]
    whole = over_model(job, gathered, least_s)
    layers = {kind: least_s(gathered.parts[kind])[gathered.place] for kind in kinds(job.model)}
    slowest = np.maximum(whole / pp, np.ceil(len(order) / pp) * np.min([*layers.values()], axis=0))
    for kind, layer in layers.items():
        slowest = np.maximum(slowest, np.ceil(order.count(kind) / pp) * layer)
    m = space.microbatches[grids]
    return np.asarray(np.maximum(m * slowest, whole * least_passes(job, m, pp)))


def compute_bound_s(job: Job, table: CountTable) -> Floats:
    """A lower bound without communication, which holds for the GPU in any node type."""
    space, grids = table.space, table.grids
    whole = over_model(job, table.gathered, lambda part: part.forward.compute_s + part.backward.compute_s)
    passes = least_passes(job, space.microbatches[grids], space.grids["pp"][grids])
    return step.least_seconds(job, passes * whole, 1.0)


def least_by_count(table: CountTable, bound_s: Floats) -> Floats:
    """The lowest bound of each count; infinite where no grid may fit."""
    least = np.full(len(table.space.counts), np.inf)
    np.minimum.at(least, table.place, bound_s)
    return least


def search_counts(job: Job, table: CountTable, limits: Limits) -> BestByCount:
    """The best strategy of each count among those faster than its limit."""
    return CountSearch(job, table, limits, Effort()).go_on()


def are_plain(columns: Columns) -> Bools:
    """Whether neither contexts nor single experts are split."""
    return np.asarray((columns["cp"] == 1) & (columns.get("etp", 1) == 1))


def best_on(
    job: Job, space: CountSpace, effort: Effort, *, upper: bool, found: bool = False, below: float = np.inf
) -> BestByCount:
    """The best strategy in a space with a step below some, as ``CountSearch.go_on`` finds it."""
    table = tabulate(job, space, effort)
    search = CountSearch(job, table, lambda best_s: np.full(len(best_s), below), effort, upper=upper)
    return search.go_on(found=found)


def _ranks(place: Ints) -> Ints:
    """The rank of each row among those of its place."""
    order = np.argsort(place, kind="stable")
    ranks = np.empty(len(place), np.int64)
    ranks[order] = np.arange(len(place)) - np.searchsorted(place[order], place[order])
    return ranks


class _Waiting(NamedTuple):
    """Meshes that could be better with recompute."""

    meshes: Meshes
    costs: StageCosts
    parts: Gathered
    bound_s: Floats
    place: Ints


class CountSearch(Leaders):
    """The best plan of each count so far, and what is still to be looked at.

    With ``upper`` all steps, bounds and limits are those of the upper ends of the steps' intervals. Where choices that
    set the limits are ``known`` already, most grids only have to be proven slower. Where something good will do,
    ``most`` are the grids of each count to look at.
    """

    def __init__(
        self, job: Job, table: CountTable, limits: Limits, effort: Effort, *, upper: bool = False, known: bool = False,
        most: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(job, table.space, keep=AT_ONCE)
        self.table, self._limits, self._effort = table, limits, effort
        self._waiting: list[_Waiting] = []
        self._doubts = Doubts(job, table.space.counts, upper=upper)
        self._least_s = table.bound_s.copy()
        rows = np.flatnonzero((self._least_s < self.limit_s(table.place)) & (not table.space.empty))
        self._least_s[rows] *= self._doubts.least(table.space, table.grids[rows], table.place[rows])
        rows = rows[self._least_s[rows] < self.limit_s(table.place[rows])]
        gpu_seconds = self._least_s[rows] * table.space.counts[table.place[rows]]
        rows = rows[np.argsort(gpu_seconds, kind="stable")]
        if most is not None:
            rows = rows[_ranks(table.place[rows]) < most]
        self._todo = deque(growing(rows, PROVEN if known else FIRST_GRIDS))

    def go_on(self, *, found: bool = False) -> BestByCount:
        """As far as the effort goes, though to a strategy that fits unless one was ``found`` elsewhere."""
        self._found = found
        while self._todo and not self._stops:
            self.cost_grids(self._todo.popleft())
        self.finish()
        self.contest.decide()
        counts = self.table.space.counts
        strategies = [self.best[place][1] if place in self.best else None for place in range(len(counts))]
        return BestByCount(counts, self.best_s, strategies, self.evaluated, self._open_s())

    @property
    def _stops(self) -> bool:
        return self._effort.over and (self._found or bool(self.best))

    def _open_s(self) -> Floats:
        """By count, the least bound of what is still to be looked at."""
        open_s = np.full(len(self.table.space.counts), np.inf)
        rows = np.concatenate([np.zeros(0, np.int64), *self._todo])
        left = [(self._least_s[rows], self.table.place[rows]), *((w.bound_s, w.place) for w in self._waiting)]
        for bound_s, place in left:
            kept = bound_s < self.limit_s(place)
            np.minimum.at(open_s, place[kept], bound_s[kept])
        return open_s

    @property
    def best_s(self) -> Floats:
        """The best step of each count; infinite where nothing was found."""
        best_s = np.full(len(self.table.space.counts), np.inf)
        best_s[list(self.best)] = [step_s for step_s, _ in self.best.values()]
        return best_s

    def limit_s(self, place: Ints) -> Floats:
        """The step a plan must beat, by the place of its count."""
        best_s = self.best_s
        limit: Floats = np.minimum(best_s, self._limits(best_s))[place]
        return limit

    def cost_grids(self, rows: Ints) -> None:
        """Expand the grids that may matter to meshes and cost those that may, best first."""
        table = self.table
        rows = rows[self._least_s[rows] < self.limit_s(table.place[rows])]
        self._effort.spend(len(rows) / GRIDS)
        rows = rows[grids_may_fit(self.job, table.space, table.grids[rows])]
        meshes, _, grid = table.space.expand(table.grids[rows]) if len(rows) else (None, None, None)
        if meshes is None or grid is None or not len(meshes):
            return
        self._effort.spend(len(meshes) / MESHES)
        at = np.searchsorted(table.grids, grid)
        place, parts = table.place[at], table.gathered.take(at)
        bound_s = step.least_seconds(self.job, work_bound_s(self.job, meshes, parts), table.waits[place])
        rows = np.flatnonzero(bound_s * (self._least_s[at] / table.bound_s[at]) * _LOOSE < self.limit_s(place))
        some = meshes.take(rows)
        doubts = self._doubts.of_each(some.with_unequal, self.space.shardings, place[rows])
        bound_s = bound_s[rows] * doubts.min(axis=1)
        near = np.flatnonzero(bound_s < self.limit_s(place[rows]))
        if not len(near):  # most of them are too slow, whatever they hold
            return
        rows, doubts, bound_s = rows[near], doubts[near], bound_s[near]
        meshes, parts, place = meshes.take(rows), parts.take(rows), place[rows]
        costs = stage_costs(self.job, meshes, parts)
        least_s = np.full((len(meshes), len(self.space.shardings)), np.inf)
        possible = np.flatnonzero(self.least_reserved(meshes, costs) <= self.job.limit_bytes)
        possible = possible[np.argsort(bound_s[possible] * table.space.counts[place[possible]], kind="stable")]
        for block in blocks(possible, len(self.space.shardings) * costs.forward_s.shape[1]):
            some = block[bound_s[block] < self.limit_s(place[block])]
            if not len(some):
                continue
            left, waits = (meshes.take(some), take(costs, some)), table.waits[place[some]]
            held = step.states(self.job, *left, self.space.shardings)
            room = memory.fits(self.job, self.least_allowed(*left, held[0]))
            needed_s = needed_bound_s(self.job, *left, self.space.recomputes, held, waits) * doubts[some]
            needed_s[~room] = np.inf
            kept = np.flatnonzero(needed_s.min(axis=1) < self.limit_s(place[some]))
            rows = some[kept]
            if len(rows):
                part = meshes.take(rows), take(costs, rows), parts.take(rows), place[rows]
                open_s = self._attempt(*part, self.quickest, step.states_at(held, kept), first=True)
                least_s[rows] = np.maximum(open_s, needed_s[kept])
        bound_s = least_s.min(axis=1)
        again = possible[bound_s[possible] < self.limit_s(place[possible])]
        if not len(again):
            return
        waiting = _Waiting(meshes.take(again), take(costs, again), parts.take(again), bound_s[again], place[again])
        self._waiting.append(waiting)
        if not self.best or sum(len(waiting.bound_s) for waiting in self._waiting) > MOST_PENDING:
            self.finish()  # at once where nothing is known yet: what is found makes the rest short

    def finish(self) -> None:
        """Try every recompute on the meshes put aside, best first."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        meshes, parts = join_meshes([w.meshes for w in waiting]), join_parts([w.parts for w in waiting])
        costs = joined([w.costs for w in waiting])
        bound_s, place = (np.concatenate([getattr(w, name) for w in waiting]) for name in ("bound_s", "place"))
        order = np.argsort(bound_s * self.table.space.counts[place], kind="stable")
        for some in growing(order):
            promising = some[bound_s[some] < self.limit_s(place[some])]
            if self._stops:
                left = meshes.take(promising), take(costs, promising), parts.take(promising)
                self._waiting.append(_Waiting(*left, bound_s[promising], place[promising]))
                continue
            for block, recomputes in by_depth(promising, costs, self.space.recomputes, len(self.space.shardings)):
                rows = block[bound_s[block] < self.limit_s(place[block])]
                if len(rows):
                    part = meshes.take(rows), take(costs, rows), parts.take(rows), place[rows]
                    self._attempt(*part, recomputes, first=False)

    def _attempt(
        self, meshes: Meshes, costs: StageCosts, parts: Gathered, place: Ints, recomputes: Recomputes,
        held: States | None = None, *, first: bool,
    ) -> Floats:  # fmt: skip
        """Cost meshes with some recomputes and every sharding, and enter what fits into the contest.

        The lowest bound of each mesh by sharding; infinite where it fits without recompute and has nothing to gain.
        """
        shardings = self.space.shardings
        waits = self.table.waits[place]  # the job is that of the largest count
        doubts = self._doubts.of_each(meshes.with_unequal, shardings, place)
        result = evaluate(self.job, meshes, costs, recomputes, shardings, waits, held)
        result = result._replace(bound_s=result.bound_s * doubts[:, None, :])
        if self.space.late_rules:
            known = self._without_refused(meshes, result.known, recomputes, first=True)
            result = result._replace(known=known)
        fits = result.known & memory.fits(self.job, result.peak_bytes)
        self.evaluated += int(result.known.sum())
        self._effort.spend(result.known.sum() / STRATEGIES)
        if fits.any():
            each = waits[:, None] * doubts
            entries = entries_of(
                result, fits, meshes, costs.p2p_s, parts, recomputes, shardings, place, each, first=first
            )
            self.contest.enter(entries, parts)
        if recomputes.recompute[0]:  # no recompute bounds every recompute, also where it is not allowed itself
            unsaved = evaluate(self.job, meshes, costs, UNSAVED, shardings, waits, held)
            return np.asarray(unsaved.bound_s.min(axis=1)) * doubts
        return np.where(fits.any(axis=1), np.inf, result.bound_s.min(axis=1))
