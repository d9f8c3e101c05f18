"""Shortest paths over (pools used, stages so far, layers so far) under one bottleneck: see ``partition.solve``."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.partition.problem import Pipeline, StageRun, packed, stage_times, value
from astra.partition.rooms import Rooms
from astra.provenance import Floats, Ints

_MOST_CHOICES: Final = 4096
_NOBODY: Final = -1


class _Record(NamedTuple):
    """Least sums with j layers placed, and the stage placed last to get there."""

    cost: Floats
    before: Ints  # record the stage was added to
    layers: Ints  # layers placed before it
    owner: Ints  # pool * _MOST_CHOICES + choice


class _End(NamedTuple):
    """A pipeline's end, and the run that comes before it or that its front stage waits in."""

    mask: int  # pools used
    place: int  # stages
    pool: int
    choice: int
    after_s: float  # the transfer behind the run's next stage


class _Placing(NamedTuple):
    """A stage about to be placed."""

    pool: int
    choice: int
    place: int
    fixed_s: float
    first: bool
    last: bool


class Paths:
    """Shortest paths under one bottleneck."""

    def __init__(self, rooms: Rooms, bottleneck: float, budget: float) -> None:
        self.rooms, self.problem = rooms, rooms.problem
        self.bottleneck, self.budget = bottleneck, budget
        self.depth = rooms.depth
        self.records: list[_Record] = []
        self.capacities = rooms.capacities(np.array([bottleneck]))[:, 0].astype(np.int64).tolist()
        self._rest: dict[int, Floats] = {}
        self._packed: dict[int, Floats] = {}
        self._ahead: dict[tuple[int, int], Floats] = {}
        self._held = rooms.by_stages(np.array([bottleneck]))[:, :, 0] if rooms.problem.stages else np.zeros((0, 0))
        self._reaches: dict[_Placing, Ints] = {}
        self._tops: dict[tuple[int, int, float], Ints] = {}
        self.best: tuple[float, int] = (budget, _NOBODY)
        self.choices = self._useful()

    def rest(self, mask: int) -> Floats:
        """[j] the least the layers not yet placed can cost on the pools not yet used."""
        if mask not in self._rest:
            cheapest = self.rooms.cheapest
            free = sorted(i for i in range(len(self.capacities)) if not mask >> i & 1)
            free.sort(key=lambda i: cheapest[i])
            costs = np.concatenate([[0.0], *(np.full(self.capacities[i], cheapest[i]) for i in free)]).cumsum()
            out = np.full(self.depth + 1, np.inf)
            reach = min(len(costs), self.depth + 1)
            out[:reach] = costs[:reach]
            out = out[::-1]
            if free and not self.rooms.uniform:
                out = np.maximum(out, self.rooms.least_left(free))
            self._rest[mask] = out
        return self._rest[mask]

    def ahead(self, mask: int, place: int) -> Floats:
        """``rest``, infinite where the stages left cannot hold the layers left."""
        stages = self.problem.stages
        if stages is None:
            return self.rest(mask)
        if place > stages:
            return np.full(self.depth + 1, np.inf)
        if (mask, place) in self._ahead:
            return self._ahead[mask, place]
        if mask not in self._packed:
            free = [pool for pool in range(len(self._held)) if not mask >> pool & 1]
            self._packed[mask] = packed(self._held[free], stages)
        room = self._packed[mask][stages - place]
        found = np.where(self.depth - self.rooms.all_layers <= room, self.rest(mask), np.inf)
        self._ahead[mask, place] = found
        return found

    def shortest(self) -> Pipeline | None:
        """Grow pipelines from the end, pool by pool; when the effort is spent, the best that is complete."""
        start = np.full(self.depth + 1, np.inf)
        start[0] = 0.0
        nothing = np.zeros(self.depth + 1, np.int64)
        self.records.append(_Record(start, nothing - 1, nothing, nothing - 1))
        ends: dict[_End, int] = {
            _End(0, 0, pool, number, self.problem.pools[pool][number].last_s): 0 for pool, number in self.choices
        }
        effort = self.rooms.effort
        while ends and not effort.over:
            waiting: dict[_End, int] = {}
            for end, record in sorted(ends.items()):
                if not effort.over:
                    self._grow(waiting, end, record)
            ends = {}
            for front, record in sorted(waiting.items()):
                self._finish(front, record)
                self._close(ends, front, record)
        return self._pipeline(self.best[1]) if self.best[1] != _NOBODY else None

    def _useful(self) -> list[tuple[int, int]]:
        """Choices that no other of their pool replaces: faster, with as many stages, and never short of memory."""
        problem, rooms = self.problem, self.rooms
        out = []
        for pool, choices in enumerate(problem.pools):
            free = [number for number in range(len(choices)) if rooms.roomy(pool, number, self.bottleneck)]
            out += [
                (pool, number)
                for number in range(len(choices))
                if not any(other != number and rooms.replaces(pool, other, number) for other in free)
            ]
        return out

    def _finish(self, front: _End, record: int) -> None:
        """Place the front stage of a run as the pipeline's first."""
        problem, choice = self.problem, self.problem.pools[front.pool][front.choice]
        needed = problem.must | sum(1 << pool for pool, ways in enumerate(problem.pools) if ways and problem.every)
        if needed & ~front.mask or problem.stages not in (None, front.place):
            return
        fixed_s = front.after_s + choice.first_s
        stage = _Placing(front.pool, front.choice, front.place, fixed_s, True, front.place == 1)
        last = self._place(record, stage, front.mask, only_whole=True)
        if last is not None and self.records[last].cost[-1] < self.best[0]:
            self.best = (float(self.records[last].cost[-1]), last)

    def _close(self, ends: dict[_End, int], front: _End, record: int) -> None:
        """Place the front stage of a run with another pool before it."""
        closed: dict[float, int | None] = {}
        for pool, number in self.choices:
            if front.mask >> pool & 1:
                continue
            hop_s = float(self.problem.hop_s[pool, front.pool][number, front.choice])
            if hop_s not in closed:
                fixed_s = front.after_s + hop_s
                stage = _Placing(front.pool, front.choice, front.place, fixed_s, False, front.place == 1)
                closed[hop_s] = self._place(record, stage, front.mask)
            if (found := closed[hop_s]) is not None:
                self._merge(ends, _End(front.mask, front.place, pool, number, hop_s), found)

    def _grow(self, waiting: dict[_End, int], end: _End, record: int) -> None:
        """Put 1, 2, ... stages of a pool before what is placed; the frontmost waits for what comes before it."""
        choice = self.problem.pools[end.pool][end.choice]
        mask, after_s = end.mask | 1 << end.pool, end.after_s
        most = min(choice.stages, len(self.problem.in_flight) - 1 - end.place)
        found: int | None = record
        for count in range(1, most + 1):
            assert found is not None
            place = end.place + count
            if (not self.problem.every or count == choice.stages) and self._hopeful(found, mask, end, place):
                self._merge(waiting, _End(mask, place, end.pool, end.choice, after_s), found)
            if count == most:
                return
            stage = _Placing(end.pool, end.choice, place, after_s + choice.send_s, False, place == 1)
            found = self._place(found, stage, mask, growing=True)
            if found is None:
                return
            after_s = choice.send_s

    def _hopeful(self, record: int, mask: int, end: _End, place: int) -> bool:
        """Whether one more stage of the run and all unused pools may hold the rest within the budget."""
        top = self._reach(_Placing(end.pool, end.choice, place, 0.0, False, False))
        after = self.ahead(mask, place)[np.maximum(top, 0)]
        return bool((self.records[record].cost + after < self.best[0]).any())

    def _merge(self, ahead: dict[_End, int], key: _End, record: int) -> None:
        if key not in ahead:
            ahead[key] = record
            return
        old, new = self.records[ahead[key]], self.records[record]
        better = new.cost < old.cost
        if better.any():
            self.records.append(_Record(*(np.where(better, n, o) for n, o in zip(new, old, strict=True))))
            ahead[key] = len(self.records) - 1

    def _reach(self, stage: _Placing) -> Ints:
        """The most layers placed after a stage that starts with j layers placed, by time and memory."""
        if stage not in self._reaches:
            room = self.rooms.room(stage.pool, stage.choice, stage.place, stage.first, stage.last)
            self._reaches[stage] = np.minimum(self._top(stage), room)
        return self._reaches[stage]

    def _top(self, stage: _Placing) -> Ints:
        """The same by time alone."""
        key = (stage.pool, stage.choice, stage.fixed_s)
        if key not in self._tops:
            times = self.problem.pools[stage.pool][stage.choice].time_s
            self._tops[key] = np.searchsorted(times, times + (self.bottleneck - stage.fixed_s), side="right") - 1
        return self._tops[key]

    def _place(
        self, record: int, stage: _Placing, mask: int, *, growing: bool = False, only_whole: bool = False
    ) -> int | None:
        """Add one stage in every size that fits; None if nothing useful comes of it.

        While a run grows, its own pool may still take more layers.
        """
        source = self.records[record]
        self.rooms.effort.spend(1)
        top = self._reach(stage)
        least = self.problem.least_layers
        starts = ((source.cost < np.inf) & (top >= self.rooms.all_layers + least)).nonzero()[0]
        if not len(starts):
            return None
        times = self.problem.pools[stage.pool][stage.choice].time_s
        low, high = self.depth if only_whole else int(starts[0]) + least, int(top[starts].max())
        if low > high:
            return None
        ends = self.rooms.all_layers[low : high + 1]
        allowed = (ends >= starts[:, None] + least) & (ends <= top[starts, None])
        if self.problem.ends_below < np.inf:
            row = self.problem.ends[stage.pool][stage.choice][int(stage.first) + 2 * int(stage.last)]
            end_s = row[np.maximum(ends - starts[:, None], 0)] if row.ndim == 1 else row[ends, starts[:, None]]
            allowed &= end_s < self.problem.ends_below
        costs = np.where(allowed, (source.cost[starts] - times[starts])[:, None], np.inf)
        chosen = costs.argmin(axis=0)
        some = costs[chosen, np.arange(len(ends))] + times[low : high + 1] + stage.fixed_s
        ahead = self.ahead(mask & ~(1 << stage.pool) if growing else mask, stage.place)[low : high + 1]
        some[some + ahead >= self.best[0]] = np.inf
        if not (some < np.inf).any():
            return None
        cost, before = np.full(self.depth + 1, np.inf), np.zeros(self.depth + 1, np.int64)
        cost[low : high + 1], before[low : high + 1] = some, starts[chosen]
        owner = np.full(self.depth + 1, stage.pool * _MOST_CHOICES + stage.choice)
        self.records.append(_Record(cost, np.full(self.depth + 1, record), before, owner))
        return len(self.records) - 1

    def _pipeline(self, record: int) -> Pipeline:
        """Follow the stages back, front to end."""
        runs: list[tuple[int, int, list[int]]] = []
        layers = self.depth
        while layers > 0:
            found = self.records[record]
            pool, number = divmod(int(found.owner[layers]), _MOST_CHOICES)
            before = int(found.layers[layers])
            if not runs or runs[-1][0] != pool:
                runs.append((pool, number, []))
            runs[-1][2].append(layers - before)
            record, layers = int(found.before[layers]), before
        packed = tuple(StageRun(pool, number, tuple(counts)) for pool, number, counts in runs)
        stage_s = stage_times(self.problem, packed)
        return Pipeline(packed, stage_s, value(self.problem, stage_s))
