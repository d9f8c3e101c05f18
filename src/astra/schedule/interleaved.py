"""Interleaved 1F1B as Megatron-LM runs it: v chunks per rank, micro-batches in groups, bubble divided by v.

A group of g micro-batches passes through chunk 0, then chunk 1, and so on, before the next group starts. Megatron-LM
(core/pipeline_parallel/schedules.py @d98e8a6) takes g = p unless told otherwise, and demands p <= g <= m with a last
group that is full or holds at least p; where p does not divide m, the smallest such g is used here
(``--microbatch-group-size-per-virtual-pipeline-stage``).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.provenance import Bools, Floats, Ints
from astra.schedule.base import PipelineShape, Schedule, one_forward_one_backward


def group_size(p: Ints, m: Ints) -> Ints:
    """Micro-batches per group: p if that divides m, else the smallest size that leaves no group below p."""
    p, m = np.broadcast_arrays(np.asarray(p, dtype=np.int64), np.asarray(m, dtype=np.int64))
    groups = np.maximum(m // p, 1)
    size = np.maximum(-(-m // groups), p)
    while True:
        short = (groups > 1) & (m - (groups - 1) * size < p)
        if not short.any():
            return np.asarray(size)
        groups = groups - short
        size = np.maximum(-(-m // groups), p)


def forward_order(v: int, m: int, group: int) -> Ints:
    """Rows of (micro-batch, chunk), the same on every rank."""
    micro, chunk = np.divmod(np.arange(m * v), v)
    start = micro // group * group
    width = np.minimum(group, m - start)
    within = (micro - start) * v + chunk
    return np.stack((start + within % width, within // width), axis=1)


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """Rank r runs 2(p-r-1) + (v-1)g forwards ahead; backwards visit the chunks from the last."""
    group = int(group_size(np.asarray(p), np.asarray(m)))
    forward = forward_order(v, m, group)
    backward = forward.copy()
    backward[:, 1] = v - 1 - forward[:, 1]
    return one_forward_one_backward(forward, backward, 2 * (p - rank - 1) + (v - 1) * group)


def makespan_s(shape: PipelineShape) -> Floats:
    """Rounds of the slowest rank and a bubble of (p-1)/v stages (Narayanan et al. 2021, section 2.2).

    Equal stages, sends at most as long as a chunk's forward and backward: exact, but for blocking sends with p not
    dividing m, where it is a lower bound, as for longer sends.
    """
    compute_s = shape.m * shape.slowest_s + (shape.work_s - shape.slowest_s) / shape.v
    sends_s = np.where(shape.blocking, _standing_s(shape), _fill_and_drain_s(shape))
    return compute_s + np.where(shape.p > 1, sends_s, 0.0)


def _standing_s(shape: PipelineShape) -> Floats:
    """Blocking: the last rank sends one chunk less than the ranks above it, but lies at the end of the fill."""
    p, v, m, send_s = shape.p, shape.v, shape.m, shape.send_s
    chunk_s = shape.work_s / (p * v)
    uneven_s = np.abs(2 * shape.forward_s / (p * v) - chunk_s)  # |forward - backward|
    last_s = (m * (2 * v - 1) + 2 * p - 3) * send_s
    inner_s = (2 * m * v + 2 * p - 5) * send_s - chunk_s + np.maximum(uneven_s - send_s, 0.0)
    return np.where(p > 2, np.maximum(last_s, inner_s), last_s)


def _fill_and_drain_s(shape: PipelineShape) -> Floats:
    """Hops hidden in the steady state show in fill and drain, also at each wrap from the last rank to the first.

    A group larger than p gives a wrap the time of the micro-batches beyond p.
    """
    p, v, m, send_s = shape.p, shape.v, shape.m, shape.send_s
    first = group_size(p, m)
    last = np.where(m % first == 0, first, m % first)
    forward_s, backward_s = shape.forward_s / (p * v), (shape.backward_s + shape.weight_s) / (p * v)
    fill_s = np.maximum(p * send_s - (first - p) * forward_s, 0.0)
    drain_s = np.maximum(p * send_s - (last - p) * backward_s, 0.0)
    return np.asarray(2 * (p - 1) * send_s + (v - 1) * (fill_s + drain_s))


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """The forwards ahead, and the one at work."""
    return np.asarray(np.minimum(2 * (p - rank - 1) + (v - 1) * group_size(p, m) + 1, m * v))


def _legal(p: Ints, v: Ints, m: Ints) -> Bools:
    return np.asarray((m >= p) & (v >= 1))


SCHEDULE: Final = Schedule(
    name="interleaved",
    source="Narayanan et al. 2021 (arXiv 2104.04473); order of NVIDIA/Megatron-LM @d98e8a6",
    splits_backward=False,
    want="at least as many micro-batches as stages",
    legal=_legal,
    order=order,
    makespan_s=makespan_s,
    in_flight=in_flight,
    least_chunks=2,
    period=lambda p, m: p if m % p == 0 else 0,
)
