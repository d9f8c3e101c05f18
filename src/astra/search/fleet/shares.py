"""Groups of unlike pipelines that share a batch: how many micro-batches each takes, so that the last one ends soonest.

Exact for given groups: the micro-batches are whole numbers that add up to the batch, each group's time is a line in
them, and the longest time is the least for which such numbers exist.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from math import floor, gcd, inf
from typing import NamedTuple

MOST_EVENTS = 20_000


class Share(NamedTuple):
    """A group's time as a line: ``fixed_s + units * unit_s`` for ``units * samples`` samples."""

    samples: int  # of one unit: one micro-batch of every pipeline, or a whole round of an interleaved one
    fixed_s: float
    unit_s: float


def deal(shares: Sequence[Share], batch: int, below: float = inf) -> tuple[float, tuple[int, ...]] | None:
    """The least longest time and the units of each group; None if no whole numbers add up to the batch ``below``."""
    step = 0
    for share in shares:
        step = gcd(step, share.samples)
    if step == 0 or batch % step or sum(share.samples for share in shares) > batch:
        return None
    low, high = 0.0, max(share.fixed_s + share.unit_s * (batch / share.samples) for share in shares) + 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        room = sum(share.samples * units for share, units in zip(shares, _most(shares, middle), strict=True))
        low, high = (low, middle) if room >= batch else (middle, high)
    units = _most(shares, high)
    # Each further unit becomes possible at its own time: visit these times in order.
    coming = [(share.fixed_s + (units[i] + 1) * share.unit_s, i) for i, share in enumerate(shares)]
    heapq.heapify(coming)
    for _ in range(MOST_EVENTS):
        spare = sum(share.samples * count for share, count in zip(shares, units, strict=True)) - batch
        if spare >= 0 and min(units) >= 1:
            less = _without(spare, [share.samples for share in shares], [count - 1 for count in units])
            if less is not None:
                dealt = tuple(count - fewer for count, fewer in zip(units, less, strict=True))
                ends = [share.fixed_s + share.unit_s * count for share, count in zip(shares, dealt, strict=True)]
                return max(ends), dealt
        next_s, which = heapq.heappop(coming)
        if next_s >= below:
            return None
        units[which] += 1
        share = shares[which]
        if share.samples * units[which] <= batch:
            heapq.heappush(coming, (share.fixed_s + (units[which] + 1) * share.unit_s, which))
        if not coming:
            return None
    return None


def _most(shares: Sequence[Share], seconds: float) -> list[int]:
    return [max(floor((seconds - share.fixed_s) / share.unit_s * (1 + 1e-12)), 0) for share in shares]


def _without(spare: int, sizes: list[int], most: list[int]) -> list[int] | None:
    """Numbers up to ``most`` whose sizes add up to ``spare``, largest sizes first."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    seen: set[tuple[int, int]] = set()

    def take(place: int, left: int) -> list[int] | None:
        if left == 0:
            return [0] * len(sizes)
        if place == len(order) or (place, left) in seen:
            return None
        seen.add((place, left))
        which = order[place]
        for count in range(min(left // sizes[which], most[which]), -1, -1):
            rest = take(place + 1, left - count * sizes[which])
            if rest is not None:
                rest[which] = count
                return rest
        return None

    return take(0, spare)
