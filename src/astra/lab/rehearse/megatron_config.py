"""A case in megatron-core's words: its configuration, and layers that stand in for TransformerEngine's."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from astra.lab.rehearse import layers
from astra.lab.rehearse.case import Case
from astra.layers.kinds import layer_kinds
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy


def without_fp8() -> None:
    """Recomputing a module asks TransformerEngine whether it is in fp8, even where there is none."""
    from megatron.core.tensor_parallel import random

    if random.HAVE_TE:
        return

    class NoFp8:
        @staticmethod
        def is_fp8_enabled() -> bool:
            return False

    random.FP8GlobalStateManager = NoFp8
    random.activation_recompute_forward = random.fp8_autocast = lambda **_: contextlib.nullcontext()


@contextlib.contextmanager
def fused_adam() -> Iterator[None]:
    """Torch's default Adam makes a temporary as large as the parameters; production runtimes use a fused one."""
    plain = torch.optim.AdamW
    torch.optim.AdamW = functools.partial(plain, fused=True)
    try:
        yield
    finally:
        torch.optim.AdamW = plain


def with_torch_parts(layer: Any, core_attention: Any, *, grouped: bool) -> Any:
    """A local layer spec with torch's norms, this core attention (None: its own) and, if wanted, grouped experts."""
    from megatron.core.transformer.identity_op import IdentityOp

    parts = layer.submodules
    for owner, name in (
        (parts, "input_layernorm"), (parts, "pre_mlp_layernorm"), (parts.self_attention.submodules, "q_layernorm"),
        (parts.self_attention.submodules, "k_layernorm"), (parts.self_attention.submodules, "kv_layernorm"),
    ):  # fmt: skip
        if getattr(owner, name, None) not in (None, IdentityOp):
            setattr(owner, name, torch_norm)
    if core_attention is not None:
        parts.self_attention.submodules.core_attention = core_attention
    experts: Any = getattr(parts.mlp, "keywords", {}).get("submodules")
    if grouped and hasattr(experts, "experts") and grouped_mm() is not None:
        experts.experts = grouped_experts()
    return layer


