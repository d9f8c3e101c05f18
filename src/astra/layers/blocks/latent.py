"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): queries and keys/values through low-rank tensors."""

from __future__ import annotations

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Send, Tensor, column_then_row, matrix, norm
from astra.layers.blocks.attention import Heads, around_core, keys_per_query, qkv_kept_bytes, ring, rotates
from astra.layers.operators import BF16, Gemm, Layer, Module, Shard, Stream
from astra.spec.model import MLA, ModelSpec


def _mla(model: ModelSpec) -> MLA:
    assert model.mla is not None
    return model.mla


def _has(model: ModelSpec, place: Place) -> bool:
    return place.may_have("*") and model.attends(place.number)


def _heads(model: ModelSpec, shard: Shard) -> Heads:
    """Every head has keys and values of its own."""
    mla, heads = _mla(model), model.heads / shard.tp
    return Heads(heads, heads, mla.qk_nope_head_dim + mla.qk_rope_head_dim, mla.v_head_dim)


def _tensors(model: ModelSpec) -> list[Tensor]:
    mla, h, a = _mla(model), model.hidden, model.heads
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        query = [matrix("attention.q", h, a * qk)]
    else:
        query = [
            matrix("attention.q_down", h, mla.q_lora_rank, "none"),
            norm(model, "attention.q_norm", mla.q_lora_rank),
            matrix("attention.q_up", mla.q_lora_rank, a * qk),
        ]
    return [
        *query,
        matrix("attention.kv_down", h, mla.kv_lora_rank + mla.qk_rope_head_dim, "none"),
        norm(model, "attention.kv_norm", mla.kv_lora_rank),
        matrix("attention.kv_up", mla.kv_lora_rank, a * (mla.qk_nope_head_dim + mla.v_head_dim)),
        matrix("attention.out", a * mla.v_head_dim, h),
    ]


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """Both low-rank tensors are kept, before and after their norms.

    Recompute of the up-projections keeps the low-rank tensors alone, and makes queries, keys and values from them;
    what attention in fp8 keeps are copies, which stay.
    """
    mla, heads = _mla(model), _heads(model, shard)
    ranks = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    low_bytes = (BF16 + shard.linear_bytes) * shard.stream_tokens * ranks
    block = around_core(model, kind, shard, heads, _projections(model, mla, shard), kept_more=low_bytes)
    freed = 0.0 if shard.keeps.fp8_qkv_bytes else qkv_kept_bytes(model, shard, heads)
    up = Module(
        saved=freed + shard.linear_bytes * shard.stream_tokens * ranks,
        gemms=("q_up", "kv_up"),
        streams=(Stream("rotary", shard.tokens * heads.rotated),) if rotates(model) else (),
    )
    return block._replace(modules={**block.modules, "mla_up_proj": up})


def _projections(model: ModelSpec, mla: MLA, shard: Shard) -> list[Gemm]:
    """Down-projections are replicated over tensor parallelism, up-projections are split by heads."""
    tokens, heads = shard.tokens, model.heads / shard.tp
    hidden = np.full_like(tokens, model.hidden)
    dim_q = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        queries = [Gemm("q", tokens, heads * dim_q, hidden)]
    else:
        rank = np.full_like(tokens, mla.q_lora_rank)
        queries = [Gemm("q_down", shard.stream_tokens, rank, hidden), Gemm("q_up", tokens, heads * dim_q, rank)]
    latent = np.full_like(tokens, mla.kv_lora_rank)
    return [
        *queries,
        Gemm("kv_down", shard.stream_tokens, latent + mla.qk_rope_head_dim, hidden),
        Gemm("kv_up", tokens, heads * (mla.qk_nope_head_dim + mla.v_head_dim), latent),
    ]


def _cp_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    del kind
    return ring(shard, _heads(model, shard))


def _flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    mla = _mla(model)
    widths = mla.qk_nope_head_dim + mla.qk_rope_head_dim + mla.v_head_dim
    return 2 * keys_per_query(model, kind, seq) * model.heads * widths


BLOCK = Block(
    name="latent",
    of="mla",
    has=_has,
    tensors=_tensors,
    operators=_operators,
    sends={"tp": column_then_row, "cp": _cp_sends},
    attention_flops=_flops,
)
