"""Build one rank of a job with megatron-core: its model chunks, data-parallel wrapper and optimizer.

TransformerEngine and Apex are not needed: core attention is torch's SDPA, norms are torch's (their weights
marked for sequence parallelism), Adam is torch's fused one, experts use torch's grouped matrix product.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import unset_fake_temporarily

from astra.lab.rehearse import fabric, megatron_config
from astra.lab.rehearse.case import Case, padded_vocab
from astra.lab.rehearse.megatron_config import block_spec, transformer_config

_COMPILE_LIMIT: Final = 256  # shapes differ from case to case; torch gives up compiling after 8 by default


@dataclass
class MegatronRank:
    """A built rank, ready to step."""

    case: Case
    config: Any
    chunks: list[Any]
    optimizer: Any
    params: int


def load_runtime() -> None:
    """Import megatron with the fabric in place and its fusions compiled for any shape."""
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
    megatron_config.without_fp8()


def build(case: Case) -> MegatronRank:
    """Join the fake job and build the rank, its wrapper and its optimizer."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

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
    return MegatronRank(case=case, config=config, chunks=chunks, optimizer=optimizer, params=params)


def _chunk(case: Case, config: Any, index: int) -> Any:
    """One model chunk of the rank, on the GPU in bf16."""
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.module import Float16Module

    vp_stage = index if case.strategy.vp > 1 else None
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage)
    module = GPTModel(
        config=config,
        transformer_layer_spec=block_spec(case, config, vp_stage),
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
    from megatron.core.tensor_parallel.layers import set_defaults_if_not_set_tensor_model_parallel_attributes

    set_defaults_if_not_set_tensor_model_parallel_attributes(parameter)


_SHARDING: Final = {2: "optim_grads", 3: "optim_grads_params"}  # Megatron-FSDP's words for ZeRO stages


def _wrap(case: Case, config: Any, chunk: Any, index: int) -> Any:
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig

    zero = case.strategy.zero
    fields: dict[str, Any] = {
        "grad_reduce_in_fp32": case.strategy.grads == "fp32",
        "overlap_grad_reduce": case.overlap_grad,
        "overlap_param_gather": case.overlap_grad and zero >= 1,
        "use_distributed_optimizer": zero >= 1,
    }
    if zero < 2:
        ddp = DistributedDataParallelConfig(**fields)
        return DistributedDataParallel(config=config, ddp_config=ddp, module=chunk, disable_bucketing=index > 0)

    ddp = DistributedDataParallelConfig(
        **fields,
        use_megatron_fsdp=True,
        data_parallel_sharding_strategy=_SHARDING[zero],
        megatron_fsdp_main_grads_dtype=torch.float32 if case.strategy.grads == "fp32" else None,
    )
    return _sharded_class()(config=config, ddp_config=ddp, module=chunk, disable_bucketing=index > 0)


@functools.cache
def _sharded_class() -> Any:
    """Megatron-FSDP, with a mesh of the ranks that shard a stage: its own asks for einops and knows no pipeline."""
    from megatron.core.distributed.fsdp import mcore_fsdp_adapter

    mcore_fsdp_adapter._get_dp_tp_mesh = _mesh_of

    class Sharded(mcore_fsdp_adapter.FullyShardedDataParallel):
        def _init_dist_index(self, groups: Any) -> Any:
            with unset_fake_temporarily():  # a mesh is a tensor of numbers that are looked at
                return super()._init_dist_index(groups)

        def sync_rng_states_across_tp_group(self) -> None:
            """Other ranks are not there to draw alike."""

    return Sharded


def _mesh_of(replicas: Any, tensor: Any, **_: Any) -> Any:
    """The ranks that shard this stage, [data, tensor]."""
    here = dist.get_rank()
    across, within = (dist.get_process_group_ranks(group) for group in (replicas, tensor))
    return torch.tensor([[first + second - here for second in within] for first in across])


def _optimizer(case: Case, chunks: list[Any]) -> Any:
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    config = OptimizerConfig(
        optimizer="adam",
        lr=1e-4,
        min_lr=1e-5,
        weight_decay=0.1,
        bf16=True,
        params_dtype=torch.bfloat16,
        clip_grad=1.0,
        use_distributed_optimizer=case.strategy.zero >= 1,
        overlap_param_gather=case.overlap_grad and case.strategy.zero >= 1,
    )
    with megatron_config.fused_adam():
        return get_megatron_optimizer(config, chunks, use_gloo_process_groups=False)


def _connect(case: Case, config: Any, chunks: list[Any], optimizer: Any) -> None:
    """The hooks Megatron's training loop sets before its first step."""
    from megatron.core.distributed import finalize_model_grads

    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    if case.overlap_grad:
        config.no_sync_func = [c.no_sync for c in chunks] if len(chunks) > 1 else chunks[0].no_sync


def flat_buffers(chunk: Any) -> list[Any]:
    """The data-parallel wrapper's buffers; Megatron-FSDP has none of the kind."""
    if not hasattr(chunk, "expert_parallel_buffers"):
        return []
    return [*chunk.buffers, *chunk.expert_parallel_buffers]


def free(rank: MegatronRank) -> None:
    """Drop the rank's large tensors by hand: hooks and class attributes of megatron may still refer to it."""
    nothing = torch.empty(0, device="cuda")
    if rank.case.strategy.zero > 1:  # shards of Megatron-FSDP are no plain tensors: the collector takes them
        return
    for chunk in rank.chunks:
        for buffer in flat_buffers(chunk):
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


def _drop_tensors(torch: Any, module: Any) -> None:
    """Forget tensors kept as plain attributes: received inputs, routing maps and the graphs behind them."""
    for name, value in list(getattr(module, "__dict__", {}).items()):
        if isinstance(value, torch.Tensor):
            module.__dict__[name] = None


def tear_down() -> None:
    """Forget the job and give its memory back."""
    import gc

    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.transformer.moe.moe_logging import destroy_moe_metrics_tracker

    with contextlib.suppress(Exception):
        RotaryEmbedding.forward.cache_clear()
        destroy_moe_metrics_tracker()
        parallel_state.destroy_model_parallel()
    fabric.leave()
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
