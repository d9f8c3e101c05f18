"""A plan as settings of a Megatron-Bridge configuration, complete: what is off is said too, whatever the recipe has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from astra.export.base import Launch
from astra.export.megatron import SHARDING, layout, on_meta_device
from astra.export.megatron_model import hybrid_stages
from astra.export.megatron_words import aware, fp8_format, fp8_scaling, graph_modules, instances

Setting = tuple[str, str]
_PRECISION: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed", "nvfp4": "bf16_with_nvfp4_mixed"}
_FP8: Final = {
    "mxfp8": "bf16_with_mxfp8_mixed",
    "tensorwise": "bf16_with_fp8_current_scaling_mixed",
    "blockwise": "bf16_with_fp8_subchannel_scaling_mixed",
}
_TARGETS: Final = {
    "all": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"),
    "attention": ("linear_qkv", "linear_proj"),
    "qkv": ("linear_qkv",),
}
_LATENT: Final = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")


def precision(launch: Launch) -> str:
    """The function that makes Megatron-Bridge's mixed-precision configuration."""
    scaled = fp8_scaling(launch)
    return _FP8[scaled] if scaled else _PRECISION[launch.workload.precision]


def adapted(launch: Launch) -> list[str]:
    """The projections that get adapters, in Megatron's names."""
    names = _TARGETS[launch.workload.lora_targets]
    latent = launch.model.mla is not None
    return [part for name in names for part in (_LATENT if latent and name == "linear_qkv" else (name,))]


def overrides(launch: Launch) -> Iterator[Setting]:
    """Every setting the plan decides."""
    yield from _degrees(launch)
    yield from _pipeline(launch)
    yield from _batch(launch)
    yield from _experts(launch)
    yield from _memory(launch)
    yield from _sharding(launch)
    yield from _overlap(launch)
    yield from _graphs(launch)
    yield "model.vocab_size", str(launch.model.vocab)
    yield "tokenizer.use_tokenizer_vocab_size", "false"


def _degrees(launch: Launch) -> Iterator[Setting]:
    strategy = launch.strategy
    yield "model.tensor_model_parallel_size", str(strategy.tp)
    yield "model.sequence_parallel", switch(strategy.sp)
    yield "model.context_parallel_size", str(strategy.cp)
    yield "model.cp_comm_type", "p2p" if strategy.cp > 1 else "null"
    yield "model.hierarchical_context_parallel_sizes", "null"


def _pipeline(launch: Launch) -> Iterator[Setting]:
    """The split is all in the layout; a recipe's other ways to say it are taken back."""
    strategy, hybrid, mtp = launch.strategy, launch.model.state_space, launch.workload.mtp or 0
    yield "model.pipeline_model_parallel_size", str(strategy.pp)
    yield "model.virtual_pipeline_model_parallel_size", str(strategy.vp) if strategy.vp > 1 else "null"
    if hybrid is not None:
        yield "model.hybrid_override_pattern", "null"
        yield "model.hybrid_layer_pattern", f"'{hybrid_stages(hybrid, launch.layers)}'"
    else:
        yield "model.pipeline_model_parallel_layout", f"'{layout(launch.layers, mtp)}'" if strategy.pp > 1 else "null"
    yield "model.account_for_embedding_in_pipeline_split", "false"
    yield "model.account_for_loss_in_pipeline_split", "false"
    yield "model.num_layers_in_first_pipeline_stage", "null"
    yield "model.num_layers_in_last_pipeline_stage", "null"
    yield "model.fp8_output_proj", "false"
    if launch.model.mtp_layers:
        yield "model.mtp_num_layers", str(mtp) if mtp else "null"


