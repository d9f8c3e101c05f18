"""Megatron-Bridge (NeMo): a program that takes the model's own recipe and sets everything the plan decides."""

from __future__ import annotations

from typing import Final

from astra.export.base import Launch, Left, header, joined, template
from astra.export.bridge_config import adapted, overrides, precision
from astra.export.bridge_recipes import BridgeRecipe, recipe_for
from astra.export.megatron import Megatron, environment
from astra.export.quoting import python, shell
from astra.export.readme import readme
from astra.export.torchrun import node_sizes, preamble, torchrun


class Bridge:
    """Files for Megatron-Bridge."""

    name = "megatron-bridge"
    title = "Megatron-Bridge (NeMo) recipe and overrides"
    verified = "Megatron-Bridge 0.6.2: its own recipes, overrides and configuration, finalized by megatron-core 0.19.2"
    runtime: str | None = "megatron-bridge"
    limits = Megatron.limits

    def files(self, launch: Launch) -> dict[str, str]:
        """The program, the overrides it applies, a launch script and how to start it."""
        lines = [*header(launch, self.verified), *(f"{key}={value}" for key, value in overrides(launch))]
        return {
            "train.py": program(launch),
            "overrides.txt": joined(lines),
            "launch.sh": _script(launch),
            "README.md": readme(launch, self, _notes(launch)),
        }

    def left(self, launch: Launch) -> list[Left]:
        """Data, tokenizer, weights; the model where no recipe has it."""
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
    lines = ["# -*- coding: utf-8 -*-", *header(launch, Bridge.verified), "import os", "import sys"]
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
    lines = preamble(launch, Bridge.verified)
    lines += node_sizes(launch)
    lines += [f"export {name}={shell(value)}" for name, value in environment(launch).items()]
    if not recipe_for(launch.model, launch.workload.task).own:
        lines += ['export HF_MODEL="${HF_MODEL:?name the model: a Hugging Face name or folder}"']
    if launch.workload.task != "pretrain":
        lines += ['export PRETRAINED_CHECKPOINT="${PRETRAINED_CHECKPOINT:?name the checkpoint to start from}"']
    return joined([*lines, "", torchrun(launch, '"$HERE/train.py"', '"$@"')])
