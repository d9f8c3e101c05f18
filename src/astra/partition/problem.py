"""What the partition minimises: pools with their choices, a pipeline over them, its value, and the effort allowed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import pairwise
from math import inf
from time import monotonic
from typing import Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from astra.provenance import Bools, Floats, Ints


class Effort:
    """How much a search may still do, in work done and not in seconds: the same request has the same answer anywhere.

    A unit is one stage placed on a path (``partition.paths``), some 60 microseconds of one core of 2024; other work is
    charged by what it takes in such units.
    """

    def __init__(self, most: float = inf, *, until_s: float = inf) -> None:
        self.spent = 0.0
        self.most = most
        self._until_s = until_s  # by the clock, for those who would rather have an answer soon than the same anywhere

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.most or self.late

    @property
    def late(self) -> bool:
        """Whether the time allowed is up."""
        return self._until_s < inf and monotonic() >= self._until_s

    @property
    def left(self) -> float:
        """Units not spent yet."""
        return max(self.most - self.spent, 0.0)

    def spend(self, units: float) -> None:
        """Account for some work."""
        self.spent += units

    def afresh(self) -> Effort:
        """As much again for another search, by the same time."""
        return Effort(self.most, until_s=self._until_s)

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Spend at most a share of what is left in here; what remains of it is there afterwards."""
        most = self.most
        self.most = min(most, self.spent + share * self.left)
        try:
            yield
        finally:
            self.most = most


SLACK: Final = 1 + 1e-12  # rounding of sums of layer times
_GRID: Final = np.arange(1, 33) / 32

Ends = tuple[tuple[Floats, ...], ...]  # by pool and choice


class StageChoice(NamedTuple):
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

    pools: tuple[tuple[StageChoice, ...], ...]
    hop_s: dict[tuple[int, int], Floats]  # (pool, pool) -> [choice, choice] one transfer between them
    in_flight: Floats  # [f] micro-batches alive on the stage at place f from the end; entry 0 is not used
    sum_weight: float
    max_weight: float
    every: bool = False  # use every stage of every pool that has a choice
    least_layers: int = 1  # of a stage
    uniform_layers: bool = False  # all layers are known to be the same
    stages: int | None = None  # of the pipeline; None: any number
    must: int = 0  # bits of the pools that must take part
    ends: Ends = ()  # seconds that follow the pipeline on every stage there can be, see end_times
    ends_below: float = np.inf  # what no stage's end may reach


class StageRun(NamedTuple):
    """Consecutive stages on one pool."""

    pool: int
    choice: int
    layers: tuple[int, ...]  # of each stage in pipeline order


class Pipeline(NamedTuple):
    """An optimum."""

    runs: tuple[StageRun, ...]  # in pipeline order
    stage_s: tuple[float, ...]
    value_s: float


def stage_times(problem: Problem, runs: tuple[StageRun, ...]) -> tuple[float, ...]:
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


def end_times(ends: Ends, runs: tuple[StageRun, ...]) -> list[float]:
    """What follows the pipeline on each stage (gradients, optimizer): the step ends with the longest.

    Tables are [first + 2 * last, layers] where layers are alike, else [.., layers left at the front, at the back].
    """
    out, left = [], sum(sum(run.layers) for run in runs)
    place = sum(len(run.layers) for run in runs)
    for number, run in enumerate(runs):
        table = ends[run.pool][run.choice]
        for stage, count in enumerate(run.layers):
            row = table[int(number == 0 and stage == 0) + 2 * int(place == 1)]
            out.append(float(row[count] if row.ndim == 1 else row[left, left - count]))
            left, place = left - count, place - 1
    return out


def _send(problem: Problem, here: tuple[int, int], there: tuple[int, int]) -> float:
    if here[0] == there[0]:
        return problem.pools[here[0]][here[1]].send_s
    return float(problem.hop_s[here[0], there[0]][here[1], there[1]])


def value(problem: Problem, stage_s: tuple[float, ...]) -> float:
    """What is minimised."""
    return problem.sum_weight * sum(stage_s) + problem.max_weight * max(stage_s)


