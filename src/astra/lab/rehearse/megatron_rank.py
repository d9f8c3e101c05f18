# Torch and megatron are imported where they are used: only a measurement may need them.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Build one rank of a job with megatron-core: its model chunks, data-parallel wrapper and optimizer.

TransformerEngine and Apex are not needed: core attention is torch's SDPA, norms are torch's (their weights
marked for sequence parallelism), Adam is torch's fused one, experts use torch's grouped matrix product.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from astra.lab.rehearse import fabric
from astra.lab.rehearse.case import Case
from astra.spec.strategy import Strategy

_COMPILE_LIMIT: Final = 256  # shapes differ from case to case; torch gives up compiling after 8 by default


@dataclass
class Rank:
    """A built rank, ready to step."""

    case: Case
    config: Any
    chunks: list[Any]
    optimizer: Any
    params: int


def load_runtime() -> None:
    """Import megatron with the fabric in place and its fusions compiled for any shape."""
    import torch
    import torch._dynamo  # reads the collectives it may trace, so before they are replaced

    fabric.install()
    real_compile = torch.compile
    torch._dynamo.config.recompile_limit = _COMPILE_LIMIT
    torch._dynamo.config.accumulated_recompile_limit = 8 * _COMPILE_LIMIT
    torch.compile = functools.partial(real_compile, dynamic=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import megatron.core
            import megatron.core.models.gpt.gpt_layer_specs
            import megatron.core.models.gpt.gpt_model
            import megatron.core.optimizer
            import megatron.core.pipeline_parallel.schedules  # noqa: F401
    finally:
        torch.compile = real_compile


def padded_vocab(vocab: int, tp: int) -> int:
    """Megatron pads the vocabulary to a multiple of 128 t."""
    step = 128 * tp
    return -(-vocab // step) * step


def build(case: Case) -> Rank:
    """Join the fake job and build the rank, its wrapper and its optimizer."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import (
        model_parallel_cuda_manual_seed,
    )

    strategy = case.strategy
    fabric.join(case.rank, strategy.gpus)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=strategy.tp,
        pipeline_model_parallel_size=strategy.pp,
        virtual_pipeline_model_parallel_size=strategy.vp if strategy.vp > 1 else None,
        expert_model_parallel_size=strategy.ep,
        expert_tensor_parallel_size=1 if case.experts else None,
        create_gloo_process_groups=False,
    )
    torch.manual_seed(1234)
    model_parallel_cuda_manual_seed(1234)
    config = transformer_config(case)
    bare = [_chunk(case, config, index) for index in range(strategy.vp)]
    params = sum(p.numel() for chunk in bare for p in chunk.parameters())
    chunks = [_wrap(case, config, chunk, index) for index, chunk in enumerate(bare)]
    optimizer = _optimizer(case, chunks)
    _connect(case, config, chunks, optimizer)
    return Rank(case=case, config=config, chunks=chunks, optimizer=optimizer, params=params)


def transformer_config(case: Case) -> Any:
    """Megatron's configuration for the case, with its default fusions where they need no extra package."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    model, strategy = case.model, case.strategy
    interleaved = strategy.vp > 1
    return TransformerConfig(
        num_layers=model.layers,
        hidden_size=model.hidden,
        ffn_hidden_size=model.ffn,
        num_attention_heads=model.heads,
        num_query_groups=model.kv_heads,
        kv_channels=model.head_dim,
        normalization="RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        gated_linear_unit=model.gated_mlp,
        activation_func=torch.nn.functional.silu if model.gated_mlp else torch.nn.functional.gelu,
        add_bias_linear=model.mlp_bias,
        add_qkv_bias=model.qkv_bias or model.mlp_bias,
        qk_layernorm=model.qk_norm == "per_head",
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
        deallocate_pipeline_outputs=True,
        overlap_p2p_comm=interleaved,
        batch_p2p_comm=not interleaved,
        **_recompute_fields(strategy),
        **_expert_fields(case),
    )


def _recompute_fields(strategy: Strategy) -> dict[str, Any]:
    if strategy.recompute == "none":
        return {}
    if strategy.recompute == "selective":
        return {"recompute_granularity": "selective"}
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
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 1e-2,
        "moe_router_force_load_balancing": True,
        "moe_router_dtype": "fp32",
    }


def _chunk(case: Case, config: Any, index: int) -> Any:
    """One model chunk of the rank, on the GPU in bf16."""
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    vp_stage = index if case.strategy.vp > 1 else None
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    module = GPTModel(
        config=config,
        transformer_layer_spec=_block_spec(case, config, vp_stage),
        vocab_size=padded_vocab(case.model.vocab, case.strategy.tp),
        max_sequence_length=case.seq,
        pre_process=first,
        post_process=last,
        parallel_output=True,
        share_embeddings_and_output_weights=case.model.tied_embeddings,
        position_embedding_type="learned_absolute" if case.model.learned_positions else "rope",
        rotary_base=500000,
        vp_stage=vp_stage,
    )
    for parameter in module.parameters():
        _mark_default_tensor_parallel(parameter)
    return Float16Module(config, module.cuda(torch.cuda.current_device()))


def _mark_default_tensor_parallel(parameter: Any) -> None:
    from megatron.core.tensor_parallel.layers import (
        set_defaults_if_not_set_tensor_model_parallel_attributes,
    )

    set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)


