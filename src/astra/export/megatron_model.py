"""A model's shape and a strategy's words in Megatron-core's: for flags and for Megatron-Bridge's fields alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from astra.export.base import Launch
from astra.layers.blocks.experts import CAPACITY, STASHED
from astra.spec.model import MLA, DeltaNet, ModelSpec, MoE, Rotary, StateSpace

# How a precision scales its products, and the format Megatron-core wants with it.
_SCALED: Final = {"fp8-tensorwise": "tensorwise", "fp8-blockwise": "blockwise", "mxfp8": "mxfp8"}
_FORMATS: Final = {"tensorwise": "hybrid", "blockwise": "e4m3", "mxfp8": "e4m3"}
# Sizes and their flags, with what Megatron-LM takes them to be where they are not said: written and read by these.
DELTA_NET: Final = {
    "attention_every": ("--linear-attention-freq", 0), "conv": ("--linear-conv-kernel-dim", 4),
    "key_dim": ("--linear-key-head-dim", 128), "head_dim": ("--linear-value-head-dim", 128),
    "key_heads": ("--linear-num-key-heads", 16), "heads": ("--linear-num-value-heads", 32),
}  # fmt: skip
STATE_SPACE: Final = {
    "heads": ("--mamba-num-heads", 0), "head_dim": ("--mamba-head-dim", 64), "states": ("--mamba-state-dim", 128),
    "groups": ("--mamba-num-groups", 8),
}  # fmt: skip
LATENT: Final = {
    "kv_lora_rank": ("--kv-lora-rank", 32), "qk_nope_head_dim": ("--qk-head-dim", 128),
    "qk_rope_head_dim": ("--qk-pos-emb-head-dim", 64), "v_head_dim": ("--v-head-dim", 128),
}  # fmt: skip
YARN: Final = {
    "factor": ("--rotary-scaling-factor", 1.0), "original_positions": ("--yarn-original-max-position-embeddings", 4096),
    "beta_fast": ("--yarn-beta-fast", 32.0), "beta_slow": ("--yarn-beta-slow", 1.0), "mscale": ("--mscale", 1.0),
    "mscale_all_dim": ("--mscale-all-dim", 0.0),
}  # fmt: skip


def fp8_scaling(launch: Launch) -> str:
    """How FP8 products are scaled; empty without FP8."""
    precision = launch.workload.precision
    return launch.fp8_recipe if precision == "fp8" else _SCALED.get(precision, "")


def fp8_format(launch: Launch) -> str:
    """The format of FP8 numbers that goes with the scaling."""
    return _FORMATS[fp8_scaling(launch)]


def graph_modules(launch: Launch) -> list[str]:
    """Everything of a layer whose shapes the host knows: all but the experts themselves.

    Dense layers are not captured either where expert exchanges run beside another micro-batch.
    """
    moe = launch.model.moe
    if moe is None:
        return ["attn", "mlp"]
    dense = (moe.first_dense or moe.every > 1) and "ep" not in launch.strategy.overlap
    return ["attn", *(["mlp"] if dense else []), "moe_router", "moe_preprocess"]


def instances(launch: Launch) -> int:
    """Copies of the sharded state: groups of replicas that ZeRO shards inside."""
    return launch.strategy.dp // launch.strategy.shard if launch.strategy.shard else 1


def aware(launch: Launch) -> bool:
    """Whether the optimizer keeps states of its own widths, on the GPU or in host memory."""
    return launch.strategy.offload == "optimizer" or launch.strategy.moments == "bf16"


# What a graph of the whole step wants of experts: products that are one kernel, and room said beforehand. As all
# perf_recipes of Megatron-Bridge 0.6.2 that capture steps with experts set it.
CAPTURED_EXPERTS: Final = {
    "use_transformer_engine_op_fuser": "true",
    "moe_mlp_glu_interleave_size": "32",
    "moe_expert_rank_capacity_factor": str(CAPACITY),
    "moe_paged_stash": "true",
    "moe_paged_stash_buffer_size_factor_cuda": str(STASHED),
    "moe_paged_stash_buffer_size_factor_cpu": "1.0",
}
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
    if model.norm_epsilon is not None:
        flags.append(("--norm-epsilon", str(model.norm_epsilon)))
    flags += [*_activation(model), *_positions(model), *_attention(model), *_biases(model)]
    if not model.tied_embeddings:
        flags.append(("--untie-embeddings-and-output-weights",))
    if model.moe is not None:
        flags += [*_experts(model, model.moe), *_dispatcher(launch.strategy.dispatch)]
        said = captured_experts(launch).items()
        flags += [(flag_of(name), *([] if value == "true" else [value])) for name, value in said]
    if launch.workload.mtp:
        flags += [("--mtp-num-layers", str(launch.workload.mtp)), ("--mtp-loss-scaling-factor", "0.1")]
    if model.state_space is not None:
        flags += _state_space(model.state_space, launch.layers)
    if model.delta_net is not None:
        flags += _delta_net(model.delta_net)
    if "zero_centered_norm" in model.quirks:
        flags.append(("--apply-layernorm-1p",))
    return flags


def _sizes(record: object, flags: Mapping[str, tuple[str, float]]) -> Iterator[Flag]:
    """Fields of a record by the flags of a table."""
    return ((flag, str(getattr(record, field))) for field, (flag, _) in flags.items())


def _delta_net(net: DeltaNet) -> Iterator[Flag]:
    """Of each group of layers the last has attention."""
    yield ("--experimental-attention-variant", "gated_delta_net")
    yield from _sizes(net, DELTA_NET)


def hybrid_stages(space: StateSpace, layers: tuple[int, ...]) -> str:
    """A hybrid's letters, with a bar between virtual stages."""
    letters = iter(space.pattern)
    return "|".join("".join(next(letters) for _ in range(count)) for count in layers)


