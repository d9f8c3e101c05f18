"""1F1B: a rank starts backwards as soon as it can and then alternates, so few activations are alive."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Floats, Ints
from astra.schedule.base import PipelineShape, Schedule, in_turn, one_chunk, one_forward_one_backward


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """Rank r runs p-r-1 forwards ahead, then one forward, one backward."""
    del v
    return one_forward_one_backward(in_turn(m), in_turn(m), p - rank - 1)


def makespan_s(shape: PipelineShape) -> Floats:
    """Every stage once, then m-1 more rounds of the slowest: sum + (m-1) max (Narayanan et al. 2019; Astra 2025)."""
    compute_s = shape.work_s + (shape.m - 1) * shape.slowest_s
    return compute_s + exposed_hops(shape) * shape.send_s


def exposed_hops(shape: PipelineShape) -> Ints:
    """Hops on the critical path.

    Blocking: an inner rank stands still twice per micro-batch, the two outer ranks once. Not blocking: forwards and
    backwards are chained without slack, and the longest path runs down and up the pipeline once every p micro-batches.
    """
    p, m = shape.p, shape.m
    inner = np.where(m > 1, 2 * m + 2 * p - 5, 2 * (p - 1))
    blocking = np.where(p > 2, inner, m + 1)
    trips, rest = np.divmod(m - 1, p)
    waiting = 2 * (p - 1) * (1 + trips) + 2 * np.maximum(rest - 1, 0)
    return np.where(p > 1, np.where(shape.blocking, blocking, waiting), 0)


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
    makespan_s=makespan_s,
    in_flight=in_flight,
    period=lambda p, m: 1,
)
