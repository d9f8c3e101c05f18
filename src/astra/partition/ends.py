"""The best pipeline together with what follows it on its stages: gradients, optimizer, weights. Exact.

The step ends with the longest end of any stage, so value and end pull apart: fast stages hold many layers, and many
layers have long ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from astra.partition.problem import (
    SLACK,
    Effort,
    Pipeline,
    Problem,
    end_times,
    ends_of_model,
    least_end_by_layers,
    least_sum_of,
    lightest,
    memory_caps,
    packed,
)
from astra.partition.solve import solve
from astra.provenance import Bools, Floats

_GRID: Final = np.arange(1, 33) / 32
_ROUNDS: Final = 2  # each narrows the least end 32 times
_TURNS: Final = 3  # a longer end leaves less time for the pipeline, which makes the end longer still
_GAIN: Final = 1.002  # as long as it grows


class Ended(NamedTuple):
    """A pipeline and the whole step with what follows it."""

    total_s: float
    pipeline: Pipeline


def solve_ended(
    problem: Problem,
    *,
    below: float = np.inf,
    first: Callable[..., Pipeline | None] = solve,
    quick: bool = False,
    effort: Effort | None = None,
) -> Ended | None:
    """The pipeline with the least value plus longest end under ``below``, or None.

    The pipeline of least value comes first. Any other that ends the step sooner has a shorter longest end, so the
    problem is solved again with only stages whose ends are shorter, until even the least end there is would not make
    the next value win. ``first`` may solve the unrestricted problem in a quicker way; ``quick`` leaves it at that
    pipeline, and so does an effort that is spent.
    """
    effort = effort or Effort()
    least_s = least_end(problem, below)
    best: Ended | None = None
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
        self.ends = np.stack([least_end_by_layers(table) for pool in problem.ends for table in pool])
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
        for _ in range(_ROUNDS):
            tried = low + (high - low) * _GRID
            able = self._enough(caps, tried)
            able[-1] = True
            first = int(np.argmax(able))
            low, high = (float(tried[first - 1]) if first else low), float(tried[first])
        return low

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
