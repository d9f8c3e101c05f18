"""Hugging Face TrainingArguments, as YAML, JSON or flags: the Trainer itself, TRL, LLaMA-Factory, axolotl."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Final

from astra.catalog.models import known_name
from astra.errors import InputError
from astra.export.import_megatron import from_words
from astra.export.import_sharding import accelerate_sharding, fsdp_sharding, json_record, zero_sharding
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings, plain_value
from astra.spec.strategy import Strategy

_PRESET: Final = re.compile(
    r"(?:ds_)?z(?:ero)?[_-]?([0-3])(.*offload)?|(?:stage[_-]?)([0-3])(.*offload)?", re.IGNORECASE
)
MEGATRON_KEYS: Final = frozenset(("tensor_model_parallel_size", "pipeline_model_parallel_size"))
_MEGATRON: Final = re.compile(
    r"(?:tensor|pipeline|expert|context|virtual_pipeline)_(?:model_)?(?:tensor_)?(?:model_)?parallel_size|sequence_parallel"
    r"|use_distributed_optimizer|overlap_(?:param_gather|grad_reduce)|recompute_.*|moe_token_dispatcher_type"
)


def read_trainer(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What the arguments decide."""
    top, known = Numbers(record, asked.name), known_settings("trainer")
    batch = known.words["batch"]
    mbs = next((top.count(key) for key in batch if record.get(key) not in (None, "auto")), 8)
    steps = top.count("gradient_accumulation_steps")
    remarks: list[str] = []
    if all(record.get(key) in (None, "auto") for key in batch):
        remarks.append("per_device_train_batch_size, taken as the Trainer's 8")
    if record.get("auto_find_batch_size") is True:
        remarks.append("auto_find_batch_size, which may halve the micro-batch")
    task, rank = _task(record, top, remarks)
    if MEGATRON_KEYS & set(record):
        strategy, framework = _through_megatron(record, asked, mbs), "megatron"
    else:
        strategy, framework = _strategy(record, asked, mbs, remarks)
    costly = [key for key in known.unread(record) if record.get(key) is not False]
    megatron = [key for key in costly if framework == "megatron" and _MEGATRON.fullmatch(key)]
    named = next((str(record[key]) for key in known.words["model"] if record.get(key)), "")
    return ImportedLaunch(
        framework=framework,
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=mbs * steps * strategy.dp,
        seq=next((top.count(key) for key in known.words["seq"] if record.get(key) is not None), None),
        precision=_precision(record, remarks),
        recipe=known_name(named) if named else None,
        ignored=(*remarks, *(key for key in costly if key not in megatron)),
        task=task,
        lora_rank=rank,
    )


def _task(record: Mapping[str, Any], top: Numbers, remarks: list[str]) -> tuple[str, int | None]:
    """What is trained: all weights, adapters, or a model from nothing."""
    said = record.get("stage", record.get("rl"))
    if said not in (None, "sft", "pt"):
        remarks.append(f"stage {said}, taken as fine-tuning")
    peft = "lora" if record.get("use_peft") is True or record.get("use_lora") is True else "full"
    adapter = str(record.get("finetuning_type") or record.get("adapter") or peft)
    if adapter == "freeze":
        remarks.append("finetuning_type freeze, taken as training all weights")
    quantised = [key for key in ("quantization_bit", "load_in_4bit", "load_in_8bit", "use_qlora") if record.get(key)]
    if adapter == "qlora" or quantised:
        remarks.append("weights quantised beside adapters (QLoRA)")
    if adapter not in ("lora", "qlora"):
        return ("pretrain" if said == "pt" and adapter == "full" else "finetune"), None
    return "lora", next(
        (top.count(key) for key in known_settings("trainer").words["rank"] if record.get(key) is not None), 8
    )