def _block_spec(case: Case, config: Any, vp_stage: int | None) -> Any:
    """Megatron's local layer spec with SDPA, torch norms and, for experts, grouped products."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.transformer_block import (
        TransformerBlockSubmodules,
        get_num_layers_to_build,
    )

    from astra.lab.rehearse import modules

    norm, qk_norm = modules.torch_norm, case.model.qk_norm == "per_head"
    layer = get_gpt_layer_local_spec(num_experts=case.experts or None, qk_layernorm=qk_norm, normalization="RMSNorm")
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = norm
    attention = parts.self_attention.submodules
    attention.core_attention = modules.sdpa_attention(case.attention)
    if qk_norm:
        attention.q_layernorm = attention.k_layernorm = norm
    if case.experts and modules.grouped_mm() is not None:
        parts.mlp.keywords["submodules"].experts = modules.grouped_experts()
    layers = get_num_layers_to_build(config, vp_stage=vp_stage)
    return TransformerBlockSubmodules(layer_specs=[layer] * layers, layer_norm=norm)


def _wrap(case: Case, config: Any, chunk: Any, index: int) -> Any:
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
    )

    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        overlap_grad_reduce=case.overlap_grad,
        overlap_param_gather=case.overlap_grad and case.strategy.zero == 1,
        use_distributed_optimizer=case.strategy.zero == 1,
    )
    return DistributedDataParallel(config=config, ddp_config=ddp, module=chunk, disable_bucketing=index > 0)


def _optimizer(case: Case, chunks: list[Any]) -> Any:
    import torch
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        min_lr=1e-5,
        weight_decay=0.1,
        bf16=True,
        params_dtype=torch.bfloat16,
        clip_grad=1.0,
        use_distributed_optimizer=case.strategy.zero == 1,
        overlap_param_gather=case.overlap_grad and case.strategy.zero == 1,
    )
    with _fused_adam(torch):
        return get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)


@contextlib.contextmanager
def _fused_adam(torch: Any) -> Iterator[None]:
    """Torch's default Adam makes a temporary as large as the parameters; production runtimes use a fused one."""
    plain = torch.optim.AdamW
    torch.optim.AdamW = functools.partial(plain, fused=True)
    try:
        yield
    finally:
        torch.optim.AdamW = plain


def _connect(case: Case, config: Any, chunks: list[Any], optimizer: Any) -> None:
    """The hooks Megatron's training loop sets before its first step."""
    from megatron.core.distributed import finalize_model_grads

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if case.overlap_grad:
        config.no_sync_func = [c.no_sync for c in chunks] if len(chunks) > 1 else chunks[0].no_sync


def free(rank: Rank) -> None:
    """Drop the rank's large tensors by hand: hooks and class attributes of megatron may still refer to it."""
    import torch

    nothing = torch.empty(0, device="cuda")
    for chunk in rank.chunks:
        for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
            buffer.grad_data.untyped_storage().resize_(0)
            if buffer.param_data is not None:
                buffer.param_data.untyped_storage().resize_(0)
        for parameter in chunk.parameters():
            parameter.data = nothing.to(parameter.dtype)
            parameter.main_grad = parameter.grad = None
        for module in chunk.modules():
            _drop_tensors(torch, module)
            _drop_tensors(torch, getattr(module, "token_dispatcher", None))
    for part in getattr(rank.optimizer, "chained_optimizers", [rank.optimizer]):
        if part.optimizer is None:
            continue
        for group in part.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.data, parameter.grad = nothing.to(parameter.dtype), None
        part.optimizer.state.clear()


def _drop_tensors(torch: Any, holder: Any) -> None:
    """Forget tensors kept as plain attributes: received inputs, routing maps and the graphs behind them."""
    for name, value in list(getattr(holder, "__dict__", {}).items()):
        if isinstance(value, torch.Tensor):
            holder.__dict__[name] = None


def tear_down() -> None:
    """Forget the job and give its memory back."""
    import gc

    import torch
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rotary_pos_embedding import (
        RotaryEmbedding,
    )
    from megatron.core.transformer.moe.moe_logging import (
        destroy_moe_metrics_tracker,
    )

    with contextlib.suppress(Exception):
        RotaryEmbedding.forward.cache_clear()
        destroy_moe_metrics_tracker()
        parallel_state.destroy_model_parallel()
    fabric.leave()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
