"""The best pipeline over pools of unequal GPUs: which pools, in which order, how many stages and layers each. Exact.

Minimises ``sum_weight * sum + max_weight * max`` over the stages' times, the closed form of 1F1B with unequal stages
(weights 1 and m-1). For a given bottleneck T a stage holds at most so many layers that neither its time passes T nor
its memory the limit at its position; the least sum under T is then a shortest path over (pools used, stages so far,
layers so far), built from the end of the pipeline because a stage's micro-batches in flight depend on how many stages
follow it. T has finitely many values of interest; the least sum falls as T grows, which bounds whole ranges of them.

Letters: L layers, j layers placed so far (counted from the model's end), f place of a stage counted from the end.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import Final, NamedTuple

import numpy as np

from astra.provenance import Floats, Ints

_SLACK: Final = 1 + 1e-12  # rounding of sums of layer times
_MOST_CHOICES: Final = 4096
_NOBODY: Final = -1


class Choice(NamedTuple):
    """One way for a pool to take stages: its degrees and recompute, as seconds and bytes of a rank."""

    stages: int  # the most the pool's GPUs can form
    time_s: Floats  # [L + 1] one micro-batch through the last j layers
    first_s: float  # and what the first stage adds
    last_s: float
    send_s: float  # standing still for one transfer to a neighbour of the same pool
    stay_bytes: Floats  # [L + 1] held through the step for the last j layers
    kept_bytes: Floats  # [L + 1] kept by each micro-batch in flight
    fixed_bytes: float
    first_bytes: float
    last_bytes: float
    limit_bytes: float


class Problem(NamedTuple):
    """Pools with their choices, and what is minimised."""

    pools: tuple[tuple[Choice, ...], ...]
    hop_s: dict[tuple[int, int], Floats]  # (pool, pool) -> [choice, choice] one transfer between them
    in_flight: Floats  # [f] micro-batches alive on the stage at place f from the end; entry 0 is not used
    sum_weight: float
    max_weight: float
    every: bool = False  # use every stage of every pool
    least_layers: int = 1  # of a stage
    stages: int | None = None  # of the pipeline; None: any number


class Run(NamedTuple):
    """Consecutive stages on one pool."""

    pool: int
    choice: int
    layers: tuple[int, ...]  # of each stage in pipeline order


class Pipeline(NamedTuple):
    """An optimum."""

    runs: tuple[Run, ...]  # in pipeline order
    stage_s: tuple[float, ...]
    value_s: float


class _Record(NamedTuple):
    """Least sums with j layers placed, and the stage placed last to get there."""

    cost: Floats
    before: Ints  # record the stage was added to
    layers: Ints  # layers placed before it
    owner: Ints  # pool * _MOST_CHOICES + choice


class _Stage(NamedTuple):
    """A stage about to be placed."""

    pool: int
    choice: int
    place: int
    fixed_s: float
    first: bool
    last: bool


def stage_times(problem: Problem, runs: tuple[Run, ...]) -> tuple[float, ...]:
    """Seconds of a micro-batch on each stage of a pipeline, transfers included."""
    owners = [(run.pool, run.choice) for run in runs for _ in run.layers]
    layers = [count for run in runs for count in run.layers]
    sends = [_send(problem, here, there) for here, there in pairwise(owners)]
    out, left = [], sum(layers)
    for place, ((pool, number), count) in enumerate(zip(owners, layers, strict=True)):
        choice = problem.pools[pool][number]
        seconds = choice.time_s[left] - choice.time_s[left - count]
        seconds += sends[place - 1] if place else choice.first_s
        seconds += sends[place] if place < len(sends) else choice.last_s
        out.append(float(seconds))
        left -= count
    return tuple(out)


def _send(problem: Problem, here: tuple[int, int], there: tuple[int, int]) -> float:
    if here[0] == there[0]:
        return problem.pools[here[0]][here[1]].send_s
    return float(problem.hop_s[here[0], there[0]][here[1], there[1]])


def value(problem: Problem, stage_s: tuple[float, ...]) -> float:
    """What is minimised."""
    return problem.sum_weight * sum(stage_s) + problem.max_weight * max(stage_s)


def solve(problem: Problem, *, below: float = np.inf) -> Pipeline | None:
    """The best pipeline with a value under ``below``, or None."""
    search = _Search(problem)
    candidates = search.bottlenecks(below)
    if not len(candidates):
        return None
    low, high = 0, len(candidates) - 1
    best: Pipeline | None = None
    limit = below

    def least(index: int) -> Pipeline | None:
        nonlocal best, limit
        bottleneck = float(candidates[index])
        budget = (below - problem.max_weight * search.least_s) / problem.sum_weight
        found = search.least_sum(bottleneck, budget)
        if found is not None and found.value_s < limit:
            best, limit = found, found.value_s
        return found

    at_high = least(high)
    if at_high is None:
        return None
    while low < high:  # the first feasible bottleneck
        middle = (low + high) // 2
        found = least(middle)
        low, high = (low, middle) if found is not None else (middle + 1, high)
        at_high = found or at_high
    first = low
    ranges = [(first, len(candidates) - 1)]
    sums: dict[int, float] = {}
    while ranges:
        low, high = ranges.pop()
        if low >= high:
            continue
        if high not in sums:
            found = least(high)
            sums[high] = sum(found.stage_s) if found else np.inf
        # Between them no sum is below that of the upper end, and no bottleneck below the next candidate.
        if problem.sum_weight * sums[high] + problem.max_weight * candidates[low + 1] >= limit:
            continue
        if high == low + 1:
            continue
        middle = (low + high) // 2
        ranges += [(low, middle), (middle, high)]
    return best


class _Search:
    """The shortest paths of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.depth = len(problem.pools[0][0].time_s) - 1
        self.every = [choice for pool in problem.pools for choice in pool]
        steps = [np.diff(choice.time_s) for choice in self.every]
        self.uniform = all(np.ptp(step) <= 1e-12 * step.max() for step in steps)
        self.least_s = 0.0
        self._rooms: dict[tuple[int, int, int, bool, bool], Ints] = {}
        self._cheapest = [
            min(float(np.diff(choice.time_s).min()) for choice in pool) if pool else np.inf for pool in problem.pools
        ]
        self._all = np.arange(self.depth + 1)
        self._set_caps()

    def _set_caps(self) -> None:
        """The most layers of every choice at each place from the end, by memory alone, and its cheapest layer."""
        alive = self.problem.in_flight[1:]
        self._caps = np.zeros((len(self.every), len(alive)))
        self._layer_s = np.array([np.diff(choice.time_s).min() for choice in self.every])
        for row, choice in enumerate(self.every):
            room = choice.limit_bytes - choice.fixed_bytes
            # The layer that needs least stands for all: an upper bound, and exact where all are alike.
            each = np.diff(choice.stay_bytes).min() + np.diff(choice.kept_bytes).min() * alive[: choice.stages]
            most = np.floor(room / np.maximum(each, 1e-300) * _SLACK) if room > 0 else np.zeros(len(each))
            self._caps[row, : choice.stages] = np.minimum(most, self.depth)
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
            top = np.searchsorted(held, held + max(room, 0.0) * _SLACK, side="right") - 1
            self._rooms[key] = top if room >= 0 else np.full(self.depth + 1, -1)
        return self._rooms[key]

    def bottlenecks(self, below: float) -> Floats:
        """Values the longest stage can take, between what capacity demands and what ``below`` allows."""
        most = np.inf
        if self.problem.max_weight > 0 and np.isfinite(below):
            cheapest_sum = self.depth * min(self._cheapest) * self.problem.sum_weight
            most = (below - cheapest_sum) / self.problem.max_weight
        low, high = 0.0, max(float(c.time_s[-1]) + c.first_s + c.last_s for c in self.every) + self._longest_sends()
        if self._capacity(high) < self.depth:
            return np.zeros(0)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (low, middle) if self._capacity(middle) >= self.depth else (middle, high)
        self.least_s = low
        if most < low:
            return np.zeros(0)
        found = [self._values(i, a, low, most) for i, pool in enumerate(self.problem.pools) for a in range(len(pool))]
        return np.unique(np.concatenate(found))

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
            layers = np.unique((choice.time_s[:, None] - choice.time_s)[np.tri(self.depth + 1, k=-1, dtype=bool)])
        values = (layers[:, None] + fixed).ravel()
        return values[(values >= low / _SLACK**2) & (values <= high * _SLACK)]

    def _capacity(self, bottleneck: float) -> float:
        by_time = np.floor(bottleneck / self._layer_s * _SLACK**2)
        held = np.minimum(self._caps, by_time[:, None]).sum(axis=1)
        return float(np.maximum.reduceat(held, self._starts).sum())

    def _capacities(self, bottleneck: float) -> list[int]:
        """The most layers each pool could hold, with no transfers and at the end of the pipeline."""
        by_time = np.floor(bottleneck / self._layer_s * _SLACK**2)
        held = np.maximum.reduceat(np.minimum(self._caps, by_time[:, None]).sum(axis=1), self._starts)
        out = [0] * len(self.problem.pools)
        for place, most in zip(self._filled, held.tolist(), strict=True):
            out[place] = int(min(most, self.depth))
        return out

    def least_sum(self, bottleneck: float, budget: float) -> Pipeline | None:
        """The pipeline with the least sum and no stage above the bottleneck."""
        paths = _Paths(self, bottleneck * _SLACK, budget)
        return paths.shortest()


