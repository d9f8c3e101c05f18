"""A training script for Accelerate and DeepSpeed: Hugging Face's Trainer, with PEFT where the plan trains adapters."""

from __future__ import annotations

from typing import Final

from astra.export.base import Launch, Left, header, joined, template

VERIFIED: Final = "transformers 5.12.1 and peft 0.21.2: trained on a CPU"
# Attention's projections have other names in other models: all of them, or all but the one that its result passes.
_TARGETS: Final = {"all": '"all-linear"', "attention": "attention(base)", "qkv": "attention(base, without=RESULTS)"}


def program(launch: Launch, *, checkpoints: bool) -> str:
    """The Python file, which asks for the plan's recompute where ``checkpoints`` leaves that to the model."""
    workload, strategy = launch.workload, launch.strategy
    steps = max(1, round(workload.tokens / workload.tokens_per_step)) if workload.tokens is not None else 1000
    half = "torch.float16" if workload.precision == "fp16" else "torch.bfloat16"
    attention = f', attn_implementation="{"sdpa" if strategy.flash else "eager"}"'
    if workload.task == "pretrain":
        lines = ['config = AutoConfig.from_pretrained(os.environ["MODEL"])  # its shape, not its weights']
        lines += [f"return AutoModelForCausalLM.from_config(config, dtype={half}{attention})"]
    else:
        lines = [f'base = AutoModelForCausalLM.from_pretrained(os.environ["MODEL"], dtype={half}{attention})']
        lines += ["return base"] if workload.task == "finetune" else []
    if workload.task == "lora":
        rank, names = workload.lora_rank, _TARGETS[workload.lora_targets]
        lines += ["from peft import LoraConfig, get_peft_model", ""]
        lines += ["base.enable_input_require_grads()"] * (strategy.recompute == "full")
        lines += [f'adapters = LoraConfig(r={rank}, lora_alpha={rank}, target_modules={names}, task_type="CAUSAL_LM")']
        lines += ["return get_peft_model(base, adapters)"]
    # In FP8 it is Accelerate's file that says the precision: a word of the Trainer's would take its place.
    kind = [] if workload.low else ["        fp16=True," if workload.precision == "fp16" else "        bf16=True,"]
    said = [*kind, f"        gradient_checkpointing={checkpoints and strategy.recompute == 'full'},"]
    made = "\n".join(f"    {line}".rstrip() for line in lines) + "\n"
    chosen = workload.task == "lora" and workload.lora_targets != "all"
    body = template("train_huggingface.txt").replace("@MODEL", made)
    body = body.replace("@ATTENTION", template("train_attention.txt") if chosen else "")
    body = body.replace("@ARGUMENTS", "\n".join(said)).replace("@STEPS", str(steps)).replace("@TP", str(strategy.tp))
    # Python takes the encoding of a file from a comment in its first two lines: a name there could choose it.
    top = joined(["# -*- coding: utf-8 -*-", *header(launch, VERIFIED)])
    return top + body.replace("@EVERY", str(launch.save_interval))


def settings(launch: Launch) -> list[str]:
    """What the script reads, and which it is."""
    lines = [f"export MICRO_BATCH_SIZE={launch.strategy.mbs} SEQ_LENGTH={launch.workload.seq}"]
    lines += [f"export GRADIENT_ACCUMULATION_STEPS={launch.microbatches}"]
    lines += ['TRAIN_SCRIPT="${TRAIN_SCRIPT:-$HERE/train.py}"']
    lines += ['if [ "$TRAIN_SCRIPT" = "$HERE/train.py" ]; then']
    return [*lines, '  export MODEL="${MODEL:?name the model: a Hugging Face name or folder}"', "fi"]


def left(launch: Launch) -> list[Left]:
    """What the script reads from its environment."""
    meant = "its shape is taken" if launch.workload.task == "pretrain" else "its weights are what training starts from"
    return [
        Left("`MODEL`", f"the model's Hugging Face name or folder: {meant}; without it the script stops"),
        Left("`DATA`", "a dataset's name or a file of text; random tokens without it"),
        Left("`SAVE`", f"a folder for checkpoints, written every {launch.save_interval} steps; none without it"),
        Left("`LR`, `STEPS`", "the learning rate, 1e-4 without it, and the number of steps"),
        Left("`TRAIN_SCRIPT`", "a training script of yours in place of `train.py`"),
    ]
