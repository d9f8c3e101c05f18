"""ZB-H1: the backward is split, and weight gradients (W), which nobody waits for, fill the bubble.

Input gradients (B) then travel without waiting for W. Rank r holds back r weight gradients, so the peak of alive
micro-batches is p on every rank, as on rank 0 of 1F1B. One chunk per rank, stages in plain order.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Floats, Ints
from astra.schedule.base import WEIGHT, PipelineShape, Schedule, in_turn, one_chunk, one_forward_one_backward


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """1F1B with W of micro-batch n-r after B of micro-batch n; the last r of them at the end."""
    del v
    order_1f1b = one_forward_one_backward(in_turn(m), in_turn(m), p - rank - 1)
    late = min(rank, m)
    weights = np.stack((np.full(m, WEIGHT), np.arange(m), np.zeros(m, dtype=np.int64)), axis=1)
    after_backward = np.flatnonzero(order_1f1b[:, 0] == 1)[late:] + 1
    merged = np.insert(order_1f1b, after_backward, weights[: m - late], axis=0)
    return np.concatenate((merged, weights[m - late :]))


def makespan_s(shape: PipelineShape) -> Floats:
    """Equal stages, no sends, m >= p: m (f+b+w) + (p-1) max(f, b, f+b-w) (Qi et al. 2023 give the last of the three).

    The longest of the paths through the first and the last micro-batches. Exact for equal stages, but a lower bound
    when sends block (which no runtime of this schedule does). Rows with unequal stages use the mean for the bubble.
    """
    p, m = shape.p, shape.m
    f, b, w = shape.forward_s / p, shape.backward_s / p, shape.weight_s / p
    equal_s = np.maximum(_first_path_s(shape, f, b, w), _both_paths_s(shape, f, b, w))
    return equal_s + m * (shape.slowest_s - (f + b + w))


def _first_path_s(shape: PipelineShape, f: Floats, b: Floats, w: Floats) -> Floats:
    """The first micro-batch down and up to a rank, then all that this rank has left.

    Linear in the rank, so the outermost ranks that send one way and those that send both ways decide.
    """
    p, m, s = shape.p, shape.m, shape.send_s
    longest_s = np.zeros(np.shape(m))
    for rank in (0 * p, np.minimum(1, p - 1), np.maximum(p - 2, 0), p - 1):
        left = m - np.minimum(p - rank, m)  # forwards
        held = np.where(rank < p - 1, left, 0) + np.where(rank > 0, m, 0)
        hops = 2 * (p - 1) - rank + np.where(shape.blocking, held, 0)
        longest_s = np.maximum(longest_s, (p + left) * f + (p - 1 - rank + m) * b + m * w + hops * s)
    return longest_s


def _both_paths_s(shape: PipelineShape, f: Floats, b: Floats, w: Floats) -> Floats:
    """The first micro-batch down and up to a rank, its work until the last forward, the last one down and up again.

    Ends on rank j with the min(j+1, m) weight gradients held back there. Sends that take longer than half a weight
    gradient also show in between, once in p micro-batches.
    """
    p, m, s = shape.p, shape.m, shape.send_s
    first_rank = np.clip(p - m + 1, 0, p - 1)  # the first whose first backward comes before its last forward
    trips, rest = np.divmod(np.maximum(m - p - 1, 0), p)
    between_s = (trips * (p - 1) + np.maximum(rest - 1, 0)) * np.maximum(2 * s - w, 0.0)
    waiting_s = (4 * (p - 1) - 2 * first_rank) * s + between_s
    standing = np.where(p > 2, np.where(m > 1, 2 * m + 2 * p - 5, 2 * (p - 1)), m + 1)
    sends_s = np.where(p > 1, np.where(shape.blocking, standing * s, waiting_s), 0.0)
    path_s = (m + p - 1) * (f + b) + np.maximum(m - p, 0) * w + sends_s
    ends_s = [
        np.minimum(j + 1, m) * w - j * b - np.where(shape.blocking, np.maximum(j - 1, 0), j) * s
        for j in (0 * p, np.minimum(p, m) - 1, p - 1)
    ]
    return np.asarray(path_s + np.maximum(np.maximum(ends_s[0], ends_s[1]), ends_s[2]))


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
    makespan_s=makespan_s,
    in_flight=in_flight,
    period=lambda p, m: 1,
)
