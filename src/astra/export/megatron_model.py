"""A model's shape as Megatron-LM arguments, and the shapes its GPT model does not have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from astra.export.base import Launch, Limit
from astra.spec.model import MLA, ModelSpec, MoE

Flag = tuple[str, ...]  # a flag and its values


def model_flags(launch: Launch) -> list[Flag]:
    """Everything that fixes the parameters."""
    model = launch.model
    positions = model.learned_positions or max(model.max_seq, launch.workload.seq)
    flags: list[Flag] = [
        ("--num-layers", str(model.layers)),
        ("--hidden-size", str(model.hidden)),
        ("--ffn-hidden-size", str(model.ffn)),
        ("--num-attention-heads", str(model.heads)),
        ("--kv-channels", str(model.head_dim if model.mla is None else model.mla.v_head_dim)),
        ("--vocab-size", str(model.vocab)),
        ("--make-vocab-size-divisible-by", "128"),
        ("--max-position-embeddings", str(positions)),
        ("--seq-length", str(launch.workload.seq)),
        ("--normalization", "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm"),
    ]
    flags += [("--swiglu",)] if model.gated_mlp else [] if _all_biases(model) else [("--no-bias-gelu-fusion",)]
    flags += [*_attention(model), *_biases(model)]
    if not model.tied_embeddings:
        flags.append(("--untie-embeddings-and-output-weights",))
    if model.moe is not None:
        flags += _experts(model, model.moe)
    return flags


def _attention(model: ModelSpec) -> Iterator[Flag]:
    if model.learned_positions:
        yield ("--position-embedding-type", "learned_absolute")
    else:
        yield ("--position-embedding-type", "rope")
    if model.mla is not None:
        yield from _latent(model.mla)
    elif model.kv_heads != model.heads:
        yield ("--group-query-attention",)
        yield ("--num-query-groups", str(model.kv_heads))
    if model.qk_norm == "per_head" or model.mla is not None:
        yield ("--qk-layernorm",)
    if model.window is not None:
        yield ("--window-size", f"{model.window - 1},0")  # tokens to the left of the query, itself not counted
        if model.full_attention_every > 1:
            yield ("--window-attn-skip-freq", str(model.full_attention_every))
    if model.attention_sinks:
        yield ("--softmax-type", "learnable")


def _latent(mla: MLA) -> Iterator[Flag]:
    yield ("--multi-latent-attention",)
    if mla.q_lora_rank is not None:
        yield ("--q-lora-rank", str(mla.q_lora_rank))
    yield ("--kv-lora-rank", str(mla.kv_lora_rank))
    yield ("--qk-head-dim", str(mla.qk_nope_head_dim))
    yield ("--qk-pos-emb-head-dim", str(mla.qk_rope_head_dim))
    yield ("--v-head-dim", str(mla.v_head_dim))
    # Megatron's fused rotary kernel for latent attention knows YaRN alone; scaled by one it is plain rotary.
    yield ("--rope-type", "yarn")
    yield ("--rotary-scaling-factor", "1.0")


def _all_biases(model: ModelSpec) -> bool:
    return model.out_bias


def _biases(model: ModelSpec) -> list[Flag]:
    """Megatron has one switch for every projection's bias, and one for the queries, keys and values alone."""
    if _all_biases(model):
        return []
    return [("--disable-bias-linear",), *([("--add-qkv-bias",)] if model.qkv_bias else [])]


def _experts(model: ModelSpec, moe: MoE) -> list[Flag]:
    flags: list[Flag] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.topk)),
        ("--moe-ffn-hidden-size", str(moe.ffn)),
        ("--moe-router-load-balancing-type", "aux_loss"),
        ("--moe-aux-loss-coeff", "1e-3"),
        ("--moe-token-dispatcher-type", "alltoall"),
        ("--moe-grouped-gemm",),
        ("--moe-permute-fusion",),
    ]
    if moe.topk == 1:
        flags.append(("--moe-router-pre-softmax",))
    if moe.shared_ffn:
        flags.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn)))
    if moe.shared_gate:
        flags.append(("--moe-shared-expert-gate",))
    if moe.first_dense or moe.every > 1:
        flags.append(("--moe-layer-freq", expert_pattern(model.layers, moe)))
    if _all_biases(model):
        flags.append(("--no-bias-dropout-fusion",))  # grouped experts with biases do not have it
    return flags


def expert_pattern(layers: int, moe: MoE) -> str:
    """Which layers have experts, in Megatron's list language: ``([0]*3+[1]*58)``."""
    rest = layers - moe.first_dense
    groups, left = divmod(rest, moe.every)
    one = "[1]" if moe.every == 1 else f"([0]*{moe.every - 1}+[1])"
    parts = [f"[0]*{moe.first_dense}"] * (moe.first_dense > 0)
    parts += [f"{one}*{groups}"] * (groups > 0) + [f"[0]*{left}"] * (left > 0)
    return f"({'+'.join(parts)})"


def _mixed_biases(launch: Launch) -> bool:
    """Megatron's one switch gives biases to attention, feed-forward, router and experts alike."""
    model, moe = launch.model, launch.model.moe
    if not _all_biases(model):
        return model.mlp_bias or bool(moe and (moe.expert_bias or moe.router_bias))
    dense = moe is None or moe.first_dense > 0 or moe.every > 1
    experts = moe is not None and not (moe.expert_bias and moe.router_bias and not moe.shared_ffn)
    return not model.qkv_bias or (dense and not model.mlp_bias) or experts or model.mla is not None


MODEL_LIMITS: Final = (
    Limit("model", "Megatron-LM's GPT model has no encoder", lambda it: it.model.encoder is not None),
    Limit("model", "Megatron-LM's GPT model has no patch embedding", lambda it: it.model.vision is not None),
    Limit("model", "Megatron-LM's GPT model is causal", lambda it: not it.model.causal),
    Limit("model", "it has no relative position buckets", lambda it: it.model.relative_buckets > 0),
    Limit("model", "it has two norms per layer", lambda it: it.model.norms_per_layer != 2),
    Limit("model", "it has a final norm", lambda it: not it.model.final_norm),
    Limit("model", "it has no norm after the embedding", lambda it: it.model.embedding_norm),
    Limit(
        "model", "its LayerNorm has a bias", lambda it: it.model.norm == "layernorm" and not it.model.norm_bias
    ),
    Limit("model", "its query and key norms are per head", lambda it: it.model.qk_norm == "full"),
    Limit("model", "its vocabulary projection has no bias", lambda it: it.model.head_bias),
    Limit("model", "it has no chunked attention", lambda it: it.model.chunked),
    Limit("model", "it has one switch for all biases, and one for those of queries, keys and values", _mixed_biases),
    Limit(
        "model",
        "with latent attention it norms full-rank queries too",
        lambda it: it.model.mla is not None and it.model.mla.q_lora_rank is None,
    ),
    Limit("workload", "its pretraining script has no LoRA", lambda it: it.workload.task == "lora"),
    Limit(
        "model",
        "learned positions must cover the sequence",
        lambda it: 0 < it.model.learned_positions < it.workload.seq,
    ),
)  # fmt: skip
