"""The best pipeline together with what follows it on its stages: gradients, optimizer, weights. Exact.

The step ends with the longest end of any stage, so value and end pull apart: fast stages hold many layers, and many
layers have long ends.

On one pool of like layers no search over paths is needed: the sum of the stages' times does not depend on how layers
are dealt, so that for each choice and number of stages only the longest stage is to be made short.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import numpy as np

from astra.partition.problem import (
    SLACK,
    Effort,
    Pipeline,
    Problem,
    StageChoice,
    StageRun,
    end_times,
    ends_of_model,
    least_end_by_layers,
    least_sum_of,
    lightest,
    memory_caps,
    narrowed,
    packed,
    stage_times,
    value,
)
from astra.partition.solve import solve
from astra.provenance import Bools, Floats, Ints

_ROUNDS: Final = 2  # each narrows the least end 32 times
_TURNS: Final = 3  # a longer end leaves less time for the pipeline, which makes the end longer still
_HALVINGS: Final = 44  # of a bottleneck on one pool
_CHOICE: Final = 4.0  # effort of one on one pool
_GAIN: Final = 1.002  # as long as it grows


class Ended(NamedTuple):
    """A pipeline and the whole step with what follows it."""

    total_s: float
    pipeline: Pipeline


def solve_ended(
    problem: Problem,
    *,
    below: float = np.inf,
    quick: bool = False,
    effort: Effort | None = None,
) -> Ended | None:
    """The pipeline with the least value plus longest end under ``below``, or None.

    The pipeline of least value comes first. Any other that ends the step sooner has a shorter longest end, so the
    problem is solved again with only stages whose ends are shorter, until even the least end there is would not make
    the next value win. ``quick`` leaves it at the first pipeline, and so does an effort that is spent.
    """
    effort = effort or Effort()
    least_s = least_end(problem, below)
    best: Ended | None = None
    first = solve_one if applies(problem) else solve
    pipeline = first(problem, below=below - least_s, effort=effort) if least_s < below else None
    while pipeline is not None:
        ends_below = max(end_times(problem.ends, pipeline.runs))
        total_s = pipeline.value_s + ends_below
        if total_s < below:
            best, below = Ended(total_s, pipeline), total_s
        ends_below = min(ends_below, below - pipeline.value_s)  # no other value is less
        if quick or effort.over or ends_below <= least_s:
            break
        pipeline = solve(problem._replace(ends_below=ends_below), below=below - least_s, effort=effort)
    return best


def least_end(problem: Problem, below: float) -> float:
    """What the longest end of no pipeline that beats ``below`` with it can fall short of; infinite if there is none.

    Under the longest bottleneck that could win, stages hold at most so many layers by time, by memory, and by an end:
    the ends must leave room for all layers. Less room makes the sum and the end longer, which makes the longest
    bottleneck shorter, and so on.
    """
    room = _Room(problem)
    least_s, sum_s = 0.0, room.least_sum(room.caps)
    for _ in range(_TURNS):
        caps = room.under(below - least_s, sum_s)
        sum_s = room.least_sum(caps)
        found_s = room.least_end(room.under(below - least_s, sum_s))
        if found_s <= _GAIN * least_s or found_s >= below:
            return max(found_s, least_s)
        least_s = found_s
    return least_s


class _Room:
    """How many layers the stages of a problem have room for, in no order. Arrays are [choice, ...]."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        choices = [choice for pool in problem.pools for choice in pool]
        self.times = np.stack(
            [choice.time_s if problem.uniform_layers else lightest(choice.time_s) for choice in choices]
        )
        tables = [table for pool in problem.ends for table in pool]
        least = {place: least_end_by_layers(table) for place, table in {id(table): table for table in tables}.items()}
        self.ends = np.stack([least[id(table)] for table in tables])  # choices that differ in recompute have one table
        self.caps = memory_caps(problem)
        self.depth = self.times.shape[1] - 1
        sizes = [len(pool) for pool in problem.pools if pool]
        self.starts = np.cumsum([0, *sizes])[:-1]
        self.around_s = ends_of_model(problem)

    def under(self, below: float, sum_s: float) -> Floats:
        """[choice, place] the most layers where the value must stay below a limit and the sum is at least so long."""
        problem = self.problem
        longest_s = (below - problem.sum_weight * sum_s) / problem.max_weight if problem.max_weight > 0 else np.inf
        by_time = (self.times <= longest_s * SLACK**2).sum(axis=1) - 1
        return np.asarray(np.minimum(self.caps, np.maximum(by_time, 0)[:, None]))

    def least_sum(self, caps: Floats) -> float:
        """The sum where every pool takes as many layers as it has room for at most."""
        return (self.around_s + least_sum_of(self.times, caps.sum(axis=1), self.starts)) / SLACK

    def least_end(self, caps: Floats) -> float:
        """The least end that leaves room for all layers; infinite if there is none anyway."""
        low, high = 0.0, float(self.ends[np.arange(len(caps)), caps.max(axis=1).astype(np.int64)].max()) * SLACK
        if not self._enough(caps, np.array([np.inf]))[0]:
            return np.inf
        return narrowed(partial(self._enough, caps), low, high, _ROUNDS)[0]

    def _enough(self, caps: Floats, ends_below: Floats) -> Bools:
        """Whether the layers may find a place with no end as long as each of some."""
        by_end = (self.ends[:, :, None] < ends_below).sum(axis=1) - 1
        each = np.minimum(caps[:, :, None], np.maximum(by_end, 0)[:, None, :])
        stages = self.problem.stages
        if stages is None:
            return np.asarray(np.maximum.reduceat(each.sum(axis=1), self.starts).sum(axis=0) >= self.depth)
        held = np.zeros((len(self.starts), each.shape[1] + 1, len(ends_below)))
        held[:, 1:] = np.maximum.reduceat(each.cumsum(axis=1), self.starts)
        return np.asarray(packed(held, stages)[-1] >= self.depth)


