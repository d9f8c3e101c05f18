"""Pipelines over any pools whose lower bound could win, by the simulator's time, side by side.

A pipeline cannot end before each of its stages has done its micro-batches after one came to it. Pipelines are built
from the last stage, whose place says how many micro-batches a stage keeps, as long as they may pass under a limit by
that bound. In a small fleet so few do that all of them are simulated; of deep models some layers are dealt at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import Final, NamedTuple

import numpy as np

from astra.columns import take
from astra.cost.mixed import Wire
from astra.partition.problem import SLACK, Ends
from astra.provenance import Bools, Floats, Ints
from astra.schedule.simulator import StageSeconds
from astra.schedule.steady import steps_s
from astra.search.fleet.frames import Counts, Frame, FrameShape
from astra.search.fleet.space import FrameSpace
from astra.spec.mixed import Group, Segment

UNITS: Final = 8  # parts in which layers are dealt to stages
MOST_ROWS: Final = 4096  # pipelines in the making that are looked at further, and that are simulated


class Choices(NamedTuple):
    """Ways to hold stages, of all pools in a row; seconds of a micro-batch, bytes of a rank."""

    pools: int  # in all
    pool: Ints
    shapes: tuple[FrameShape, ...]
    gpus: Ints  # of a stage of all pipelines
    stages: Ints  # the most
    work_s: Floats  # [layer, first, last; choice]
    forward_s: Floats  # of it
    hop_s: Floats  # [choice, choice] to the next stage; infinite between two choices of one pool
    stay: Floats
    kept: Floats
    room: Floats
    ends_bytes: Floats  # [first, last; choice]
    ends: Callable[[int, Wire | None], Ends]  # what follows with so many groups over a wire


class Pipelines(NamedTuple):
    """Pipelines with as many stages each, [row, stage]."""

    frame: Frame
    choices: Choices
    choice: Ints
    layers: Ints
    seconds: Floats  # [row] simulated, without what follows

    def take(self, rows: Ints | Bools) -> Pipelines:
        """Some of them."""
        return self._replace(choice=self.choice[rows], layers=self.layers[rows], seconds=self.seconds[rows])

    @property
    def pools(self) -> Ints:
        """[row] bits of those that are used."""
        return np.asarray(np.bitwise_or.reduce(1 << self.choices.pool[self.choice], axis=1))

    def place(self, row: int) -> tuple[int, ...]:
        """GPUs of each pool, and samples."""
        used = [0] * self.choices.pools
        for choice in self.choice[row].tolist():
            used[int(self.choices.pool[choice])] += int(self.choices.gpus[choice])
        return (*used, int(self.frame.dp * self.frame.mbs * self.frame.microbatches))

    def cut(self, row: int) -> tuple[object, ...]:
        """How one cuts the model."""
        shapes = (self.choices.shapes[choice][:2] for choice in self.choice[row].tolist())
        return self.frame.cp, tuple(self.layers[row].tolist()), tuple(shapes)

    def done_s(self, groups: int = 1, way: Wire | None = None) -> Floats:
        """[row] with what follows the pipeline beside other groups."""
        ends = self.choices.ends(groups, way)
        table = np.stack([each for of_pool in ends for each in of_pool])  # [choice, place, layers]
        place = np.zeros(self.choice.shape, np.int64)
        place[:, 0] += 1
        place[:, -1] += 2
        return np.asarray(self.seconds + table[self.choice, place, self.layers].max(axis=1))

    def group(self, row: int, names: Sequence[str]) -> Group:
        """One of them as part of a strategy."""
        choices, layers = self.choice[row].tolist(), self.layers[row].tolist()
        starts = [at for at in range(len(choices)) if not at or choices[at] != choices[at - 1]]
        segments = []
        for start, stop in zip(starts, [*starts[1:], len(choices)], strict=True):
            shape = self.choices.shapes[choices[start]]
            segments.append(
                Segment(
                    pool=names[int(self.choices.pool[choices[start]])], tp=shape.tp, ep=shape.ep, pp=stop - start,
                    layers=tuple(layers[start:stop]), recompute=shape.recompute,
                )
            )  # fmt: skip
        frame = self.frame
        return Group(
            dp=frame.dp, mbs=frame.mbs, cp=frame.cp, microbatches=int(frame.microbatches), segments=tuple(segments)
        )


def choices_of(space: FrameSpace, counts: Counts, frame: Frame) -> Choices | None:
    """Every way to hold stages of a frame; None if there is none."""
    problem, named = space.problem(counts, frame, every=False)
    every = [(pool, number) for pool, some in enumerate(problem.pools) for number in range(len(some))]
    if not every:
        return None
    made = [problem.pools[pool][number] for pool, number in every]
    shapes = tuple(named[pool][number] for pool, number in every)
    hop_s = np.full((len(every), len(every)), np.inf)
    for (place, (pool, number)), (there, (other, next_one)) in product(enumerate(every), enumerate(every)):
        if place == there:
            hop_s[place, there] = made[place].send_s
        elif pool != other:
            hop_s[place, there] = problem.hop_s[pool, other][number, next_one]
    forward_s = np.stack([
        space.ways[pool].columns.forward_s[shape.row][[0, -2, -1]]
        for (pool, _), shape in zip(every, shapes, strict=True)
    ], axis=1)  # fmt: skip
    figures = np.array([
        (one.stages, one.time_s[1], one.first_s, one.last_s, one.stay_bytes[1], one.kept_bytes[1],
         one.limit_bytes - one.fixed_bytes, one.first_bytes, one.last_bytes) for one in made
    ]).T  # fmt: skip
    return Choices(
        len(counts), np.array([pool for pool, _ in every]), shapes,
        np.array([frame.dp * frame.cp * shape.tp for shape in shapes]), figures[0].astype(np.int64),
        figures[1:4], forward_s, hop_s, figures[4], figures[5], figures[6] * SLACK, figures[7:9],
        lru_cache(partial(space.ends, frame, named)),
    )  # fmt: skip


def pipelines_of(space: FrameSpace, counts: Counts, frame: Frame, below_s: float) -> Iterator[Pipelines]:
    """All that may end in time, simulated, as many stages at a time."""
    choices = choices_of(space, counts, frame)
    if choices is None:
        return
    unit = -(-space.depth // UNITS)
    for backward, dealt, bound_s in _Making(choices, frame, space.depth, unit, below_s).each():
        if space.limits.allows("pp", backward.shape[1]):
            best = np.argsort(bound_s, kind="stable")[:MOST_ROWS]
            choice, layers = backward[best, ::-1], dealt[best, ::-1]
            seconds = _simulated_s(choices, choice, layers, int(frame.microbatches))
            yield Pipelines(frame, choices, choice, layers, seconds).take(seconds < below_s)


def _simulated_s(choices: Choices, choice: Ints, layers: Ints, microbatches: int) -> Floats:
    p = choice.shape[1]
    ends = np.zeros((2, p))
    ends[0, 0] = ends[1, -1] = 1

    def of_stages(each_s: Floats) -> Floats:
        layer_s, first_s, last_s = each_s[:, choice]
        return np.asarray(layer_s * layers + first_s * ends[0] + last_s * ends[1])

    forward_s, send_s = of_stages(choices.forward_s), choices.hop_s[choice[:, :-1], choice[:, 1:]]
    stages = StageSeconds(forward_s, of_stages(choices.work_s) - forward_s, np.zeros_like(forward_s), send_s)
    return steps_s("1f1b", p=p, v=1, m=microbatches, stages=stages, blocking_p2p=True)


class _Begun(NamedTuple):
    """Pipelines in the making, a row each, whose stages are known from the last one on."""

    choice: Ints  # [row, place from the end]
    layers: Ints
    part_s: Floats  # the front stage, without what comes to it
    behind_s: Floats  # that no pipeline with the stages behind it can beat
    left: Ints  # layers
    runs: Ints  # stages more that the front stage's pool has
    used: Ints  # bits of the pools

    @property
    def own(self) -> Ints:
        """The choice of the front stage."""
        return np.asarray(self.choice[:, -1])


class _Making:
    """Pipelines in the making, from the last stage on."""

    def __init__(self, choices: Choices, frame: Frame, depth: int, unit: int, below_s: float) -> None:
        self.of, self.m, self.depth, self.unit, self.below_s = choices, frame.microbatches, depth, unit, below_s
        self.least_s = float(choices.work_s[0].min())

    def each(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Choices and layers of pipelines with as many stages each, the last stage first; with their bounds."""
        made = self._last()
        while len(made.left):
            bound_s = self._bound_s(made, self.of.work_s[1, made.own])
            more = self.of.ends_bytes[0, made.own]
            if made.choice.shape[1] == 1:
                more = more + self.of.ends_bytes[1, made.own]
            ready = (made.left == 0) & (bound_s < self.below_s) & self._fits(made, more)
            if ready.any():
                yield made.choice[ready], made.layers[ready], bound_s[ready]
            made = self._soon(self._longer(made), 0.0)

    def _last(self) -> _Begun:
        """Every last stage."""
        of = self.of
        sizes = range(self.depth % self.unit or self.unit, self.depth + 1, self.unit)
        choice, layers = (column.ravel() for column in np.meshgrid(np.arange(len(of.pool)), np.array(sizes)))
        made = _Begun(
            choice[:, None], layers[:, None], layers * of.work_s[0, choice] + of.work_s[2, choice],
            np.zeros(len(choice)), self.depth - layers, of.stages[choice] - 1, 1 << of.pool[choice],
        )  # fmt: skip
        return self._soon(made, of.ends_bytes[1, choice])

    def _soon(self, made: _Begun, more: Floats | float) -> _Begun:
        """Those that fit and may end in time; of very many the best."""
        bound_s = self._bound_s(made) + made.left * self.least_s
        rows = np.flatnonzero(self._fits(made, more) & (bound_s < self.below_s))
        if len(rows) > MOST_ROWS:
            rows = rows[np.argsort(bound_s[rows], kind="stable")[:MOST_ROWS]]
        return take(made, rows)

    def _bound_s(self, made: _Begun, more_s: Floats | float = 0.0) -> Floats:
        """Seconds in which every stage has done its micro-batches after one came to it."""
        whole_s = made.part_s + more_s
        return np.maximum(self.m * whole_s, made.behind_s + whole_s)

    def _longer(self, made: _Begun) -> _Begun:
        """With every stage that may come before."""
        of = self.of
        before, taken, layers = self._next(made)
        send_s = of.hop_s[taken, made.own[before]]
        behind_s = self._bound_s(take(made, before), send_s)
        runs = np.where(taken == made.own[before], made.runs[before], of.stages[taken]) - 1
        return _Begun(
            np.concatenate([made.choice[before], taken[:, None]], axis=1),
            np.concatenate([made.layers[before], layers[:, None]], axis=1),
            layers * of.work_s[0, taken] + send_s, behind_s, made.left[before] - layers, runs,
            made.used[before] | 1 << of.pool[taken],
        )  # fmt: skip

    def _next(self, made: _Begun) -> tuple[Ints, Ints, Ints]:
        """Rows, and the choice and layers of the stage that comes before each."""
        of = self.of
        same = (np.arange(len(of.pool)) == made.own[:, None]) & (made.runs[:, None] > 0)
        able = same | (made.used[:, None] >> of.pool & 1 == 0)
        row, taken = np.nonzero(able)
        count = np.arange(self.unit, self.depth + 1, self.unit)
        some, which = np.nonzero(count <= made.left[row][:, None])
        return row[some], taken[some], count[which]

    def _fits(self, made: _Begun, more: Floats | float) -> Bools:
        """Whether the front stage has room for what it holds, with more at an end of the pipeline."""
        alive = min(made.choice.shape[1], self.m)
        held = made.layers[:, -1] * (self.of.stay[made.own] + alive * self.of.kept[made.own]) + more
        return np.asarray(held <= self.of.room[made.own])
