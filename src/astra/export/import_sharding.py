"""Configurations of DeepSpeed and Accelerate: how replicas hold the state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings, section
from astra.files import parse_json
from astra.spec.strategy import Strategy

KEYS: Final = frozenset(("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"))
# Settings that change speed or memory and have no place in a strategy.
_NO_WORD: Final = ("offload_param", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
                "mics_shard_size")  # fmt: skip
_SIZES: Final = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def read_deepspeed(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """The whole configuration of a job."""
    name, top = asked.name, Numbers(record, asked.name)
    tp = section(record, "tensor_parallel", name).count("autotp_size")
    mbs, steps = top.count("train_micro_batch_size_per_gpu"), top.count("gradient_accumulation_steps")
    batch = top.whole("train_batch_size", 0)
    if not batch and asked.gpus is None:
        fix = "Give --gpus; the file has no train_batch_size to tell it from."
        raise InputError(name, None, want="the number of GPUs", fix=fix)
    known = {"train_micro_batch_size_per_gpu", "gradient_accumulation_steps"} <= set(record)
    if batch and asked.gpus is None and not known:
        want = "the number of GPUs: the batch alone does not say how it is shared"
        raise InputError(name, None, want=want, fix="Give --gpus.")
    dp = asked.gpus // tp if asked.gpus is not None else batch // (mbs * steps)
    if dp < 1:
        raise InputError(f"{name}: train_batch_size", batch, want="a batch of at least one micro-batch per step")
    if batch and asked.gpus is not None:
        mbs = _share(record, batch, dp, name)
    fields, remarks = zero_sharding(record, name)
    fields["recompute"] = "full" if record.get("activation_checkpointing") else "none"
    strategy = Strategy(tp=tp, dp=dp, mbs=mbs, **fields)
    half = section(record, "fp16", name).values.get("enabled") is True
    kind = str(section(record, "optimizer", name).values.get("type", "AdamW")).lower()
    autos = [key for key in _SIZES if record.get(key) == "auto"]
    return ImportedLaunch(
        framework="deepspeed",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=batch or (None if record.get("gradient_accumulation_steps") == "auto" else mbs * steps * dp),
        precision="fp16" if half else "bf16",
        optimizer="sgd" if kind == "sgd" else "adam",
        ignored=(*(f"{key} auto, taken as 1" for key in autos), *remarks),
    )


def _share(record: Mapping[str, Any], batch: int, dp: int, name: str) -> int:
    """The micro-batch of a replica, as DeepSpeed makes it of the sizes that are said: two of three give the third."""
    top = Numbers(record, name)
    said = {key: top.whole(key, 0) for key in _SIZES}
    mbs, steps = said["train_micro_batch_size_per_gpu"], said["gradient_accumulation_steps"]
    if not mbs:
        mbs = batch // (dp * (steps or 1))
    if mbs < 1 or batch % (mbs * dp) or (steps and mbs * steps * dp != batch):
        want = f"{mbs or 1} x {steps or 'n'} x {dp} replicas: micro-batch, micro-batches and GPUs"
        raise InputError(f"{name}: train_batch_size", batch, want=want, fix="Give --gpus as the file is made for.")
    return mbs


def zero_sharding(record: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
    """Fields of a strategy that ZeRO decides, and settings that have no place in one."""
    zero = section(record, "zero_optimization", name)
    stage = zero.whole("stage", 0)
    if not 0 <= stage <= 3:
        raise InputError(f"{name}: zero_optimization.stage", stage, want="0, 1, 2 or 3")
    grad = zero.values.get("overlap_comm", stage == 3) or stage == 0
    offloaded = zero.values.get("cpu_offload") is True or _device(zero.values, "offload_optimizer", name)
    wide = section(record, "data_types", name).values.get("grad_accum_dtype") == "fp32"
    fields = {
        "zero": stage,
        "overlap": (*(("grad",) if grad else ()), *(("param",) if stage == 3 else ())),
        "offload": "optimizer" if offloaded else "none",
        "grads": "fp32" if wide else "bf16",
    }
    found = [key for key in _NO_WORD if zero.values.get(key) and zero.values[key] != {"device": "none"}]
    return fields, [f"zero_optimization.{key}" for key in found if key != "zero_hpz_partition_size" or _shards(zero)]


def _shards(zero: Numbers) -> bool:
    return zero.whole("zero_hpz_partition_size", 1) > 1


def _device(zero: Mapping[str, Any], key: str, name: str) -> bool:
    return section(zero, key, name).values.get("device", "none") not in ("none", None)


_OLD_STRATEGIES: Final = {"FULL_SHARD": 3, "1": 3, "SHARD_GRAD_OP": 2, "2": 2, "NO_SHARD": 0, "3": 0,
                          "HYBRID_SHARD": 3, "4": 3, "HYBRID_SHARD_ZERO2": 2, "5": 2}  # fmt: skip
_MESH: Final = ("tp", "cp", "sp", "dp_shard", "dp_replicate")


def read_accelerate(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What Accelerate decides; the size of a micro-batch is the training script's."""
    name, kind = asked.name, str(record.get("distributed_type", "NO"))
    processes = asked.count(Numbers(record, name).count("num_processes") if "num_processes" in record else None)
    fields, remarks = accelerate_sharding(record, asked)
    sizes = section(record, "parallelism_config", name)
    tp, cp, sp, shard, copies = (sizes.whole(f"parallelism_config_{axis}_size", 0) for axis in _MESH)
    tp, cp, copies = max(tp, 1), max(cp, 1), max(copies, 1)
    if sp > 1:
        want = "1: sequence parallelism of this kind has no word in a strategy"
        raise InputError(f"{name}: parallelism_config_sp_size", sp, want=want)
    if processes % (tp * cp):
        raise InputError(f"{name}: num_processes", processes, want=f"a number that tp*cp = {tp * cp} divides")
    strategy = Strategy(
        **{"grads": "bf16"} | fields | {"tp": tp, "cp": cp, "dp": processes // (tp * cp), "mbs": 1}
        | ({"shard": shard} if copies > 1 else {})
    )  # fmt: skip
    return ImportedLaunch(
        framework="deepspeed" if kind == "DEEPSPEED" else "fsdp-eager",
        strategy=strategy,
        gpus=strategy.gpus,
        precision=precision_of(record, name),
        ignored=("the size of a micro-batch is the script's, taken as 1", *remarks),
        unknown=tuple(str(key) for key in record if key not in known_settings("accelerate").read),
    )


def accelerate_sharding(record: Mapping[str, Any], asked: ImportAsked) -> tuple[dict[str, Any], list[str]]:
    """How replicas hold the state, as fields of a strategy, and settings that have no place in one."""
    kind = str(record.get("distributed_type", "NO"))
    if record.get("use_cpu") is True or kind in ("MULTI_CPU", "MULTI_XPU", "TPU", "XLA", "MULTI_NPU", "MULTI_MLU"):
        raise InputError(f"{asked.name}: distributed_type", kind, want="a job on GPUs: FSDP, DEEPSPEED or MULTI_GPU")
    if kind == "DEEPSPEED":
        return _zero(record, asked)
    if kind == "FSDP":
        fields, remarks = fsdp_sharding(section(record, "fsdp_config", asked.name).values)
        return {"recompute": "none"} | fields, remarks
    if kind in ("MULTI_GPU", "NO"):
        return {"zero": 0, "overlap": ("grad",)}, []
    raise InputError(f"{asked.name}: distributed_type", kind, want="FSDP, DEEPSPEED or MULTI_GPU")


def fsdp_sharding(settings: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The same of FSDP's settings, whether their names begin with it or not."""
    said = {str(key).removeprefix("fsdp_"): value for key, value in settings.items()}
    kind, again = str(said.get("sharding_strategy")).upper(), said.get("reshard_after_forward", True)
    zero = _OLD_STRATEGIES.get(kind, 3)
    if isinstance(again, str):  # version 1 took the words of the strategy here
        zero = _OLD_STRATEGIES.get(again, zero)
    remarks = ["fsdp offload"] if said.get("offload_params") else []
    if kind.startswith("HYBRID") or kind in ("4", "5"):
        remarks.append(f"fsdp {kind.lower()}, taken as sharded over all GPUs")
    fields: dict[str, Any] = {"zero": zero, "overlap": ("grad", *(("param",) if zero >= 2 else ()))}
    if zero == 3 and again is False:
        fields["reshard"] = "never"
    return fields | ({"recompute": "full"} if said.get("activation_checkpointing") else {}), remarks


def _zero(record: Mapping[str, Any], asked: ImportAsked) -> tuple[dict[str, Any], list[str]]:
    part = section(record, "deepspeed_config", asked.name)
    file = part.values.get("deepspeed_config_file")
    if file is not None:
        found = asked.file_named(str(file))
        if found is None:
            want = "the settings themselves, or that file beside this one"
            raise InputError(f"{asked.name}: deepspeed_config_file", str(file), want=want, fix="Or import that file.")
        return zero_sharding(json_record(*found), found[0])
    zero = part.whole("zero_stage", 2)
    if zero not in range(4):
        raise InputError(f"{asked.name}: zero_stage", zero, want="0, 1, 2 or 3")
    devices = [str(part.values.get(f"offload_{what}_device", "none")).lower() for what in ("optimizer", "param")]
    fields = {
        "zero": zero,
        "offload": "optimizer" if devices[0] != "none" else "none",
        "overlap": ("grad", "param") if zero == 3 else ("grad",),
    }
    return fields, ["deepspeed_config.offload_param_device"] if devices[1] != "none" else []


def json_record(name: str, text: str) -> Mapping[str, Any]:
    """A JSON file that another names."""
    record = parse_json(text, name)
    if not isinstance(record, dict):
        raise InputError(name, None, want="a record of settings")
    return record


def precision_of(record: Mapping[str, Any], name: str) -> str:
    """A precision in Accelerate's words; its FP8 has one scale for a tensor, whoever multiplies, but for one switch."""
    if record.get("mixed_precision") == "fp8":
        groups = section(record, "fp8_config", name).values.get("use_mxfp8_block_scaling")
        return "mxfp8" if groups in (True, "true", "True") else "fp8-tensorwise"
    return "fp16" if record.get("mixed_precision") == "fp16" else "bf16"
