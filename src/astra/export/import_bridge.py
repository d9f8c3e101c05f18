"""Overrides of a Megatron-Bridge recipe, as exported or as given to its scripts: ``section.field=value``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.import_megatron import layout_layers
from astra.export.import_megatron_model import FP8_SCALED, GRAPHS, STAGES
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import MODULES

LINE: Final = re.compile(r"(model|train|ddp|optimizer|dist|dataset|mixed_precision)\.[a-z0-9_]+=", re.MULTILINE)


def read_words(words: Sequence[str], asked: ImportAsked) -> ImportedLaunch:
    """What the words of a command, or the lines of a file, override."""
    return _overridden({key: _value(value) for key, value in _pairs(words)}, asked)


def read_sections(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What a YAML file of sections overrides."""
    parts = {key: value for key, value in record.items() if isinstance(value, Mapping)}
    flat = {f"{part}.{key}": value for part, values in parts.items() for key, value in values.items()}
    return _overridden(flat | {key: value for key, value in record.items() if key == "mixed_precision"}, asked)


def _overridden(said: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What overrides decide; a recipe's own settings are not known here."""
    name, gpus, read = asked.name, asked.gpus, Numbers(said, asked.name)
    needed = ("model.tensor_model_parallel_size", "model.pipeline_model_parallel_size", "train.micro_batch_size")
    lacks = [key for key in needed if key not in said]
    if lacks:
        fix = "Add it to the file: what an override leaves out is the recipe's, which is not read."
        raise InputError(name, None, want=f"a line {lacks[0]}=...", fix=fix)
    if gpus is None:
        raise InputError(name, None, want="the number of GPUs", fix="Give --gpus; overrides do not say it.")
    program = asked.file_named("train.py")  # sets what is no plain value
    strategy = _strategy(read, name, gpus)
    if program is not None and "AttnBackend.unfused" in program[1]:
        strategy = replace(strategy, flash=False)
    precision = _precision(read.values, program[1] if program else "")
    precision = "fp8" if strategy.params == "fp8" and precision in ("bf16", "fp16") else precision
    return ImportedLaunch(
        framework="megatron-bridge",
        strategy=strategy,
        gpus=gpus,
        global_batch=read.count("train.global_batch_size") if "train.global_batch_size" in said else None,
        seq=read.count("model.seq_length") if "model.seq_length" in said else None,
        precision=precision,
        ignored=_of_the_recipe(said),
        mtp=read.whole("model.mtp_num_layers", 0) or None,
    )


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


def _strategy(read: Numbers, name: str, gpus: int) -> Strategy:
    model = _section(read.values, "model")
    tp, pp, cp = (read.count(f"model.{key}_parallel_size") for key in ("tensor_model", "pipeline_model", "context"))
    if gpus % (tp * pp * cp):
        raise InputError(name, gpus, want=f"a number of GPUs that tp*pp*cp = {tp * pp * cp} divides")
    vp, dp = read.count("model.virtual_pipeline_model_parallel_size"), gpus // (tp * pp * cp)
    ep = read.count("model.expert_model_parallel_size")
    layers = layout_layers(str(model["pipeline_model_parallel_layout"]), name) if _layout(model) else ()
    if layers and len(layers) != pp * vp:
        raise InputError(f"{name}: pipeline_model_parallel_layout", len(layers), want=f"{pp * vp} stages")
    overlap = {
        "grad": "ddp.overlap_grad_reduce", "param": "ddp.overlap_param_gather", "tp": "model.tp_comm_overlap",
        "p2p": "model.overlap_p2p_comm", "ep": "model.overlap_moe_expert_parallel_comm",
    }  # fmt: skip
    fsdp = read.values.get("ddp.use_megatron_fsdp") is True
    word = str(read.values.get("ddp.data_parallel_sharding_strategy", "optim_grads_params"))
    zero = STAGES.get(word, 3) if fsdp else int(read.values.get("ddp.use_distributed_optimizer", True) is True)
    copies = read.count("ddp.num_distributed_optimizer_instances")
    return Strategy(
        tp=tp, pp=pp, vp=vp, cp=cp, ep=ep,
        etp=read.count("model.expert_tensor_parallel_size"), dp=dp, mbs=read.count("train.micro_batch_size"),
        sp=read.values.get("model.sequence_parallel") is True and tp > 1,
        zero=zero,
        overlap=tuple(key for key, flag in overlap.items() if read.values.get(flag, key in ("grad", "param")) is True),
        layers=layers if len(set(layers)) > 1 else (), schedule="interleaved" if vp > 1 else "1f1b",
        shard=dp // copies if copies > 1 and dp % copies == 0 else 0, **_words(read, model),
    )  # fmt: skip


def _words(read: Numbers, model: Mapping[str, Any]) -> dict[str, Any]:
    kind = model.get("recompute_granularity")
    again: dict[str, Any] = {"recompute": kind if kind in ("selective", "full") else "none"}
    if kind == "full":
        again |= {
            "method": model.get("recompute_method") or "uniform",
            "recompute_layers": model.get("recompute_num_layers") or 1,
        }
    if kind == "selective":
        names = re.findall(r"[a-z_]+", str(model.get("recompute_modules", "core_attn")))
        again["modules"] = tuple(word for word in names if word in MODULES) or ("core_attn",)
    flex = model.get("moe_token_dispatcher_type") == "flex"
    backend = "hybridep" if model.get("moe_flex_dispatcher_backend") == "hybridep" else "deepep"
    offloaded = read.values.get("optimizer.optimizer_cpu_offload") is True
    aware = read.values.get("optimizer.use_precision_aware_optimizer") is True
    return again | {
        "dispatch": backend if flex else "alltoall",
        "graphs": GRAPHS.get(str(model.get("cuda_graph_impl", "none")), "partial"),
        "moments": "bf16" if aware and not offloaded else "fp32",
        "params": "fp8" if read.values.get("mixed_precision.fp8_param_gather") is True else "bf16",
        "grads": "fp32" if _wide(read.values) else "bf16",
        "attention": "fp8" if read.values.get("mixed_precision.fp8_dot_product_attention") is True else "bf16",
        "offload": "optimizer" if offloaded else "none",
        "offload_layers": read.whole("model.cpu_offloading_num_layers", 0),
    }


def _wide(values: Mapping[str, Any]) -> bool:
    """Whether gradients are added up in fp32, as recipes do unless told otherwise."""
    said = (values.get(f"{part}.grad_reduce_in_fp32") for part in ("mixed_precision", "ddp"))
    return next((value for value in said if value is not None), True) is True


def _layout(model: Mapping[str, Any]) -> bool:
    return model.get("pipeline_model_parallel_layout") not in (None, "")


def _section(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key.partition(".")[2]: value for key, value in values.items() if key.startswith(f"{name}.")}
