"""ZB-V: two chunks per rank in a V, so a micro-batch ends where it began, and weight gradients (W) fill the bubble.

With forward, input gradient (B) and weight gradient alike no rank waits once it has begun, and every rank holds as much
as rank 0 of 1F1B: 2p chunks of half a stage. The order is the one PyTorch runs (``ScheduleZBVZeroBubble``), which is
fixed: where F, B and W differ, ranks wait for one another.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Bools, Ints
from astra.schedule.base import BACKWARD, FORWARD, WEIGHT, Schedule, in_a_v

_CHUNKS: Final = 2
# Slots as (kind, chunk): chunk 0 goes down the V, chunk 1 comes back.
_DOWN, _UP = (tuple((kind, chunk) for kind in (FORWARD, BACKWARD, WEIGHT)) for chunk in (0, 1))


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """Forwards down the V, those that come back with their backwards, both in turn, then what is left.

    Fewer than 2p-1 micro-batches run as those of a longer step without the others.
    """
    del v
    count = max(2 * p - 1, m)
    (f0, b0, w0), (f1, b1, w1) = _DOWN, _UP
    slots = [f0] * (2 * (p - rank) - 1) + [f1, f0] * rank + [f1, b1, w1] * (p - rank)
    slots += [f0, b0, w0, f1, b1, w1] * (count - 2 * p + 1 + rank) + [b0, w0, f1, b1, w1] * (p - 1 - rank)
    slots += [b0, b1] * rank + [b0, w0] * (p - rank) + [w1] * rank + [w0] * rank
    kind, chunk = np.array(slots).T
    microbatch = np.empty(len(slots), dtype=np.int64)
    for each in (*_DOWN, *_UP):  # every sort of slot takes the micro-batches in turn
        same = (kind == each[0]) & (chunk == each[1])
        microbatch[same] = np.arange(count)
    return np.stack((kind, microbatch, chunk), axis=1)[microbatch < m]


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """Chunk 0 of the forwards ahead and chunk 1 of those that have come back, when the first backward begins."""
    del v
    return np.asarray(np.minimum(2 * p - rank - 1, m) + np.minimum(rank + 1, m))


def _legal(p: Ints, v: Ints, m: Ints) -> Bools:
    return np.asarray((v == _CHUNKS) & (p >= 1) & (m >= 1))


SCHEDULE: Final = Schedule(
    name="zbv",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), and 2401.10241; "
    "order of torch.distributed.pipelining 2.13",
    splits_backward=True,
    want="two chunks per rank (vp2)",
    legal=_legal,
    order=order,
    in_flight=in_flight,
    place=in_a_v,
    period=lambda p, m: 1,
)
