"""ZB-H1: the backward is split, and weight gradients (W), which nobody waits for, fill the bubble.

Input gradients (B) then travel without waiting for W. Rank r holds back r weight gradients, so the peak of alive
micro-batches is p on every rank, as on rank 0 of 1F1B. One chunk per rank, stages in plain order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Ints
from astra.schedule.base import WEIGHT, Schedule, in_turn, one_chunk, one_forward_one_backward


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """1F1B with W of micro-batch n-r after B of micro-batch n; the last r of them at the end."""
    del v
    order_1f1b = one_forward_one_backward(in_turn(m), in_turn(m), p - rank - 1)
    late = min(rank, m)
    weights = np.stack((np.full(m, WEIGHT), np.arange(m), np.zeros(m, dtype=np.int64)), axis=1)
    after_backward = np.flatnonzero(order_1f1b[:, 0] == 1)[late:] + 1
    merged = np.insert(order_1f1b, after_backward, weights[: m - late], axis=0)
    return np.concatenate((merged, weights[m - late :]))


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """p-r as in 1F1B, and r that wait for their weight gradient."""
    del v
    return np.asarray(np.minimum(p + 0 * rank, m))


SCHEDULE: Final = Schedule(
    name="zb",
    source="Qi et al. 2023, Zero Bubble Pipeline Parallelism, ZB-H1 (arXiv 2401.10241)",
    splits_backward=True,
    want="one chunk per rank (vp1)",
    legal=one_chunk,
    order=order,
    in_flight=in_flight,
    period=lambda p, m: 1,
)
