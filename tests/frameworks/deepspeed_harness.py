"""Ask the real DeepSpeed and Accelerate about exported configurations. Runs in ``.venvs/deepspeed``.

Reads one JSON case per line: ``{"deepspeed": {...}, "world": N}`` or ``{"accelerate": PATH}``.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from typing import Any

TOP_LEVEL = {  # DeepSpeed takes any key here, so a misspelt one has to be noticed by us
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping", "bf16",
    "fp16", "optimizer", "zero_optimization", "zero_allow_untested_optimizer", "tensor_parallel",
    "activation_checkpointing", "data_types",
}  # fmt: skip


def check_deepspeed(config: dict[str, Any], world: int) -> dict[str, Any]:
    """Build DeepSpeed's own configuration for a job of some size."""
    import deepspeed.comm.comm as communication
    import torch
    from deepspeed.comm.torch import TorchBackend
    from deepspeed.runtime.config import DeepSpeedConfig
    from torch.testing._internal.distributed.fake_pg import FakeStore

    unknown = set(config) - TOP_LEVEL
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(world))
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    communication.cdb = TorchBackend("fake", 1800, None)
    # Tensor-parallel ranks see the same samples: DeepSpeed learns of them from a mesh, here from the world size.
    tp = config.get("tensor_parallel", {}).get("autotp_size", 1)
    made = DeepSpeedConfig(config, mpu=_Ranks(world // tp)) if tp > 1 else DeepSpeedConfig(config)
    return {
        "stage": int(made.zero_config.stage),
        "batch": made.train_batch_size,
        "micro_batch": made.train_micro_batch_size_per_gpu,
        "accumulation": made.gradient_accumulation_steps,
        "gradients": made.grad_accum_dtype,
        "offload": made.zero_config.offload_optimizer is not None,
        "overlap": bool(made.zero_config.overlap_comm),
        "bf16": bool(made.bfloat16_config.enabled),
        "world": made.world_size,
    }


class _Ranks:
    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def get_data_parallel_world_size(self) -> int:
        return self._replicas


def check_accelerate(path: str) -> dict[str, Any]:
    """Load a configuration as ``accelerate launch`` does."""
    from accelerate.commands.config.config_args import load_config_from_file

    made = load_config_from_file(path)
    return {
        "type": getattr(made.distributed_type, "value", made.distributed_type),
        "processes": made.num_processes,
        "machines": made.num_machines,
        "precision": str(made.mixed_precision),
        "fsdp": made.fsdp_config,
        "parallelism": made.parallelism_config,
    }


def main() -> int:
    """Serve until the input ends."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    said = sys.stdout
    sys.stdout = sys.stderr
    import accelerate
    import deepspeed

    print(json.dumps({"deepspeed": deepspeed.__version__, "accelerate": accelerate.__version__}), file=said, flush=True)
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = (
                check_accelerate(case["accelerate"])
                if "accelerate" in case
                else check_deepspeed(case["deepspeed"], case["world"])
            )
            answer = {"accepted": True, **found}
        except Exception as error:
            answer = {"accepted": False, "error": f"{type(error).__name__}: {error}"[:800]}
        print(json.dumps(answer), file=said, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
