"""Words of a strategy that Megatron-core has a setting for beside the degrees: dispatcher, graphs, widths, offload.

The same facts serve Megatron-LM's flags and Megatron-Bridge's fields.
"""

from __future__ import annotations

from typing import Final

from astra.export.base import Launch

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
