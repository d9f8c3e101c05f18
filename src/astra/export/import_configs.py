"""Configurations of the Hugging Face family and others that are written as YAML or JSON, each known by its keys."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from astra.errors import InputError
from astra.export.import_megatron import from_words
from astra.export.imported import ImportedLaunch, Numbers
from astra.spec.strategy import Strategy

_DEEPSPEED_PRESET: Final = re.compile(r"(?:ds_)?z(?:ero)?[_-]?([0-3])(?:[_-]?(offload))?|zero([0-3])", re.IGNORECASE)


class _Where(NamedTuple):
    """A file, and what the user says beside it."""

    name: str
    gpus: int | None


def read_config(record: Mapping[str, Any], name: str, gpus: int | None) -> ImportedLaunch | None:
    """A configuration that is known by its keys; None if it is none of them."""
    where, keys = _Where(name, gpus), {str(key).replace("-", "_") for key in record}
    for known, reader in _KINDS:
        if known(keys, record):
            return reader(record, where)
    return None


def _gpus(where: _Where, said: int | None = None) -> int:
    found = where.gpus or said
    if found is None:
        raise InputError(where.name, None, want="the number of GPUs", fix="Give --gpus; the file does not say.")
    return found


def _part(record: Mapping[str, Any], key: str, where: _Where) -> Numbers:
    found = record.get(key)
    if found is None:
        found = {}
    if not isinstance(found, Mapping):
        raise InputError(f"{where.name}: {key}", found, want="a section of settings")
    return Numbers(found, f"{where.name}: {key}")


# Accelerate

_ACCELERATE_READ: Final = frozenset(
    ("compute_environment", "distributed_type", "num_machines", "num_processes", "machine_rank", "mixed_precision",
     "main_training_function", "use_cpu", "rdzv_backend", "same_network", "fsdp_config", "parallelism_config",
     "deepspeed_config", "main_process_ip", "main_process_port", "debug", "downcast_bf16", "enable_cpu_affinity",
     "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "gradient_accumulation_steps", "gpu_ids")
)  # fmt: skip


def _accelerate(record: Mapping[str, Any], where: _Where) -> ImportedLaunch:
    top = Numbers(record, where.name)
    kind = str(record.get("distributed_type", "NO"))
    processes = _gpus(where, top.count("num_processes"))
    remarks = ["the size of a micro-batch is the script's, taken as 1"]
    if kind == "DEEPSPEED":
        fields = _accelerate_zero(record, where, remarks)
    elif kind == "FSDP":
        fields = _accelerate_fsdp(record, where, remarks)
    elif kind in ("MULTI_GPU", "NO"):
        fields = {"zero": 0, "overlap": ("grad",)}
    else:
        want = "FSDP, DEEPSPEED or MULTI_GPU"
        raise InputError(f"{where.name}: distributed_type", kind, want=want)
    mesh = _part(record, "parallelism_config", where)
    tp = mesh.count("parallelism_config_tp_size")
    cp = mesh.count("parallelism_config_cp_size")
    shard, copies = (
        mesh.whole("parallelism_config_dp_shard_size", 0),
        mesh.count("parallelism_config_dp_replicate_size"),
    )
    if processes % (tp * cp):
        raise InputError(f"{where.name}: num_processes", processes, want=f"a number that tp*cp = {tp * cp} divides")
    strategy = Strategy(
        tp=tp, cp=cp, dp=processes // (tp * cp), mbs=1, shard=shard if copies > 1 else 0, grads="bf16", **fields
    )
    return ImportedLaunch(
        framework="deepspeed" if kind == "DEEPSPEED" else "fsdp-eager",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=None,
        seq=None,
        precision=_half(record.get("mixed_precision")),
        optimizer="adam",
        model=None,
        recipe=None,
        ignored=tuple(remarks),
        unknown=_others(record, _ACCELERATE_READ),
    )


def _accelerate_fsdp(record: Mapping[str, Any], where: _Where, remarks: list[str]) -> dict[str, Any]:
    part = _part(record, "fsdp_config", where)
    settings = part.values
    always: object = settings.get("fsdp_reshard_after_forward", True)
    old = settings.get("fsdp_sharding_strategy", settings.get("fsdp_sharding_strategy".upper()))
    zero = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0}.get(str(old), 3)
    if settings.get("fsdp_offload_params"):
        remarks.append("fsdp_config.fsdp_offload_params")
    fields: dict[str, Any] = {"zero": zero, "overlap": ("grad", *(("param",) if zero >= 2 else ()))}
    if zero == 3 and always is False:
        fields["reshard"] = "never"
    fields["recompute"] = "full" if settings.get("fsdp_activation_checkpointing") else "none"
    return fields


def _accelerate_zero(record: Mapping[str, Any], where: _Where, remarks: list[str]) -> dict[str, Any]:
    part = _part(record, "deepspeed_config", where)
    file = part.values.get("deepspeed_config_file")
    if file is not None:
        want = "the settings themselves, not the name of another file"
        fix = "Import that file; it says more than this one."
        raise InputError(f"{where.name}: deepspeed_config_file", str(file), want=want, fix=fix)
    zero = part.whole("zero_stage", 2)
    if zero not in range(4):
        raise InputError(f"{where.name}: zero_stage", zero, want="0, 1, 2 or 3")
    offloaded = str(part.values.get("offload_optimizer_device", "none")) not in ("none", "None")
    if str(part.values.get("offload_param_device", "none")) not in ("none", "None"):
        remarks.append("deepspeed_config.offload_param_device")
    return {
        "zero": zero,
        "offload": "optimizer" if offloaded else "none",
        "overlap": ("grad", "param") if zero == 3 else ("grad",),
    }


# Hugging Face TrainingArguments: the Trainer itself, TRL, LLaMA-Factory, axolotl

_MODEL_KEYS: Final = ("model_name_or_path", "base_model", "model")
_SEQ_KEYS: Final = ("cutoff_len", "sequence_len", "max_seq_length", "max_length", "model_max_length", "block_size")
_BATCH_KEYS: Final = ("per_device_train_batch_size", "micro_batch_size")
_COSTLY: Final = re.compile(
    r"fsdp|deepspeed|batch|parallel|flash|attn|quant|bit|gradient|pack|offload|liger|unsloth|compile|bf16|fp16|fp8|tf32"
    r"|optim|neftune|badam|galore|apollo|rope|moe|ring|context|accelerator"
)
_TRAINER_READ: Final = frozenset(
    (*_MODEL_KEYS, *_SEQ_KEYS, *_BATCH_KEYS, "gradient_accumulation_steps", "gradient_checkpointing", "bf16", "fp16",
     "deepspeed", "fsdp", "fsdp_config", "finetuning_type", "adapter", "lora_rank", "lora_r", "lora_target", "use_peft",
     "lora_target_modules", "lora_alpha", "lora_dropout", "stage", "flash_attn", "flash_attention",
     "attn_implementation",
     "optim", "optimizer", "gradient_checkpointing_kwargs", "tf32", "pure_bf16", "torch_dtype", "dtype",
     "lora_target_linear", "auto_find_batch_size", "disable_gradient_checkpointing", "sample_packing", "packing",
     "pad_to_sequence_len", "ddp_timeout", "ddp_find_unused_parameters", "per_device_eval_batch_size",
     "eval_batch_size", "optim_args", "gradient_clipping", "eval_sample_packing")
)  # fmt: skip


def _trainer(record: Mapping[str, Any], where: _Where) -> ImportedLaunch:
    top = Numbers(record, where.name)
    dp = _gpus(where)
    mbs = next((top.count(key) for key in _BATCH_KEYS if record.get(key) not in (None, "auto")), 8)
    steps = top.count("gradient_accumulation_steps") if record.get("gradient_accumulation_steps") != "auto" else 1
    remarks: list[str] = []
    if not any(key in record for key in _BATCH_KEYS):
        remarks.append("per_device_train_batch_size, taken as the Trainer's 8")
    if record.get("stage") not in (None, "sft", "pt") or record.get("rl"):
        remarks.append(f"stage {record.get('stage', record.get('rl'))}, taken as fine-tuning")
    sharding, framework = _trainer_sharding(record, where, remarks)
    again = record.get("gradient_checkpointing")
    if again is None:  # LLaMA-Factory switches it on unless told otherwise
        again = "finetuning_type" in record and not record.get("disable_gradient_checkpointing")
    adapter = str(record.get("finetuning_type", record.get("adapter", "lora" if record.get("use_peft") else "full")))
    lora = adapter in ("lora", "qlora")
    if adapter == "qlora" or record.get("quantization_bit") or record.get("load_in_4bit") or record.get("load_in_8bit"):
        remarks.append("weights quantised beside adapters (QLoRA)")
    strategy = Strategy(
        dp=dp, mbs=mbs, recompute="full" if again else "none", grads="bf16", flash=not _eager(record), **sharding
    )
    rank = next((top.count(key) for key in ("lora_rank", "lora_r") if record.get(key) is not None), None)
    costly = [key for key in _others(record, _TRAINER_READ) if _COSTLY.search(key)]
    return ImportedLaunch(
        framework=framework,
        strategy=strategy,
        gpus=dp,
        global_batch=mbs * steps * dp,
        seq=next((top.count(key) for key in _SEQ_KEYS if record.get(key) is not None), None),
        precision="fp16" if record.get("fp16") is True else "bf16",
        optimizer="adam",
        model=None,
        recipe=None,
        ignored=(*remarks, *costly),
        task="lora" if lora else "finetune" if record.get("stage") != "pt" else "pretrain",
        lora_rank=(rank or 8) if lora else None,
    )


def _eager(record: Mapping[str, Any]) -> bool:
    said = record.get("flash_attn", record.get("attn_implementation", record.get("flash_attention")))
    return said in (False, "disabled", "eager")


def _trainer_sharding(record: Mapping[str, Any], where: _Where, remarks: list[str]) -> tuple[dict[str, Any], str]:
    """ZeRO or FSDP, whichever the Trainer is given."""
    zero = record.get("deepspeed")
    if zero:
        stage = _DEEPSPEED_PRESET.search(str(zero).rpartition("/")[2]) if isinstance(zero, str) else None
        if isinstance(zero, Mapping):
            number = _part(zero, "zero_optimization", where).whole("stage", 0)
            offloaded = bool(_part(zero, "zero_optimization", where).values.get("offload_optimizer"))
        elif stage is not None:
            number = int(stage.group(1) or stage.group(3))
            offloaded = bool(stage.group(2))
            remarks.append(f"deepspeed {zero}, read by its name as ZeRO stage {number}")
        else:
            want = "a stage in the name, such as ds_z3_config.json, or the settings themselves"
            raise InputError(f"{where.name}: deepspeed", str(zero), want=want, fix="Import that file instead.")
        if number not in range(4):
            raise InputError(f"{where.name}: deepspeed stage", number, want="0, 1, 2 or 3")
        overlap = ("grad", "param") if number == 3 else ("grad",)
        return {"zero": number, "offload": "optimizer" if offloaded else "none", "overlap": overlap}, "deepspeed"
    fsdp = record.get("fsdp")
    words = fsdp if isinstance(fsdp, str) else " ".join(map(str, fsdp)) if isinstance(fsdp, list) else ""
    if words or record.get("fsdp_config"):
        if "offload" in words:
            remarks.append("fsdp offload")
        stage_ = 2 if "shard_grad_op" in words else 3
        return {"zero": stage_, "overlap": ("grad", "param")}, "fsdp-eager"
    return {"zero": 0, "overlap": ("grad",)}, "fsdp-eager"


# gpt-neox, FlagScale and Megatron-LM's own YAML: Megatron's flags with other dashes

_NEOX_FLAGS: Final = {
    "pipe_parallel_size": "pipeline-model-parallel-size", "model_parallel_size": "tensor-model-parallel-size",
    "train_micro_batch_size_per_gpu": "micro-batch-size", "num_layers": "num-layers", "hidden_size": "hidden-size",
    "num_attention_heads": "num-attention-heads", "seq_length": "seq-length", "train_batch_size": "global-batch-size",
    "max_position_embeddings": "max-position-embeddings", "intermediate_size": "ffn-hidden-size",
    "num_kv_heads": "num-query-groups",
}  # fmt: skip


_NEOX_READ: Final = frozenset((*_NEOX_FLAGS, "zero_optimization", "gradient_accumulation_steps", "fp16", "precision",
                                "checkpoint_activations", "attention_config", "bf16"))  # fmt: skip
_NEOX_COSTLY: Final = re.compile(
    r"moe|expert|mlp_type|mamba|gmlp|parallel|transformer_engine|te_|offload|partition|fp8|lora"
)


def _neox(record: Mapping[str, Any], where: _Where) -> ImportedLaunch:
    flat = {str(key).replace("-", "_"): value for key, value in record.items()}
    if not {"train_micro_batch_size_per_gpu", "train_batch_size"} & set(flat):
        fix = "Settings of a run may be in several files: put them in one."
        raise InputError(where.name, None, want="train_micro_batch_size_per_gpu or train_batch_size", fix=fix)
    zero = _part(flat, "zero_optimization", where).whole("stage", 0)
    pp, tp = (Numbers(flat, where.name).whole(key, 1) or 1 for key in ("pipe_parallel_size", "model_parallel_size"))
    words = ["gpt-neox.py", "--deepspeed", "--zero-stage", str(zero)]
    for key, flag in _NEOX_FLAGS.items():
        value = {"pipe_parallel_size": pp, "model_parallel_size": tp}.get(key, flat.get(key))
        if isinstance(value, int) and not isinstance(value, bool):
            words += [f"--{flag}", str(value)]
    words += ["--deepspeed-activation-checkpointing"] * bool(flat.get("checkpoint_activations"))
    steps = Numbers(flat, where.name).whole("gradient_accumulation_steps", 1)
    world = _gpus(where)
    if "train_batch_size" not in flat:
        mbs = Numbers(flat, where.name).count("train_micro_batch_size_per_gpu")
        words += ["--global-batch-size", str(mbs * steps * (world // max(pp * tp, 1)))]
    fp16 = flat.get("fp16")
    half = isinstance(fp16, Mapping) and fp16.get("enabled", fp16.get("fp16")) is True
    words += ["--fp16"] if half and flat.get("precision") != "bfloat16" else ["--bf16"]
    found = from_words(words, {}, name=where.name, gpus=world)
    kinds = flat.get("attention_config")
    fused = "flash" in str(kinds)
    strategy = Strategy(
        **{name: getattr(found.strategy, name) for name in Strategy.__struct_fields__} | {"flash": fused}
    )
    unread = [key for key in flat if key not in _NEOX_READ]
    costly = tuple(key for key in unread if _NEOX_COSTLY.search(key) and flat[key] not in (False, 0, None))
    return found._replace(strategy=strategy, ignored=(*found.ignored, *costly))


def _flagscale(record: Mapping[str, Any], where: _Where) -> ImportedLaunch:
    """FlagScale's training file: Megatron's arguments with underscores, in sections."""
    words = ["train.py"]
    for section in ("system", "model", "data"):
        words += _flag_words(_part(record, section, where).values)
    system = _part(record, "system", where)
    hetero = system.values.get("hetero")
    if isinstance(hetero, Mapping):
        words += _one_mesh(hetero, where)
    found = from_words(words, {}, name=where.name, gpus=where.gpus or _mesh_gpus(hetero))
    return found._replace(framework="flagscale")


def _flag_words(settings: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for key, value in settings.items():
        flag = f"--{str(key).replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif isinstance(value, int | float | str) and not isinstance(value, bool):
            words += [flag, *str(value).split()]
        elif isinstance(value, list):
            words += [flag, *map(str, value)]
        elif isinstance(value, Mapping) and key != "hetero":
            words += _flag_words(value)
    return words


def _meshes(hetero: object) -> list[list[int]]:
    flat = hetero.get("hetero_process_meshes") if isinstance(hetero, Mapping) else None
    if not isinstance(flat, list) or len(flat) % 5 or not all(isinstance(one, int) and one > 0 for one in flat):
        return []
    return [flat[at : at + 5] for at in range(0, len(flat), 5)]


def _mesh_gpus(hetero: object) -> int | None:
    meshes = _meshes(hetero)
    return sum(tp * cp * dp * pp for tp, cp, _, dp, pp in meshes) or None


def _one_mesh(hetero: Mapping[str, Any], where: _Where) -> list[str]:
    """Degrees of meshes that are all alike; stages of different degrees are no plain strategy."""
    meshes = _meshes(hetero)
    if len({tuple(mesh[:4]) for mesh in meshes}) > 1:
        want = "meshes with the same tp, cp, ep and dp: a strategy on one GPU type has one of each"
        raise InputError(f"{where.name}: hetero_process_meshes", str(meshes)[:80], want=want)
    if not meshes:
        return []
    words = ["--context-parallel-size", str(meshes[0][1])]
    if meshes[0][2] > 1:
        words += ["--expert-model-parallel-size", str(meshes[0][2])]
    experts = hetero.get("expert_tensor_parallel_size_per_process_mesh")
    if isinstance(experts, list) and experts:
        words += ["--expert-tensor-parallel-size", str(experts[0])]
    split = hetero.get("hetero_pipeline_layer_split")
    if isinstance(split, list) and len(split) > 1 and all(isinstance(one, int) for one in split):
        words += ["--pipeline-model-parallel-layout", "E" + "|".join("t" * one for one in split) + "L"]
    return words


# nanotron


def _nanotron(record: Mapping[str, Any], where: _Where) -> ImportedLaunch:
    mesh, tokens = _part(record, "parallelism", where), _part(record, "tokens", where)
    dp, tp, pp = mesh.count("dp"), mesh.count("tp"), mesh.count("pp")
    shard = _part(record, "optimizer", where).whole("zero_stage", 0)
    shard = shard if shard in range(4) else 0
    engine = str(mesh.values.get("pp_engine", "1f1b")).lower()
    again = bool(mesh.values.get("recompute_layer"))
    strategy = Strategy(
        tp=tp, pp=pp, dp=dp, mbs=tokens.count("micro_batch_size"), cp=mesh.count("context_parallel_size"),
        ep=mesh.count("expert_parallel_size"), zero=shard, overlap=(), recompute="full" if again else "none",
        sp=tp > 1 and str(mesh.values.get("tp_mode", "")).upper() == "REDUCE_SCATTER",
        schedule="1f1b" if engine == "1f1b" or pp == 1 else "gpipe",
    )  # fmt: skip
    steps = tokens.count("batch_accumulation_per_replica")
    return ImportedLaunch(
        framework="nanotron",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=strategy.mbs * steps * dp,
        seq=tokens.count("sequence_length"),
        precision="bf16",
        optimizer="adam",
        model=None,
        recipe=None,
        ignored=tuple(f"parallelism.{key}" for key in ("tp_linear_async_communication",) if mesh.values.get(key)),
    )


def _others(record: Mapping[str, Any], read: frozenset[str]) -> tuple[str, ...]:
    return tuple(str(key) for key in record if key not in read)


def _half(said: object) -> str:
    return {"fp16": "fp16", "fp8": "fp8"}.get(str(said), "bf16")


_Known = Callable[[set[str], Mapping[str, Any]], bool]
_KINDS: Final[tuple[tuple[_Known, Callable[[Mapping[str, Any], _Where], ImportedLaunch]], ...]] = (
    (lambda keys, _: "distributed_type" in keys, _accelerate),
    (lambda keys, _: {"system", "model"} <= keys, _flagscale),
    (lambda keys, _: {"parallelism", "tokens"} <= keys, _nanotron),
    (lambda keys, _: bool({"pipe_parallel_size", "model_parallel_size"} & keys), _neox),
    (
        lambda keys, record: any(key in record for key in _MODEL_KEYS) and bool(keys & {*_BATCH_KEYS, *_SEQ_KEYS}),
        _trainer,
    ),
)
