"""What ranks of a parallel dimension send each other inside a layer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from astra.layers.operators import BF16, Shard
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec


class Send(NamedTuple):
    """A collective of one layer and micro-batch."""

    op: str  # an operation of network.collectives
    nbytes: Floats  # as nccl-tests counts them
    ranks: Ints
    stride: Ints  # distance between members in global rank order
    forward: float | Floats  # how often in forward
    backward: float | Floats
    behind: str = ""  # the compute that hides it as a matter of course: "gemm", "attention" or none
    routed: bool = False  # tokens to their experts and back: the runtime's dispatcher does it


def column_then_row(model: ModelSpec, shard: Shard) -> list[Send]:
    """Tensor parallelism around a column-parallel product and the row-parallel one after it.

    With sequence parallelism the input is gathered and the output scattered; without, the output is reduced. In
    backward Megatron runs the gather of the input beside the input-gradient GEMM, and the reduction of the input
    gradient beside the weight-gradient GEMM (Korthikanti et al. 2022, section 4.2.2). What is gathered for fp8 may be
    quantised first.
    """
    elements = shard.tokens * model.hidden
    nbytes, gathered = BF16 * elements, shard.gathered_bytes * elements
    with_sp = np.where(shard.sp, 1.0, 0.0)
    without_sp = np.where(shard.sp, 0.0, 1.0)
    one = np.ones_like(shard.tp)
    return [
        Send("all_gather", gathered, shard.tp, one, with_sp, with_sp),
        Send("reduce_scatter", nbytes, shard.tp, one, with_sp, 0.0),
        Send("all_gather", gathered, shard.tp, one, 0.0, with_sp, behind="gemm"),
        Send("reduce_scatter", nbytes, shard.tp, one, 0.0, with_sp, behind="gemm"),
        Send("all_reduce", nbytes, shard.tp, one, without_sp, 0.0),
        Send("all_reduce", nbytes, shard.tp, one, 0.0, without_sp, behind="gemm"),
    ]


def together(sends: Iterable[Send]) -> list[Send]:
    """Equal collectives of several blocks as one that happens more often, so that each is timed once."""
    found: list[Send] = []
    for send in sends:
        for place, other in enumerate(found):
            if _same(send, other):
                found[place] = other._replace(
                    forward=other.forward + send.forward, backward=other.backward + send.backward
                )
                break
        else:
            found.append(send)
    return found


def _same(one: Send, other: Send) -> bool:
    if (one.op, one.behind, one.routed) != (other.op, other.behind, other.routed):
        return False
    columns = ((one.nbytes, other.nbytes), (one.ranks, other.ranks), (one.stride, other.stride))
    return all(mine is theirs or np.array_equal(mine, theirs) for mine, theirs in columns)
