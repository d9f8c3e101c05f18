"""What stages have room for, by memory and under a bottleneck, and the least that it takes: see ``partition.solve``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Final

import numpy as np

from astra.partition.problem import (
    SLACK,
    Effort,
    Problem,
    ends_of_model,
    least_sum_of,
    lightest,
    memory_caps,
    narrowed,
    packed,
)
from astra.provenance import Bools, Floats, Ints

_ROUNDS: Final = 5  # of a search for the least bottleneck, each on a grid
_BOUND: Final = 4.0  # effort to bound one bottleneck


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


class Rooms:
    """The layers that pools have room for, by choice and place, and the least these take."""

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self.problem, self.effort = problem, effort
        self.every = [choice for pool in problem.pools for choice in pool]
        self.depth = len(self.every[0].time_s) - 1
        steps = [np.diff(choice.time_s) for choice in self.every]
        self.uniform = all(np.ptp(step) <= 1e-12 * step.max() for step in steps)
        self._rooms: dict[tuple[int, int, int, bool, bool], Ints] = {}
        self.cheapest = [
            min(float(np.diff(choice.time_s).min()) for choice in pool) if pool else np.inf for pool in problem.pools
        ]
        self._replaced: dict[tuple[int, int, int], bool] = {}
        self.all_layers = np.arange(self.depth + 1)
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
        self.filled = [place for place, size in enumerate(sizes) if size]
        self._starts = np.cumsum([0, *(size for size in sizes if size)])[:-1]

    def room(self, pool: int, number: int, place: int, first: bool, last: bool) -> Ints:
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
            least = self.depth * min(self.cheapest) + self._around_s
            most = (below - problem.sum_weight * least) / problem.max_weight
        low, high = 0.0, min(high, most)
        if high <= 0 or not self._enough(np.array([high]))[0]:
            return np.zeros(0)
        if not problem.max_weight:  # only the sum counts, and none is less than that under the longest bottleneck
            return np.array([high])
        low, _ = narrowed(self._enough, low, high, _ROUNDS)
        found = [self._values(i, a, low, most) for i, pool in enumerate(problem.pools) for a in range(len(pool))]
        return _distinct(np.concatenate(found))

    def relaxed(self, bottleneck: float) -> float:
        """The least sum under a bottleneck if pools held layers at their cheapest, up to their capacity."""
        held = self.capacities(np.array([bottleneck]))[:, 0]
        left, total = float(self.depth), self._around_s
        for pool in sorted(self.filled, key=lambda i: self.cheapest[i]):
            taken = min(float(held[pool]), left)
            total += taken * self.cheapest[pool]
            left -= taken
        if not self.uniform:
            total = max(total, float(self.least_left(self.filled)[0]) + self._around_s)
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

    def capacities(self, bottlenecks: Floats) -> Floats:
        """[pool, bottleneck] the most layers each could hold, with no transfers and at the end of the pipeline."""
        held = np.minimum(self._caps[:, :, None], self._by_time(bottlenecks)[:, None, :]).sum(axis=1)
        out = np.zeros((len(self.problem.pools), len(bottlenecks)))
        out[self.filled] = np.minimum(np.maximum.reduceat(held, self._starts), self.depth)
        return out

    def by_stages(self, bottlenecks: Floats) -> Floats:
        """[pool, stages, bottleneck] the same with at most so many stages."""
        held = np.minimum(self._caps[:, :, None], self._by_time(bottlenecks)[:, None, :]).cumsum(axis=1)
        out = np.zeros((len(self.problem.pools), held.shape[1] + 1, len(bottlenecks)))
        out[self.filled, 1:] = np.minimum(np.maximum.reduceat(held, self._starts, axis=0), self.depth)
        return out

    def _enough(self, bottlenecks: Floats) -> Bools:
        """Whether the layers may find a place, in the number of stages asked for."""
        if self.problem.stages is None:
            return np.asarray(self.capacities(bottlenecks).sum(axis=0) >= self.depth)
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
