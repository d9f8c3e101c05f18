"""Groups of unlike pipelines that share a batch: how many micro-batches each takes, so that the last one ends soonest.

Exact for given groups: the micro-batches are whole numbers that add up to the batch, each group's time is a line in
them, and the longest time is the least for which such numbers exist. More time never takes a solution away, so that
the least is found by halving the times at which one more unit becomes possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, gcd, inf
from typing import Final, NamedTuple

import numpy as np

from astra.provenance import Floats

_SLACK: Final = 1 + 1e-12


class BatchShare(NamedTuple):
    """A group's time as a line: ``fixed_s + units * unit_s`` for ``units * samples`` samples."""

    samples: int  # of one unit: one micro-batch of every pipeline, or a whole round of an interleaved one
    fixed_s: float
    unit_s: float


def deal(shares: Sequence[BatchShare], batch: int, below: float = inf) -> tuple[float, tuple[int, ...]] | None:
    """The least longest time and the units of each group; None if no whole numbers add up to the batch ``below``."""
    step = gcd(*(share.samples for share in shares))
    if step == 0 or batch % step or sum(share.samples for share in shares) > batch:
        return None
    shares, batch = [share._replace(samples=share.samples // step) for share in shares], batch // step
    longest_s = max(share.fixed_s + share.unit_s * (batch // share.samples) for share in shares)
    low_s = _least_s(shares, batch)
    if low_s >= below or (dealt := _within(shares, batch, high_s := min(longest_s, below))) is None:
        return None
    apart_s = max(share.unit_s for share in shares)
    while low_s + apart_s < high_s:  # most often little more than the least will do
        if (sooner := _within(shares, batch, low_s + apart_s)) is not None:
            high_s, dealt = low_s + apart_s, sooner
            break
        low_s, apart_s = low_s + apart_s, 2 * apart_s
    tried_s = _unit_ends(shares, low_s, high_s)
    first, last = 0, len(tried_s)
    while first < last:
        middle = (first + last) // 2
        sooner = _within(shares, batch, float(tried_s[middle]))
        first, last, dealt = (middle + 1, last, dealt) if sooner is None else (first, middle, sooner)
    longest_s = max(share.fixed_s + share.unit_s * units for share, units in zip(shares, dealt, strict=True))
    return (longest_s, dealt) if longest_s < below else None


def _least_s(shares: Sequence[BatchShare], batch: int) -> float:
    """The time in which the groups could do the batch if units could be divided, each doing one at least."""
    rate = sum(share.samples / share.unit_s for share in shares)
    began = sum(share.samples * share.fixed_s / share.unit_s for share in shares)
    return max((batch + began) / rate, *(share.fixed_s + share.unit_s for share in shares)) / _SLACK


def _unit_ends(shares: Sequence[BatchShare], low_s: float, high_s: float) -> Floats:
    """Times within two limits at which a group ends one more unit, ascending."""
    found = []
    for share in shares:
        first, last = (floor((limit - share.fixed_s) / share.unit_s) for limit in (low_s, high_s))
        found.append(share.fixed_s + share.unit_s * np.arange(max(first, 1), last + 1))
    return np.unique(np.concatenate(found))


def _within(shares: Sequence[BatchShare], batch: int, seconds: float) -> tuple[int, ...] | None:
    """Units, one at least of every group, that add up to the batch and end in time."""
    most = [min(floor((seconds - share.fixed_s) / share.unit_s * _SLACK), batch // share.samples) for share in shares]
    spare = sum(share.samples * units for share, units in zip(shares, most, strict=True)) - batch
    if spare < 0 or min(most) < 1:
        return None
    less = _without(spare, [share.samples for share in shares], [units - 1 for units in most])
    return None if less is None else tuple(units - fewer for units, fewer in zip(most, less, strict=True))


def _without(spare: int, sizes: Sequence[int], most: Sequence[int]) -> list[int] | None:
    """Numbers up to ``most`` whose sizes add up to ``spare``, as many of the largest sizes as can be."""
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    inside = (1 << spare + 1) - 1
    reached = [1]  # bit n: the sizes from here on can add up to n
    for which in reversed(order):
        sums, left, times = reached[-1], most[which], 1
        while left:  # 1, 2, 4, ... of them and the rest make every number
            times = min(times, left)
            sums |= sums << times * sizes[which] & inside
            left, times = left - times, 2 * times
        reached.append(sums)
    if not reached.pop() >> spare & 1:
        return None
    out = [0] * len(sizes)
    for which in order:
        able = reached.pop()
        out[which] = next(n for n in range(min(spare // sizes[which], most[which]), -1, -1)
                          if able >> spare - n * sizes[which] & 1)  # fmt: skip
        spare -= out[which] * sizes[which]
    return out