def torch_norm(*, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
    """Torch's norm; its weights are marked so that sequence parallelism reduces their gradients."""
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    norm = kind(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel
    return norm


@functools.cache
def sdpa_attention(kernel: str) -> Any:
    """A core-attention class for the layer spec: causal SDPA with grouped queries, by one named kernel."""

    class SdpaAttention(torch.nn.Module):
        """Takes [s, b, heads, head dim], gives [s, b, hidden]."""

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__()
            self.config = config

        def forward(self, query: Any, key: Any, value: Any, attention_mask: Any = None, **_: Any) -> Any:
            q, k, v = (x.permute(1, 2, 0, 3) for x in (query, key, value))
            latent = query.shape[3] != value.shape[3]  # heads of different sizes: cuDNN alone has them
            out = layers.attend("cudnn" if latent else kernel, q, k, v)
            return out.permute(2, 0, 1, 3).reshape(query.shape[0], query.shape[1], -1)

    return SdpaAttention


def grouped_mm() -> Any:
    """Torch's grouped matrix product, or None where this torch has none."""
    return getattr(torch.nn.functional, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


@functools.cache
def grouped_experts() -> Any:
    """An experts class for the MoE spec: all local experts in two grouped products."""
    from megatron.core.fusions.fused_bias_swiglu import weighted_bias_swiglu_impl
    from megatron.core.tensor_parallel.random import CheckpointWithoutOutput
    from megatron.core.transformer.module import MegatronModule

    product = grouped_mm()

    class GroupedExperts(MegatronModule):
        """Gated experts; weights are [experts, in, out]."""

        def __init__(self, num_local_experts: int, config: Any, **_: Any) -> None:
            super().__init__(config=config)
            hidden, ffn = config.hidden_size, config.moe_ffn_hidden_size
            self.again = config.recompute_granularity == "selective" and "moe_act" in config.recompute_modules
            self.fc1 = self._weight(num_local_experts, hidden, 2 * ffn)
            self.fc2 = self._weight(num_local_experts, ffn, hidden)

        def _weight(self, *size: int) -> Any:
            device = torch.cuda.current_device()
            weight = torch.nn.Parameter(torch.empty(size, dtype=self.config.params_dtype, device=device))
            torch.nn.init.normal_(weight, std=0.02)
            weight.allreduce = self.config.expert_model_parallel_size == 1
            return weight

        def forward(self, tokens: Any, tokens_per_expert: Any, probs: Any) -> Any:
            ends = tokens_per_expert.cumsum(0).to(device=tokens.device, dtype=torch.int32, non_blocking=True)
            inner = product(tokens, self.fc1, offs=ends)
            if not self.again:
                inner = weighted_bias_swiglu_impl(inner, None, probs.unsqueeze(-1))
                return product(inner, self.fc2, offs=ends), None
            activation = CheckpointWithoutOutput()
            inner = activation.checkpoint(weighted_bias_swiglu_impl, inner, None, probs.unsqueeze(-1))
            out = product(inner, self.fc2, offs=ends)
            activation.discard_output_and_register_recompute(out)
            return out, None

        def backward_dw(self) -> None:
            """Nothing is delayed."""

    return GroupedExperts


def transformer_config(case: Case) -> Any:
    """Megatron's configuration for the case, with its default fusions where they need no extra package."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    model, strategy = case.model, case.strategy
    interleaved = strategy.vp > 1
    return (MLATransformerConfig if model.mla else TransformerConfig)(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        **_attention_fields(model),
        normalization="RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        gated_linear_unit=model.gated_mlp,
        activation_func=torch.nn.functional.silu if model.gated_mlp else torch.nn.functional.gelu,
        add_bias_linear=model.mlp_bias,
        add_qkv_bias=model.qkv_bias or model.mlp_bias,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        tensor_model_parallel_size=strategy.tp,
        pipeline_model_parallel_size=strategy.pp,
        virtual_pipeline_model_parallel_size=strategy.vp if interleaved else None,
        pipeline_model_parallel_layout=case.layout,
        sequence_parallel=strategy.sp and strategy.tp > 1,
        bias_activation_fusion=True,
        bias_dropout_fusion=True,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        persist_layer_norm=False,
        apply_rope_fusion=False,
        cross_entropy_loss_fusion=case.fused_cross_entropy,
        cross_entropy_fusion_impl="native",
        deallocate_pipeline_outputs=strategy.zero < 2,  # outputs of Megatron-FSDP are views, which it will not free
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        **_recompute_fields(strategy),
        **_expert_fields(case),
    )


def _attention_fields(model: ModelSpec) -> dict[str, Any]:
    """Of grouped queries, or of latent attention with the norms of its published models."""
    latent = model.mla
    if latent is None:
        fields = {"num_query_groups": model.kv_heads, "kv_channels": model.head_dim}
        return {**fields, "qk_layernorm": model.qk_norm == "per_head"}
    return {
        "q_lora_rank": latent.q_lora_rank,
        "kv_lora_rank": latent.kv_lora_rank,
        "qk_head_dim": latent.qk_nope_head_dim,
        "qk_pos_emb_head_dim": latent.qk_rope_head_dim,
        "v_head_dim": latent.v_head_dim,
        "rope_type": "rope",
        "qk_layernorm": True,
    }


def _recompute_fields(strategy: Strategy) -> dict[str, Any]:
    if strategy.recompute == "none":
        return {}
    if strategy.recompute == "selective":
        modules = list(strategy.modules)
        grouped = {"moe_grouped_gemm": True} if "moe_act" in modules else {}
        return {"recompute_granularity": "selective", "recompute_modules": modules, **grouped}
    fields = {"recompute_method": strategy.method, "recompute_num_layers": strategy.recompute_layers}
    return {"recompute_granularity": "full", **fields}


def _expert_fields(case: Case) -> dict[str, Any]:
    moe = case.model.moe
    if moe is None:
        return {}
    return {
        "num_moe_experts": moe.experts,
        "moe_router_topk": moe.topk,
        "moe_ffn_hidden_size": moe.ffn,
        "moe_shared_expert_intermediate_size": moe.shared_ffn or None,
        "expert_model_parallel_size": case.strategy.ep,
        "expert_tensor_parallel_size": 1,
        "moe_token_dispatcher_type": "alltoall",
        "overlap_moe_expert_parallel_comm": case.overlaps_experts,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2,
        "moe_router_force_load_balancing": True,
        "moe_router_dtype": "fp32",
    }


def block_spec(case: Case, config: Any, vp_stage: int | None) -> Any:
    """Megatron's local layer spec with SDPA, torch norms and, for experts, grouped products."""
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    first = get_transformer_layer_offset(config, vp_stage=vp_stage)
    layers = range(first, first + get_num_layers_to_build(config, vp_stage=vp_stage))
    routed = [case.experts > 0 and has_experts(case.model, layer) for layer in layers]
    kinds = {each: _layer_spec(case, case.experts if each else 0) for each in set(routed)}
    return TransformerBlockSubmodules(layer_specs=[kinds[each] for each in routed], layer_norm=torch_norm)


def _layer_spec(case: Case, experts: int) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    latent = case.model.mla is not None
    layer = get_gpt_layer_local_spec(
        num_experts=experts or None,
        qk_layernorm=latent or case.model.qk_norm == "per_head",
        normalization="RMSNorm",
        multi_latent_attention=latent,
    )
    return with_torch_parts(
        layer, sdpa_attention("cudnn" if case.attention == "cudnn" else "flash"), grouped=experts > 0
    )


def has_experts(model: ModelSpec, layer: int) -> bool:
    """Whether a layer of the model, counted from 0, is one of those with experts."""
    return any("experts" in block for block in layer_kinds(model)[layer].blocks)
