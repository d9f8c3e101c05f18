"""DeepSpeed: the JSON of ZeRO and a launch script for a training script of the user's."""

from __future__ import annotations

from typing import Any, Final

from astra.export.base import Launch, Left, Limit, joined, one_pool
from astra.export.huggingface import left, program, settings
from astra.export.quoting import json_text
from astra.export.readme import adapter_notes, readme
from astra.export.torchrun import adapters, preamble, torchrun


def _wide_without_zero(launch: Launch) -> bool:
    return launch.strategy.grads == "fp32" and launch.strategy.zero == 0


class DeepSpeed:
    """Files for DeepSpeed."""

    name = "deepspeed"
    title = "DeepSpeed configuration"
    verified = "DeepSpeed 0.19.8: its own DeepSpeedConfig, for the job's number of ranks"
    runtime: str | None = "deepspeed"
    limits = (
        one_pool("DeepSpeed"),
        Limit("grads", "DeepSpeed adds gradients up in fp32 under ZeRO alone, zero 1 or more", _wide_without_zero),
    )

    def files(self, launch: Launch) -> dict[str, str]:
        """The configuration, a launch script and how to start it."""
        return {
            "ds_config.json": json_text(configuration(launch)),
            "train.py": program(launch, checkpoints=True),
            "launch.sh": _script(launch),
            "README.md": readme(launch, self, NOTES + adapter_notes(launch)),
        }

    def left(self, launch: Launch) -> list[Left]:
        """Model and data."""
        return left(launch)


NOTES: Final = """\
`ds_config.json` is for `deepspeed.initialize(config=...)`, for the Hugging Face `Trainer` (`--deepspeed`) or for
Accelerate. `launch.sh` starts `train.py` on every node and gives it `--deepspeed ds_config.json`, after
`pip install deepspeed==0.19.8 transformers==5.12.1 peft==0.21.2 datasets`:

    NODE_RANK=0 MASTER_ADDR=node0 MODEL=meta-llama/Llama-3.1-8B bash launch.sh

A script of yours takes its place with `TRAIN_SCRIPT`. If the plan recomputes, it must also switch on gradient
checkpointing, which the JSON alone does not do.
"""


def configuration(launch: Launch) -> dict[str, Any]:
    """The JSON."""
    strategy, workload = launch.strategy, launch.workload
    zero: dict[str, Any] = {"stage": strategy.zero}
    if strategy.zero > 0:
        zero |= {"overlap_comm": "grad" in strategy.overlap, "contiguous_gradients": True}
        zero |= {"reduce_bucket_size": 500_000_000, "allgather_bucket_size": 500_000_000}
    if strategy.zero == 3:
        zero |= {"stage3_prefetch_bucket_size": 50_000_000, "stage3_param_persistence_threshold": 100_000}
        zero |= {"stage3_gather_16bit_weights_on_model_save": True}
    if strategy.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config: dict[str, Any] = {
        "train_batch_size": workload.global_batch,
        "train_micro_batch_size_per_gpu": strategy.mbs,
        "gradient_accumulation_steps": launch.microbatches,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": workload.precision == "bf16"},
        "fp16": {"enabled": workload.precision == "fp16"},
        "optimizer": {"type": "AdamW" if workload.optimizer == "adam" else "SGD", "params": {"lr": 1e-4}},
        "data_types": {"grad_accum_dtype": _gradients(launch)},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }
    if strategy.tp > 1:
        config["tensor_parallel"] = {"autotp_size": strategy.tp}
    if strategy.recompute == "full":
        config["activation_checkpointing"] = {"partition_activations": False, "number_checkpoints": launch.model.layers}
    return config


def _gradients(launch: Launch) -> str:
    """What gradients are added up in: two bytes of the model's kind, or four."""
    half = "fp16" if launch.workload.precision == "fp16" else "bf16"
    return "fp32" if launch.strategy.grads == "fp32" else half


def _script(launch: Launch) -> str:
    lines = preamble(launch, DeepSpeed.verified)
    lines += [*settings(launch), *adapters(launch), ""]
    return joined([*lines, torchrun(launch, '"$TRAIN_SCRIPT"', '--deepspeed "$HERE/ds_config.json" "$@"')])
