"""The best pipeline on one pool of like layers, without a search over paths.

The sum of the stages' times does not depend on how layers are dealt, so for each choice and number of stages only the
longest stage is to be made short: the least bottleneck under which the stages, each with its own fixed time and memory,
hold all layers. The same optimum as ``partition.solve``, sooner.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.partition.problem import Effort
from astra.partition.solve import Pipeline, Problem, StageChoice, StageRun, stage_times, value
from astra.provenance import Bools, Floats, Ints

_ROUNDS: Final = 44
_CHOICE: Final = 4.0  # effort
_SLACK: Final = 1 + 1e-12


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
        if able[row] and values[row] < limit * _SLACK:
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
    by_memory = np.where(inside, np.floor(room / np.maximum(each, 1e-300) * _SLACK), 0.0).clip(0, depth)

    def held(bottleneck: Floats) -> Floats:
        by_time = np.floor((bottleneck[:, None] - fixed) / layer * _SLACK)
        layers: Floats = np.minimum(by_time, by_memory).clip(0)
        return layers

    def enough(bottleneck: Floats) -> Bools:
        layers = held(bottleneck)
        return np.asarray((layers.sum(axis=1) >= depth) & ((layers >= 1) | ~inside).all(axis=1))

    high = np.full(len(counts), depth * layer + float(fixed.max()))
    possible = enough(high)
    low = np.zeros(len(counts))
    for _ in range(_ROUNDS):
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
