"""The best pipeline over pools of unequal GPUs: which pools, in which order, how many stages and layers each. Exact.

Minimises ``sum_weight * sum + max_weight * max`` over the stages' times, the closed form of 1F1B with unequal stages
(weights 1 and m-1). For a given bottleneck T a stage holds at most so many layers that neither its time passes T nor
its memory the limit at its position; the least sum under T is then a shortest path over (pools used, stages so far,
layers so far), built from the end of the pipeline because a stage's micro-batches in flight depend on how many stages
follow it. T has finitely many values of interest; the least sum falls as T grows, which bounds whole ranges of them.

Letters: L layers, j layers placed so far (counted from the model's end), f place of a stage counted from the end.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from astra.partition import unordered
from astra.partition.paths import Paths
from astra.partition.problem import SLACK, Effort, Pipeline, Problem
from astra.partition.rooms import Rooms
from astra.provenance import Floats

_MANY_POOLS: Final = 4  # from here on the problem without order is tried first


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
    search = _LeastSums(problem, effort)
    rooms = search.rooms
    longest_s = rooms.bottlenecks(below)
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
            if rooms.relaxed(float(longest_s[high])) >= budget or rooms.least(float(longest_s[high])) >= budget:
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


class _LeastSums:
    """The least sums of one problem, by bottleneck."""

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.rooms = Rooms(problem, effort)

    @cached_property
    def hops(self) -> list[Floats]:
        """The shortest transfer between each pool's choices and any other pool."""
        return unordered.shortest_hops(self.problem)

    def under(self, bottleneck: float, budget: float, *, exact: bool) -> tuple[float, Pipeline | None]:
        """The least sum under a bottleneck, infinite if not under the budget, with its pipeline.

        With many pools the problem without order comes first; unless ``exact``, its sum is the answer.
        """
        if exact and (len(self.rooms.filled) < _MANY_POOLS or not self.rooms.uniform):
            found = self.least_sum(bottleneck, budget)
            return (np.inf, None) if found is None else (sum(found.stage_s), found)
        self.effort.spend(unordered.units(self.problem))
        answer = unordered.least_sum(self.problem, self.hops, bottleneck, budget)
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
        return Paths(self.rooms, bottleneck * SLACK, budget).shortest()
