"""Small fleets: every pipeline over any pools whose lower bound could win, by the simulator's time.

The closed form that pipelines are solved by is an upper limit: with few micro-batches the simulator comes below it, by
more or less as stages stand in another order or hold other layers. A pipeline cannot end before any of its stages has
done its micro-batches after one came to it. In a small fleet so few pipelines pass under the best time known by that
bound that all of them are simulated, side by side. They are built from the last stage, whose place in the pipeline
says how many micro-batches a stage keeps; of deep models layers are dealt several at a time.

The same pipelines with fewer micro-batches are groups: of every part of the fleet and every share of the batch the best
is kept, and two or three that add up to all of it are chosen exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from astra.cost.mixed import Wire
from astra.partition.problem import SLACK, Ends
from astra.provenance import Bools, Floats, Ints
from astra.schedule.simulator import StageSeconds
from astra.schedule.steady import steps_s
from astra.search.fleet.dealing import Dealt, OpenGroup
from astra.search.fleet.frames import Counts, Frame, FrameShape
from astra.spec.mixed import Group, Segment

if TYPE_CHECKING:
    from astra.search.fleet.search import Planner

UNITS: Final = 8  # parts in which layers are dealt to stages
MOST_ROWS: Final = 4096  # pipelines in the making that are looked at further, and that are simulated
KEPT: Final = 6  # plans of each kind
FEW_GPUS: Final = 8  # of a fleet whose every part may be a group
MOST_SHARES: Final = 16  # different shares of the batch
MOST_GROUPS: Final = 3


class _Choices(NamedTuple):
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
    choices: _Choices
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
                    layers=tuple(layers[start:stop]), recompute=shape.recompute,  # type: ignore[arg-type]
                )
            )  # fmt: skip
        frame = self.frame
        return Group(
            dp=frame.dp, mbs=frame.mbs, cp=frame.cp, microbatches=int(frame.microbatches), segments=tuple(segments)
        )


class SmallFleet:
    """The pipelines of a fleet of few GPUs."""

    def __init__(self, planner: Planner, counts: Counts, below_s: float) -> None:
        self.planner, self.space, self.counts, self.below_s = planner, planner.frame_space, counts, below_s
        self.unit = -(-self.space.depth // UNITS)

    def alike(self) -> list[Dealt]:
        """The best plans whose replicas are all one pipeline, of every set of pools."""
        found: dict[int, list[Dealt]] = {}
        for frame in self._frames(whole=True):
            for some in self._pipelines(frame):
                done_s, pools = some.done_s(), some.pools
                for row in np.argsort(done_s, kind="stable")[:MOST_ROWS].tolist():
                    kept = found.setdefault(int(pools[row]), [])
                    if len(kept) < KEPT or done_s[row] < kept[-1][0]:
                        kept.append((float(done_s[row]), (some.group(row, self.space.fleet.names),)))
                        kept.sort(key=lambda one: one[0])
                        del kept[KEPT:]
        return [one for kept in found.values() for one in kept]

    def _frames(self, *, whole: bool) -> Iterator[Frame]:
        space, limits = self.space, self.space.limits
        if limits.unsearched or not limits.chunks(1) or not space.uniform:
            return
        for mbs, cp in product(space.mbs, space.cp):
            for dp in limits.filter("dp", range(1, sum(self.counts) // cp + 1)):
                most = space.batch // (dp * mbs)
                step = max(-(-space.batch // MOST_SHARES), 1)
                each = [most] if whole else [m for m in range(1, most + 1) if dp * mbs * m % step == 0]
                for m in each:
                    if dp * mbs * m <= space.batch and (not whole or dp * mbs * m == space.batch):
                        yield Frame(dp, mbs, cp, 1, None, float(m), None)

    def _choices(self, frame: Frame) -> _Choices | None:
        problem, named = self.space.problem(self.counts, frame, every=False)
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
            self.space.ways[pool].columns.forward_s[shape.row][[0, -2, -1]]
            for (pool, _), shape in zip(every, shapes, strict=True)
        ], axis=1)  # fmt: skip
        figures = np.array([
            (one.stages, one.time_s[1], one.first_s, one.last_s, one.stay_bytes[1], one.kept_bytes[1],
             one.limit_bytes - one.fixed_bytes, one.first_bytes, one.last_bytes) for one in made
        ]).T  # fmt: skip
        return _Choices(
            len(self.counts), np.array([pool for pool, _ in every]), shapes,
            np.array([frame.dp * frame.cp * shape.tp for shape in shapes]), figures[0].astype(np.int64),
            figures[1:4], forward_s, hop_s, figures[4], figures[5], figures[6] * SLACK, figures[7:9],
            lru_cache(partial(self.space.ends, frame, named)),
        )  # fmt: skip

    def _pipelines(self, frame: Frame) -> Iterator[Pipelines]:
        """All that may end in time."""
        choices = self._choices(frame)
        if choices is None:
            return
        for backward, dealt, bound_s in _Making(choices, frame, self.space.depth, self.unit, self.below_s).each():
            p = backward.shape[1]
            if not self.space.limits.allows("pp", p):
                continue
            best = np.argsort(bound_s, kind="stable")[:MOST_ROWS]
            choice, layers = backward[best, ::-1], dealt[best, ::-1]
            place = np.zeros((2, p))
            place[0, 0] = place[1, -1] = 1

            def of_stages(each_s: Floats, choice: Ints = choice, layers: Ints = layers, ends: Floats = place) -> Floats:
                layer_s, first_s, last_s = each_s[:, choice]
                return np.asarray(layer_s * layers + first_s * ends[0] + last_s * ends[1])

            forward_s = of_stages(choices.forward_s)
            stages = StageSeconds(
                forward_s, of_stages(choices.work_s) - forward_s, np.zeros_like(forward_s),
                choices.hop_s[choice[:, :-1], choice[:, 1:]],
            )  # fmt: skip
            seconds = steps_s("1f1b", p=p, v=1, m=int(frame.microbatches), stages=stages, blocking_p2p=True)
            soon = seconds < self.below_s
            yield Pipelines(frame, choices, choice, layers, seconds).take(soon)

    def apart(self) -> list[list[Dealt]]:
        """The best plans of two or three groups on any parts of the pools, and of two that reduce together."""
        made = [some for frame in self._frames(whole=False) for some in self._pipelines(frame)]
        opened, names = list(self._opened()), self.planner.fleet.names
        apart: list[Dealt] = []
        for pools, groups in product(range(1, 1 << len(self.counts)), range(2, MOST_GROUPS + 1)):
            if all(self.counts[pool] for pool in _places(pools)):
                parts = _Parts(self, pools, groups, self.planner.menus.between(_places(pools)))
                for some in made:
                    for row, seconds in parts.soon(some):
                        parts.keep(some.place(row), seconds, partial(some.group, row, names))
                for gpus, group in opened:
                    parts.open(gpus, group)
                apart += parts.best()
        return [apart, self._together(made)]

    def _together(self, made: Sequence[Pipelines]) -> list[Dealt]:
        """The best of two groups that cut the model alike, as if they had nothing to exchange between pools."""
        every, names = (1 << len(self.counts)) - 1, self.planner.fleet.names
        by_cut: dict[tuple[object, ...], _Parts] = {}
        for some in made:
            for row, seconds in _Parts(self, every, 2, None).soon(some):
                cut = some.cut(row)
                parts = by_cut.setdefault(cut, _Parts(self, every, 2, None))
                parts.keep(some.place(row), seconds, partial(some.group, row, names))
        return [one for parts in by_cut.values() for one in parts.best()]

    def _opened(self) -> Iterator[tuple[int, OpenGroup]]:
        """Groups on some GPUs of a pool as the planner for one GPU type has them."""
        rates = self.planner.frame_space.rates_of(self.counts)
        for pool, most in enumerate(self.counts):
            for gpus in range(1, most + 1) if rates[pool] else ():
                share = self.planner.frame_space.batch * rates[pool] * gpus / most / sum(rates)
                yield from ((gpus, group) for group in self.planner.groups.of_part(pool, gpus, share, self.below_s))


class _Making:
    """Pipelines in the making, from the last stage on."""

    def __init__(self, choices: _Choices, frame: Frame, depth: int, unit: int, below_s: float) -> None:
        self.of, self.m, self.depth, self.unit, self.below_s = choices, frame.microbatches, depth, unit, below_s
        self.least_s = float(choices.work_s[0].min())

    def each(self) -> Iterator[tuple[Ints, Ints, Floats]]:
        """Choices and layers of pipelines with as many stages each, the last stage first; with their bounds."""
        of, m = self.of, self.m
        first = [(c, n) for c in range(len(of.pool)) for n in range(self.depth % self.unit, self.depth + 1, self.unit)
                 if n]  # fmt: skip
        choice, layers = (np.array(column, np.int64)[:, None] for column in zip(*first, strict=True))
        part_s = layers[:, 0] * of.work_s[0, choice[:, 0]] + of.work_s[2, choice[:, 0]]
        behind_s = np.zeros(len(choice))
        left, runs, used = self.depth - layers[:, 0], of.stages[choice[:, 0]] - 1, 1 << of.pool[choice[:, 0]]
        fits = self._fits(choice[:, 0], layers[:, 0], 1, of.ends_bytes[1, choice[:, 0]])
        fits &= m * part_s + left * self.least_s < self.below_s
        rows = np.flatnonzero(fits)
        while len(rows):
            choice, layers, part_s, behind_s, left, runs, used = (
                column[rows] for column in (choice, layers, part_s, behind_s, left, runs, used)
            )
            own = choice[:, -1]
            whole_s = part_s + of.work_s[1, own]
            bound_s = np.maximum(m * whole_s, behind_s + whole_s)
            ready = (left == 0) & (bound_s < self.below_s)
            ready &= self._fits(own, layers[:, -1], choice.shape[1], of.ends_bytes[0, own]
                                + (of.ends_bytes[1, own] if choice.shape[1] == 1 else 0.0))  # fmt: skip
            if ready.any():
                yield choice[ready], layers[ready], bound_s[ready]
            before, taken, count = self._next(own, left, runs, used)
            if not len(before):
                return
            send_s = of.hop_s[taken, own[before]]
            whole_s = part_s[before] + send_s
            behind_s = np.maximum(m * whole_s, behind_s[before] + whole_s)
            part_s = count * of.work_s[0, taken] + send_s
            runs = np.where(taken == own[before], runs[before], of.stages[taken]) - 1
            left, used = left[before] - count, used[before] | 1 << of.pool[taken]
            choice = np.concatenate([choice[before], taken[:, None]], axis=1)
            layers = np.concatenate([layers[before], count[:, None]], axis=1)
            bound_s = np.maximum(m * part_s, behind_s + part_s) + left * self.least_s
            fits = self._fits(taken, count, choice.shape[1], 0.0) & (bound_s < self.below_s)
            rows = np.flatnonzero(fits)
            if len(rows) > MOST_ROWS:
                rows = rows[np.argsort(bound_s[rows], kind="stable")[:MOST_ROWS]]

    def _next(self, own: Ints, left: Ints, runs: Ints, used: Ints) -> tuple[Ints, Ints, Ints]:
        """Rows, and the choice and layers of the stage that comes before each."""
        of = self.of
        same = (np.arange(len(of.pool)) == own[:, None]) & (runs[:, None] > 0)
        able = same | (used[:, None] >> of.pool & 1 == 0)
        able &= left[:, None] > 0
        row, taken = np.nonzero(able)
        count = np.arange(self.unit, self.depth + 1, self.unit)
        some, which = np.nonzero(count <= left[row][:, None])
        return row[some], taken[some], count[which]

    def _fits(self, choice: Ints, layers: Ints, place: int, more: Floats | float) -> Bools:
        alive = min(place, self.m)
        held = layers * (self.of.stay[choice] + alive * self.of.kept[choice]) + more
        return np.asarray(held <= self.of.room[choice])


class _Parts:
    """The best group for every part of some pools and every share of the batch, where so many groups share it.

    ``done_s`` is [GPUs of each pool at most, samples].
    """

    def __init__(self, fleet: SmallFleet, pools: int, groups: int, way: Wire | None) -> None:
        self.fleet, self.pools, self.groups, self.way = fleet, pools, groups, way
        self.batch = fleet.planner.frame_space.batch
        counts = tuple(gpus if pools >> pool & 1 else 0 for pool, gpus in enumerate(fleet.counts))
        self.shape = (*(gpus + 1 for gpus in counts), self.batch + 1)
        self.done_s = np.full(self.shape, np.inf)
        self.which = np.full(self.shape, -1)
        self.made: list[Callable[[], Group]] = []

    def soon(self, some: Pipelines) -> Iterator[tuple[int, float]]:
        """Rows on these pools that end in time, the quickest first."""
        done_s = np.where(some.pools & ~self.pools, np.inf, some.done_s(self.groups, self.way))
        for row in np.argsort(done_s, kind="stable").tolist():
            if done_s[row] >= self.fleet.below_s:
                return
            yield row, float(done_s[row])

    def open(self, gpus: int, group: OpenGroup) -> None:
        """Look at a group on some GPUs of a pool with every share of the batch."""
        if group.pools & ~self.pools == 0:
            line, used = group.line(self.groups, self.way), [0] * (len(self.shape) - 1)
            used[group.pools.bit_length() - 1] = gpus
            for units in range(1, (self.batch - 1) // line.samples + 1):
                seconds = line.fixed_s + units * line.unit_s
                self.keep((*used, units * line.samples), seconds, partial(group.group, units * group.round))

    def keep(self, place: tuple[int, ...], seconds: float, group: Callable[[], Group]) -> None:
        """Remember what is done sooner than others on as many GPUs with as many samples."""
        if seconds < min(self.done_s[place], self.fleet.below_s):
            self.done_s[place], self.which[place] = seconds, len(self.made)
            self.made.append(group)

    def best(self) -> list[Dealt]:
        """The best ways to choose as many groups as were told, best first."""
        for axis in range(len(self.shape) - 1):  # with more GPUs than are used it is as good
            done_s, which = (np.moveaxis(each, axis, 0) for each in (self.done_s, self.which))
            for more in range(1, len(done_s)):
                better = done_s[more - 1] < done_s[more]
                done_s[more][better], which[more][better] = done_s[more - 1][better], which[more - 1][better]
        rest = [self.done_s]
        for _ in range(self.groups - 2):
            rest.append(self._with_another(rest[-1]))
        found = dict[tuple[int, ...], Dealt]()
        for place in self._splits(rest[-1], tuple(size - 1 for size in self.shape)):
            chosen, left = [place], tuple(size - 1 - at for size, at in zip(self.shape, place, strict=True))
            for fewer in reversed(rest[:-1]):
                chosen.append(self._splits(fewer, left)[0])
                left = tuple(have - at for have, at in zip(left, chosen[-1], strict=True))
            chosen.append(left)
            seconds, which = max(float(self.done_s[at]) for at in chosen), sorted(int(self.which[at]) for at in chosen)
            found.setdefault(tuple(which), (seconds, tuple(self.made[one]() for one in which)))
        return list(found.values())

    def _with_another(self, rest: Floats) -> Floats:
        """[GPUs, samples] the best of one group more."""
        out = np.full(self.shape, np.inf)
        for place in np.argwhere(np.isfinite(self.done_s)).tolist():
            here = tuple(slice(at, None) for at in place)
            before = tuple(slice(None, size - at) for size, at in zip(self.shape, place, strict=True))
            longest_s = np.maximum(rest[before], self.done_s[tuple(place)])
            np.minimum(out[here], longest_s, out=out[here])
        return out

    def _splits(self, rest: Floats, have: tuple[int, ...]) -> list[tuple[int, ...]]:
        """What one group takes of some GPUs and samples, where the others take the rest; the best first."""
        inside = tuple(slice(None, most + 1) for most in have)
        longest_s = np.maximum(self.done_s[inside], np.flip(rest[inside]))
        best = np.argsort(longest_s, axis=None, kind="stable")[:KEPT]
        places = [tuple(int(at) for at in np.unravel_index(one, longest_s.shape)) for one in best.tolist()]
        return [place for place in places if longest_s[place] < self.fleet.below_s]


def _places(pools: int) -> list[int]:
    """Of bits."""
    return [place for place in range(pools.bit_length()) if pools >> place & 1]
