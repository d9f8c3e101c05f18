"""What a block of a layer declares: when a model has it, its weights, its operators, what it sends, its FLOPs.

A layer is a few blocks, one after another, each around the residual stream. One module of ``astra.layers.blocks`` is
one block; its ``BLOCKS`` is the one list of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from astra.layers.messages import Send
from astra.layers.operators import Layer, Shard
from astra.layers.tensors import Tensor
from astra.spec.model import ModelSpec
from astra.spec.runtime import Kernel

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
