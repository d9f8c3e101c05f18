"""A model's layers, embedding and head as operators on one rank."""

from __future__ import annotations

from astra.layers.block import LayerKind
from astra.layers.blocks import blocks_of
from astra.layers.blocks.embedding import operators as embedding
from astra.layers.blocks.head import operators as head
from astra.layers.operators import Layer, Shard, join
from astra.spec.model import ModelSpec

__all__ = ["embedding", "head", "layer"]


def layer(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """One layer of a kind on one rank: its blocks, one after another."""
    return join(*(block.operators(model, kind, shard) for block in blocks_of(kind)))
