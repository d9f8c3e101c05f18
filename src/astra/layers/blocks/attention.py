"""Multi-head and grouped-query attention; what latent and cross-attention share with it.

Letters: T tokens of a micro-batch on a rank, h hidden, a heads, g kv heads, d head dim, t tensor parallel. What is kept
for backward follows Korthikanti et al. 2022 (arXiv 2205.05198), extended to grouped attention.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Send, Tensor, column_then_row, matrix, norm, norms_each, vector
from astra.layers.operators import BF16, Attention, Gemm, Kept, Layer, Module, Shard, Stream
from astra.provenance import Floats
from astra.spec.model import ModelSpec
from astra.spec.runtime import Kernel

# Per byte read and written to quantise what goes into attention in fp8: the cast, and its scales in the kernel's order.
_KERNELS = {"core_cast": Kernel(forward_bytes=1, backward_bytes=1, forward_kernels=2, backward_kernels=2)}


class Heads(NamedTuple):
    """A rank's heads, and their widths in the score product and in the value product."""

    queries: Floats
    keys: Floats  # heads of keys and values
    dim_qk: int
    dim_v: int

    @property
    def rotated(self) -> Floats:
        """Elements per token of queries and keys."""
        return (self.queries + self.keys) * self.dim_qk


def heads_of(model: ModelSpec, shard: Shard) -> Heads:
    """Key/value heads are copied when t exceeds their number."""
    keys = np.maximum(model.kv_heads / shard.tp, 1.0)
    return Heads(model.heads / shard.tp, keys, model.head_dim, model.head_dim)


def tensors(model: ModelSpec, prefix: str = "attention") -> list[Tensor]:
    """Fused projection of queries (with their gate), keys and values, and the output's."""
    h, q, kv = model.hidden, model.heads * model.head_dim, model.kv_heads * model.head_dim
    gate = q if model.attention_gate else 0
    found = [matrix(f"{prefix}.qkv", h, q + gate + 2 * kv), matrix(f"{prefix}.out", q, h)]
    if model.qkv_bias:
        found.append(vector(f"{prefix}.qkv_bias", q + gate + 2 * kv, "tp"))
    if model.out_bias:
        found.append(vector(f"{prefix}.out_bias", h))
    if model.qk_norm != "none":
        sizes = (model.head_dim, model.head_dim) if model.qk_norm == "per_head" else (q, kv)
        found += [norm(model, f"{prefix}.q_norm", sizes[0]), norm(model, f"{prefix}.k_norm", sizes[1])]
    if model.attention_sinks:
        found.append(vector(f"{prefix}.sinks", model.heads, "tp"))
    return found


def operators(model: ModelSpec, kind: LayerKind, shard: Shard, *, crosses: bool = False) -> Layer:
    """Norm, fused projection, rotary, attention, output projection, residual."""
    heads = heads_of(model, shard)
    gates = heads.queries if model.attention_gate else 0.0
    every = heads.queries + gates + 2 * heads.keys
    parts = tuple(each / every for each in (heads.queries + gates, heads.keys, heads.keys))
    qkv = Gemm("qkv", shard.tokens, every * model.head_dim, np.full_like(shard.tokens, model.hidden), parts=parts)
    gate_bytes = BF16 * shard.tokens * gates * model.head_dim
    # The gate is kept before its sigmoid, and what it multiplies beside the product.
    return around_core(model, kind, shard, heads, [qkv], crosses=crosses, kept_more=2 * gate_bytes)


def around_core(
    model: ModelSpec,
    kind: LayerKind,
    shard: Shard,
    heads: Heads,
    projections: list[Gemm],
    *,
    crosses: bool = False,
    kept_more: Floats | float = 0.0,
) -> Layer:
    """The block whatever makes its queries, keys and values; ``kept_more`` bytes are kept of the making."""
    norms = norms_each(model, kind)
    stream_elements = shard.stream_tokens * model.hidden
    tokens, hidden = shard.tokens, model.hidden
    core = _core(model, kind, shard, heads, crosses=crosses)
    out = Gemm("attention_out", tokens, np.full_like(tokens, hidden), heads.queries * heads.dim_v)
    return Layer(
        gemms=(*projections, out),
        attentions=(core,),
        streams=tuple(_streams(model, kind, shard, heads)),
        kept=_kept(model, kind, shard, heads, core, kept_more),
        modules={
            "layernorm": Module(
                shard.linear_bytes * stream_elements * norms, streams=(Stream("norm", stream_elements, norms),)
            )
        },
    )


def _core(model: ModelSpec, kind: LayerKind, shard: Shard, heads: Heads, *, crosses: bool) -> Attention:
    """All of the encoder is seen by attention that crosses. Unfused kernels mask what packed samples do not see."""
    window = model.window if kind.span == "window" else None
    span: Floats | float = float(min(window, shard.seq)) if model.chunked and window else float(shard.seq)
    if shard.packed:
        span = np.where(shard.flash, np.minimum(span, shard.packed), span)
    return Attention(
        name="attention",
        batch=np.asarray(shard.mbs * (shard.seq / span), np.float64),  # chunks are sequences of their own
        seq_q=span / shard.cp,
        seq_kv=span,
        heads=heads.queries,
        kv_heads=heads.keys,
        head_dim=heads.dim_qk,
        head_dim_v=heads.dim_v,
        causal=model.causal and kind.role != "encoder" and not crosses,
        window=None if model.chunked else window,
    )


