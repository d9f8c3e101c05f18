"""A case in megatron-core's words: its configuration, and the layers of a chunk."""

from __future__ import annotations

from typing import Any

from astra.lab.rehearse import modules
from astra.lab.rehearse.case import Case
from astra.layers.kinds import layer_kinds
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy


def transformer_config(case: Case) -> Any:
    """Megatron's configuration for the case, with its default fusions where they need no extra package."""
    import torch
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
        "overlap_moe_expert_parallel_comm": case.hides_experts,
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
    return TransformerBlockSubmodules(layer_specs=[kinds[each] for each in routed], layer_norm=modules.torch_norm)


def _layer_spec(case: Case, experts: int) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    latent = case.model.mla is not None
    layer = get_gpt_layer_local_spec(
        num_experts=experts or None,
        qk_layernorm=latent or case.model.qk_norm == "per_head",
        normalization="RMSNorm",
        multi_latent_attention=latent,
    )
    return modules.with_torch_parts(layer, modules.sdpa_attention(case.attention), grouped=experts > 0)


def has_experts(model: ModelSpec, layer: int) -> bool:
    """Whether a layer of the model, counted from 0, is one of those with experts."""
    return any("experts" in block for block in layer_kinds(model)[layer].blocks)
