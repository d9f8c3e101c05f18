"""What a block of a layer declares: when a model has it, its weights, its operators, what it sends, its FLOPs.

A layer is a few blocks, one after another, each around the residual stream. One module of ``astra.layers.blocks`` is
one block; its ``BLOCKS`` is the one list of them. Here are also the words they use for weights and for what is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from astra.layers.operators import BF16, Layer, Shard
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec
from astra.spec.runtime import Kernel


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


def column_then_row(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Tensor parallelism around a column-parallel product and the row-parallel one after it.

    With sequence parallelism the input is gathered and the output scattered; without, the output is reduced. In
    backward Megatron runs the gather of the input beside the input-gradient GEMM, and the reduction of the input
    gradient beside the weight-gradient GEMM (Korthikanti et al. 2022, section 4.2.2). What is gathered for fp8 may be
    quantised first.
    """
    del kind
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


Split = Literal["tp", "none", "expert"]


class Tensor(NamedTuple):
    """One weight: its size, how it is divided, and whether tokens are multiplied by it."""

    name: str
    parameters: int
    split: Split
    matmul: bool


def matrix(name: str, rows: int, columns: int, split: Split = "tp") -> Tensor:
    """A weight that multiplies tokens."""
    return Tensor(name, rows * columns, split, matmul=True)


def vector(name: str, size: int, split: Split = "none") -> Tensor:
    """A weight that is added, looked up or multiplied element by element."""
    return Tensor(name, size, split, matmul=False)


def norm(model: ModelSpec, name: str, size: int) -> Tensor:
    """The weight of a norm, and its bias if it has one."""
    has_bias = model.norm == "layernorm" and model.norm_bias
    return vector(name, size * (2 if has_bias else 1))


Role = Literal["decoder", "encoder", "cross"]
Span = Literal["full", "window"]


class LayerKind(NamedTuple):
    """What tells one layer from another within a model."""

    blocks: tuple[str, ...]  # names of its blocks, in the order a token passes them
    role: Role = "decoder"  # decoder: causal; encoder: sees both ways; cross: causal, and looks at the encoder's output
    span: Span = "full"  # window: sliding or chunked attention


class Place(NamedTuple):
    """Where a layer stands in its model."""

    role: Role
    number: int  # among the layers of its stack
    of_encoder: bool = False  # it is of the encoder of an encoder-decoder model
    letter: str = ""  # of a hybrid's pattern: its one block; empty in a model without a pattern

    def may_have(self, letter: str) -> bool:
        """Whether a pattern, if there is one, gives this layer the block of that letter."""
        return self.letter in ("", letter)


def no_flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    """A block whose only products are with weights."""
    del model, kind, seq
    return 0.0


LayerSends = Callable[[ModelSpec, LayerKind, Shard], list[Send]]


@dataclass(frozen=True, kw_only=True)
class Block:
    """A part of a layer around the residual stream."""

    name: str
    of: str = ""  # the record without which no layer of a model has it; empty: any model may
    has: Callable[[ModelSpec, Place], bool]
    tensors: Callable[[ModelSpec], list[Tensor]]  # with what divides each; norms before the block are the layer's
    operators: Callable[[ModelSpec, LayerKind, Shard], Layer]  # with what is kept under each kind of recompute
    sends: Mapping[str, LayerSends] = field(default_factory=dict)  # by axis; a block is silent on the others
    kernels: Mapping[str, Kernel] = field(
        default_factory=dict
    )  # its own memory-bound ones, where a runtime has no other
    # Forward FLOPs per token besides two per weight: of attention (run again by selective recompute), and of the rest.
    attention_flops: Callable[[ModelSpec, LayerKind, int], float] = no_flops
    other_flops: Callable[[ModelSpec, LayerKind, int], float] = no_flops


def norms_each(model: ModelSpec, kind: LayerKind) -> float:
    """Norms of each block of a layer; cross-attention has one of its own besides."""
    return model.norms_per_layer / sum(name != "cross" for name in kind.blocks)
