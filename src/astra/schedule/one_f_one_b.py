"""1F1B: a rank starts backwards as soon as it can and then alternates, so few activations are alive."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Ints
from astra.schedule.base import Schedule, in_turn, one_chunk, one_forward_one_backward


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """Rank r runs p-r-1 forwards ahead, then one forward, one backward."""
    del v
    return one_forward_one_backward(in_turn(m), in_turn(m), p - rank - 1)


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """The forwards ahead, and the one at work."""
    del v
    return np.asarray(np.minimum(p - rank, m))


SCHEDULE: Final = Schedule(
    name="1f1b",
    source="Narayanan et al. 2019 (PipeDream), flushing form of Narayanan et al. 2021 (arXiv 2104.04473)",
    splits_backward=False,
    want="one chunk per rank (vp1)",
    legal=one_chunk,
    order=order,
    in_flight=in_flight,
    period=lambda p, m: 1,
)
