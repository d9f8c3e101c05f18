"""A DeepSpeed configuration as a strategy, or as what it adds to that of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, section
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
    fields, remarks = sharding(record, name)
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


def sharding(record: Mapping[str, Any], name: str) -> tuple[dict[str, Any], list[str]]:
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
