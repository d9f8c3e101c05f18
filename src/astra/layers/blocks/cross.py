"""Cross-attention: a decoder's tokens look at all of the encoder's output."""

from __future__ import annotations

from astra.layers.block import Block, LayerKind, Place, Tensor, column_then_row, norm
from astra.layers.blocks import attention
from astra.layers.operators import Layer, Shard
from astra.spec.model import ModelSpec


def _has(model: ModelSpec, place: Place) -> bool:
    del model
    return place.role == "cross"


def _tensors(model: ModelSpec) -> list[Tensor]:
    """An attention block and a norm of its own."""
    return [norm(model, "cross_norm", model.hidden), *attention.tensors(model, "cross_attention")]


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    return attention.operators(model, kind, shard, crosses=True)


def _flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    """An encoder-decoder sample has ``seq`` tokens on both sides, and one of each is counted together."""
    del kind
    return 2.0 * seq * model.heads * (model.head_dim + model.head_dim)


BLOCK = Block(
    name="cross",
    of="encoder",
    has=_has,
    tensors=_tensors,
    operators=_operators,
    sends={"tp": column_then_row},
    attention_flops=_flops,
)