def _state_space(space: StateSpace, layers: tuple[int, ...]) -> Iterator[Flag]:
    yield ("--hybrid-layer-pattern", hybrid_stages(space, layers))
    yield ("--spec", "megatron.core.models.hybrid.hybrid_layer_specs", "hybrid_stack_spec")
    yield from _sizes(space, STATE_SPACE)


def _activation(model: ModelSpec) -> Iterator[Flag]:
    """Without a word Megatron's is GELU, fused with the bias it must then have."""
    if model.activation == "clamped_swiglu":
        yield ("--quick-geglu",)
        yield ("--glu-linear-offset", "1.0")
        yield ("--activation-func-clamp-value", "7.0")
    elif model.gated_mlp:
        yield ("--swiglu",)
    elif model.activation == "relu2":
        yield ("--squared-relu",)
    if not model.gated_mlp and (model.activation == "relu2" or not model.out_bias):
        yield ("--no-bias-gelu-fusion",)


def _positions(model: ModelSpec) -> Iterator[Flag]:
    if model.learned_positions or model.state_space is not None:
        yield ("--position-embedding-type", "learned_absolute" if model.learned_positions else "none")
        return
    rotary = model.rotary or Rotary()
    stretched = rotary.scaling == "yarn" and model.mla is None
    yield ("--position-embedding-type", "yarn" if stretched else "rope")
    if model.rotary is not None:
        yield ("--rotary-base", str(round(rotary.base)))  # Megatron takes a whole number
    if rotary.fraction < 1:
        yield ("--rotary-percent", str(rotary.fraction))
    if rotary.scaling == "linear":
        yield ("--rotary-seq-len-interpolation-factor", str(round(rotary.factor)))
    elif rotary.scaling == "llama3":
        yield ("--use-rope-scaling",)
    elif stretched:
        yield from _sizes(rotary, YARN)
        if not rotary.rounded:
            yield ("--no-yarn-correction-range-round-to-int",)


def positions_known(model: ModelSpec) -> bool:
    """Whether the flags above say all there is to say of positions."""
    return model.learned_positions > 0 or model.rotary is not None or model.state_space is not None


def _attention(model: ModelSpec) -> Iterator[Flag]:
    if model.mla is not None:
        yield from _latent(model.mla, model.rotary or Rotary())
    elif model.kv_heads != model.heads:
        yield ("--group-query-attention",)
        yield ("--num-query-groups", str(model.kv_heads))
    if model.qk_norm == "per_head" or model.mla is not None:
        yield ("--qk-layernorm",)
    if model.window is not None:
        yield ("--window-size", f"{model.window - 1},0")  # tokens to the left of the query, itself not counted
        if model.full_attention_every > 1:
            yield ("--window-attn-skip-freq", str(model.full_attention_every))
    if model.attention_gate:
        yield ("--attention-output-gate",)
    if model.attention_sinks:
        yield ("--softmax-type", "learnable")


