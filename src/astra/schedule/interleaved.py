"""Interleaved 1F1B as Megatron-LM runs it: v chunks per rank, micro-batches in groups, bubble divided by v.

A group of g micro-batches passes through chunk 0, then chunk 1, and so on, before the next group starts. Megatron-LM
(core/pipeline_parallel/schedules.py @d98e8a6) takes g = p unless told otherwise, and demands p <= g <= m with a last
group that is full or holds at least p; where p does not divide m, the smallest such g is used here
(``--microbatch-group-size-per-virtual-pipeline-stage``). PyTorch also runs fewer micro-batches than stages, in one
round of all of them (ScheduleInterleaved1F1B: ``max(1, m // p)`` rounds); Megatron's rules refuse that.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from astra.provenance import Bools, Ints
from astra.schedule.base import Schedule, one_forward_one_backward


def group_size(p: Ints, m: Ints) -> Ints:
    """Micro-batches per group: p if that divides m, else the least that leaves no group below p; all if fewer."""
    p, m = np.broadcast_arrays(np.asarray(p, dtype=np.int64), np.asarray(m, dtype=np.int64))
    groups = np.maximum(m // p, 1)
    size = np.maximum(-(-m // groups), p)
    while True:
        short = (groups > 1) & (m - (groups - 1) * size < p)
        if not short.any():
            return np.asarray(np.minimum(size, np.maximum(m, 1)))
        groups = groups - short
        size = np.maximum(-(-m // groups), p)


def forward_order(v: int, m: int, group: int) -> Ints:
    """Rows of (micro-batch, chunk), the same on every rank."""
    micro, chunk = np.divmod(np.arange(m * v), v)
    start = micro // group * group
    width = np.minimum(group, m - start)
    within = (micro - start) * v + chunk
    return np.stack((start + within % width, within // width), axis=1)


@lru_cache(maxsize=8)
def _both_ways(p: int, v: int, m: int) -> tuple[Ints, Ints, int]:
    """Rows of (micro-batch, chunk) forward and backward, the same on every rank, and the size of a group."""
    group = int(group_size(np.asarray(p), np.asarray(m)))
    forward = forward_order(v, m, group)
    backward = forward.copy()
    backward[:, 1] = v - 1 - forward[:, 1]
    return forward, backward, group


def order(p: int, v: int, m: int, rank: int) -> Ints:
    """Rank r runs 2(p-r-1) + (v-1)g forwards ahead; backwards visit the chunks from the last."""
    forward, backward, group = _both_ways(p, v, m)
    return one_forward_one_backward(forward, backward, 2 * (p - rank - 1) + (v - 1) * group)


def in_flight(p: Ints, v: Ints, m: Ints, rank: Ints) -> Ints:
    """The forwards ahead, and the one at work."""
    return np.asarray(np.minimum(2 * (p - rank - 1) + (v - 1) * group_size(p, m) + 1, m * v))


def _legal(p: Ints, v: Ints, m: Ints) -> Bools:
    return np.asarray((m >= 1) & (v >= 1))


SCHEDULE: Final = Schedule(
    name="interleaved",
    source="Narayanan et al. 2021 (arXiv 2104.04473); order of NVIDIA/Megatron-LM @d98e8a6",
    splits_backward=False,
    want="a micro-batch and a chunk",
    legal=_legal,
    order=order,
    in_flight=in_flight,
    least_chunks=2,
    period=lambda p, m: p if m % p == 0 else 0,
)