def lightest(sums: Floats) -> Floats:
    """[n] the least that any n neighbouring layers add up to, from running sums."""
    return _lightest(np.ascontiguousarray(sums).tobytes())


@lru_cache(maxsize=4096)
def _lightest(running: bytes) -> Floats:
    sums = np.frombuffer(running)
    gaps = [(sums[n:] - sums[: len(sums) - n]).min() for n in range(len(sums))]
    return np.array(gaps)


def memory_caps(problem: Problem) -> Floats:
    """[choice, place] the most layers of every choice at each place from the end, by memory alone."""
    alive = problem.in_flight[1:]
    choices = [choice for pool in problem.pools for choice in pool]
    if problem.uniform_layers:
        return _uniform_caps(choices, alive)
    caps = np.zeros((len(choices), len(alive)))
    for row, choice in enumerate(choices):
        room = choice.limit_bytes - choice.fixed_bytes
        if room <= 0:
            continue
        stay, kept = lightest(choice.stay_bytes), lightest(choice.kept_bytes)
        held = stay + kept * alive[: choice.stages, None]
        caps[row, : choice.stages] = (held <= room * SLACK).sum(axis=1).clip(1) - 1
    return caps


def _uniform_caps(choices: list[StageChoice], alive: Floats) -> Floats:
    """``memory_caps`` of equal layers."""
    room, stay, kept, stages = np.array(
        [(c.limit_bytes - c.fixed_bytes, c.stay_bytes[1], c.kept_bytes[1], c.stages) for c in choices]
    ).T[:, :, None]
    each = np.maximum(stay + kept * alive, 1e-300)
    most = np.floor(np.maximum(room, 0.0) / each * SLACK**2).clip(0, len(choices[0].stay_bytes) - 1)
    return np.asarray(np.where(np.arange(len(alive)) < stages, most, 0.0))


def least_sum_of(times: Floats, held: Floats, starts: Ints) -> float:
    """The least sum if each pool takes layers in one choice, no more than that holds, wherever they are cheapest.

    ``times`` is [choice, n] for any n layers, ``held`` is [choice], and ``starts`` has the first choice of each pool.
    """
    depth = times.shape[1] - 1
    best = np.minimum.reduceat(np.where(np.arange(depth + 1) <= held[:, None], times, np.inf), starts)
    total = best[0]
    for pool in best[1:]:
        padded = np.concatenate((pool[::-1], np.full(depth, np.inf)))
        # Entry [j, i] is what the pool adds with j - i layers.
        added = sliding_window_view(padded, depth + 1)[::-1]
        total = (total + added).min(axis=1)
    return float(total[-1])


def ends_of_model(problem: Problem) -> float:
    """The least that embedding and head add to the sum of the stages."""
    choices = [choice for pool in problem.pools for choice in pool]
    return min(choice.first_s for choice in choices) + min(choice.last_s for choice in choices)


def least_end_by_layers(table: Floats) -> Floats:
    """[n] the least end of any stage with n layers or more; none has less than nothing."""
    if table.ndim == 2:
        least = table.min(axis=0)
    else:
        front, back = _with_layers(table.shape[1])
        least = np.minimum.reduceat(table.min(axis=0)[front, back], np.flatnonzero(back == 0))
    least = np.minimum.accumulate(least[::-1])[::-1]
    return np.concatenate((np.full(1, -np.inf), least[1:]))


@lru_cache(maxsize=64)
def _with_layers(places: int) -> tuple[Ints, Ints]:
    """Layers left at the front and at the back of every stage, by the number of its layers, none first."""
    back, layers = np.meshgrid(np.arange(places), np.arange(places))
    inside = back + layers < places
    return (back + layers)[inside], back[inside]


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


def narrowed(able: Callable[[Floats], Bools], low: float, high: float, rounds: int) -> tuple[float, float]:
    """A range around the least value that is able, which every round makes 32 times narrower; ``high`` is able."""
    for _ in range(rounds):
        tried = low + (high - low) * _GRID
        found = able(tried)
        found[-1] = True
        first = int(np.argmax(found))
        low, high = (float(tried[first - 1]) if first else low), float(tried[first])
    return low, high