def applies(problem: Problem) -> bool:
    """Whether one pool has choices and its layers are alike."""
    filled = [pool for pool in problem.pools if pool]
    if len(filled) != 1 or problem.least_layers != 1:
        return False
    return all(np.ptp(np.diff(choice.time_s)) <= 1e-12 * choice.time_s[-1] for choice in filled[0])


def solve_one(problem: Problem, *, below: float = np.inf, effort: Effort | None = None) -> Pipeline | None:
    """The best pipeline with a value under ``below``, or None."""
    if effort is not None:
        effort.spend(_CHOICE * sum(len(choices) for choices in problem.pools))
    pool = next(place for place, choices in enumerate(problem.pools) if choices)
    if problem.must & ~(1 << pool):
        return None
    best: Pipeline | None = None
    for number, choice in enumerate(problem.pools[pool]):
        limit = below if best is None else best.value_s
        counts = _stage_counts(problem, choice, limit)
        if not len(counts):
            continue
        longest_s, held = _least_bottleneck(problem, choice, counts)
        sums = choice.time_s[-1] + choice.first_s + choice.last_s + 2 * (counts - 1) * choice.send_s
        able = np.isfinite(longest_s)
        values = problem.sum_weight * sums + problem.max_weight * np.where(able, longest_s, 0.0)
        values = np.where(able, values, np.inf)
        row = int(np.argmin(values))
        if able[row] and values[row] < limit * SLACK:
            layers = _dealt(held[row, : counts[row]], len(choice.time_s) - 1)
            runs = (StageRun(pool, number, layers),)
            stage_s = stage_times(problem, runs)
            found = Pipeline(runs, stage_s, value(problem, stage_s))
            if found.value_s < limit:
                best = found
    return best


def _stage_counts(problem: Problem, choice: StageChoice, limit: float) -> Ints:
    """Numbers of stages that may beat the limit by the even share of the work."""
    depth = len(choice.time_s) - 1
    most = min(choice.stages, len(problem.in_flight) - 1, depth)
    if problem.stages is not None:
        counts = np.array([problem.stages] if problem.stages <= most else [], np.int64)
    else:
        counts = np.arange(1, most + 1)
    if problem.every:
        counts = counts[counts == choice.stages]
    whole = choice.time_s[-1] + choice.first_s + choice.last_s
    layer = choice.time_s[1]
    bound = np.maximum(np.ceil(depth / counts) * layer, whole / counts)
    hopeful: Ints = counts[problem.sum_weight * whole + problem.max_weight * bound < limit]
    return hopeful


def _least_bottleneck(problem: Problem, choice: StageChoice, counts: Ints) -> tuple[Floats, Ints]:
    """[count] the shortest longest stage, infinite where memory forbids, and [count, place] the layers each holds."""
    depth, layer = len(choice.time_s) - 1, float(choice.time_s[1])
    most = int(counts.max())
    place = np.arange(1, most + 1)[None, :]  # from the end
    inside = place <= counts[:, None]
    last, first = place == 1, place == counts[:, None]
    fixed = np.where(first, choice.first_s, choice.send_s) + np.where(last, choice.last_s, choice.send_s)
    room = choice.limit_bytes - choice.fixed_bytes - first * choice.first_bytes - last * choice.last_bytes
    each = choice.stay_bytes[1] + choice.kept_bytes[1] * problem.in_flight[1 : most + 1][None, :]
    by_memory = np.where(inside, np.floor(room / np.maximum(each, 1e-300) * SLACK), 0.0).clip(0, depth)

    def held(bottleneck: Floats) -> Floats:
        by_time = np.floor((bottleneck[:, None] - fixed) / layer * SLACK)
        layers: Floats = np.minimum(by_time, by_memory).clip(0)
        return layers

    def enough(bottleneck: Floats) -> Bools:
        layers = held(bottleneck)
        return np.asarray((layers.sum(axis=1) >= depth) & ((layers >= 1) | ~inside).all(axis=1))

    high = np.full(len(counts), depth * layer + float(fixed.max()))
    possible = enough(high)
    low = np.zeros(len(counts))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        fine = enough(middle)
        low, high = np.where(fine, low, middle), np.where(fine, middle, high)
    return np.where(possible, high, np.inf), held(high).astype(np.int64)


def _dealt(held: Ints, depth: int) -> tuple[int, ...]:
    """Layers of each stage in pipeline order: what is too many is taken from the front, which holds the most alive."""
    layers = held[::-1].copy()
    spare = int(layers.sum()) - depth
    while spare > 0:
        place = int(np.argmax(layers[: len(layers)]))
        layers[place] -= 1
        spare -= 1
    return tuple(int(count) for count in layers)
