"""Accelerate and DeepSpeed: a configuration each, for Hugging Face's Trainer or a training script of the user's."""

from __future__ import annotations

from typing import Any, Final

from astra.export.base import Exporter, Launch, Left, header, joined, one_pool, python_header, template
from astra.export.launch_script import adapter_notes, adapters, preamble, torchrun
from astra.export.quoting import json_text, yaml

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
    top = joined(python_header(launch, VERIFIED))
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


def _accelerate_files(launch: Launch) -> dict[str, str]:
    return {
        "accelerate.yaml": joined(header(launch, ACCELERATE.verified)) + yaml(accelerate_config(launch)),
        "train.py": program(launch, checkpoints=False),  # the configuration says it
        "launch.sh": _accelerate_script(launch),
    }


ACCELERATE: Final = Exporter(
    name="accelerate",
    title="Accelerate FSDP configuration",
    verified="accelerate 1.15.0: its own load_config_from_file",
    runtime="fsdp-eager",
    limits=(one_pool("Accelerate"),),
    made=_accelerate_files,
    notes=lambda launch: template("accelerate_notes.md") + adapter_notes(launch),
    left=left,
)


def accelerate_config(launch: Launch) -> dict[str, Any]:
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


def _accelerate_script(launch: Launch) -> str:
    lines = preamble(launch, ACCELERATE.verified)
    lines += [*settings(launch), *adapters(launch), ""]
    lines += ['exec accelerate launch --config_file "$HERE/accelerate.yaml" --machine_rank "$NODE_RANK" \\']
    lines += ['  --main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" \\']
    lines += [f'  --gradient_accumulation_steps {launch.microbatches} "$TRAIN_SCRIPT" "$@"']
    return joined(lines)


def _deepspeed_files(launch: Launch) -> dict[str, str]:
    return {
        "ds_config.json": json_text(deepspeed_config(launch)),
        "train.py": program(launch, checkpoints=True),
        "launch.sh": _deepspeed_script(launch),
    }


DEEPSPEED: Final = Exporter(
    name="deepspeed",
    title="DeepSpeed configuration",
    verified="DeepSpeed 0.19.8: its own DeepSpeedConfig, for the job's number of ranks",
    runtime="deepspeed",
    limits=(one_pool("DeepSpeed"),),
    made=_deepspeed_files,
    notes=lambda launch: template("deepspeed_notes.md") + adapter_notes(launch),
    left=left,
)


def deepspeed_config(launch: Launch) -> dict[str, Any]:
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


def _deepspeed_script(launch: Launch) -> str:
    lines = preamble(launch, DEEPSPEED.verified)
    lines += [*settings(launch), *adapters(launch), ""]
    return joined([*lines, torchrun(launch, '"$TRAIN_SCRIPT"', '--deepspeed "$HERE/ds_config.json" "$@"')])