class _Paths:
    """Shortest paths under one bottleneck."""

    def __init__(self, search: _Search, bottleneck: float, budget: float) -> None:
        self.search, self.problem = search, search.problem
        self.bottleneck, self.budget = bottleneck, budget
        self.depth = search.depth
        self.records: list[_Record] = []
        self.capacities = search._capacities(bottleneck)
        self._rest: dict[int, Floats] = {}
        self._tops: dict[tuple[int, int, float], Ints] = {}
        self.best: tuple[float, int] = (budget, _NOBODY)

    def rest(self, mask: int) -> Floats:
        """[j] the least the layers not yet placed can cost on the pools not yet used."""
        if mask not in self._rest:
            cheapest = self.search._cheapest
            free = sorted(i for i in range(len(self.capacities)) if not mask >> i & 1)
            free.sort(key=lambda i: cheapest[i])
            costs = np.concatenate([[0.0], *(np.full(self.capacities[i], cheapest[i]) for i in free)]).cumsum()
            out = np.full(self.depth + 1, np.inf)
            reach = min(len(costs), self.depth + 1)
            out[:reach] = costs[:reach]
            self._rest[mask] = out[::-1]
        return self._rest[mask]

    def shortest(self) -> Pipeline | None:
        """Grow pipelines from the end, pool by pool."""
        start = np.full(self.depth + 1, np.inf)
        start[0] = 0.0
        nothing = np.zeros(self.depth + 1, np.int64)
        self.records.append(_Record(start, nothing - 1, nothing, nothing - 1))
        layer: dict[tuple[int, int, int, int, float], int] = {}
        for pool, number in self._choices(0):
            last_s = self.problem.pools[pool][number].last_s
            self._grow(layer, 0, 0, (pool, number), last_s, 0)
        while layer:
            ahead: dict[tuple[int, int, int, int, float], int] = {}
            for (mask, place, pool, number, after_s), record in sorted(layer.items()):
                self._close(ahead, mask, place, (pool, number), after_s, record)
            layer = ahead
        return self._pipeline(self.best[1]) if self.best[1] != _NOBODY else None

    def _choices(self, mask: int) -> list[tuple[int, int]]:
        return [
            (pool, number)
            for pool, choices in enumerate(self.problem.pools)
            if not mask >> pool & 1
            for number in range(len(choices))
        ]

    def _close(
        self,
        ahead: dict[tuple[int, int, int, int, float], int],
        mask: int,
        place: int,
        front: tuple[int, int],
        after_s: float,
        record: int,
    ) -> None:
        """Place the front stage of a run, as the pipeline's first or with another pool before it."""
        pool, number = front
        choice = self.problem.pools[pool][number]
        whole = not self.problem.every or mask == (1 << len(self.problem.pools)) - 1
        if whole and self.problem.stages in (None, place):
            stage = _Stage(pool, number, place, after_s + choice.first_s, True, place == 1)
            last = self._place(record, stage, mask, only_whole=True)
            if last is not None and self.records[last].cost[-1] < self.best[0]:
                self.best = (float(self.records[last].cost[-1]), last)
        closed: dict[float, int | None] = {}
        for before in self._choices(mask):
            hop_s = float(self.problem.hop_s[before[0], pool][before[1], number])
            if hop_s not in closed:
                stage = _Stage(pool, number, place, after_s + hop_s, False, place == 1)
                closed[hop_s] = self._place(record, stage, mask)
            if (found := closed[hop_s]) is not None:
                self._grow(ahead, mask, place, before, hop_s, found)

    def _grow(
        self,
        ahead: dict[tuple[int, int, int, int, float], int],
        mask: int,
        place: int,
        front: tuple[int, int],
        after_s: float,
        record: int,
    ) -> None:
        """Put 1, 2, ... stages of a pool before what is placed; the frontmost waits for what comes before it."""
        pool, number = front
        choice = self.problem.pools[pool][number]
        mask |= 1 << pool
        most = min(choice.stages, len(self.problem.in_flight) - 1 - place)
        found: int | None = record
        for count in range(1, most + 1):
            if not self.problem.every or count == choice.stages:
                assert found is not None
                self._merge(ahead, (mask, place + count, pool, number, after_s), found)
            if count == most:
                return
            stage = _Stage(pool, number, place + count, after_s + choice.send_s, False, place + count == 1)
            found = self._place(found, stage, mask, growing=True)
            if found is None:
                return
            after_s = choice.send_s

    def _merge(
        self, ahead: dict[tuple[int, int, int, int, float], int], key: tuple[int, int, int, int, float], record: int
    ) -> None:
        if key not in ahead:
            ahead[key] = record
            return
        old, new = self.records[ahead[key]], self.records[record]
        better = new.cost < old.cost
        if better.any():
            self.records.append(_Record(*(np.where(better, n, o) for n, o in zip(new, old, strict=True))))
            ahead[key] = len(self.records) - 1

    def _top(self, stage: _Stage) -> Ints:
        key = (stage.pool, stage.choice, stage.fixed_s)
        if key not in self._tops:
            times = self.problem.pools[stage.pool][stage.choice].time_s
            self._tops[key] = np.searchsorted(times, times + (self.bottleneck - stage.fixed_s), side="right") - 1
        return self._tops[key]

    def _place(
        self, record: int, stage: _Stage, mask: int, *, growing: bool = False, only_whole: bool = False
    ) -> int | None:
        """Add one stage in every size that fits; None if nothing useful comes of it.

        While a run grows, its own pool may still take more layers.
        """
        source = self.records[record]
        top = np.minimum(
            self._top(stage), self.search._room(stage.pool, stage.choice, stage.place, stage.first, stage.last)
        )
        starts = np.flatnonzero(np.isfinite(source.cost) & (top >= self.search._all + self.problem.least_layers))
        if not len(starts):
            return None
        times = self.problem.pools[stage.pool][stage.choice].time_s
        ends = self.search._all if not only_whole else self.search._all[-1:]
        allowed = (ends >= starts[:, None] + self.problem.least_layers) & (ends <= top[starts, None])
        costs = np.where(allowed, (source.cost[starts] - times[starts])[:, None], np.inf)
        chosen = costs.argmin(axis=0)
        cost = costs[chosen, np.arange(len(ends))] + times[ends] + stage.fixed_s
        ahead = self.rest(mask & ~(1 << stage.pool) if growing else mask)[ends]
        cost[cost + ahead >= self.best[0]] = np.inf
        if not np.isfinite(cost).any():
            return None
        if only_whole:
            cost = np.append(np.full(self.depth, np.inf), cost)
            chosen = np.append(np.zeros(self.depth, np.int64), chosen)
        owner = np.full(self.depth + 1, stage.pool * _MOST_CHOICES + stage.choice)
        self.records.append(_Record(cost, np.full(self.depth + 1, record), starts[chosen], owner))
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
        packed = tuple(Run(pool, number, tuple(counts)) for pool, number, counts in runs)
        stage_s = stage_times(self.problem, packed)
        return Pipeline(packed, stage_s, value(self.problem, stage_s))
