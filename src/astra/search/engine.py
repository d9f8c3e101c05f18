"""The exhaustive search: enumerate, refuse, bound, cost, rank, refine.

Best first, and exact by the simulated step, which is the one reported. Four lower bounds of it, each tighter and dearer
than the one before, decide what is looked at: of a grid (compute spread evenly over the stages, no bubble), of a mesh
(its slowest stage and the way there and back), of a mesh with a ZeRO stage and offload that leave it room (no
recompute), and of the strategy itself. A strategy is passed over only if a bound is already above the plans kept, or
its mesh cannot fit with every recompute at once, or one of the same mesh that fits repeats less. The rest is simulated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from astra.columns import cross, distinct, joined, take
from astra.cost import memory, step
from astra.cost.pipeline import mesh_bound_s, work_bound_s
from astra.cost.recompute import UNSAVED, Recomputes
from astra.cost.stage import Gathered, Meshes, StageCosts, join_meshes, stage_costs
from astra.cost.state import Bytes
from astra.cost.step import Evaluated, States, evaluate, needed_bound_s
from astra.evidence.bars import Doubt
from astra.evidence.kinds import asked_of_degrees
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.bounds import Grids, grid_bound_s, layers_may_fit
from astra.search.settle import (
    FIRST_GRIDS,
    GROUP,
    MOST_GRIDS,
    Contest,
    Pending,
    blocks,
    by_depth,
    entries_of,
    group_of,
    growing,
    join_parts,
    may_be_least,
    to_strategy,
)
from astra.search.space import Space, recompute_columns, spoken_of
from astra.spec.job import Job
from astra.spec.strategy import Strategy

FIRST_PENDING: Final = 512  # meshes put aside before the recomputes are tried on them; more once something fits
MOST_PENDING: Final = 8192

Progress = Callable[[float], None]


class Candidate(NamedTuple):
    """The best variant of one group, by the simulated step times its doubt."""

    strategy: Strategy
    step_s: float


class SearchOutcome(NamedTuple):
    """What a search found, best first, and an account of every strategy considered."""

    candidates: list[Candidate]
    considered: int
    evaluated: int
    feasible: int
    seconds: float
    refused: dict[str, int]
    dominated: int
    too_large: int  # do not fit
    slower: int  # proven slower than the plans kept
    least_bytes: float  # the smallest reserved memory among legal strategies, for advice when nothing fits
    least: Strategy | None
    grids: Grids  # that were looked at
    doubt: Doubt | None  # that steps were multiplied by


def search(
    job: Job, restrictions: Restrictions, *, user_rules: Sequence[Rule] = (), keep: int,
    progress: Progress | None = None, doubt: Doubt | None = None, advise: bool = True,
) -> SearchOutcome:  # fmt: skip
    """The best ``keep`` groups of strategies.

    ``doubt``: the best have the least step times doubt. ``advise``: where nothing fits, the smallest is sought.
    """
    return among(Grids(job, restrictions, user_rules), keep=keep, progress=progress, doubt=doubt, advise=advise)


def among(
    grids: Grids, *, keep: int, progress: Progress | None = None, doubt: Doubt | None = None, below_s: float = np.inf,
    within: float = np.inf, advise: bool = False, quicker: Grids | None = None,
) -> SearchOutcome:  # fmt: skip
    """The same below some step and ``within`` so many times the best, among grids that may have been looked at.

    ``quicker``: grids that were looked at, on each of which a step takes no longer than on the same one of these.
    """
    started, space, job = time.perf_counter(), grids.space, grids.job
    leaders = Leaders(job, space, keep, doubt=doubt, below_s=below_s, within=within, advise=advise)
    if not (space.empty or advise or below_s < np.inf) and grids.none_fits():
        leaders.unfit = float(space.strategies.sum())
    elif not space.empty:
        if quicker is None:
            rows, bound_s, gathered = grids.usual
            leaders.race(rows, leaders.least_doubt(rows) * bound_s, gathered, progress)
        limit_s = leaders.worst_s() / leaders.least_doubt_of_all()
        rest, bound_s = grids.rest(limit_s) if quicker is None else grids.open_in(quicker, limit_s)
        groups = group_of({name: space.grids[name][rest] for name in GROUP})
        rows = rest[leaders.least_doubt(rest) * bound_s < leaders.limit_s(groups)]
        if len(rows):
            gathered = grids.parts_of(rest)  # of all, for the next search
            bound_s = grid_bound_s(job, space, gathered, rows)
            leaders.race(rows, leaders.least_doubt(rows) * bound_s, gathered, progress)
    return leaders.found(grids, time.perf_counter() - started)


class Leaders:
    """The best plans so far and the ledger."""

    def __init__(
        self, job: Job, space: Space, keep: int, *, doubt: Doubt | None = None, below_s: float = np.inf,
        within: float = np.inf, advise: bool = False,
    ) -> None:  # fmt: skip
        self.job, self.space, self.keep = job, space, keep
        self._doubt, self._below_s, self._within, self._advise = doubt, below_s, within, advise
        self._aside = below_s < np.inf  # beside another search, which has told the account and the advice
        self.contest = Contest(job, self.limit_s, at_once=keep)
        self.best = self.contest.best
        self.quickest = space.recomputes.take(slice(0, 1))  # no recompute, unless that is restricted
        self.grids = self.evaluated = self.feasible = 0
        self.too_large = self.unfit = 0.0  # strategies that do not fit; those of meshes that cannot
        self.least: tuple[float, Strategy | None] = (np.inf, None)
        self._pending: list[Pending] = []

    def worst_s(self) -> float:
        """The step time a plan must beat to enter the leaders."""
        steps_s = sorted(entry[0] for entry in self.best.values())
        return min([self._below_s, *(self._within * best_s for best_s in steps_s[:1]), *steps_s[self.keep - 1 :][:1]])

    def doubts(self, meshes: Meshes) -> Floats:
        """What a step is multiplied by before it is ranked, [mesh, sharding]."""
        shardings = self.space.shardings
        if self._doubt is None:
            return np.ones((len(meshes), len(shardings)))
        return self._doubt.of_each(meshes.with_unequal, shardings.zero, shardings.offload)

    def least_doubt(self, rows: Ints) -> Floats:
        """The least factor of any strategy of some grids."""
        if self._doubt is None:
            return np.ones(len(rows))
        kind, least = self._least_doubts
        place = np.searchsorted(self.space.mbs, self.space.grids["mbs"][rows])
        return np.asarray(least[kind[self.space.degree[rows]], place])

    def least_doubt_of_all(self) -> float:
        """The least factor of any strategy."""
        return 1.0 if self._doubt is None else float(self._least_doubts[1].min(initial=np.inf))

    @cached_property
    def _least_doubts(self) -> tuple[Ints, Floats]:
        """The kind of all degrees, and the least factor of each kind and micro-batch."""
        assert self._doubt is not None
        degrees, shardings = self.space.degrees, self.space.shardings
        # What is known of like runs asks about these alone, and there are few combinations of them.
        first, kind = distinct(*asked_of_degrees(self.job, degrees))
        few, _ = cross({name: column[first] for name, column in degrees.items()}, {"mbs": self.space.mbs})
        least = self._doubt.least(few, shardings.zero, shardings.offload)
        return kind, least.reshape(len(first), -1)

    def _doubted(self, strategy: Strategy) -> float:
        return 1.0 if self._doubt is None else self._doubt.of_strategy(strategy)

    def limit_s(self, groups: Ints) -> Floats:
        """The step time a strategy of each group must beat."""
        return np.minimum(self.contest.reached_s(groups), self.worst_s())

    def race(self, rows: Ints, bound_s: Floats, gathered: Gathered, progress: Progress | None) -> None:
        """Cost grids by their bounds until none is left that could enter the leaders."""
        if self._aside:  # nobody asks what the others would need
            hopeful = bound_s < self.worst_s()
            rows, bound_s = rows[hopeful], bound_s[hopeful]
        if not self._advise:
            fits = layers_may_fit(self.job, self.space, gathered, rows)
            self.unfit += float(self.space.strategies[rows[~fits]].sum())
            rows, bound_s = rows[fits], bound_s[fits]
        order = np.argsort(bound_s, kind="stable")
        groups = group_of({name: self.space.grids[name][rows] for name in GROUP})
        for block in growing(order, MOST_GRIDS if np.isfinite(self.worst_s()) else FIRST_GRIDS):
            if bound_s[block[0]] >= self.worst_s():
                break
            if len(open_rows := rows[block[bound_s[block] < self.limit_s(groups[block])]]):
                self.cost(open_rows, gathered)
            if progress is not None:
                progress(self.grids / len(self.space.strategies))
        self.finish()
        self.contest.decide()

    def cost(self, grids: Ints, gathered: Gathered) -> None:
        """Expand grids to meshes and cost those that may enter the leaders, best first."""
        self.grids += len(grids)
        meshes, strategies, origin = self.space.expand(grids)
        if not len(meshes):
            return
        off = meshes.columns["flash"] != self.space.flash_settings[0]
        parts = gathered.take(origin + off * len(self.space.strategies))
        if self._aside:  # most of them are too slow, whatever they hold
            bound_s = self._bound_s(meshes, work_bound_s(self.job, meshes, parts))
            if not len(rows := np.flatnonzero(bound_s < self.limit_s(group_of(meshes.columns)))):
                return
            meshes, strategies, parts = meshes.take(rows), strategies[rows], parts.take(rows)
        costs = stage_costs(self.job, meshes, parts)
        fits = self.least_reserved(meshes, costs) <= self.job.limit_bytes
        if self._advise and not self.best and not fits.any():
            self._note_smallest(meshes, strategies, costs, parts)
            return
        self._turn_away(meshes.take(np.flatnonzero(~fits)), strategies[~fits] / len(self.space.shardings))
        bound_s = self._bound_s(meshes, mesh_bound_s(meshes, costs))
        rows = np.flatnonzero(fits & (bound_s < self.limit_s(group_of(meshes.columns))))
        rows = rows[np.argsort(bound_s[rows], kind="stable")]
        held_s = np.full((len(meshes), len(self.space.shardings)), np.inf)
        fitted = np.zeros(held_s.shape, bool)
        several = blocks(rows, len(self.space.shardings) * costs.forward_s.shape[1])
        for block in several:
            held_s[block], fitted[block], states = self._offer(block, meshes, costs, parts, self.quickest, first=True)
            if self.quickest.recompute[0]:  # no recompute bounds every recompute, also where it is not allowed itself
                part = meshes.take(block), take(costs, block)
                unsaved = evaluate(self.job, *part, UNSAVED, self.space.shardings)
                held_s[block] = unsaved.bound_s.min(axis=1) * self.doubts(part[0])
                fitted[block] = False
        # Whoever fits without recompute has nothing to gain from it.
        open_s = np.where(fitted, np.inf, held_s)
        limit_s = self.limit_s(group_of(meshes.columns))
        promising = np.flatnonzero(open_s.min(axis=1)[rows] < limit_s[rows])
        if not len(rows := rows[promising]):
            return
        bound_s = open_s[rows].min(axis=1)
        if self.best or self._aside:  # as long as nothing fits, advice needs the smallest strategy of all
            part = meshes.take(rows), take(costs, rows)
            if len(several) > 1:
                states, promising = step.states(self.job, *part, self.space.shardings), np.arange(len(rows))
            states = step.states_at(states, promising)
            room = memory.fits(self.job, self.least_allowed(*part, states[0]))
            needed_s = needed_bound_s(self.job, *part, self.space.recomputes, states)
            bound_s = np.where(room, np.maximum(open_s[rows], needed_s), np.inf).min(axis=1)
            lost = bound_s >= limit_s[rows]
            recomputes = strategies[rows[lost]] / len(self.space.shardings)
            self._turn_away(part[0].take(np.flatnonzero(lost)), recomputes - 1, room[lost])
            rows, bound_s = rows[~lost], bound_s[~lost]
        self._pending.append(Pending(meshes.take(rows), take(costs, rows), parts.take(rows), bound_s))
        if sum(len(pending.bound_s) for pending in self._pending) > (MOST_PENDING if self.best else FIRST_PENDING):
            self.finish()

    def _bound_s(self, meshes: Meshes, pipeline_s: Floats) -> Floats:
        """[mesh] what no step times its doubt is below, whatever is recomputed and sharded."""
        return np.asarray(step.least_seconds(self.job, pipeline_s) * self.doubts(meshes).min(axis=1))

    def finish(self) -> None:
        """Try every recompute on the meshes put aside, best first."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        meshes = join_meshes([some.meshes for some in pending])
        costs = joined([some.costs for some in pending])
        bound_s = np.concatenate([some.bound_s for some in pending])
        parts = join_parts([some.parts for some in pending])
        groups, order = group_of(meshes.columns), np.argsort(bound_s, kind="stable")
        for some in growing(order):
            self._try_recomputes(some[bound_s[some] < self.limit_s(groups[some])], meshes, costs, parts)

    def _try_recomputes(self, rows: Ints, meshes: Meshes, costs: StageCosts, parts: Gathered) -> None:
        """Offer some meshes with every recompute."""
        for block, recomputes in by_depth(rows, costs, self.space.recomputes, len(self.space.shardings)):
            self._offer(block, meshes, costs, parts, recomputes, first=False)

    def _note_smallest(self, meshes: Meshes, strategies: Floats, costs: StageCosts, parts: Gathered) -> None:
        """Of meshes that cannot fit, cost those that may be the smallest seen: advice needs it if nothing fits."""
        static = memory.states(self.job, costs, self.space.shardings)
        reserved = memory.reserved_bytes(self.job, self.least_allowed(meshes, costs, static).min(axis=1))
        for some in growing(np.argsort(reserved, kind="stable"), 1):
            if len(small := some[reserved[some] < self.least[0]]):
                self._offer(small, meshes, costs, parts, self.quickest, first=True)
                self._try_recomputes(small, meshes, costs, parts)
            large = np.setdiff1d(some, small)
            self._turn_away(meshes.take(large), strategies[large] / len(self.space.shardings))

    def least_allowed(self, meshes: Meshes, costs: StageCosts, static: Bytes) -> Floats:
        """[mesh, sharding] bytes that no recompute brings the worst rank below; infinite where rules refuse the two."""
        least = memory.least_peak(static, costs, meshes.columns["vp"], offload=self.space.offloads)
        return np.where(self.space.allowed_pairs(meshes.columns), least, np.inf)

    def least_reserved(self, meshes: Meshes, costs: StageCosts) -> Floats:
        """[mesh] bytes that no recompute and sharding brings what is reserved below."""
        vp, shardings = meshes.columns["vp"], self.space.shardings
        least = memory.least_peak_of_any(self.job, costs, vp, shardings, offload=self.space.offloads)
        if self.space.pair_rules:
            fitting = np.flatnonzero(memory.fits(self.job, least))
            for rows in blocks(fitting, len(shardings) * costs.forward_s.shape[1]):
                some, few = take(costs, rows), meshes.take(rows)
                least[rows] = self.least_allowed(few, some, memory.states(self.job, some, shardings)).min(axis=1)
        return memory.reserved_bytes(self.job, least)

    def _turn_away(self, meshes: Meshes, each: Floats, room: Bools | None = None) -> None:
        """Account for meshes in shardings that leave no ``room``: so many strategies of ``each`` pair."""
        if self._aside or not len(meshes):
            return
        weights = (np.ones((1, len(self.space.shardings)), bool) if room is None else ~room) * each[:, None]
        refused = self.space.check_pairs(meshes.columns, weights.ravel()).ledger
        for name, count in refused.items():
            self.space.refused[name] = self.space.refused.get(name, 0) + count
        self.unfit += float(weights.sum()) - sum(refused.values())

    def _offer(
        self, rows: Ints, meshes: Meshes, costs: StageCosts, parts: Gathered, recomputes: Recomputes, *, first: bool
    ) -> tuple[Floats, Bools, States]:
        """Cost some meshes with some recomputes and every sharding, and enter what fits into the contest.

        The lowest bound of each mesh by sharding, whether one that the rules allow fits, and what its states take.
        """
        meshes, costs, parts = meshes.take(rows), take(costs, rows), parts.take(rows)
        shardings, doubts = self.space.shardings, self.doubts(meshes)
        states = step.states(self.job, meshes, costs, shardings)
        peak_bytes, known = step.peaks(self.job, meshes, costs, recomputes, states[0])
        if self.space.late_rules:
            known = self._without_refused(meshes, known, recomputes, first=first)
        reserved = memory.reserved_bytes(self.job, peak_bytes)
        fits = known & (reserved <= self.job.limit_bytes)
        new = slice(0 if first else 1, None)  # the quickest recompute comes first and is counted once
        self.evaluated += int(known[:, new].sum())
        self.feasible += int(fits[:, new].sum())
        self.too_large += float((known & ~fits)[:, new].sum())
        if not fits.any():
            self._note_least(meshes, known, reserved, recomputes)
        least = np.arange(len(recomputes)) if first else may_be_least(recomputes, fits)
        recomputes, fits = recomputes.take(least), fits[:, least]
        bound_s, exchanged_s, after_s = step.bounds_s(self.job, meshes, costs, recomputes, states)
        bound_s = bound_s * doubts[:, None, :]
        if fits.any():
            result = Evaluated(bound_s, exchanged_s, after_s, peak_bytes[:, least], known[:, least])
            waits = (1 + self.job.straggling) * doubts
            groups = group_of(meshes.columns)
            entries = entries_of(
                result, fits, meshes, costs.p2p_s, parts, recomputes, shardings, groups, waits, first=first
            )
            self.contest.enter(entries, parts)
        # Also of what rules refuse here, which may be legal with another recompute.
        return bound_s.min(axis=1, initial=np.inf), np.asarray(fits.any(axis=1)), states

    def _without_refused(self, meshes: Meshes, known: Bools, recomputes: Recomputes, *, first: bool) -> Bools:
        """Apply the rules that speak of recompute, ZeRO or offload."""
        spoken = spoken_of(self.space.late_rules) | {"pp"}
        late = {name: column for name, column in recompute_columns(self.job, recomputes).items() if name in spoken}
        new = known.copy()
        if not first:
            new[:, :1] = False
        if not late:  # whatever is recomputed, the verdict is the same
            new = new.sum(axis=1, keepdims=True)
        shape = new.shape
        tables = (meshes.columns, (-1, 1, 1)), (late, (1, -1, 1)), (self.space.shardings._asdict(), (1, 1, -1))
        columns = {
            name: np.broadcast_to(column.reshape(along), shape).ravel()
            for table, along in tables
            for name, column in table.items()
            if name in spoken
        }
        verdict = self.space.verdict(columns, self.space.late_rules, new.ravel().astype(np.float64))
        return np.asarray(known & verdict.ok.reshape(shape))

    def _note_least(self, meshes: Meshes, known: Bools, reserved: Floats, recomputes: Recomputes) -> None:
        """Remember the smallest strategy seen, in case nothing fits."""
        smallest = np.where(known, reserved, np.inf)
        place = np.unravel_index(int(smallest.argmin()), smallest.shape)
        if float(smallest[place]) < self.least[0]:
            mesh, recompute, sharding = (int(x) for x in place)
            strategy = to_strategy(self.job, meshes, recomputes, self.space.shardings, mesh, recompute, sharding)
            self.least = (float(smallest[place]), strategy)

    def found(self, grids: Grids, seconds: float) -> SearchOutcome:
        """The leaders as strategies, and the account."""
        space = self.space
        ranked = sorted(self.best.values(), key=lambda entry: (entry[0], str(entry[1])))[: self.keep]
        away = sum(space.refused.values()) + space.dominated + round(self.too_large + self.unfit)
        return SearchOutcome(
            candidates=[Candidate(strategy, upper_s / self._doubted(strategy)) for upper_s, strategy in ranked],
            considered=space.considered,
            evaluated=self.evaluated,
            feasible=self.feasible,
            seconds=seconds,
            refused=dict(space.refused),
            dominated=space.dominated,
            too_large=round(self.too_large + self.unfit),
            slower=max(space.considered - away - self.feasible, 0),
            least_bytes=self.least[0],
            least=self.least[1],
            grids=grids,
            doubt=self._doubt,
        )