def rotates(model: ModelSpec) -> bool:
    """Whether positions are told by turning queries and keys; a hybrid's are told by its state-space layers."""
    return not (model.learned_positions or model.relative_buckets or model.vision or model.state_space)


def _streams(model: ModelSpec, kind: LayerKind, shard: Shard, heads: Heads) -> list[Stream]:
    tokens, stream_elements = shard.tokens, shard.stream_tokens * model.hidden
    streams = [
        Stream("norm", stream_elements, norms_each(model, kind)),
        Stream("residual", stream_elements),
        Stream("boundary", shard.gathered_tokens * model.hidden),
    ]
    if model.qkv_bias:
        streams.append(Stream("bias", tokens * (heads.queries + 2 * heads.keys) * heads.dim_qk))
    if model.out_bias:
        streams.append(Stream("bias", stream_elements))
    if model.attention_gate:
        streams.append(Stream("swiglu", tokens * heads.queries * heads.dim_v))
    if rotates(model):
        streams.append(Stream("rotary", tokens * heads.rotated))
    if model.qk_norm != "none":
        streams.append(Stream("qk_norm", tokens * heads.rotated))
    if (shard.cp > 1).any():
        streams.append(Stream("ring", tokens * heads.queries * heads.dim_v, hops_of(shard)))
    return streams


def _kept(
    model: ModelSpec, kind: LayerKind, shard: Shard, heads: Heads, core: Attention, kept_more: Floats | float
) -> Kept:
    tokens, stream_elements = shard.tokens, shard.stream_tokens * model.hidden
    qkv_bytes = qkv_kept_bytes(model, shard, heads)
    context_bytes = BF16 * tokens * heads.queries * heads.dim_v
    scores_bytes = np.where(shard.flash, 4 * tokens * heads.queries, _score_bytes(shard, core))
    norms = norms_each(model, kind)
    streams_kept = BF16 * stream_elements + (shard.linear_bytes + shard.keeps.norm_bytes) * stream_elements * norms
    streams_kept = streams_kept + shard.linear_bytes * shard.kept_tokens * model.hidden
    selective = streams_kept + qkv_bytes + context_bytes * (shard.linear_bytes / BF16) + kept_more
    unfused_bytes = np.where(shard.flash, 0.0, scores_bytes)
    return Kept(
        whole=selective + scores_bytes,
        selective=selective,
        checkpoint=BF16 * stream_elements,
        working=2 * qkv_bytes + context_bytes + unfused_bytes + 2 * BF16 * tokens * model.hidden,
    )


def qkv_kept_bytes(model: ModelSpec, shard: Shard, heads: Heads) -> Floats:
    """Queries, keys and values, with what the runtime keeps alive beside them; copies in fp8 keep nothing alive."""
    tokens, narrow = shard.tokens, shard.keeps.fp8_qkv_bytes
    rotated_bytes = BF16 * (tokens * heads.rotated)
    nbytes = (narrow or BF16) * tokens * (heads.queries * heads.dim_qk + heads.keys * (heads.dim_qk + heads.dim_v))
    if rotates(model) and shard.keeps.projection and not narrow:
        # Beyond its key/value heads, tensor parallelism gathers the whole projection, and values stay views of it.
        whole = BF16 * tokens * (model.heads + 2 * model.kv_heads) * model.head_dim
        nbytes = np.where((shard.tp > model.kv_heads) & (model.mla is None), whole, nbytes) + rotated_bytes
    if model.qk_norm != "none":  # what goes into the norm is kept beside what comes out of it
        nbytes = nbytes + (1 + shard.keeps.norm_bytes / BF16) * rotated_bytes
    return nbytes


def _score_bytes(shard: Shard, core: Attention) -> Floats:
    """What unfused attention keeps of its scores."""
    return shard.keeps.scores_bytes * core.batch * core.heads * core.seq_q * core.seq_kv


def hops_of(shard: Shard) -> Floats:
    """How often keys and values go on to the next rank."""
    return (shard.cp - 1).astype(np.float64)


def ring(shard: Shard, heads: Heads) -> list[Send]:
    """Send c - 1 hops of this rank's keys and values; in backward also of their gradients."""
    nbytes = BF16 * shard.tokens * heads.keys * (heads.dim_qk + heads.dim_v)
    hops = hops_of(shard)
    return [Send("send_recv", nbytes, shard.cp, shard.tp, hops, 2 * hops, behind="attention")]


def _cp_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    del kind
    return ring(shard, heads_of(model, shard))


def keys_per_query(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    """How many positions a token attends to in self-attention, averaged over a sequence.

    It is the area of the mask over ``seq``: half of it for a causal layer (the diagonal counts half), w - w^2 / 2s
    for a sliding window w, and half of each chunk's square where the sequence is cut in chunks.
    """
    if kind.span == "full" or model.window is None or model.window >= seq:
        return seq / (1 if kind.role == "encoder" else 2)
    if kind.role == "encoder":
        return model.window
    if not model.chunked:
        return model.window - model.window**2 / (2 * seq)
    chunks, rest = divmod(seq, model.window)
    return (chunks * model.window**2 + rest**2) / (2 * seq)


def _has(model: ModelSpec, place: Place) -> bool:
    return model.mla is None and place.may_have("*") and model.attends(place.number)


def _flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    return 2 * keys_per_query(model, kind, seq) * model.heads * (model.head_dim + model.head_dim)


BLOCK = Block(
    name="attention",
    has=_has,
    tensors=tensors,
    operators=operators,
    sends={"tp": column_then_row, "cp": _cp_sends},
    attention_flops=_flops,
    kernels=_KERNELS,
)