def _latent(mla: MLA, rotary: Rotary) -> Iterator[Flag]:
    yield ("--multi-latent-attention",)
    if mla.q_lora_rank is not None:
        yield ("--q-lora-rank", str(mla.q_lora_rank))
    yield from _sizes(mla, LATENT)
    # Megatron's fused rotary kernel for latent attention knows YaRN alone; scaled by one it is plain rotary.
    yield ("--rope-type", "yarn")
    yield from _sizes(rotary, {field: YARN[field] for field in ("factor", "mscale", "mscale_all_dim")})


def _biases(model: ModelSpec) -> list[Flag]:
    """Megatron has one switch for every projection's bias, and one for the queries, keys and values alone."""
    if model.out_bias:
        return []
    return [("--disable-bias-linear",), *([("--add-qkv-bias",)] if model.qkv_bias else [])]


def _experts(model: ModelSpec, moe: MoE) -> list[Flag]:
    flags: list[Flag] = [
        ("--num-experts", str(moe.experts)),
        ("--moe-router-topk", str(moe.topk)),
        ("--moe-ffn-hidden-size", str(moe.ffn)),
        *_routing(moe),
        ("--moe-grouped-gemm",),
        ("--moe-permute-fusion",),
    ]
    if moe.shared_ffn:
        flags.append(("--moe-shared-expert-intermediate-size", str(moe.shared_ffn)))
    if moe.shared_gate:
        flags.append(("--moe-shared-expert-gate",))
    if moe.first_dense or moe.every > 1:
        flags.append(("--moe-layer-freq", expert_pattern(model.layers, moe)))
    if model.out_bias:
        flags.append(("--no-bias-dropout-fusion",))  # grouped experts with biases do not have it
    return flags


def flag_of(field: str) -> str:
    """Of Megatron-LM, for a field of Megatron-core's configuration."""
    return f"--{field.replace('_', '-')}"


def captured_experts(launch: Launch) -> dict[str, str]:
    """What Megatron-core is told where a graph of the whole step holds experts."""
    return CAPTURED_EXPERTS if launch.model.moe and launch.strategy.graphs == "full" else {}


def _dispatcher(name: str) -> Iterator[Flag]:
    if name == "alltoall":
        yield ("--moe-token-dispatcher-type", "alltoall")
    else:
        yield ("--moe-token-dispatcher-type", "flex")
        yield ("--moe-flex-dispatcher-backend", name)


def _routing(moe: MoE) -> Iterator[Flag]:
    """Weights that sum to one are a softmax of the chosen logits; others one of all logits, before the choice."""
    if moe.score == "sigmoid":
        yield ("--moe-router-score-function", "sigmoid")
    elif moe.topk == 1 or not moe.normalized:
        yield ("--moe-router-pre-softmax",)
    if moe.weight_scale != 1:
        yield ("--moe-router-topk-scaling-factor", str(moe.weight_scale))
    if moe.groups > 1:
        yield ("--moe-router-num-groups", str(moe.groups))
        yield ("--moe-router-group-topk", str(moe.groups_kept))
    if moe.experts >= 32:
        yield ("--moe-router-dtype", "fp32")  # Megatron warns of many experts without
    if moe.balance_bias:
        yield ("--moe-router-enable-expert-bias",)
        yield ("--moe-router-load-balancing-type", "seq_aux_loss")
        yield ("--moe-aux-loss-coeff", "1e-4")
    else:
        yield ("--moe-router-load-balancing-type", "aux_loss")
        yield ("--moe-aux-loss-coeff", "1e-3")


def expert_pattern(layers: int, moe: MoE) -> str:
    """Which layers have experts, in Megatron's list language: ``([0]*3+[1]*58)``."""
    rest = layers - moe.first_dense
    groups, left = divmod(rest, moe.every)
    one = "[1]" if moe.every == 1 else f"([0]*{moe.every - 1}+[1])"
    parts = [f"[0]*{moe.first_dense}"] * (moe.first_dense > 0)
    parts += [f"{one}*{groups}"] * (groups > 0) + [f"[0]*{left}"] * (left > 0)
    return f"({'+'.join(parts)})"
