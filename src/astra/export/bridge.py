"""Megatron-Bridge (NeMo): the plan as overrides of a recipe, in its own ``section.field=value`` form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from astra.export.base import Launch, header, joined
from astra.export.megatron import SHARDING, Megatron, environment, layout
from astra.export.quoting import shell
from astra.export.readme import readme
from astra.export.torchrun import HERE, RENDEZVOUS, node_sizes, torchrun

_PRECISION: Final = {"bf16": "bf16_mixed", "fp16": "fp16_mixed"}
_FP8: Final = {"mxfp8": "bf16_with_mxfp8_mixed", "tensorwise": "bf16_with_fp8_current_scaling_mixed"}


class Bridge:
    """Files for Megatron-Bridge."""

    name = "megatron-bridge"
    title = "Megatron-Bridge (NeMo) recipe overrides"
    verified = "Megatron-Bridge 0.6.2 by field name; the same values through megatron-core 0.19.2"
    runtime: str | None = "megatron-bridge"
    limits = Megatron.limits

    def files(self, launch: Launch) -> dict[str, str]:
        """The overrides, a launch script and how to start it."""
        lines = [*header(launch, self.verified), *(f"{key}={value}" for key, value in overrides(launch))]
        return {
            "overrides.txt": joined(lines),
            "launch.sh": _script(launch),
            "README.md": readme(launch, self, NOTES + _TUNED.get(launch.workload.task, "")),
        }


NOTES: Final = """\
`overrides.txt` has one `section.field=value` per line, for a recipe of Megatron-Bridge (the successor of NeMo 2's).
The model comes from the recipe: choose the one of the model's name. `launch.sh` gives the overrides to a script that
takes them, such as Megatron-Bridge's `scripts/training/run_recipe.py`:

    NODE_RANK=0 MASTER_ADDR=node0 RUN_RECIPE=run_recipe.py bash launch.sh --recipe llama3_70b_pretrain_config
"""
_TUNED: Final = {
    "finetune": "\nThe plan fine-tunes: take the model's `sft` recipe instead of its `pretrain` one.\n",
    "lora": "\nThe plan trains LoRA adapters: take the model's `peft` recipe instead of its `pretrain` one.\n",
}


def _precision(launch: Launch) -> str:
    if launch.workload.precision != "fp8":
        return _PRECISION[launch.workload.precision]
    return _FP8[launch.fp8_recipe]


def overrides(launch: Launch) -> Iterator[tuple[str, str]]:
    """Every setting the plan decides."""
    strategy, workload = launch.strategy, launch.workload
    yield "model.tensor_model_parallel_size", str(strategy.tp)
    yield "model.pipeline_model_parallel_size", str(strategy.pp)
    if strategy.pp > 1:
        yield "model.pipeline_model_parallel_layout", f"'{layout(launch.layers)}'"
        yield "model.virtual_pipeline_model_parallel_size", str(strategy.vp) if strategy.vp > 1 else "null"
    yield "model.context_parallel_size", str(strategy.cp)
    if launch.model.moe is not None:
        yield "model.expert_model_parallel_size", str(strategy.ep)
        yield "model.expert_tensor_parallel_size", str(strategy.etp)
    yield "model.sequence_parallel", _switch(strategy.sp)
    yield "model.seq_length", str(workload.seq)
    yield ("dataset.sequence_length" if workload.task == "pretrain" else "dataset.seq_length"), str(workload.seq)
    if workload.task == "lora":
        yield "peft.dim", str(workload.lora_rank)
    yield "train.micro_batch_size", str(strategy.mbs)
    yield "train.global_batch_size", str(workload.global_batch)
    yield "mixed_precision", _precision(launch)
    yield "model.attention_backend", "auto" if strategy.flash else "unfused"
    yield from _memory(launch)
    yield "ddp.use_distributed_optimizer", _switch(strategy.zero > 0)
    yield "optimizer.use_distributed_optimizer", _switch(strategy.zero > 0)
    yield "ddp.use_megatron_fsdp", _switch(strategy.zero >= 2)
    if strategy.zero >= 2:
        yield "ddp.data_parallel_sharding_strategy", SHARDING[strategy.zero]
        yield "checkpoint.ckpt_format", "fsdp_dtensor"
    yield "ddp.overlap_grad_reduce", _switch("grad" in strategy.overlap)
    yield "ddp.overlap_param_gather", _switch("param" in strategy.overlap)
    yield "comm_overlap.tp_comm_overlap", _switch("tp" in strategy.overlap)
    if strategy.vp > 1:
        yield "comm_overlap.overlap_p2p_comm", _switch("p2p" in strategy.overlap)


def _memory(launch: Launch) -> Iterator[tuple[str, str]]:
    strategy = launch.strategy
    if strategy.recompute == "none":
        yield "model.recompute_granularity", "null"
    elif strategy.recompute == "selective":
        yield "model.recompute_granularity", "selective"
        yield "model.recompute_modules", "[core_attn]"
    else:
        yield "model.recompute_granularity", "full"
        yield "model.recompute_method", strategy.method
        yield "model.recompute_num_layers", str(strategy.recompute_layers)
    if strategy.offload == "optimizer":
        yield "optimizer.optimizer_cpu_offload", "true"
        yield "optimizer.optimizer_offload_fraction", "1.0"
        yield "optimizer.use_precision_aware_optimizer", "true"


def _switch(on: bool) -> str:
    return "true" if on else "false"


def _script(launch: Launch) -> str:
    lines = ["#!/usr/bin/env bash", *header(launch, Bridge.verified), "set -euo pipefail", "", RENDEZVOUS, HERE]
    lines += node_sizes(launch)
    lines += [f"export {name}={shell(value)}" for name, value in environment(launch).items()]
    lines += ['RUN_RECIPE="${RUN_RECIPE:?name the script that runs a recipe with overrides}"']
    lines += ["""mapfile -t OVERRIDES < <(grep -v '^#' "$HERE/overrides.txt")""", ""]
    return joined([*lines, torchrun(launch, '"$RUN_RECIPE"', '"$@" "${OVERRIDES[@]}"')])
