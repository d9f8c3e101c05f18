"""Megatron-Bridge (NeMo): a program that takes the model's own recipe and sets everything the plan decides.

The settings are complete: what is off is said too, whatever the recipe has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from astra.catalog import models
from astra.export.base import Exporter, Launch, Left, header, joined, template
from astra.export.launch_script import node_sizes, preamble, torchrun
from astra.export.megatron import MEGATRON, SHARDING, environment, layout, on_meta_device
from astra.export.megatron_model import aware, fp8_format, fp8_scaling, graph_modules, hybrid_stages, instances
from astra.export.quoting import python, shell
from astra.files import load_toml
from astra.rules.can import of_shape
from astra.spec.model import ModelSpec

KINDS: Final = {"pretrain": "pretrain", "finetune": "sft", "lora": "peft"}  # by task
PLAIN: Final = "vanilla_gpt_pretrain_config"  # the recipe of no model in particular


@cache
def _recipes() -> dict[str, Any]:
    return load_toml(template("bridge_recipes.toml").encode())


class BridgeRecipe(NamedTuple):
    """What a plan starts from."""

    function: str  # of megatron.bridge.recipes
    kind: str  # pretrain, sft or peft, as the recipe sets itself up
    own: bool  # whether it builds the plan's model


def recipe_for(model: ModelSpec, task: str) -> BridgeRecipe:
    """The recipe of a model's shape and rotary positions, of the task's kind where there is one."""
    name = of_shape(model, _recipes())
    if name is None or model.rotary not in (None, models.model(name).rotary):
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    stem, kinds = _recipes()[name]["stem"], _recipes()[name]["kinds"]
    kind = KINDS[task] if KINDS[task] in kinds else "pretrain"
    if kind not in kinds:
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    return BridgeRecipe(f"{stem}_{kind}_config", kind, own=True)


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


def _files(launch: Launch) -> dict[str, str]:
    lines = [*header(launch, BRIDGE.verified), *(f"{key}={value}" for key, value in overrides(launch))]
    return {
        "train.py": program(launch),
        "overrides.txt": joined(lines),
        "launch.sh": _script(launch),
    }


def _left(launch: Launch) -> list[Left]:
    left = []
    if not recipe_for(launch.model, launch.workload.task).own:
        left += [Left("`HF_MODEL`", "the model's Hugging Face name or folder; without it the script stops")]
    if launch.workload.task != "pretrain":
        left += [Left("`PRETRAINED_CHECKPOINT`", "the checkpoint to start from; without it the script stops")]
    left += [Left("`dataset` in `train.py`", "the data; that of the recipe until it is set")]
    left += [Left("`tokenizer.tokenizer_model=...`", "the tokenizer, behind the script's name")]
    left += [Left("`checkpoint.save=...`", f"a folder for checkpoints, written every {launch.save_interval} steps")]
    return left


_OTHER: Final = """
Megatron-Bridge 0.6.2 has no recipe of this model: its shape is read from the Hugging Face name or folder in `HF_MODEL`,
and everything else is of the plain recipe.
"""
_START: Final = """
The plan starts from trained weights: `PRETRAINED_CHECKPOINT` is a checkpoint of Megatron-Bridge, made of a Hugging Face
one with `AutoBridge.import_ckpt`. Without it the script stops.
"""


def _notes(launch: Launch) -> str:
    recipe, tuned = recipe_for(launch.model, launch.workload.task), launch.workload.task != "pretrain"
    needs = "HF_MODEL=/models/mine " * (not recipe.own) + "PRETRAINED_CHECKPOINT=/checkpoints/base " * tuned
    data = "SQuAD" if tuned else "mock"
    notes = template("bridge_notes.md").format(recipe=recipe.function, needs=needs, data=data)
    return notes + _OTHER * (not recipe.own) + _START * tuned


def program(launch: Launch) -> str:
    """The Python file: what is no scalar is set here, everything else by the overrides."""
    recipe, task = recipe_for(launch.model, launch.workload.task), launch.workload.task
    run = "pretrain" if task == "pretrain" else "finetune"
    mixed = precision(launch)
    # Python takes the encoding of a file from a comment in its first two lines: a name there could choose it.
    lines = ["# -*- coding: utf-8 -*-", *header(launch, BRIDGE.verified), "import os", "import sys"]
    lines += [
        "from pathlib import Path",
        "",
        "import torch",
        "from megatron.core.transformer.enums import AttnBackend",
        "",
    ]
    lines += ["from megatron.bridge import AutoBridge"] * (not recipe.own)
    lines += ["from megatron.bridge.peft.lora import LoRA"] * (task == "lora")
    lines += [f"from megatron.bridge.recipes import {recipe.function} as recipe"]
    lines += ["from megatron.bridge.recipes.utils.dataset_utils import default_squad_config"] * (task != "pretrain")
    lines += [f"from megatron.bridge.training.{run} import {run}"]
    lines += ["from megatron.bridge.training.gpt_step import forward_step"]
    lines += [f"from megatron.bridge.training.mixed_precision import {mixed}"]
    lines += ["from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides", "", ""]
    lines += ["def plan():", '    """The recipe with everything the plan decides."""', "    config = recipe()"]
    lines += [f"    {line}" for line in _settings(launch, recipe)]
    lines += ['    text = Path(__file__).with_name("overrides.txt").read_text(encoding="utf-8")']
    lines += ['    said = [line for line in text.splitlines() if line and not line.startswith("#")]']
    lines += ["    return process_config_with_overrides(config, cli_overrides=[*said, *sys.argv[1:]])", "", ""]
    lines += ['if __name__ == "__main__":', f"    {run}(config=plan(), forward_step_func=forward_step)"]
    return joined(lines)


def _settings(launch: Launch, recipe: BridgeRecipe) -> list[str]:
    strategy, workload = launch.strategy, launch.workload
    lines = []
    if not recipe.own:
        bridge = 'AutoBridge.from_hf_pretrained(os.environ["HF_MODEL"])'
        lines += [f"config.model = {bridge}.to_megatron_provider(load_weights=False)"]
    lines += [
        f"config.mixed_precision = {precision(launch)}()",
        "config.comm_overlap = None  # the overrides say it all",
    ]
    lines += [f"config.model.attention_backend = AttnBackend.{'auto' if strategy.flash else 'unfused'}"]
    for field in ("main_grads", "main_params"):
        lines += [f"config.optimizer.{field}_dtype = torch.float32"]
    moments = "bfloat16" if strategy.moments == "bf16" else "float32"
    lines += [f"config.optimizer.{field}_dtype = torch.{moments}" for field in ("exp_avg", "exp_avg_sq")]
    lines += ['config.env_vars.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # launch.sh knows']
    if workload.task == "pretrain":
        return lines
    packed = strategy.mbs == 1  # Megatron-Bridge packs samples into micro-batches of one
    multiple = strategy.cp * (2 if strategy.cp > 1 else 1) * (strategy.tp if strategy.sp else 1)
    lines += [f"config.dataset = default_squad_config({workload.seq}, {packed}, {multiple})"]
    if packed and strategy.graphs != "none":  # graphs want the same number of samples in every pack
        lines += ["config.dataset.offline_packing_specs.pad_cu_seqlens = True"]
    lines += ['config.checkpoint.pretrained_checkpoint = os.environ["PRETRAINED_CHECKPOINT"]']
    if strategy.cp > 1:  # ranks whose tokens are all masked would divide by zero
        lines += ["config.model.calculate_per_token_loss = True", "config.ddp.average_in_collective = False"]
    if workload.task == "lora":
        rank, names = workload.lora_rank, python(adapted(launch))
        lines += [f"config.peft = LoRA(dim={rank}, alpha={rank}, target_modules={names})"]
    return lines


def _script(launch: Launch) -> str:
    lines = preamble(launch, BRIDGE.verified)
    lines += node_sizes(launch)
    lines += [f"export {name}={shell(value)}" for name, value in environment(launch).items()]
    if not recipe_for(launch.model, launch.workload.task).own:
        lines += ['export HF_MODEL="${HF_MODEL:?name the model: a Hugging Face name or folder}"']
    if launch.workload.task != "pretrain":
        lines += ['export PRETRAINED_CHECKPOINT="${PRETRAINED_CHECKPOINT:?name the checkpoint to start from}"']
    return joined([*lines, "", torchrun(launch, '"$HERE/train.py"', '"$@"')])


BRIDGE: Final = Exporter(
    name="megatron-bridge",
    title="Megatron-Bridge (NeMo) recipe and overrides",
    verified="Megatron-Bridge 0.6.2: its own recipes, overrides and configuration, finalized by megatron-core 0.19.2",
    runtime="megatron-bridge",
    limits=MEGATRON.limits,
    made=_files,
    notes=_notes,
    left=_left,
)
