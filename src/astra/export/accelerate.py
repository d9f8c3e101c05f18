"""Hugging Face Accelerate: an FSDP2 configuration for a training script of the user's."""

from __future__ import annotations

from typing import Any, Final

from astra.export.base import Launch, Left, header, joined, one_pool
from astra.export.huggingface import left, program, settings
from astra.export.quoting import yaml
from astra.export.readme import adapter_notes, readme
from astra.export.torchrun import adapters, preamble


class Accelerate:
    """Files for Accelerate."""

    name = "accelerate"
    title = "Accelerate FSDP configuration"
    verified = "accelerate 1.15.0: its own load_config_from_file"
    runtime: str | None = "fsdp-eager"
    limits = (one_pool("Accelerate"),)

    def files(self, launch: Launch) -> dict[str, str]:
        """The configuration, a launch script and how to start it."""
        return {
            "accelerate.yaml": joined(header(launch, self.verified)) + yaml(configuration(launch)),
            "train.py": program(launch, checkpoints=False),  # the configuration says it
            "launch.sh": _script(launch),
            "README.md": readme(launch, self, NOTES + adapter_notes(launch)),
        }

    def left(self, launch: Launch) -> list[Left]:
        """Model and data."""
        return left(launch)


NOTES: Final = """\
`launch.sh` runs `accelerate launch` with the configuration and `train.py` on every node, after
`pip install accelerate==1.15.0 transformers==5.12.1 peft==0.21.2 datasets`:

    NODE_RANK=0 MASTER_ADDR=node0 MODEL=meta-llama/Llama-3.1-8B bash launch.sh

The size of a micro-batch belongs to the script: it, or one of yours (`TRAIN_SCRIPT`), finds it in `MICRO_BATCH_SIZE`,
the micro-batches per step in `GRADIENT_ACCUMULATION_STEPS`, and the sequence length in `SEQ_LENGTH`. FP8 needs
`torchao==0.18.0` beside them.
"""


def configuration(launch: Launch) -> dict[str, Any]:
    """The YAML."""
    strategy = launch.strategy
    low = launch.workload.low
    # Weights are gathered in bf16, as planned; torchao's layers refuse to be filled from one rank.
    scaled = {"backend": "AO", "enable_fsdp_float8_all_gather": False, "pad_inner_dim": True}
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP",
        "num_machines": launch.nodes,
        "num_processes": launch.gpus,
        "machine_rank": 0,
        "main_training_function": "main",
        "mixed_precision": "fp8" if low else launch.workload.precision,
        **({"fp8_config": scaled} if low else {}),
        "use_cpu": False,
        "rdzv_backend": "static",
        "same_network": True,
        "fsdp_config": {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": strategy.zero == 3 and strategy.reshard == "always",
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": strategy.recompute == "full",
            "fsdp_offload_params": False,
            "fsdp_cpu_ram_efficient_loading": not low,
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        },
        "parallelism_config": {
            "parallelism_config_dp_replicate_size": strategy.dp // (strategy.shard or strategy.dp),
            "parallelism_config_dp_shard_size": strategy.shard or strategy.dp,
            "parallelism_config_tp_size": strategy.tp,
            "parallelism_config_cp_size": strategy.cp,
        },
    }


def _script(launch: Launch) -> str:
    lines = preamble(launch, Accelerate.verified)
    lines += [*settings(launch), *adapters(launch), ""]
    lines += ['exec accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \\']
    lines += ['  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\']
    lines += [f'  --gradient_accumulation_steps {launch.microbatches} "$TRAIN_SCRIPT" "$@"']
    return joined(lines)