def _precision(record: Mapping[str, Any], remarks: list[str]) -> str:
    if record.get("fp16") is True:
        return "fp16"
    if record.get("fp8") is True or record.get("mixed_precision") == "fp8":
        return "fp8-tensorwise"  # torchao as Accelerate sets it up
    half = [record.get(key) for key in ("bf16", "pure_bf16", "torch_dtype", "dtype", "mixed_precision")]
    if not any(word in (True, "auto", "true", "bfloat16", "bf16", "bf16_mixed") for word in half):
        remarks.append("no precision is named, taken as bf16")
    return "bf16"


def _strategy(record: Mapping[str, Any], asked: ImportAsked, mbs: int, remarks: list[str]) -> tuple[Strategy, str]:
    top, world = Numbers(record, asked.name), asked.count()
    degrees = known_settings("trainer").words["degrees"]
    other = next((key for key in degrees if isinstance(record.get(key), int) and record[key] > 1), None)
    if other is not None:
        want = "1: this way of splitting has no word in a strategy"
        raise InputError(f"{asked.name}: {other}", record[other], want=want)
    tp, cp = top.count("tensor_parallel_size"), top.count("context_parallel_size")
    cp = max(cp, top.count("sequence_parallel_degree"))
    if world % (tp * cp):
        raise InputError(f"{asked.name}: gpus", world, want=f"a number of GPUs that tp*cp = {tp * cp} divides")
    shard, copies = top.count("dp_shard_size", world // (tp * cp)), top.count("dp_replicate_size")
    fields, framework, others = sharding(record, asked)
    remarks += others
    if fields["zero"] == 0:
        shard, copies = 1, world // (tp * cp)
    elif shard * copies != world // (tp * cp):
        want = f"{world // (tp * cp)} replicas: {world} GPUs by tp*cp"
        raise InputError(f"{asked.name}: dp_shard_size * dp_replicate_size", shard * copies, want=want)
    again = record.get("gradient_checkpointing")
    if again is None:  # LLaMA-Factory switches it on unless told otherwise
        again = "finetuning_type" in record and not record.get("disable_gradient_checkpointing")
    if again or "recompute" not in fields:
        fields["recompute"] = "full" if again else "none"
    split = {"shard": shard} if fields["zero"] and copies > 1 else {}
    common: dict[str, Any] = {"grads": "bf16", "flash": not _eager(record)}
    return Strategy(**(common | fields | split | {"tp": tp, "cp": cp, "dp": world // (tp * cp), "mbs": mbs})), framework


def _through_megatron(record: Mapping[str, Any], asked: ImportAsked, mbs: int) -> Strategy:
    """LLaMA-Factory can train with Megatron-Core, in Megatron's own words."""
    words = ["train.py", "--micro-batch-size", str(mbs)]
    for key, value in record.items():
        flag = f"--{str(key).replace('_', '-')}"
        if _MEGATRON.fullmatch(str(key)) and value not in (False, None):
            words += [flag] if value is True else [flag, str(value)]
    return from_words(words, {}, asked).strategy


def _eager(record: Mapping[str, Any]) -> bool:
    said = record.get("flash_attn", record.get("attn_implementation", record.get("flash_attention")))
    return said in (False, "disabled", "eager")


def sharding(record: Mapping[str, Any], asked: ImportAsked) -> tuple[dict[str, Any], str, list[str]]:
    """ZeRO or FSDP, whichever the Trainer or Accelerate is given."""
    launched = record.get("accelerate")
    if isinstance(launched, Mapping):
        kind = "deepspeed" if launched.get("distributed_type") == "DEEPSPEED" else "fsdp-eager"
        return accelerate_sharding(launched, asked)[0], kind, accelerate_sharding(launched, asked)[1]
    zero = record.get("deepspeed")
    if zero:
        held, remarks = _zero(zero, asked)
        return held, "deepspeed", remarks
    fsdp = record.get("fsdp")
    words = fsdp if isinstance(fsdp, str) else " ".join(map(str, fsdp)) if isinstance(fsdp, list) else ""
    if not words and not record.get("fsdp_config") and fsdp is not True:
        return {"zero": 0, "overlap": ("grad",)}, "fsdp-eager", ["no sharding is named, taken as none"]
    settings = record.get("fsdp_config")
    kinds = [word for word in words.split() if "shard" in word]
    said = {"sharding_strategy": kinds[0]} if kinds else {}
    said |= {"offload_params": "true"} if "offload" in words else {}
    fields, remarks = fsdp_sharding({**(settings if isinstance(settings, Mapping) else {}), **said})
    return fields, "fsdp-eager", remarks


def _zero(zero: object, asked: ImportAsked) -> tuple[dict[str, Any], list[str]]:
    """The stage: in the settings themselves, in a file beside this one, or in that file's name."""
    if isinstance(zero, Mapping):
        return zero_sharding(zero, f"{asked.name}: deepspeed")
    found = asked.file_named(str(zero))
    if found is not None:
        return zero_sharding(json_record(*found), found[0])
    preset = _PRESET.search(str(zero).rpartition("/")[2])
    if preset is None:
        want = "a stage in the name, such as ds_z3_config.json, or that file beside this one"
        raise InputError(f"{asked.name}: deepspeed", str(zero), want=want, fix="Or import that file instead.")
    stage = int(preset.group(1) or preset.group(3))
    fields = {
        "zero": stage,
        "offload": "optimizer" if preset.group(2) or preset.group(4) else "none",
        "overlap": ("grad", "param") if stage == 3 else ("grad",),
    }
    return fields, [f"deepspeed {zero}, read by its name as ZeRO stage {stage}"]


def from_flags(flags: Mapping[str, list[str]]) -> dict[str, Any]:
    """Arguments on a command line as the same record."""
    record: dict[str, Any] = {}
    for flag, values in flags.items():
        text = " ".join(values)
        key = flag.lstrip("-").replace("-", "_")
        if re.fullmatch(r"[0-9]{1,15}", text):
            record[key] = int(text)
        else:
            record[key] = {"": True, "true": True, "false": False, "none": None}.get(text.lower(), text)
    return record


_ARGUMENTS: Final = re.compile(r"\w*TrainingArguments|(?:SFT|DPO|CPT|GRPO|PPO|ORPO|KTO|Reward)\w*Config")
# Keywords whose value may be worked out by the script: they do not change what is read here.
_FREE: Final = frozenset(("optim", "gradient_checkpointing_kwargs", "ddp_find_unused_parameters", "accelerate"))


def read_call(tree: ast.Module, asked: ImportAsked) -> ImportedLaunch | None:
    """TrainingArguments of a Python file, read as text; a value that the script works out is refused."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _ARGUMENTS.fullmatch(_called(node))]
    if not calls:
        return None
    names = [str(place) for place in range(1, len(calls) + 1)]
    chosen = calls[asked.choose(names, [f"{_called(node)} in line {node.lineno}" for node in calls])]
    record = {word.arg: plain_value(word.value) for word in chosen.keywords if word.arg is not None}
    known = known_settings("trainer")
    read = known.read - _FREE - set(known.words["model"])
    open_ = [key for key in record if key in read and _is_worked_out(chosen, key)]
    if open_ or any(word.arg is None for word in chosen.keywords):
        key = open_[0] if open_ else "**"
        fix = "Write it out, or put the arguments in a YAML or JSON file."
        raise InputError(f"{asked.name}: {key}", record.get(key), want="a plain value, not one worked out", fix=fix)
    return read_trainer(record, asked)


def _called(node: ast.Call) -> str:
    return (
        node.func.id
        if isinstance(node.func, ast.Name)
        else node.func.attr
        if isinstance(node.func, ast.Attribute)
        else ""
    )


def _is_worked_out(call: ast.Call, key: str) -> bool:
    value = next(word.value for word in call.keywords if word.arg == key)
    found = plain_value(value)
    return isinstance(found, str) and not (isinstance(value, ast.Constant) and isinstance(value.value, str))
