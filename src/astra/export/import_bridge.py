"""Overrides of a Megatron-Bridge recipe, as exported or as given to its scripts: ``section.field=value``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.bridge import fields
from astra.export.import_megatron import from_words
from astra.export.import_megatron_model import FP8_SCALED
from astra.export.imported import ImportAsked, ImportedLaunch, known_settings

LINE: Final = re.compile(r"(model|train|ddp|optimizer|dist|dataset|mixed_precision)\.[a-z0-9_]+=", re.MULTILINE)


def read_words(words: Sequence[str], asked: ImportAsked) -> ImportedLaunch:
    """What the words of a command, or the lines of a file, override."""
    return _overridden({key: _value(value) for key, value in _pairs(words)}, asked)


def read_sections(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What a YAML file of sections overrides."""
    parts = {key: value for key, value in record.items() if isinstance(value, Mapping)}
    flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return _overridden(flat | {key: value for key, value in record.items() if key == "mixed_precision"}, asked)


# What recipes do unless they are told otherwise.
_USUAL: Final = {
    "ddp.use_distributed_optimizer": True, "ddp.overlap_grad_reduce": True, "ddp.overlap_param_gather": True,
    "ddp.data_parallel_sharding_strategy": "optim_grads_params", "model.overlap_p2p_comm": False,
    "model.expert_tensor_parallel_size": 1,
}  # fmt: skip


def _overridden(said: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What overrides decide, as arguments of Megatron-LM; a recipe's own settings are not known here."""
    name, program = asked.name, asked.file_named("train.py")  # sets what is no plain value
    needed = ("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size", "train.micro_batch_size")
    lacks = [key for key in needed if key not in said]
    if lacks:
        fix = "Add it to the file: what an override leaves out is the recipe's, which is not read."
        raise InputError(name, None, want=f"a line {lacks[0]}=...", fix=fix)
    if asked.gpus is None:
        raise InputError(name, None, want="the number of GPUs", fix="Give --gpus; overrides do not say it.")
    found = from_words(["train.py", *_flags(said)], {}, asked)
    strategy, chunks = found.strategy, said.get("model.virtual_pipeline_model_parallel_size") or 1
    if strategy.vp != chunks:
        stages, want = strategy.pp * strategy.vp, f"as many stages as pp={strategy.pp} ranks of {chunks} chunks have"
        raise InputError(f"{name}: pipeline_model_parallel_layout", stages, want=want)
    if said.get("mixed_precision.fp8_dot_product_attention") is True:
        strategy = replace(strategy, attention="fp8")
    if program is not None and "AttnBackend.unfused" in program[1]:
        strategy = replace(strategy, flash=False)
    precision = _precision(said, program[1] if program else "")
    return found._replace(
        framework="megatron-bridge",
        strategy=strategy,
        global_batch=found.global_batch if "train.global_batch_size" in said else None,
        precision="fp8" if strategy.params == "fp8" and precision in ("bf16", "fp16") else precision,
        ignored=_of_the_recipe(said),
        unknown=(),
    )


def _flags(said: Mapping[str, Any]) -> list[str]:
    """Settings as the arguments that decide them, by the rows they are written by."""
    wide = next((said[key] for key in _WIDE if said.get(key) is not None), True)
    whole, words, seen = {**_USUAL, **said, _WIDE[0]: wide}, list[str](), set[str]()
    for field in (row for part in fields().values() for row in part):
        value = whole.get(field.name)
        if not field.word.startswith("--") or field.word in seen:
            continue
        seen.add(field.word)
        if field.given == "[]":
            listed = re.findall(r"[a-z_]+", str(value or ""))
            words += [field.word, *listed] if listed else []
        elif field.given:
            words += [field.word] * (str(value).lower() == field.given)
        elif value is not None and value != "":
            words += [field.word, str(value)]
    if whole.get("optimizer.use_precision_aware_optimizer") is True and "--optimizer-cpu-offload" not in words:
        words += ["--exp-avg-dtype", "bf16"]
    return words


_WIDE: Final = ("mixed_precision.grad_reduce_in_fp32", "ddp.grad_reduce_in_fp32")  # the first that is said counts
_PROGRAM: Final = re.compile(r"mixed_precision = ([a-z0-9_]+)\(")


def _precision(said: Mapping[str, Any], program: str) -> str:
    """The precision of the overrides, or that of the program they lie beside."""
    named = _PROGRAM.search(program)
    recipe = str(said.get("mixed_precision") or (named.group(1) if named else ""))
    if "fp8" in recipe or said.get("mixed_precision.fp8") not in (None, "none"):
        return FP8_SCALED.get(str(said.get("mixed_precision.fp8_recipe")), "fp8")
    return "fp16" if "fp16" in recipe or said.get("mixed_precision.fp16") is True else "bf16"


def _of_the_recipe(said: Mapping[str, Any]) -> tuple[str, ...]:
    """What is left to the recipe, which is not read."""
    return tuple(
        f"{key} is the recipe's, taken as {usual}"
        for key, usual in known_settings("bridge").words["usual"].items()
        if key not in said
    )


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for word in words:
        key, equals, value = word.strip().lstrip("+").partition("=")
        if equals and re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)*", key):
            pairs.append((key, value.strip().strip("'\"")))
    return pairs


def _value(text: str) -> Any:
    plain = {"null": None, "true": True, "false": False, "none": "none"}
    if text.lower() in plain:
        return plain[text.lower()]
    return int(text) if re.fullmatch(r"[0-9]{1,15}", text) else text
