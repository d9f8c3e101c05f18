"""GPipe: all forwards, then all backwards; every micro-batch is alive at once."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Floats, Ints
from astra.schedule.base import Schedule, in_turn, one_chunk, one_forward_one_backward


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """The same on every rank."""
    del p, v, rank
    return one_forward_one_backward(in_turn(m), in_turn(m), m)


def exact_s(m: int, forward_s: Floats, backward_s: Floats, send_s: Floats, blocking: bool) -> Floats:
    """Unequal stages: two flow shops of identical jobs, one after the other, each sum + (m-1) max.

    The last rank turns around after its last forward, when every other rank is idle, so the two do not overlap.
    Stages lie along the last axis.
    """
    out_s, back_s = forward_s.copy(), backward_s.copy()
    if blocking:
        out_s[..., :-1] += send_s
        back_s[..., 1:] += send_s
    hops_s = 0.0 if blocking else 2 * send_s.sum(axis=-1)
    once_s = out_s.sum(axis=-1) + back_s.sum(axis=-1) + hops_s
    return np.asarray(once_s + (m - 1) * (out_s.max(axis=-1) + back_s.max(axis=-1)))


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """Every micro-batch."""
    return m + 0 * (p + v + rank)


SCHEDULE: Final = Schedule(
    name="gpipe",
    source="Huang et al. 2019 (arXiv 1811.06965)",
    splits_backward=False,
    want="one chunk per rank (vp1)",
    legal=one_chunk,
    order=order,
    in_flight=in_flight,
    exact_s=exact_s,
)
