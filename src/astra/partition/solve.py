"""The best pipeline over pools of unequal GPUs: which pools, in which order, how many stages and layers each. Exact.

Minimises ``sum_weight * sum + max_weight * max`` over the stages' times, the closed form of 1F1B with unequal stages
(weights 1 and m-1). For a given bottleneck T a stage holds at most so many layers that neither its time passes T nor
its memory the limit at its position; the least sum under T is then a shortest path over (pools used, stages so far,
layers so far), built from the end of the pipeline because a stage's micro-batches in flight depend on how many stages
follow it. T has finitely many values of interest; the least sum falls as T grows, which bounds whole ranges of them.

Letters: L layers, j layers placed so far (counted from the model's end), f place of a stage counted from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.partition.paths import Paths
from astra.partition.problem import (
    SLACK,
    Effort,
    Ends,
    Pipeline,
    Problem,
    StageChoice,
    StageRun,
    end_times,
    ends_of_model,
    least_sum_of,
    lightest,
    memory_caps,
    packed,
    stage_times,
    value,
)
from astra.provenance import Bools, Floats, Ints

_MANY_POOLS: Final = 4  # from here on the problem without order is tried first
_ROUNDS: Final = 5  # of a search for the least bottleneck, each on a grid
_GRID: Final = np.arange(1, 33) / 32
_BOUND: Final = 4.0  # effort to bound one bottleneck


class Bounded(NamedTuple):
    """A lower bound of the value, and a pipeline that may be better than it needs to be."""

    least: float
    pipeline: Pipeline | None


def solve(problem: Problem, *, below: float = np.inf, effort: Effort | None = None) -> Pipeline | None:
    """The best pipeline with a value under ``below``, or None.

    Ranges of bottlenecks are tried from the shortest up. In a range no sum is less than the least sum under its
    longest bottleneck and no bottleneck shorter than its shortest: where these two together do not beat the best so
    far, the range is done; otherwise it is halved. When the effort is spent it is the best pipeline met.
    """
    return _ranges(problem, below, effort or Effort(), exact=True).pipeline


def bound(problem: Problem, *, below: float = np.inf, effort: Effort | None = None) -> Bounded:
    """``solve`` without the order of pools: a bound of its value close to it, and a pipeline in some order if any.

    The bound is ``below`` where nothing can beat it, and nothing when the effort is spent. Layers must be alike.
    """
    return _ranges(problem, below, effort or Effort(), exact=False)


class _Bottlenecks(NamedTuple):
    """Neighbouring bottlenecks, and what is known of the least sum under any of them."""

    low: int
    high: int
    least_s: float = 0.0
    tried: bool = False  # under the longest of them


def _ranges(problem: Problem, below: float, effort: Effort, *, exact: bool) -> Bounded:
    search = _ShortestPaths(problem, effort)
    longest_s = search.bottlenecks(below)
    best: Pipeline | None = None
    limit = least = below
    ranges: list[_Bottlenecks] = []
    start, size = 0, 1
    while start < len(longest_s):
        ranges.append(_Bottlenecks(start, min(start + size, len(longest_s)) - 1))
        start, size = start + size, 2 * size
    ranges.reverse()
    while ranges and not effort.over:
        low, high, known, tried = ranges.pop()
        shortest, beaten = problem.max_weight * longest_s[low], limit if exact else least
        if problem.sum_weight * known + shortest >= beaten:
            continue
        if not tried:
            budget = (beaten - shortest) / problem.sum_weight
            if search.relaxed(float(longest_s[high])) >= budget or search.least(float(longest_s[high])) >= budget:
                continue
            sum_s, found = search.under(float(longest_s[high]), budget, exact=exact)
            if not np.isfinite(sum_s):
                continue
            known, tried = sum_s / SLACK, True
            if found is not None and found.value_s < limit:
                best, limit = found, found.value_s
                least = min(least, limit)
            if exact and found is not None:  # down to its own longest stage no bottleneck has a less sum
                own = int(np.searchsorted(longest_s, max(found.stage_s) / SLACK**3))
                high, tried = min(high, own) - 1, False
        if low == high and tried:
            least = min(least, problem.sum_weight * known + problem.max_weight * float(longest_s[low]))
        elif low == high:
            ranges.append(_Bottlenecks(low, high, known))
        elif low < high:
            middle = (low + high) // 2
            ranges += [_Bottlenecks(middle + 1, high, known, tried), _Bottlenecks(low, middle, known)]
    return Bounded(0.0 if effort.over else least, best)


def _distinct(values: Floats) -> Floats:
    """Sorted, and of those that differ by rounding alone the largest."""
    ordered = np.unique(values)
    last: Floats = ordered[np.append(np.diff(ordered) > (SLACK - 1) * ordered[1:], True)] if len(ordered) else ordered
    return last


def _most_layers(table: Floats, ends_below: float) -> int:
    """The most layers of any stage whose end is short enough."""
    short = (table < ends_below).any(axis=0)
    if short.ndim == 1:
        return int(np.flatnonzero(short).max(initial=0))
    front, back = np.nonzero(short)
    return int((front - back).max(initial=0))


class _ShortestPaths:
    """The shortest paths of one problem."""

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.every = [choice for pool in problem.pools for choice in pool]
        self.depth = len(self.every[0].time_s) - 1
        steps = [np.diff(choice.time_s) for choice in self.every]
        self.uniform = all(np.ptp(step) <= 1e-12 * step.max() for step in steps)
        self._rooms: dict[tuple[int, int, int, bool, bool], Ints] = {}
        self._cheapest = [
            min(float(np.diff(choice.time_s).min()) for choice in pool) if pool else np.inf for pool in problem.pools
        ]
        self._replaced: dict[tuple[int, int, int], bool] = {}
        self._hops: list[Floats] = []
        self._all = np.arange(self.depth + 1)
        self._around_s = ends_of_model(problem)
        self._set_caps()

    def _set_caps(self) -> None:
        """The most layers of every choice at each place from the end, by memory alone, and its cheapest layer."""
        self._caps = memory_caps(self.problem)
        self._layer_s = np.array([np.diff(choice.time_s).min() for choice in self.every])
        if self.problem.ends_below < np.inf:
            tables = [table for pool in self.problem.ends for table in pool]
            most = [_most_layers(table, self.problem.ends_below) for table in tables]
            self._caps = np.minimum(self._caps, np.array(most, np.float64)[:, None])
        self._windows = np.stack([lightest(choice.time_s) for choice in self.every])
        self._layer_min = [
            np.min([np.diff(choice.time_s) for choice in pool], axis=0) if pool else np.full(self.depth, np.inf)
            for pool in self.problem.pools
        ]
        sizes = [len(pool) for pool in self.problem.pools]
        self._filled = [place for place, size in enumerate(sizes) if size]
        self._starts = np.cumsum([0, *(size for size in sizes if size)])[:-1]

    def _room(self, pool: int, number: int, place: int, first: bool, last: bool) -> Ints:
        """The most layers placed after a stage that starts with j layers placed, by memory."""
        key = (pool, number, place, first, last)
        if key not in self._rooms:
            choice = self.problem.pools[pool][number]
            held = choice.stay_bytes + choice.kept_bytes * self.problem.in_flight[place]
            room = choice.limit_bytes - choice.fixed_bytes - first * choice.first_bytes - last * choice.last_bytes
            top = np.searchsorted(held, held + max(room, 0.0) * SLACK, side="right") - 1
            self._rooms[key] = top if room >= 0 else np.full(self.depth + 1, -1)
        return self._rooms[key]

    def bottlenecks(self, below: float) -> Floats:
        """Values the longest stage can take that may beat ``below``, ascending."""
        problem = self.problem
        high = max(float(c.time_s[-1]) + c.first_s + c.last_s for c in self.every) + self._longest_sends()
        most = high
        if problem.max_weight > 0 and np.isfinite(below):
            least = self.depth * min(self._cheapest) + self._around_s
            most = (below - problem.sum_weight * least) / problem.max_weight
        low, high = 0.0, min(high, most)
        if high <= 0 or not self._enough(np.array([high]))[0]:
            return np.zeros(0)
        if not problem.max_weight:  # only the sum counts, and none is less than that under the longest bottleneck
            return np.array([high])
        for _ in range(_ROUNDS):
            tried = low + (high - low) * _GRID
            first = int(np.argmax(self._enough(tried)))  # the last is high itself
            low, high = (float(tried[first - 1]) if first else low), float(tried[first])
        found = [self._values(i, a, low, most) for i, pool in enumerate(problem.pools) for a in range(len(pool))]
        return _distinct(np.concatenate(found))

    def relaxed(self, bottleneck: float) -> float:
        """The least sum under a bottleneck if pools held layers at their cheapest, up to their capacity."""
        held = self._capacities(np.array([bottleneck]))[:, 0]
        left, total = float(self.depth), self._around_s
        for pool in sorted(self._filled, key=lambda i: self._cheapest[i]):
            taken = min(float(held[pool]), left)
            total += taken * self._cheapest[pool]
            left -= taken
        if not self.uniform:
            total = max(total, float(self.least_left(self._filled)[0]) + self._around_s)
        return np.inf if left > 0 or not self._enough(np.array([bottleneck]))[0] else total / SLACK

    def least(self, bottleneck: float) -> float:
        """A closer bound of the sum under one bottleneck: each pool has one choice, and holds what that can."""
        self.effort.spend(_BOUND)
        by_time = self._by_time(np.array([bottleneck]))
        held = np.minimum(self._caps, by_time).sum(axis=1)
        return (self._around_s + least_sum_of(self._windows, held, self._starts)) / SLACK

    def _longest_sends(self) -> float:
        hops = [float(hop.max()) for hop in self.problem.hop_s.values() if hop.size]
        return 2 * max([choice.send_s for choice in self.every] + hops)

    def _values(self, pool: int, number: int, low: float, high: float) -> Floats:
        """Times a stage of one choice can take within the range."""
        choice = self.problem.pools[pool][number]
        hops = {
            float(h)
            for (i, k), hop in self.problem.hop_s.items()
            for h in (hop[number] if i == pool else hop[:, number] if k == pool else ())
        }
        sides = sorted({choice.send_s, *hops})
        before, after = [choice.first_s, *sides], [choice.last_s, *sides]
        fixed = np.unique([b + a for b, a in product(before, after)])
        if self.uniform:
            layers = choice.time_s[1:]
        else:
            layers = _distinct((choice.time_s[:, None] - choice.time_s)[np.tri(self.depth + 1, k=-1, dtype=bool)])
        values = (layers[:, None] + fixed).ravel()
        within: Floats = values[(values >= low / SLACK**2) & (values <= high * SLACK)]
        return within

    def _by_time(self, bottlenecks: Floats) -> Floats:
        """[choice, bottleneck] the most layers whose time is within it."""
        if self.uniform:
            return np.asarray(np.floor(bottlenecks / self._layer_s[:, None] * SLACK**2))
        rows = [np.searchsorted(row, bottlenecks * SLACK**2, side="right") - 1 for row in self._windows]
        return np.stack(rows).astype(np.float64)

    def least_left(self, free: Sequence[int]) -> Floats:
        """[j] the least the layers not yet placed can cost on some pools, whatever their capacity."""
        each = np.min([self._layer_min[pool] for pool in free], axis=0)
        return np.append(np.cumsum(each[::-1])[::-1], 0.0)

    def _capacities(self, bottlenecks: Floats) -> Floats:
        """[pool, bottleneck] the most layers each could hold, with no transfers and at the end of the pipeline."""
        held = np.minimum(self._caps[:, :, None], self._by_time(bottlenecks)[:, None, :]).sum(axis=1)
        out = np.zeros((len(self.problem.pools), len(bottlenecks)))
        out[self._filled] = np.minimum(np.maximum.reduceat(held, self._starts), self.depth)
        return out

    def by_stages(self, bottlenecks: Floats) -> Floats:
        """[pool, stages, bottleneck] the same with at most so many stages."""
        held = np.minimum(self._caps[:, :, None], self._by_time(bottlenecks)[:, None, :]).cumsum(axis=1)
        out = np.zeros((len(self.problem.pools), held.shape[1] + 1, len(bottlenecks)))
        out[self._filled, 1:] = np.minimum(np.maximum.reduceat(held, self._starts, axis=0), self.depth)
        return out

    def _enough(self, bottlenecks: Floats) -> Bools:
        """Whether the layers may find a place, in the number of stages asked for."""
        if self.problem.stages is None:
            return np.asarray(self._capacities(bottlenecks).sum(axis=0) >= self.depth)
        return np.asarray(packed(self.by_stages(bottlenecks), self.problem.stages)[-1] >= self.depth)

    def roomy(self, pool: int, number: int, bottleneck: float) -> bool:
        """Whether memory never stops a stage before the bottleneck does."""
        choice = self.problem.pools[pool][number]
        top = np.searchsorted(choice.time_s, choice.time_s + bottleneck, side="right") - 1
        held = choice.stay_bytes + choice.kept_bytes * self.problem.in_flight[1:].max()
        room = choice.limit_bytes - choice.fixed_bytes - choice.first_bytes - choice.last_bytes
        return bool((held[top] - held <= room).all())

    def replaces(self, pool: int, one: int, other: int) -> bool:
        """Whether a choice is at least as good as another in all but memory, and better in something."""
        if (pool, one, other) not in self._replaced:
            a, b = self.problem.pools[pool][one], self.problem.pools[pool][other]
            hops = [(hop[one], hop[other]) for (i, _), hop in self.problem.hop_s.items() if i == pool]
            hops += [(hop[:, one], hop[:, other]) for (_, k), hop in self.problem.hop_s.items() if k == pool]
            stages = a.stages == b.stages if self.problem.every else a.stages >= b.stages
            no_worse = a.first_s <= b.first_s and a.last_s <= b.last_s and a.send_s <= b.send_s
            no_worse = no_worse and bool((np.diff(a.time_s) <= np.diff(b.time_s)).all())
            better = a.time_s[-1] < b.time_s[-1]
            if self.problem.ends_below < np.inf:
                mine, theirs = self.problem.ends[pool][one], self.problem.ends[pool][other]
                better = better and bool((mine <= theirs).all())
            self._replaced[pool, one, other] = bool(
                stages and no_worse and better and all((mine <= theirs).all() for mine, theirs in hops)
            )
        return self._replaced[pool, one, other]

    def under(self, bottleneck: float, budget: float, *, exact: bool) -> tuple[float, Pipeline | None]:
        """The least sum under a bottleneck, infinite if not under the budget, with its pipeline.

        With many pools the problem without order comes first; unless ``exact``, its sum is the answer.
        """
        if exact and (len(self._filled) < _MANY_POOLS or not self.uniform):
            found = self.least_sum(bottleneck, budget)
            return (np.inf, None) if found is None else (sum(found.stage_s), found)
        from astra.partition import unordered  # noqa: PLC0415

        self.effort.spend(unordered.units(self.problem))
        self._hops = self._hops or unordered.shortest_hops(self.problem)
        answer = unordered.least_sum(self.problem, self._hops, bottleneck, budget)
        if answer is None:
            return np.inf, None
        found = unordered.arranged(self.problem, answer, bottleneck)
        if not exact:
            return answer.sum_s, found
        if found is not None and self.problem.ends_below == np.inf:
            attained = sum(found.stage_s) <= answer.sum_s * (1 + 1e-9)
            if attained and max(found.stage_s) <= bottleneck * SLACK**2:
                return sum(found.stage_s), found
        found = self.least_sum(bottleneck, budget)
        return (np.inf, None) if found is None else (sum(found.stage_s), found)

    def least_sum(self, bottleneck: float, budget: float) -> Pipeline | None:
        """The pipeline with the least sum and no stage above the bottleneck."""
        paths = Paths(self, bottleneck * SLACK, budget)
        return paths.shortest()


__all__ = [
    "Bounded",
    "Ends",
    "Pipeline",
    "Problem",
    "StageChoice",
    "StageRun",
    "bound",
    "end_times",
    "packed",
    "solve",
    "stage_times",
    "value",
]
