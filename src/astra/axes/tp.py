"""Tensor parallelism: heads, feed-forward columns and vocabulary split over t neighbouring ranks.

With sequence parallelism each block gathers its input and scatters its output; without, it reduces its output.
In backward Megatron runs the gather of a column-parallel input beside the input-gradient GEMM, and the reduction of
the input gradient beside the weight-gradient GEMM (Korthikanti et al. 2022, section 4.2.2).
"""

from __future__ import annotations

import numpy as np

from astra.axes.base import Axis, Send
from astra.families.kinds import LayerKind
from astra.families.operators import Shard
from astra.provenance import Floats
from astra.spec.model import ModelSpec

_BF16 = 2


def _block_sends(elements: Floats, shard: Shard, blocks: float) -> list[Send]:
    """Collectives of ``blocks`` column-then-row-parallel pairs; what is gathered for fp8 may be quantised first."""
    nbytes, gathered = _BF16 * elements, shard.gathered_bytes * elements
    with_sp = np.where(shard.sp, blocks, 0.0)
    without_sp = np.where(shard.sp, 0.0, blocks)
    one = np.ones_like(shard.tp)
    return [
        Send("all_gather", gathered, shard.tp, one, with_sp, with_sp),
        Send("reduce_scatter", nbytes, shard.tp, one, with_sp, 0.0),
        Send("all_gather", gathered, shard.tp, one, 0.0, with_sp, beside="gemm"),
        Send("reduce_scatter", nbytes, shard.tp, one, 0.0, with_sp, beside="gemm"),
        Send("all_reduce", nbytes, shard.tp, one, without_sp, 0.0),
        Send("all_reduce", nbytes, shard.tp, one, 0.0, without_sp, beside="gemm"),
    ]


def layer_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """Attention (twice with cross-attention) and the dense or shared feed-forward."""
    blocks = 2 if kind.role == "cross" else 1
    if kind.mlp == "dense" or (model.moe is not None and model.moe.shared_ffn):
        blocks += 1
    return _block_sends(shard.tokens * model.hidden, shard, blocks)


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
        Send("reduce_scatter", nbytes, shard.tp, one, 0.0, with_sp, beside="gemm"),
        Send("all_reduce", nbytes, shard.tp, one, 0.0, 1.0 - with_sp, beside="gemm"),
        Send("all_reduce", 4 * shard.tokens, shard.tp, one, 3.0, 0.0),
    ]


TP = Axis(
    name="tp",
    title="tensor parallel",
    overlap="overlap_tp",
    layer_sends=layer_sends,
    embedding_sends=embedding_sends,
    head_sends=head_sends,
)
