"""Small fleets: every pipeline over any pools that could win, alone or beside other groups.

The closed form that pipelines are solved by is an upper limit: with few micro-batches the simulator comes below it, by
more or less as stages stand in another order or hold other layers. So all that could win are simulated (``making``).
With fewer micro-batches they are groups: of every part of the fleet and every share of the batch the best is kept, and
two or three that add up to all of it are chosen exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Final

import numpy as np

from astra.cost.mixed import Wire
from astra.provenance import Floats
from astra.search.fleet.dealing import Dealt, OpenGroup
from astra.search.fleet.frames import Counts, Frame
from astra.search.fleet.making import Pipelines, pipelines_of
from astra.spec.mixed import Group

if TYPE_CHECKING:
    from astra.search.fleet.search import Planner

KEPT: Final = 6  # plans of each kind
FEW_GPUS: Final = 8  # of a fleet whose every part may be a group
MOST_SHARES: Final = 16  # different shares of the batch
MOST_GROUPS: Final = 3


class SmallFleet:
    """The pipelines of a fleet of few GPUs."""

    def __init__(self, planner: Planner, counts: Counts, below_s: float) -> None:
        self.planner, self.space, self.counts, self.below_s = planner, planner.frame_space, counts, below_s

    def one_group(self) -> list[Dealt]:
        """The best plans whose replicas are all one pipeline, of every set of pools."""
        found: dict[int, list[Dealt]] = {}
        for frame in self._frames(whole=True):
            for some in self._pipelines(frame):
                done_s, pools = some.done_s(), some.pools
                for row in np.argsort(done_s, kind="stable").tolist():
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

    def _pipelines(self, frame: Frame) -> Iterator[Pipelines]:
        return pipelines_of(self.space, self.counts, frame, self.below_s)

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
                    parts.share(gpus, group)
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
                yield from ((gpus, group) for group in self.planner.groups.of_part(pool, gpus, share))


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

    def share(self, gpus: int, group: OpenGroup) -> None:
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
            seconds, numbers = (
                max(float(self.done_s[at]) for at in chosen),
                sorted(int(self.which[at]) for at in chosen),
            )
            found.setdefault(tuple(numbers), (seconds, tuple(self.made[one]() for one in numbers)))
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
