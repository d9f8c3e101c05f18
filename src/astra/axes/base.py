"""What a parallel dimension declares: its name, its ranks' place, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from astra.layers.block import LayerKind, LayerSends, Send, together
from astra.layers.blocks import blocks_of
from astra.layers.operators import Shard
from astra.spec.model import ModelSpec

EdgeSends = Callable[[ModelSpec, Shard], list[Send]]


def of_blocks(axis: str) -> LayerSends:
    """What the blocks of a layer say this axis sends for them."""

    def layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
        blocks = (block for block in blocks_of(kind) if axis in block.sends)
        return together(send for block in blocks for send in block.sends[axis](model, kind, shard))

    return layer_sends


def no_layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """An axis that is silent inside layers."""
    del model, kind, shard
    return []


def no_edge_sends(model: ModelSpec, shard: Shard) -> list[Send]:
    """An axis that is silent in the embedding or the head."""
    del model, shard
    return []


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A parallel dimension. ``degree`` is its strategy column; ``overlap`` the switch that hides what it sends."""

    name: str
    title: str
    degree: str = ""  # the name, unless it rides on the ranks of another dimension
    overlap: str = ""
    behind_layer: bool = False  # what it hides runs beside all of another micro-batch's layer, not beside products
    layer_sends: LayerSends = no_layer_sends
    embedding_sends: EdgeSends = no_edge_sends
    head_sends: EdgeSends = no_edge_sends