def _batch(launch: Launch) -> Iterator[Setting]:
    workload = launch.workload
    yield "model.seq_length", str(workload.seq)
    yield "dataset.seq_length", str(workload.seq)
    yield "train.micro_batch_size", str(launch.strategy.mbs)
    yield "train.global_batch_size", str(workload.global_batch)
    if workload.tokens is not None:
        steps = max(1, round(workload.tokens / workload.tokens_per_step))
        yield "train.train_iters", str(steps)
        yield "scheduler.lr_decay_iters", str(steps)
        yield "scheduler.lr_warmup_iters", str(steps // 100)


def _experts(launch: Launch) -> Iterator[Setting]:
    if launch.model.moe is None:
        return
    yield "model.expert_model_parallel_size", str(launch.strategy.ep)
    yield "model.expert_tensor_parallel_size", str(launch.strategy.etp)
    dispatch = launch.strategy.dispatch
    yield "model.moe_token_dispatcher_type", "alltoall" if dispatch == "alltoall" else "flex"
    yield "model.moe_enable_deepep", "false"
    yield "model.moe_flex_dispatcher_backend", "hybridep" if dispatch == "hybridep" else "deepep"
    yield "model.moe_deepep_num_sms", "null"
    yield "model.moe_hybridep_num_sms", "null"
    yield "model.moe_shared_expert_overlap", "false"
    yield "model.overlap_moe_expert_parallel_comm", switch("ep" in launch.strategy.overlap)
    yield "model.delay_wgrad_compute", "false"
    yield "model.moe_router_padding_for_fp8", "false"
    yield "model.moe_router_padding_for_quantization", "false"
    yield "model.moe_paged_stash", "false"
    yield "model.moe_expert_rank_capacity_factor", "null"


def _memory(launch: Launch) -> Iterator[Setting]:
    strategy = launch.strategy
    full, selective = strategy.recompute == "full", strategy.recompute == "selective"
    yield "model.recompute_granularity", "null" if strategy.recompute == "none" else strategy.recompute
    yield "model.recompute_method", strategy.method if full else "null"
    yield "model.recompute_num_layers", str(strategy.recompute_layers) if full else "null"
    yield "model.recompute_modules", listed(strategy.modules) if selective else "null"
    yield "model.distribute_saved_activations", "false"
    yield "model.cpu_offloading", switch(strategy.offload_layers > 0)
    yield "model.cpu_offloading_num_layers", str(strategy.offload_layers)
    yield "model.fine_grained_activation_offloading", "false"
    yield "model.offload_modules", "[]"
    offloaded = strategy.offload == "optimizer"
    yield "optimizer.optimizer_cpu_offload", switch(offloaded)
    yield "optimizer.optimizer_offload_fraction", "1.0" if offloaded else "0.0"
    yield "optimizer.use_precision_aware_optimizer", switch(aware(launch))


def _sharding(launch: Launch) -> Iterator[Setting]:
    zero = launch.strategy.zero
    yield "ddp.use_distributed_optimizer", switch(zero > 0)
    yield "optimizer.use_distributed_optimizer", switch(zero > 0)
    yield "ddp.use_megatron_fsdp", switch(zero >= 2)
    yield "dist.use_megatron_fsdp", switch(zero >= 2)
    yield "dist.use_torch_fsdp2", "false"
    yield "ddp.data_parallel_sharding_strategy", SHARDING.get(zero, "no_shard")
    yield "ddp.num_distributed_optimizer_instances", str(instances(launch))
    yield "model.init_model_with_meta_device", switch(on_meta_device(launch))
    yield "model.gradient_accumulation_fusion", switch(zero < 2)
    yield "checkpoint.save_interval", str(launch.save_interval)
    yield "checkpoint.ckpt_format", "fsdp_dtensor" if zero >= 2 else "torch_dist"
    yield "mixed_precision.grad_reduce_in_fp32", switch(launch.strategy.grads == "fp32")
    scaled = fp8_scaling(launch)
    yield "mixed_precision.fp8", fp8_format(launch) if scaled else "null"
    if scaled:
        yield "mixed_precision.fp8_recipe", scaled
    yield "mixed_precision.fp8_dot_product_attention", switch(launch.strategy.attention == "fp8")
    narrow = launch.strategy.params == "fp8"
    yield "mixed_precision.fp8_param_gather", switch(narrow)
    again = narrow and fp8_scaling(launch) == "mxfp8" and zero == 1
    yield "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag", switch(again)


def _overlap(launch: Launch) -> Iterator[Setting]:
    strategy = launch.strategy
    hidden = strategy.vp > 1 and "p2p" in strategy.overlap
    yield "ddp.overlap_grad_reduce", switch("grad" in strategy.overlap)
    yield "ddp.overlap_param_gather", switch("param" in strategy.overlap)
    yield "ddp.align_param_gather", switch("param" in strategy.overlap and strategy.vp > 1)
    yield "model.tp_comm_overlap", switch("tp" in strategy.overlap)
    yield "model.overlap_p2p_comm", switch(hidden)
    yield "model.batch_p2p_comm", switch(not hidden)


def _graphs(launch: Launch) -> Iterator[Setting]:
    graphs = launch.strategy.graphs
    made = {"none": "none", "partial": "transformer_engine", "full": "full_iteration"}[graphs]
    yield "model.enable_cuda_graph", "false"
    yield "model.external_cuda_graph", "false"
    yield "model.cuda_graph_impl", made
    yield "model.cuda_graph_scope", "null"
    yield "model.cuda_graph_modules", listed(graph_modules(launch) if graphs == "partial" else [])
    yield "model.use_te_rng_tracker", switch(graphs != "none")
    yield "rng.te_rng_tracker", switch(graphs != "none")
    yield "rerun_state_machine.check_for_nan_in_loss", switch(graphs != "full")
    yield "ddp.check_for_nan_in_grad", switch(graphs != "full")


def switch(on: bool) -> str:
    """As Hydra reads it."""
    return "true" if on else "false"


def listed(words: Sequence[str]) -> str:
    """A list of names, as Hydra reads it."""
    return f"[{','.join(words)}]"
