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

from astra.provenance import Bools, Floats, Ints

_SLACK: Final = 1 + 1e-12  # rounding of sums of layer times
_MOST_CHOICES: Final = 4096
_NOBODY: Final = -1
_BLOCK: Final = 256  # bottlenecks bounded at a time
_MANY_POOLS: Final = 4  # from here on the problem without order is tried first
_ROUNDS: Final = 5  # of a search for the least bottleneck, each on a grid
_GRID: Final = np.arange(1, 33) / 32


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
    every: bool = False  # use every stage of every pool that has a choice
    least_layers: int = 1  # of a stage
    stages: int | None = None  # of the pipeline; None: any number
    must: int = 0  # bits of the pools that must take part


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


class _End(NamedTuple):
    """A pipeline's end, and the run that comes before it or that its front stage waits in."""

    mask: int  # pools used
    place: int  # stages
    pool: int
    choice: int
    after_s: float  # the transfer behind the run's next stage


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


class Bounded(NamedTuple):
    """A lower bound of the value, and a pipeline that may be better than it needs to be."""

    least: float
    pipeline: Pipeline | None


def solve(problem: Problem, *, below: float = np.inf) -> Pipeline | None:
    """The best pipeline with a value under ``below``, or None.

    Ranges of bottlenecks are tried from the shortest up. In a range no sum is less than the least sum under its
    longest bottleneck and no bottleneck shorter than its shortest: where these two together do not beat the best so
    far, the range is done; otherwise it is halved.
    """
    return _ranges(problem, below, exact=True).pipeline


def bound(problem: Problem, *, below: float = np.inf) -> Bounded:
    """``solve`` without the order of pools: a bound of its value close to it, and a pipeline in some order if any.

    The bound is ``below`` where nothing can beat it. Layers must be alike.
    """
    return _ranges(problem, below, exact=False)


def _ranges(problem: Problem, below: float, *, exact: bool) -> Bounded:
    search = _Search(problem)
    longest_s, relaxed = search.bottlenecks(below)
    best: Pipeline | None = None
    limit = least = below
    ranges: list[tuple[int, int, float]] = []
    start, size = 0, 1
    while start < len(longest_s):
        ranges.append((start, min(start + size, len(longest_s)) - 1, 0.0))
        start, size = start + size, 2 * size
    ranges.reverse()
    while ranges:
        low, high, known = ranges.pop()
        shortest = problem.max_weight * longest_s[low]
        if problem.sum_weight * max(relaxed[high], known) + shortest >= (limit if exact else least):
            continue
        if not known:
            budget = ((limit if exact else least) - shortest) / problem.sum_weight
            sum_s, found = search.under(float(longest_s[high]), budget, exact=exact)
            if not np.isfinite(sum_s):
                continue
            known = sum_s / _SLACK
            if low == high:
                least = min(least, problem.sum_weight * known + problem.max_weight * float(longest_s[low]))
            if found is not None and found.value_s < limit:
                best, limit = found, found.value_s
                least = min(least, limit)
        elif low == high:
            least = min(least, problem.sum_weight * known + problem.max_weight * float(longest_s[low]))
        if low < high:
            middle = (low + high) // 2
            ranges += [(middle + 1, high, known), (low, middle, 0.0)]
    return Bounded(least, best)


def packed(held: Floats, stages: int) -> Floats:
    """[q, ...] the most layers that pools take in at most q stages, up to ``stages``.

    ``held`` is [pool, stages, ...].
    """
    best = np.zeros((stages + 1, *held.shape[2:]))
    for pool in held:
        wider = best.copy()
        for count in range(1, min(len(pool) - 1, stages) + 1):
            np.maximum(wider[count:], best[: stages + 1 - count] + pool[count], out=wider[count:])
        best = wider
    return best


