"""Configurations written as YAML or JSON, each known by its keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.import_accelerate import read_accelerate
from astra.export.import_bridge import read_sections
from astra.export.import_deepspeed import KEYS as DEEPSPEED_KEYS
from astra.export.import_deepspeed import read_deepspeed
from astra.export.import_flagscale import read_flagscale, read_model_args
from astra.export.import_nanotron import read_nanotron
from astra.export.import_nemo import is_nemo, read_nemo
from astra.export.import_neox import read_neox
from astra.export.import_trainer import BATCH_KEYS, MODEL_KEYS, SEQ_KEYS, read_trainer
from astra.export.imported import ImportAsked, ImportedLaunch

_WANT: Final = (
    "a configuration of Accelerate, the Hugging Face Trainer (TRL, LLaMA-Factory, axolotl), DeepSpeed, gpt-neox, NeMo, "
    "Megatron-Bridge, FlagScale or nanotron"
)


def read_config(record: object, asked: ImportAsked) -> ImportedLaunch:
    """A configuration that is known by its keys."""
    if isinstance(record, Mapping):
        keys = {str(key).replace("-", "_") for key in record}
        for known, reader in _KINDS:
            if known(keys, record):
                return reader(record, asked)
        if {"experiment", "defaults"} <= keys:
            fix = "It is FlagScale's experiment; the file under train/ that its defaults name has the settings."
            raise InputError(asked.name, None, want=_WANT, fix=fix)
    raise InputError(asked.name, None, want=_WANT, fix="None of their keys was found.")


_Known = Callable[[set[str], Mapping[str, Any]], bool]
_KINDS: Final[tuple[tuple[_Known, Callable[[Mapping[str, Any], ImportAsked], ImportedLaunch]], ...]] = (
    (lambda keys, _: "distributed_type" in keys, read_accelerate),
    (lambda keys, _: "MODEL_ARGS" in keys, read_model_args),
    (lambda keys, _: {"system", "model"} <= keys, read_flagscale),
    (lambda keys, _: {"parallelism", "tokens"} <= keys, read_nanotron),
    (lambda _, record: is_nemo(record), read_nemo),
    (lambda keys, record: {"model", "train"} <= keys and isinstance(record["train"], Mapping), read_sections),
    (
        lambda keys, _: (
            bool({"pipe_parallel_size", "model_parallel_size"} & keys)
            or {"num_layers", "train_micro_batch_size_per_gpu"} <= keys
        ),
        read_neox,
    ),
    (
        lambda keys, record: any(key in record for key in MODEL_KEYS) and bool(keys & {*BATCH_KEYS, *SEQ_KEYS}),
        read_trainer,
    ),
    (lambda keys, _: "per_device_train_batch_size" in keys, read_trainer),
    (lambda keys, _: bool(DEEPSPEED_KEYS & keys), read_deepspeed),
)
