"""Tensor parallelism: heads, feed-forward columns and vocabulary split over t neighbouring ranks.

With sequence parallelism each block gathers its input and scatters its output; without, it reduces its output
(``astra.layers.block``).
"""

from __future__ import annotations

import numpy as np

from astra.axes.base import Axis, of_blocks
from astra.layers.block import Send
from astra.layers.operators import Shard
from astra.spec.model import ModelSpec

_BF16 = 2


def embedding_sends(model: ModelSpec, shard: Shard) -> list[Send]:
    """The vocabulary is split, so partial embeddings are reduced; their gradient is gathered under sp."""
    nbytes = _BF16 * shard.tokens * model.hidden
    one = np.ones_like(shard.tp)
    return [
        Send("reduce_scatter", nbytes, shard.tp, one, np.where(shard.sp, 1.0, 0.0), 0.0),
        Send("all_gather", nbytes, shard.tp, one, 0.0, np.where(shard.sp, 1.0, 0.0)),
        Send("all_reduce", nbytes, shard.tp, one, np.where(shard.sp, 0.0, 1.0), 0.0),
    ]


def head_sends(model: ModelSpec, shard: Shard) -> list[Send]:
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


TP = Axis(
    name="tp",
    title="tensor parallel",
    overlap="overlap_tp",
    layer_sends=of_blocks("tp"),
    embedding_sends=embedding_sends,
    head_sends=head_sends,
)
