"""How groups of unlike pipelines share a batch: which groups, and how many micro-batches each.

Every pool may be used in several ways, each one or more groups, or not at all; a pipeline over several pools is a way
to use all of them. Groups take whole numbers of micro-batches that add up to the batch, so that the last one ends
soonest. That is exact: the time of a group is a line in its micro-batches, and a choice of ways is left out only if
its groups could not do the batch in time, or there are too many choices: then that is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, gcd, inf
from typing import Final, NamedTuple

import numpy as np

from astra.columns import unique
from astra.cost.mixed import Wire
from astra.partition.problem import narrowed
from astra.provenance import Bools, Floats
from astra.spec.mixed import Group

_SLACK: Final = 1 + 1e-12
MOST_DEALS: Final = 1_000  # of one search, half a second at most


class BatchShare(NamedTuple):
    """A group's time as a line: ``fixed_s + units * unit_s`` for ``units * samples`` samples."""

    samples: int  # of one unit: one micro-batch of every pipeline, or a whole round of an interleaved one
    fixed_s: float
    unit_s: float


Menu = Sequence[BatchShare]  # of which one is taken
Taken = tuple[int, int]  # which of a menu, and its units


def deal(menus: Sequence[Menu], batch: int, below: float = inf) -> tuple[float, tuple[Taken, ...]] | None:
    """The least longest time, and what is taken of each menu; None if no whole numbers add up to the batch ``below``.

    Each group's time is a line in its units, and the longest time is the least for which such numbers exist. More time
    never takes a solution away, so that the least is found by halving the times at which one more unit is possible.
    """
    step = gcd(*(share.samples for menu in menus for share in menu))
    if step == 0 or batch % step:
        return None
    every, batch = [np.array([(one[0] // step, *one[1:]) for one in menu]).T for menu in menus], batch // step
    longest_s = max(
        float((fixed_s + unit_s * np.maximum(batch // samples, 1)).max()) for samples, fixed_s, unit_s in every
    )
    high_s = min(longest_s, below)
    low_s = _least_s(every, batch, high_s)
    if low_s >= below or (dealt := _within(every, batch, high_s)) is None:
        return None
    apart_s = max(float(unit_s.min()) for _, _, unit_s in every)
    while low_s + apart_s < high_s:  # most often little more than the least will do
        if (sooner := _within(every, batch, low_s + apart_s)) is not None:
            high_s, dealt = low_s + apart_s, sooner
            break
        low_s, apart_s = low_s + apart_s, 2 * apart_s
    tried_s = _unit_ends(every, low_s, high_s)
    first, last = 0, len(tried_s)
    while first < last:
        middle = (first + last) // 2
        sooner = _within(every, batch, float(tried_s[middle]))
        first, last, dealt = (middle + 1, last, dealt) if sooner is None else (first, middle, sooner)
    longest_s = max(
        menu[which].fixed_s + menu[which].unit_s * units for menu, (which, units) in zip(menus, dealt, strict=True)
    )
    return (longest_s, dealt) if longest_s < below else None


def _least_s(menus: Sequence[Floats], batch: int, high_s: float) -> float:
    """The time in which the groups could do the batch if units could be divided, each doing one at least."""
    one_s = max(float((fixed_s + unit_s).min()) for _, fixed_s, unit_s in menus)

    def enough(seconds: Floats) -> Bools:
        each = ((samples[:, None] * (seconds - fixed_s[:, None]) / unit_s[:, None]).max(axis=0)
                for samples, fixed_s, unit_s in menus)  # fmt: skip
        return np.asarray(sum(each) >= batch)

    return max(narrowed(enough, 0.0, high_s, 3)[0], one_s) / _SLACK


def _unit_ends(menus: Sequence[Floats], low_s: float, high_s: float) -> Floats:
    """Times within two limits at which a group ends one more unit, ascending."""
    found = []
    for menu in menus:
        for _, fixed_s, unit_s in menu.T.tolist():
            first, last = (floor((limit - fixed_s) / unit_s) for limit in (low_s, high_s))
            found.append(fixed_s + unit_s * np.arange(max(first, 1), last + 1))
    return unique(np.concatenate(found))


def _within(menus: Sequence[Floats], batch: int, seconds: float) -> tuple[Taken, ...] | None:
    """What is taken of each menu, a unit at least, that adds up to the batch and ends in time."""
    able, most = list[list[tuple[int, int, int]]](), list[int]()
    for samples, fixed_s, unit_s in menus:
        units = np.minimum(np.floor((seconds - fixed_s) / unit_s * _SLACK), batch // samples)
        rows = np.flatnonzero(units > 0)
        if not len(rows):
            return None
        able.append([(int(row), int(samples[row]), int(units[row])) for row in rows.tolist()])
        most.append(max(size * count for _, size, count in able[-1]))
    spare = sum(most) - batch
    if spare < 0:
        return None
    inside, reached = (1 << spare + 1) - 1, [1]  # bit n: the menus so far can leave n of the most they could do
    for some, full in zip(able, most, strict=True):
        sums = 0
        for _, size, count in some:
            if full - size * count > spare:
                continue
            bits, left, times = reached[-1] << full - size * count & inside, count - 1, 1
            while left:  # 1, 2, 4, ... of them and the rest make every number
                times = min(times, left)
                bits |= bits << times * size & inside
                left, times = left - times, 2 * times
            sums |= bits
        reached.append(sums)
    if not reached.pop() >> spare & 1:
        return None
    out = list[Taken]()
    for some, full in zip(reversed(able), reversed(most), strict=True):
        before = reached.pop()
        which, size, units = next(
            (which, size, units) for which, size, count in some for units in range(count, 0, -1)
            if (left := spare - full + size * units) >= 0 and before >> left & 1
        )  # fmt: skip
        out.append((which, units))
        spare -= full - size * units
    return tuple(reversed(out))


class OpenGroup(NamedTuple):
    """A group whose share of the batch is still to be dealt."""

    pools: int  # bits of those it uses
    round: int  # micro-batches come in whole numbers of so many
    share: BatchShare  # a unit is a round of every pipeline
    end_s: Callable[..., float]  # what follows the pipeline, with so many groups over a wire
    group: Callable[[int], Group]  # of so many micro-batches
    better: Callable[[int], OpenGroup | None]  # the same for so many with a better split of its layers, if there is one

    def with_same_cut(self, replicas: int) -> OpenGroup:
        """The same beside groups that cut the model as it does, so many replicas in all."""
        return self._replace(end_s=lambda groups, way: self.end_s(groups, way, replicas))

    def line(self, groups: int, way: Wire | None) -> BatchShare:
        """Its time with what follows the pipeline."""
        return self.share._replace(fixed_s=self.share.fixed_s + self.end_s(groups, way))


Way = tuple[tuple[OpenGroup, ...], ...]  # to use some pools: one group of each menu, whose groups use the same pools


Dealt = tuple[float, tuple[Group, ...]]  # groups that share the batch, and the seconds of the one that ends last


class Sharing(NamedTuple):
    """Groups with their micro-batches; seconds of the one that ends last, with what follows its pipeline."""

    seconds: float
    groups: tuple[tuple[OpenGroup, int], ...]

    @property
    def dealt(self) -> Dealt:
        """As groups of a strategy."""
        return self.seconds, tuple(part.group(microbatches) for part, microbatches in self.groups)


class Dealer:
    """The best ways to share a batch among groups, one way at most for each pool."""

    def __init__(
        self, ways: Sequence[Way], batch: int, wire: Callable[[int], Wire | None], *, keep: int, below: float
    ) -> None:
        self._batch, self._wire, self._keep = batch, wire, keep
        self._limit_s, self._found, self.deals = below, dict[tuple[int, ...], Sharing](), 0
        groups = [part for way in ways for menu in way for part in menu]
        able = {1 << pool: 0.0 for pool in range(max((part.pools for part in groups), default=0).bit_length())}
        for part in groups:
            able[part.pools & -part.pools] += part.share.samples / part.share.unit_s
        order = sorted(able, key=lambda bit: -able[bit])  # the same whatever the order in which pools are given
        first = [min(order.index(bit) for bit in order if _pools(way) & bit) for way in ways]
        self._ways = [[way for way, at in zip(ways, first, strict=True) if at == place] for place in range(len(order))]
        self._lines = [[[self._least(menu) for menu in way] for way in some] for some in self._ways]
        self.left_open = False  # whether choices were left out because there are too many

    def _least(self, menu: Sequence[OpenGroup]) -> Floats:
        """The times of groups beside another, over the best wire there is: with more of them they are no shorter."""
        bits, pools = (1 << pool for pool in range(len(self._ways))), menu[0].pools
        wires = {self._wire(pools | bit) for bit in bits if not bit & pools} or {self._wire(pools)}
        lines = [min((part.line(2, wire) for wire in wires), key=lambda line: line.fixed_s) for part in menu]
        return np.array(lines).T

    def best(self, every: int = 0) -> list[Sharing]:
        """The best of all choices, best first; ``every``: bits of pools that must be used."""
        self._every = every
        for ways in self._ways:
            for way in ways:  # what a single way can do is the first limit
                if not every & ~_pools(way):
                    self._deal(way)
        self._rank()
        self.deals = 0
        self._choose(0, (), 0, 0)
        return sorted(self._found.values(), key=lambda one: one.seconds)[: self._keep]

    def _rank(self) -> None:
        """What each way could do in time, most first, and the most that the pools from each on could do."""
        able = [sorted(((_able(way, self._limit_s, self._batch), -n) for n, way in enumerate(ways)), reverse=True)
                for ways in self._lines]  # fmt: skip
        self._able = [[(samples, self._ways[pool][-n]) for samples, n in some] for pool, some in enumerate(able)]
        most = [some[0][0] if some else 0 for some in able]
        self._rest = [sum(most[pool:]) for pool in range(len(most) + 1)]

    def _choose(self, pool: int, chosen: Way, used: int, samples: int) -> None:
        self.left_open |= self.deals >= MOST_DEALS
        if samples + self._rest[pool] < self._batch or self.left_open:
            return
        if pool == len(self._ways):
            if not self._every & ~used:
                self._deal(chosen)
            return
        for able, way in self._able[pool]:
            if samples + able + self._rest[pool + 1] < self._batch:
                break
            taken = _pools(way)
            if able > 0 and not taken & used:
                self._choose(pool + 1, (*chosen, *way), used | taken, samples + able)
        self._choose(pool + 1, chosen, used, samples)

    def _deal(self, menus: Way) -> None:
        """Share the batch among a group of each menu, and remember it if it is among the best."""
        way = self._wire(_pools(menus)) if len(menus) > 1 else None
        self.deals += 1
        lines = [[part.line(len(menus), way) for part in menu] for menu in menus]
        dealt = deal(lines, self._batch, self._limit_s)
        if dealt is None:
            return
        seconds, taken = dealt
        parts = tuple(
            (menu[which], units * menu[which].round) for menu, (which, units) in zip(menus, taken, strict=True)
        )
        self._found[tuple(id(menu) for menu in menus)] = Sharing(seconds, parts)
        if len(self._found) >= self._keep:
            kept = sorted(self._found.items(), key=lambda item: item[1].seconds)[: self._keep]
            self._found, self._limit_s = dict(kept), kept[-1][1].seconds
            self._rank()  # may be used while it is walked: what is left of an old order is only longer


def _pools(way: Way) -> int:
    """Bits of the pools of all groups."""
    bits = 0
    for menu in way:
        bits |= menu[0].pools
    return bits


def _able(way: Sequence[Floats], seconds: float, batch: int) -> int:
    """Samples that groups can do in time; 0 if one has no time for any."""
    total = 0
    for samples, fixed_s, unit_s in way:
        units = np.minimum(np.floor(np.minimum((seconds - fixed_s) / unit_s, 1e9) * _SLACK), batch // samples)
        most = int((samples * units).max())
        if most <= 0:
            return 0
        total += most
    return total


def undominated(groups: Sequence[OpenGroup], wires: Sequence[Wire]) -> list[OpenGroup]:
    """Of groups of the same GPUs those that no other is better than, whatever their share and whoever is beside."""
    figures: list[tuple[int, list[float]]] = []
    for group in groups:
        samples, fixed_s, unit_s = group.share
        ends_s = (group.end_s(1, None), *(group.end_s(2, wire) for wire in wires))
        figures.append((samples, [unit_s / samples, *(fixed_s + end_s for end_s in ends_s)]))
    kept = []
    for place, (samples, own) in enumerate(figures):
        better = (
            samples % other == 0 and all(a <= b for a, b in zip(rest, own, strict=True)) and (rest != own or at < place)
            for at, (other, rest) in enumerate(figures)
            if at != place
        )
        if not any(better):
            kept.append(groups[place])
    return kept
