# -*- coding: utf-8 -*-
# Plan of Astra 0.0: llama-3.1-70b on 64xH100-SXM5-80GB, about 1 s per step.
# Strategy: tp8 pp4 dp2 mbs1 sp zero1 recompute=none overlap=grad,param graphs=none params=bf16 grads=fp32
# Verified with Megatron-Bridge 0.6.2: its own recipes, overrides and configuration, finalized by megatron-core 0.19.2.
import os
import sys
from pathlib import Path

import torch
from megatron.core.transformer.enums import AttnBackend

from megatron.bridge.recipes import llama31_70b_pretrain_config as recipe
from megatron.bridge.training.pretrain import pretrain
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import bf16_mixed
from megatron.bridge.training.utils.omegaconf_utils import process_config_with_overrides


def plan():
    """The recipe with everything the plan decides."""
    config = recipe()
    config.mixed_precision = bf16_mixed()
    config.comm_overlap = None  # the overrides say it all
    config.model.attention_backend = AttnBackend.auto
    config.optimizer.main_grads_dtype = torch.float32
    config.optimizer.main_params_dtype = torch.float32
    config.optimizer.exp_avg_dtype = torch.float32
    config.optimizer.exp_avg_sq_dtype = torch.float32
    config.env_vars.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)  # launch.sh knows
    text = Path(__file__).with_name("overrides.txt").read_text(encoding="utf-8")
    said = [line for line in text.splitlines() if line and not line.startswith("#")]
    return process_config_with_overrides(config, cli_overrides=[*said, *sys.argv[1:]])


if __name__ == "__main__":
    pretrain(config=plan(), forward_step_func=forward_step)