class _Search:
    """The shortest paths of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.every = [choice for pool in problem.pools for choice in pool]
        self.depth = len(self.every[0].time_s) - 1
        steps = [np.diff(choice.time_s) for choice in self.every]
        self.uniform = all(np.ptp(step) <= 1e-12 * step.max() for step in steps)
        self._rooms: dict[tuple[int, int, int, bool, bool], Ints] = {}
        self._cheapest = [
            min(float(np.diff(choice.time_s).min()) for choice in pool) if pool else np.inf for pool in problem.pools
        ]
        self._replaced: dict[tuple[int, int, int], bool] = {}
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

    def bottlenecks(self, below: float) -> tuple[Floats, Floats]:
        """Values the longest stage can take that may beat ``below``, and a lower bound of the sum under each."""
        problem = self.problem
        nothing = np.zeros(0), np.zeros(0)
        high = max(float(c.time_s[-1]) + c.first_s + c.last_s for c in self.every) + self._longest_sends()
        most = high
        if problem.max_weight > 0 and np.isfinite(below):
            most = (below - problem.sum_weight * self.depth * min(self._cheapest)) / problem.max_weight
        low, high = 0.0, min(high, most)
        if high <= 0 or not self._enough(np.array([high]))[0]:
            return nothing
        for _ in range(_ROUNDS):
            tried = low + (high - low) * _GRID
            first = int(np.argmax(self._enough(tried)))  # the last is high itself
            low, high = (float(tried[first - 1]) if first else low), float(tried[first])
        found = [self._values(i, a, low, most) for i, pool in enumerate(problem.pools) for a in range(len(pool))]
        values = np.unique(np.concatenate(found))
        relaxed = self._relaxed(values)
        able = np.isfinite(relaxed) & (problem.sum_weight * relaxed + problem.max_weight * values < below)
        return values[able], relaxed[able]

    def _relaxed(self, values: Floats) -> Floats:
        """The least sum with each bottleneck if pools held layers at their cheapest, up to their capacity."""
        out = np.zeros(len(values))
        for start in range(0, len(values), _BLOCK):
            held = self._capacities(values[start : start + _BLOCK])
            left = np.full(held.shape[1], float(self.depth))
            total = np.zeros(held.shape[1])
            for pool in sorted(self._filled, key=lambda i: self._cheapest[i]):
                taken = np.minimum(held[pool], left)
                total += taken * self._cheapest[pool]
                left -= taken
            out[start : start + _BLOCK] = np.where(
                (left > 0) | ~self._enough(values[start : start + _BLOCK]), np.inf, total / _SLACK
            )
        return out

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
        within: Floats = values[(values >= low / _SLACK**2) & (values <= high * _SLACK)]
        return within

    def _capacities(self, bottlenecks: Floats) -> Floats:
        """[pool, bottleneck] the most layers each could hold, with no transfers and at the end of the pipeline."""
        by_time = np.floor(bottlenecks / self._layer_s[:, None] * _SLACK**2)
        held = np.minimum(self._caps[:, :, None], by_time[:, None, :]).sum(axis=1)
        out = np.zeros((len(self.problem.pools), len(bottlenecks)))
        out[self._filled] = np.minimum(np.maximum.reduceat(held, self._starts), self.depth)
        return out

    def by_stages(self, bottlenecks: Floats) -> Floats:
        """[pool, stages, bottleneck] the same with at most so many stages."""
        by_time = np.floor(bottlenecks / self._layer_s[:, None] * _SLACK**2)
        held = np.minimum(self._caps[:, :, None], by_time[:, None, :]).cumsum(axis=1)
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
        from astra.space import unordered  # noqa: PLC0415

        answer = unordered.least_sum(self.problem, bottleneck, budget)
        if answer is None:
            return np.inf, None
        found = unordered.arranged(self.problem, answer, bottleneck)
        if not exact:
            return answer.sum_s, found
        if found is not None:
            attained = sum(found.stage_s) <= answer.sum_s * (1 + 1e-9)
            if attained and max(found.stage_s) <= bottleneck * _SLACK**2:
                return sum(found.stage_s), found
        found = self.least_sum(bottleneck, budget)
        return (np.inf, None) if found is None else (sum(found.stage_s), found)

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
        self.capacities = search._capacities(np.array([bottleneck]))[:, 0].astype(np.int64).tolist()
        self._rest: dict[int, Floats] = {}
        self._packed: dict[int, Floats] = {}
        self._ahead: dict[tuple[int, int], Floats] = {}
        self._held = search.by_stages(np.array([bottleneck]))[:, :, 0] if search.problem.stages else np.zeros((0, 0))
        self._tops: dict[tuple[int, int, float], Ints] = {}
        self.best: tuple[float, int] = (budget, _NOBODY)
        self.choices = self._useful()

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
        found = np.where(self.depth - self.search._all <= room, self.rest(mask), np.inf)
        self._ahead[mask, place] = found
        return found

    def shortest(self) -> Pipeline | None:
        """Grow pipelines from the end, pool by pool."""
        start = np.full(self.depth + 1, np.inf)
        start[0] = 0.0
        nothing = np.zeros(self.depth + 1, np.int64)
        self.records.append(_Record(start, nothing - 1, nothing, nothing - 1))
        ends: dict[_End, int] = {
            _End(0, 0, pool, number, self.problem.pools[pool][number].last_s): 0 for pool, number in self.choices
        }
        while ends:
            waiting: dict[_End, int] = {}
            for end, record in sorted(ends.items()):
                self._grow(waiting, end, record)
            ends = {}
            for front, record in sorted(waiting.items()):
                self._finish(front, record)
                self._close(ends, front, record)
        return self._pipeline(self.best[1]) if self.best[1] != _NOBODY else None

    def _useful(self) -> list[tuple[int, int]]:
        """Choices that no other of their pool replaces: faster, with as many stages, and never short of memory."""
        problem, search = self.problem, self.search
        out = []
        for pool, choices in enumerate(problem.pools):
            free = [number for number in range(len(choices)) if search.roomy(pool, number, self.bottleneck)]
            out += [
                (pool, number)
                for number in range(len(choices))
                if not any(other != number and search.replaces(pool, other, number) for other in free)
            ]
        return out

    def _finish(self, front: _End, record: int) -> None:
        """Place the front stage of a run as the pipeline's first."""
        problem, choice = self.problem, self.problem.pools[front.pool][front.choice]
        needed = problem.must | sum(1 << pool for pool, ways in enumerate(problem.pools) if ways and problem.every)
        if needed & ~front.mask or problem.stages not in (None, front.place):
            return
        fixed_s = front.after_s + choice.first_s
        stage = _Stage(front.pool, front.choice, front.place, fixed_s, True, front.place == 1)
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
                stage = _Stage(front.pool, front.choice, front.place, fixed_s, False, front.place == 1)
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
            stage = _Stage(end.pool, end.choice, place, after_s + choice.send_s, False, place == 1)
            found = self._place(found, stage, mask, growing=True)
            if found is None:
                return
            after_s = choice.send_s

    def _hopeful(self, record: int, mask: int, end: _End, place: int) -> bool:
        """Whether one more stage of the run and all unused pools may hold the rest within the budget."""
        top = np.minimum(
            self._top(_Stage(end.pool, end.choice, place, 0.0, False, False)),
            self.search._room(end.pool, end.choice, place, False, False),
        )
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
        least = self.problem.least_layers
        starts = np.flatnonzero((source.cost < np.inf) & (top >= self.search._all + least))
        if not len(starts):
            return None
        times = self.problem.pools[stage.pool][stage.choice].time_s
        low, high = self.depth if only_whole else int(starts[0]) + least, int(top[starts].max())
        if low > high:
            return None
        ends = self.search._all[low : high + 1]
        allowed = (ends >= starts[:, None] + least) & (ends <= top[starts, None])
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
        packed = tuple(Run(pool, number, tuple(counts)) for pool, number, counts in runs)
        stage_s = stage_times(self.problem, packed)
        return Pipeline(packed, stage_s, value(self.problem, stage_s))
