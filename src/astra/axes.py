"""The parallel dimensions that speak inside layers, and what each sends. AXES is the one list of them.

The pipeline and data parallel dimensions speak between stages and between steps: see ``cost.between``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from astra.layers.block import LayerKind, LayerSends, Send, together
from astra.layers.blocks import blocks_of
from astra.layers.operators import Shard
from astra.spec.model import ModelSpec

EdgeSends = Callable[[ModelSpec, Shard], list[Send]]
_BF16: Final = 2


def of_blocks(axis: str) -> LayerSends:
    """What the blocks of a layer say this axis sends for them."""

    def layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
        blocks = (block for block in blocks_of(kind) if axis in block.sends)
        return together(send for block in blocks for send in block.sends[axis](model, kind, shard))

    return layer_sends


def _no_edge_sends(model: ModelSpec, shard: Shard) -> list[Send]:
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
    layer_sends: LayerSends
    embedding_sends: EdgeSends = _no_edge_sends
    head_sends: EdgeSends = _no_edge_sends


def _reduced_words(model: ModelSpec, shard: Shard) -> list[Send]:
    """The vocabulary is split, so partial embeddings are reduced; their gradient is gathered under sp."""
    nbytes = _BF16 * shard.tokens * model.hidden
    one = np.ones_like(shard.tp)
    return [
        Send("reduce_scatter", nbytes, shard.tp, one, np.where(shard.sp, 1.0, 0.0), 0.0),
        Send("all_gather", nbytes, shard.tp, one, 0.0, np.where(shard.sp, 1.0, 0.0)),
        Send("all_reduce", nbytes, shard.tp, one, np.where(shard.sp, 0.0, 1.0), 0.0),
    ]


def _gathered_for_loss(model: ModelSpec, shard: Shard) -> list[Send]:
    """Gather the head's input under sp; reduce its gradient; three small reductions in the loss."""
    nbytes = _BF16 * shard.tokens * model.hidden
    one = np.ones_like(shard.tp)
    with_sp = np.where(shard.sp, 1.0, 0.0)
    return [
        Send("all_gather", nbytes, shard.tp, one, with_sp, 0.0),
        Send("reduce_scatter", nbytes, shard.tp, one, 0.0, with_sp, behind="gemm"),
        Send("all_reduce", nbytes, shard.tp, one, 0.0, 1.0 - with_sp, behind="gemm"),
        Send("all_reduce", 4 * shard.tokens, shard.tp, one, 3.0, 0.0),
    ]


AXES: Final[tuple[Axis, ...]] = (
    # Heads, feed-forward columns and vocabulary are split. With sequence parallelism each block gathers its input and
    # scatters its output; without, it reduces its output (``astra.layers.block``).
    Axis(
        name="tp",
        title="tensor parallel",
        overlap="overlap_tp",
        layer_sends=of_blocks("tp"),
        embedding_sends=_reduced_words,
        head_sends=_gathered_for_loss,
    ),
    # The sequence is split; keys and values travel round a ring beside attention.
    Axis(name="cp", title="context parallel", layer_sends=of_blocks("cp")),
    # Experts are split, and tokens exchanged all-to-all; etp splits each expert again.
    Axis(name="ep", title="expert parallel", overlap="overlap_ep", behind_layer=True, layer_sends=of_blocks("ep")),
)
