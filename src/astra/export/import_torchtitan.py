"""Configurations of trainers in PyTorch: torchtitan's (TOML, a Python file of ours, its registries) and nanotron's."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from astra.catalog import runtimes
from astra.errors import InputError
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings, plain_value, section
from astra.export.torchtitan import SCHEDULES
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy


class _HeldBy(NamedTuple):
    """How torchtitan's replicas hold the state."""

    dp: int
    zero: int
    reshard: str = "always"
    shard: int = 0


def read_titan(sections: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What the sections of a configuration decide."""
    name, gpus = asked.name, asked.gpus
    if not {"parallelism", "training"} & set(sections):
        want = "a torchtitan configuration, with sections training and parallelism"
        raise InputError(name, None, want=want, fix="It has neither.")
    sections, known = _today(sections, name), known_settings("torchtitan").read
    read, training = section(sections, "parallelism", name), section(sections, "training", name)
    model = section(sections, "model", name).values
    tp, pp = read.count("tensor_parallel_degree"), read.count("pipeline_parallel_degree")
    cp, ep = read.count("context_parallel_degree"), read.count("expert_parallel_degree")
    shards = _shards(read, gpus, tp * pp * cp)
    local, seq = _tokens(training)
    batch = training.whole("global_batch_size", -1)
    mbs = read.count("pipeline_parallel_microbatch_size") if pp > 1 else local
    parts = read.values.get("module_fqns_per_model_part") if pp > 1 else None
    layers = _layers(parts)
    words = {word: ours for ours, word in SCHEDULES.items()} | {"ZBVZeroBubble": "zbv"}
    said = str(read.values.get("pipeline_parallel_schedule", "1F1B")) if pp > 1 else "1F1B"
    schedule = words.get(said, "1f1b")
    vp = max(len(layers) // pp, 1) if layers else 2 if schedule in ("interleaved", "zbv") else 1
    mode = str(section(sections, "activation_checkpoint", name).values.get("mode", "none"))
    overlap = ("grad", *(("param",) if shards.zero >= 2 else ()), *(("p2p",) if vp > 1 else ()))
    fields: dict[str, Any] = {"schedule": schedule, "recompute": mode if mode in ("full", "selective") else "none"}
    fields |= {"reshard": shards.reshard, "shard": shards.shard}
    strategy = Strategy(
        tp=tp, pp=pp, vp=vp, cp=cp, ep=ep, etp=read.count("expert_tensor_parallel_degree"), dp=shards.dp, mbs=mbs,
        sp=tp > 1 and bool(read.values.get("enable_sequence_parallel", True)), zero=shards.zero, overlap=overlap,
        layers=layers if len(set(layers)) > 1 else (), **fields,
    )  # fmt: skip
    return ImportedLaunch(
        framework="torchtitan",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=batch if batch > 0 else local * shards.dp,
        seq=seq,
        precision=_precision(model, sections),
        recipe=_recipe(model),
        ignored=(
            *([f"pipeline_parallel_schedule {said}, taken as 1F1B"] if said not in words else []),
            *(["activation_checkpoint.mode selective, which keeps other tensors here"] if mode == "selective" else []),
            *(["enable_async_tensor_parallel"] if read.values.get("enable_async_tensor_parallel") else []),
            *(["training.enable_cpu_offload"] if training.values.get("enable_cpu_offload") else []),
        ),
        unknown=tuple(f"parallelism.{key}" for key, value in read.values.items() if key not in known and value),
    )


def _today(sections: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Sections as they are named now: versions of 2024 had degrees under training and experimental."""
    old = {**section(sections, "experimental", name).values, **section(sections, "training", name).values}
    moved = {key: value for key, value in old.items() if key in known_settings("torchtitan").read}
    if "data_parallel_degree" in old:
        moved["data_parallel_shard_degree"] = old["data_parallel_degree"]
    return {**sections, "parallelism": {**moved, **section(sections, "parallelism", name).values}}


def _tokens(training: Numbers) -> tuple[int, int]:
    """Samples of a replica and their length; newer versions say the tokens of both."""
    seq = training.count("max_context_length", training.count("seq_len", 2048))
    old = training.count("local_batch_size", training.count("batch_size", 8))
    key = "num_tokens_per_microbatch_per_dp_rank"
    return (max(training.count(key) // seq, 1) if key in training.values else old), seq


def _shards(read: Numbers, gpus: int | None, inner: int) -> _HeldBy:
    replicate = read.count("data_parallel_replicate_degree")
    shard = read.whole("data_parallel_shard_degree", -1)
    if shard == -1:
        if gpus is None:
            raise InputError("gpus", None, want="the number of GPUs: the file shards over all that are left",
                             fix="Give --gpus.")  # fmt: skip
        shard = max(gpus // (inner * replicate), 1)
    said = read.values.get("fsdp_reshard_after_forward", "default")
    if shard == 1 and said == "default":
        return _HeldBy(replicate, 0)
    # By default weights stay gathered between the micro-batches of a pipeline.
    kept = said == "never" or (said == "default" and read.count("pipeline_parallel_degree") > 1)
    return _HeldBy(replicate * shard, 3, "never" if kept else "always", shard if replicate > 1 else 0)


def _layers(parts: object) -> tuple[int, ...]:
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return ()
    return tuple(sum(str(module).startswith("layers.") for module in part) for part in parts)


def _precision(model: Mapping[str, Any], sections: Mapping[str, Any]) -> str:
    """The precision of the converters; those of a TOML have their scaling in a section of their own."""
    converters = str(model.get("converters", ""))
    scaled = [str(sections.get(name, ""))[:1000] for name in ("quantize", "float8")]
    if "float8" in converters and any("rowwise" in text for text in scaled):
        return "fp8-rowwise"
    return next((ours for word, ours in _CONVERTERS.items() if word in converters), "bf16")


_CONVERTERS: Final = {"rowwise": "fp8-rowwise", "mxfp8": "mxfp8", "mx": "mxfp8", "nvfp4": "nvfp4", "float8": "fp8"}


def _recipe(model: Mapping[str, Any]) -> str | None:
    """The name of a model in our catalog, where the file says which it starts from."""
    said = str(model.get("recipe") or f"{model.get('name', '')}_{str(model.get('flavor', '')).lower()}")
    recipes = runtimes.runtime("torchtitan").can.recipes
    return next((name for name, recipe in recipes.items() if recipe.partition(".")[2] == said), None)


def read_python(tree: ast.Module, asked: ImportAsked) -> ImportedLaunch | None:
    """A Python file that sets up torchtitan, read as text and never run; of several functions one is picked."""
    registry = _Registry(tree)
    found = {name: registry.sections(name) for name in registry.functions}
    found = {name: sections for name, sections in found.items() if {"parallelism", "training"} & set(sections)}
    if not found:
        found = {"": registry.settled(tree)}
        if "parallelism" not in found[""]:
            return None
    names = list(found)
    return read_titan(found[names[asked.choose(names)]], asked)


_Sections = dict[str, dict[str, Any]]
_MOST_STARTS: Final = 16  # functions that start from each other
_CONVERTERS_SAID: Final = {
    "Float8LinearConverter": "rowwise",  # it has no other
    "MXFP8LinearConverter": "mxfp8",
    "NVFP4LinearConverter": "nvfp4",
}


class _Registry:
    """Functions that each make a configuration, some from another; each is read once."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._known: dict[str, _Sections] = {}
        self._open = 0

    def sections(self, name: str) -> _Sections:
        """The sections that a function sets."""
        if name not in self._known:
            self._known[name] = {}  # to whoever starts from itself
            self._known[name] = self.settled(self.functions[name])
        return self._known[name]

    def settled(self, node: ast.AST) -> _Sections:
        """The sections that are set, after those of the functions they start from."""
        sections = self._started(node)
        calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
        if isinstance(node, ast.FunctionDef) and {"parallelism", "training"} & {
            word.arg for call in calls for word in call.keywords
        }:
            sections.setdefault("model", {})["recipe"] = node.name  # a recipe itself
        for inner in ast.walk(node):
            if isinstance(inner, ast.keyword) and inner.arg in ("training", "parallelism", "activation_checkpoint"):
                _section_of(sections, inner.arg, inner.value)
            elif isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Attribute):
                _assigned(sections, inner.targets[0], inner.value)
        for word in _CONVERTERS_SAID.keys() & _names(node):
            sections.setdefault("model", {})["converters"] = _CONVERTERS_SAID[word]
        return sections

    def _started(self, node: ast.AST) -> _Sections:
        """What the functions set that are called here."""
        sections: _Sections = {}
        self._open += 1
        for inner in ast.walk(node):
            if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Name):
                continue
            if inner.func.id in self.functions and self._open <= _MOST_STARTS:
                for name, values in self.sections(inner.func.id).items():
                    sections.setdefault(name, {}).update(values)
            elif inner.func.id not in self.functions:
                sections.setdefault("model", {}).setdefault("recipe", inner.func.id)
        self._open -= 1
        return sections


def _section_of(sections: dict[str, dict[str, Any]], name: str, value: ast.AST) -> None:
    if name == "activation_checkpoint":
        sections[name] = {"mode": _mode(value)}
    elif isinstance(value, ast.Call):
        found = {word.arg: plain_value(word.value) for word in value.keywords if word.arg is not None}
        sections.setdefault(name, {}).update(found)


def _assigned(sections: dict[str, dict[str, Any]], target: ast.Attribute, value: ast.AST) -> None:
    if target.attr in ("training", "parallelism", "activation_checkpoint"):
        sections.pop(target.attr, None)
        _section_of(sections, target.attr, value)
    elif isinstance(target.value, ast.Attribute):
        sections.setdefault(target.value.attr, {})[target.attr] = plain_value(value)


def _mode(value: ast.AST) -> str:
    words = _names(value)
    return "full" if "FullAC" in words else "selective" if "SelectiveAC" in words else "none"


def _names(tree: ast.AST) -> set[str]:
    """The names in an expression, without the modules they come from."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


_FAMILIES: Final = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}


def read_nanotron(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """Degrees, tokens of a step, and the model where it is a plain one."""
    mesh, tokens = section(record, "parallelism", asked.name), section(record, "tokens", asked.name)
    optimizer = section(record, "optimizer", asked.name)
    dp, tp, pp = mesh.count("dp"), mesh.count("tp"), mesh.count("pp")
    zero = optimizer.whole("zero_stage", 0)
    if zero not in (0, 1):
        raise InputError(f"{asked.name}: optimizer.zero_stage", zero, want="0 or 1, all that nanotron has")
    engine = str(mesh.values.get("pp_engine", "1f1b")).lower()
    wide = optimizer.values.get("accumulate_grad_in_fp32", True) is not False
    strategy = Strategy(
        tp=tp, pp=pp, dp=dp, mbs=tokens.count("micro_batch_size"), cp=mesh.count("context_parallel_size"),
        ep=mesh.count("expert_parallel_size"), zero=zero, overlap=(), grads="fp32" if wide else "bf16",
        recompute="full" if mesh.values.get("recompute_layer") else "none",
        sp=tp > 1 and str(mesh.values.get("tp_mode", "")).upper() == "REDUCE_SCATTER",
        schedule="1f1b" if engine == "1f1b" or pp == 1 else "gpipe",
    )  # fmt: skip
    if asked.gpus is not None and asked.gpus != strategy.gpus:
        want = f"{strategy.gpus}: dp*tp*pp of the file"
        raise InputError("gpus", asked.gpus, want=want, fix="The file says the degrees; change dp in it.")
    asynchronous = mesh.values.get("tp_linear_async_communication") is True and strategy.sp
    others = [
        f"parallelism.{key}"
        for key, value in mesh.values.items()
        if key not in known_settings("nanotron").read and value
    ]
    remarks = ["parallelism.tp_linear_async_communication"] * asynchronous
    model = _model(section(record, "model", asked.name), asked.name, remarks)
    return ImportedLaunch(
        framework="nanotron",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=strategy.mbs * tokens.count("batch_accumulation_per_replica") * dp,
        seq=tokens.count("sequence_length"),
        model=model,
        ignored=(*remarks, *others),
    )


def _model(settings: Numbers, name: str, remarks: list[str]) -> ModelSpec | None:
    """The model, in the words of Hugging Face."""
    from astra.catalog.huggingface import from_config  # noqa: PLC0415

    config = section(settings.values, "model_config", f"{name}: model").values
    kind = next((ours for word, ours in _FAMILIES.items() if config.get(word) is True), None)
    if config.get("moe_config"):
        remarks.append("model.model_config.moe_config, which is not read: name the model")
        return None
    if settings.values.get("dtype") not in (None, "bfloat16"):
        remarks.append(f"model.dtype {settings.values['dtype']}, taken as bfloat16")
    if kind is None:
        return None
    return from_config({**config, "model_type": kind}, where=f"{name}: model_config")
