"""Transformer layers as operators: attention (multi-head, grouped, latent), dense and expert feed-forward, head.

Letters: T tokens of a micro-batch on a rank, h hidden, f ffn, a heads, g kv heads, d head dim, V vocabulary, E experts,
k experts per token, t tensor parallel. What is kept for backward follows Korthikanti et al. 2022 (arXiv 2205.05198),
extended to grouped and latent attention, gated feed-forward and experts.
"""

from __future__ import annotations

import numpy as np

from astra.families.kinds import LayerKind
from astra.families.operators import Attention, Gemm, Kept, Layer, Retention, Shard, Stream, join
from astra.provenance import Floats, Ints
from astra.spec.model import MLA, ModelSpec, MoE

BF16 = 2  # bytes of an activation


def layer(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """One layer of a kind on one rank."""
    blocks = [attention_block(model, kind, shard)]
    if kind.role == "cross":
        blocks.append(attention_block(model, kind, shard, crosses=True))
    blocks.append(
        expert_block(model, model.moe, shard) if kind.mlp == "moe" and model.moe else dense_block(model, shard)
    )
    return join(*blocks)


def attention_block(model: ModelSpec, kind: LayerKind, shard: Shard, *, crosses: bool = False) -> Layer:
    """Norm, projections, rotary, attention, output projection, residual; all of the encoder is seen when it crosses."""
    tokens, hidden = shard.tokens, model.hidden
    heads = model.heads / shard.tp
    kv_heads = np.maximum(model.kv_heads / shard.tp, 1.0)
    dim_qk, dim_v = head_dims(model)
    projections = _latent(model, model.mla, shard) if model.mla else _grouped(model, shard)
    window = model.window if kind.span == "window" else None
    span = float(min(window, shard.seq)) if model.chunked and window else float(shard.seq)
    core = Attention(
        name="attention",
        batch=np.asarray(shard.mbs * (shard.seq / span), np.float64),  # chunks are sequences of their own
        seq_q=span / shard.cp,
        seq_kv=span,
        heads=heads,
        kv_heads=heads if model.mla else kv_heads,
        head_dim=dim_qk,
        head_dim_v=dim_v,
        causal=model.causal and kind.role != "encoder" and not crosses,
        window=None if model.chunked else window,
    )
    out = Gemm("attention_out", tokens, np.full_like(tokens, hidden), heads * dim_v)
    rotated = tokens * (heads + (heads if model.mla else kv_heads)) * dim_qk
    stream_elements = shard.stream_tokens * hidden
    streams = [
        Stream("norm", stream_elements, model.norms_per_layer / 2),
        Stream("residual", stream_elements),
        Stream("boundary", tokens * hidden),
    ]
    if model.qkv_bias:
        streams.append(Stream("bias", tokens * (heads + 2 * kv_heads) * dim_qk))
    if model.out_bias:
        streams.append(Stream("bias", stream_elements))
    rotary = not (model.learned_positions or model.relative_buckets or model.vision)
    if rotary:
        streams.append(Stream("rotary", rotated))
    if model.qk_norm != "none":
        streams.append(Stream("qk_norm", rotated))
    qkv_bytes = BF16 * tokens * (heads * dim_qk + _kv_width(model, heads, kv_heads))
    if rotary and shard.keeps.projection:
        # Beyond its key/value heads, tensor parallelism gathers the whole projection, and values stay views of it.
        whole = BF16 * tokens * (model.heads + 2 * model.kv_heads) * model.head_dim
        qkv_bytes = np.where((shard.tp > model.kv_heads) & (model.mla is None), whole, qkv_bytes) + BF16 * rotated
    if model.qk_norm != "none":  # what goes into the norm is kept beside what comes out of it
        qkv_bytes = qkv_bytes + BF16 * rotated
    context_bytes = BF16 * tokens * heads * dim_v
    scores_bytes = np.where(shard.flash, 4 * tokens * heads, _score_bytes(core))
    streams_kept = BF16 * stream_elements + shard.norm_bytes * stream_elements * (model.norms_per_layer / 2)
    latent = _latent_kept(model.mla, shard) if model.mla else 0.0
    selective = streams_kept + qkv_bytes + context_bytes * (shard.linear_bytes / BF16) + latent
    return Layer(
        gemms=(*projections, out),
        attentions=(core,),
        streams=tuple(streams),
        kept=Kept(
            whole=selective + scores_bytes,
            selective=selective,
            checkpoint=BF16 * stream_elements,
            working=2 * qkv_bytes
            + context_bytes
            + np.where(shard.flash, 0.0, scores_bytes)
            + 2 * BF16 * tokens * hidden,
        ),
    )


def head_dims(model: ModelSpec) -> tuple[int, int]:
    """Widths of a head in the score product and in the value product."""
    if model.mla:
        return model.mla.qk_nope_head_dim + model.mla.qk_rope_head_dim, model.mla.v_head_dim
    return model.head_dim, model.head_dim


def _kv_width(model: ModelSpec, heads: Floats, kv_heads: Floats) -> Floats:
    dim_qk, dim_v = head_dims(model)
    return (heads if model.mla else kv_heads) * (dim_qk + dim_v)


def _grouped(model: ModelSpec, shard: Shard) -> list[Gemm]:
    """Fused QKV projection; key/value heads are replicated when t exceeds their number."""
    width = (model.heads / shard.tp + 2 * np.maximum(model.kv_heads / shard.tp, 1.0)) * model.head_dim
    return [Gemm("qkv", shard.tokens, width, np.full_like(shard.tokens, model.hidden))]


def _latent(model: ModelSpec, mla: MLA, shard: Shard) -> list[Gemm]:
    """Down-projections are replicated over tensor parallelism, up-projections are split by heads."""
    tokens, heads = shard.tokens, model.heads / shard.tp
    hidden = np.full_like(tokens, model.hidden)
    dim_q = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    if mla.q_lora_rank is None:
        queries = [Gemm("q", tokens, heads * dim_q, hidden)]
    else:
        rank = np.full_like(tokens, mla.q_lora_rank)
        queries = [
            Gemm("q_down", shard.stream_tokens, rank, hidden),
            Gemm("q_up", tokens, heads * dim_q, rank),
        ]
    latent = np.full_like(tokens, mla.kv_lora_rank)
    return [
        *queries,
        Gemm("kv_down", shard.stream_tokens, latent + mla.qk_rope_head_dim, hidden),
        Gemm("kv_up", tokens, heads * (mla.qk_nope_head_dim + mla.v_head_dim), latent),
    ]


def _latent_kept(mla: MLA, shard: Shard) -> Floats:
    """Both low-rank tensors, before and after their norms."""
    ranks = (mla.q_lora_rank or 0) + mla.kv_lora_rank
    return (BF16 + shard.linear_bytes) * shard.stream_tokens * ranks


def _score_bytes(core: Attention) -> Floats:
    """Softmax output of unfused attention, kept in bf16, with the scores it was made from."""
    return 2 * BF16 * core.batch * core.heads * core.seq_q * core.seq_kv


def dense_block(model: ModelSpec, shard: Shard) -> Layer:
    """Norm, feed-forward, residual."""
    stream_elements = shard.stream_tokens * model.hidden
    streams = [
        Stream("norm", stream_elements, model.norms_per_layer / 2),
        Stream("residual", stream_elements),
        Stream("boundary", shard.tokens * model.hidden),
    ]
    if model.mlp_bias:
        streams += [Stream("bias", shard.tokens * model.ffn / shard.tp), Stream("bias", stream_elements)]
    kept = BF16 * stream_elements + shard.mlp_norm_bytes * stream_elements * (model.norms_per_layer / 2)
    feed = feed_forward("mlp", model, shard.tokens, model.ffn / shard.tp, shard.keeps)
    outer = Layer(
        (), (), tuple(streams), Kept(whole=kept, selective=kept, checkpoint=BF16 * stream_elements, working=0 * kept)
    )
    joined = join(outer, feed)
    working = feed.kept.working + 2 * BF16 * shard.tokens * model.hidden
    return joined._replace(kept=joined.kept._replace(working=working))


def feed_forward(
    name: str, model: ModelSpec, tokens: Floats, width: Floats, keeps: Retention, groups: Floats | int = 1
) -> Layer:
    """Two (or three) projections around an activation; ``groups`` copies for experts, ``tokens`` for each of them."""
    gates = 2 if model.gated_mlp else 1
    hidden = np.full_like(tokens, model.hidden)
    inner_elements = groups * tokens * width
    activated = 1 if keeps.activation and model.gated_mlp else 0
    kept = (BF16 * (gates + activated) + keeps.mlp_norm_bytes) * inner_elements
    return Layer(
        gemms=(
            Gemm(f"{name}_in", tokens, gates * width, hidden, groups),
            Gemm(f"{name}_out", tokens, hidden, width, groups),
        ),
        attentions=(),
        streams=(Stream("swiglu" if model.gated_mlp else "gelu", inner_elements),),
        kept=Kept(whole=kept, selective=kept, checkpoint=0 * kept, working=BF16 * gates * inner_elements),
    )


def expert_block(model: ModelSpec, moe: MoE, shard: Shard) -> Layer:
    """Norm, router, dispatch, experts, combine, shared expert, residual. Load is taken as balanced."""
    stream_elements = shard.stream_tokens * model.hidden
    routed = shard.routed_tokens
    copies = routed * moe.topk * shard.etp  # token copies an expert-tensor-parallel rank computes on
    local_experts = moe.experts / shard.ep
    experts = feed_forward("experts", model, copies / local_experts, moe.ffn / shard.etp, shard.keeps, local_experts)
    dispatched = copies * model.hidden
    streams = [
        Stream("norm", stream_elements, model.norms_per_layer / 2),
        Stream("residual", stream_elements),
        Stream("router", routed * moe.experts),
        Stream("permute", dispatched),
        Stream("sort", dispatched * ((shard.ep > 1) & (local_experts > 1))),
    ]
    if moe.expert_bias:  # GPT-OSS, whose activation is clamped too
        inner_elements = copies * moe.ffn / shard.etp
        streams.append(Stream("expert_bias", dispatched, groups=local_experts))
        streams.append(Stream("expert_clamp", inner_elements))
        streams.append(Stream("bias", (2 if model.gated_mlp else 1) * inner_elements))
    kept = (
        BF16 * stream_elements
        + shard.mlp_norm_bytes * stream_elements
        + 8 * routed * moe.experts  # probabilities and routing map
        + shard.keeps.mlp_bytes * dispatched
    )
    router = Gemm("router", routed, np.full_like(routed, moe.experts), np.full_like(routed, model.hidden))
    outer = Layer(
        (router,),
        (),
        tuple(streams),
        Kept(whole=kept, selective=kept, checkpoint=BF16 * stream_elements, working=0 * kept),
    )
    parts = [outer, experts]
    if moe.shared_ffn:
        parts.append(feed_forward("shared", model, shard.tokens, moe.shared_ffn / shard.tp, shard.keeps))
    joined = join(*parts)
    working = joined.kept.working + 3 * BF16 * dispatched + 2 * BF16 * shard.tokens * model.hidden
    return joined._replace(kept=joined.kept._replace(working=working))


def embedding(model: ModelSpec, shard: Shard) -> Layer:
    """Token (or patch) embedding on the first stage."""
    elements = shard.tokens * model.hidden
    out = BF16 * shard.stream_tokens * model.hidden
    gemms: tuple[Gemm, ...] = ()
    if model.vision:
        pixels = model.vision.channels * model.vision.patch**2
        gemms = (Gemm("patch", shard.tokens, np.full_like(elements, model.hidden), np.full_like(elements, pixels)),)
    kept = Kept(whole=0 * out, selective=0 * out, checkpoint=0 * out, working=out)
    return Layer(gemms, (), (Stream("embedding", elements),), kept)


def padded_vocab(model: ModelSpec, tp: Ints) -> Floats:
    """Vocabulary rows after Megatron's padding to a multiple of 128 t."""
    return np.asarray(np.ceil(model.vocab / (128 * tp)) * (128.0 * tp))


def head(model: ModelSpec, shard: Shard, *, logits_kept_bytes: float, logits_peak_bytes: float) -> Layer:
    """Final norm, vocabulary projection and cross-entropy (or a classifier) on the last stage."""
    stream_elements = shard.stream_tokens * model.hidden
    kept = (BF16 + shard.linear_bytes) * stream_elements
    norm = Stream("norm", stream_elements)
    if model.vision:
        rows = shard.mbs.astype(np.float64)
        gemm = Gemm("classifier", rows, np.full_like(rows, model.vision.classes), np.full_like(rows, model.hidden))
        return Layer((gemm,), (), (norm,), Kept(whole=kept, selective=kept, checkpoint=kept, working=0 * kept))
    columns = padded_vocab(model, shard.tp) / shard.tp
    logits = shard.tokens * columns
    whole = kept + logits_kept_bytes * logits
    return Layer(
        gemms=(Gemm("head", shard.tokens, columns, np.full_like(logits, model.hidden)),),
        attentions=(),
        streams=(norm, Stream("cross_entropy", logits)),
        kept=Kept(
            whole=whole,
            selective=whole,
            checkpoint=whole,
            working=(logits_peak_bytes - logits_kept_bytes) * logits + 2 * BF16 * shard.tokens * model.hidden,
        ),
    )
