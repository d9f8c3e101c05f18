"""Read what somebody runs today into a strategy: Megatron-LM scripts, torchtitan configurations, DeepSpeed JSON."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from astra.catalog import runtimes
from astra.errors import InputError
from astra.export.bash_run import Script, ways
from astra.export.import_bridge import LINE, read_overrides
from astra.export.import_configs import read_config
from astra.export.import_megatron import from_words
from astra.export.import_megatron_model import SHAPE
from astra.export.import_pytorch import read_constants
from astra.export.imported import ImportedLaunch, Numbers
from astra.export.torchtitan import SCHEDULES
from astra.export.yaml_reading import parse_yaml
from astra.files import parse_json, parse_toml, read_text
from astra.spec.kinds import Whole, path_text
from astra.spec.strategy import Strategy


def _yaml(text: str, name: str, gpus: int | None) -> ImportedLaunch:
    record = parse_yaml(text, name)
    found = read_config(record, name, gpus) if isinstance(record, dict) else None
    if found is None:
        want = (
            "a configuration of Accelerate, the Hugging Face Trainer (TRL, LLaMA-Factory, axolotl), gpt-neox, "
            "FlagScale or nanotron"
        )
        raise InputError(name, None, want=want, fix="None of their keys was found.")
    return found


# Programs that take a model's flags and do not train it.
_OTHER_PROGRAM: Final = re.compile(
    r"generat|inference|text_gen|server|evaluat|convert|merge|checkpoint_util|preprocess|tasks/|export|prompt|quantize"
)
# Flags that a command line of a training job has.
_TRAINS: Final = frozenset(("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size"))


def import_file(
    path: str | PathLike[str], *, gpus: int | None = None, parameters: Sequence[str] = ()
) -> ImportedLaunch:
    """A file of any kind that is understood; ``gpus`` where the file does not say, ``parameters`` of a script."""
    shown = path_text(path, "file", "the path of a configuration")
    if gpus is not None:
        gpus = Whole(1, 10_000_000).read(gpus, "gpus")
    return import_text(read_text(shown, "launch"), name=Path(shown).name, gpus=gpus, parameters=parameters)


def import_text(text: str, *, name: str, gpus: int | None = None, parameters: Sequence[str] = ()) -> ImportedLaunch:
    """The content of a file, understood by its name's ending."""
    if name.endswith(".json"):
        return _deepspeed(_json(text, name), name, gpus)
    if name.endswith((".yaml", ".yml")):
        return _yaml(text, name, gpus)
    if name.endswith(".txt") and LINE.search(text):
        return read_overrides(text, name, gpus)
    if name.endswith(".toml"):
        return _titan(parse_toml(text, name), name, gpus)
    if name.endswith(".py"):
        tree = _parsed(text, name)
        return read_constants(tree, name) or _titan(_assignments(tree, name), name, gpus)
    return _script(text, name, gpus, parameters)


def _script(text: str, name: str, gpus: int | None, parameters: Sequence[str]) -> ImportedLaunch:
    """A shell script or a bare command line with Megatron's arguments."""
    found: list[tuple[Script, list[str]]] = []
    for script in ways(text, parameters):
        found += [(script, words) for words in _jobs(script)]
    if not found:
        want = "a Megatron-LM command line, a torchtitan configuration (.toml, .py) or a DeepSpeed .json"
        raise InputError(name, None, want=want, fix="No command with --micro-batch-size or --num-layers was found.")
    read = [
        _Job(script, _shape(words), from_words(words, script.variables, name=name, gpus=gpus))
        for script, words in found
    ]
    _check_one(read, name)
    return read[0].found


def _jobs(script: Script) -> list[list[str]]:
    """Commands that train, of one way through a script."""
    named = [words for words in script.commands if any(_begins(word) for word in words)]
    return [words for words in named if not any(_OTHER_PROGRAM.search(word) for word in words if word.endswith(".py"))]


def _begins(word: str) -> bool:
    return word.partition("=")[0] in _TRAINS


class _Job(NamedTuple):
    """A job that a script starts, on one way through it."""

    script: Script
    shape: tuple[str, ...]
    found: ImportedLaunch


def _shape(words: list[str]) -> tuple[str, ...]:
    """The words that fix the model, also where they do not fix all of it."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return tuple(sorted(f"{flag} {value}" for flag, value in pairs if flag.partition("=")[0] in SHAPE))


def _check_one(read: list[_Job], name: str) -> None:
    """Several jobs, or several ways a script may go, must come to the same."""
    first = read[0]
    others = [one for one in read if (_decisive(one.found), one.shape) != (_decisive(first.found), first.shape)]
    if not others:
        return
    tests = dict.fromkeys(test.rpartition(": ")[0] for one in read for test in one.script.decided)
    shown = "; ".join(dict.fromkeys(str(one.found.strategy) for one in (first, *others)))
    if tests:
        want = f"tests that can be decided, since what is run depends on them ({'; '.join(tests)}): {shown}"
        raise InputError(
            name, None, want=want, fix="Give its parameters, astra import FILE -- A B, or set its variables."
        )
    raise InputError(name, None, want=f"one job; it starts several: {shown}", fix="Keep one of them in the file.")


def _decisive(found: ImportedLaunch) -> tuple[object, ...]:
    return found.strategy, found.gpus, found.global_batch, found.seq, found.precision, found.model


def _json(text: str, name: str) -> Mapping[str, Any]:
    record = parse_json(text, name)
    if not isinstance(record, dict) or not {"zero_optimization", "train_micro_batch_size_per_gpu"} & set(record):
        raise InputError(name, None, want="a DeepSpeed configuration, with zero_optimization or a micro-batch size")
    return record


def _parsed(text: str, name: str) -> ast.Module:
    """A Python file, read as text: it is never run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(name, None, want="a Python file") from None


def _assignments(tree: ast.Module, name: str) -> Mapping[str, Any]:
    """``config.section.key = value`` of a Python file."""
    sections: dict[str, dict[str, Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            sections.setdefault("model", {}).setdefault("recipe", node.func.id)
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
            continue
        target, owner = node.targets[0], node.targets[0].value
        if target.attr == "activation_checkpoint":
            sections["activation_checkpoint"] = {"mode": "full" if "FullAC" in _names(node.value) else "none"}
        if isinstance(owner, ast.Attribute):
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError, RecursionError, MemoryError):
                continue
            sections.setdefault(owner.attr, {})[target.attr] = value
    if "parallelism" not in sections:
        raise InputError(
            name, None, want="a torchtitan configuration that sets config.parallelism, or an exported trainer"
        )
    return sections


def _names(tree: ast.AST) -> set[str]:
    """The names in an expression, without the modules they come from."""
    found = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return found | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


class _Shards(NamedTuple):
    """How torchtitan's replicas hold the state."""

    dp: int
    zero: int
    reshard: str = "always"
    shard: int = 0


def _titan(sections: Mapping[str, Any], name: str, gpus: int | None) -> ImportedLaunch:
    read = Numbers(_section(sections, "parallelism", name), f"{name}: parallelism")
    training, model = (
        Numbers(_section(sections, "training", name), f"{name}: training"),
        _section(sections, "model", name),
    )
    tp, pp = read.count("tensor_parallel_degree"), read.count("pipeline_parallel_degree")
    cp, ep = read.count("context_parallel_degree"), read.count("expert_parallel_degree")
    shards = _shards(read, gpus, tp * pp * cp)
    local, seq = training.count("local_batch_size", 8), training.count("seq_len", 2048)
    batch = training.whole("global_batch_size", -1)
    mbs = read.count("pipeline_parallel_microbatch_size") if pp > 1 else local
    parts = read.values.get("module_fqns_per_model_part") if pp > 1 else None
    layers = _layers(parts)
    words = {word: ours for ours, word in SCHEDULES.items()} | {"ZBVZeroBubble": "zbv"}
    said = str(read.values.get("pipeline_parallel_schedule", "1F1B")) if pp > 1 else "1F1B"
    schedule = words.get(said, "1f1b")
    vp = max(len(layers) // pp, 1) if layers else 2 if schedule in ("interleaved", "zbv") else 1
    mode = str(_section(sections, "activation_checkpoint", name).get("mode", "none"))
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
        precision="fp8" if "float8" in str(model.get("converters", "")) else "bf16",
        optimizer="adam",
        model=None,
        recipe=_recipe(model),
        ignored=(
            *([f"pipeline_parallel_schedule {said}, taken as 1F1B"] if said not in words else []),
            *(["activation_checkpoint.mode selective, which keeps other tensors here"] if mode == "selective" else []),
            *(["enable_async_tensor_parallel"] if read.values.get("enable_async_tensor_parallel") else []),
            *(["training.enable_cpu_offload"] if training.values.get("enable_cpu_offload") else []),
        ),
    )


def _section(sections: Mapping[str, Any], key: str, name: str) -> Mapping[str, Any]:
    found = sections.get(key, {})
    if not isinstance(found, Mapping):
        raise InputError(f"{name}: {key}", found, want="a section of settings")
    return found


def _shards(read: Numbers, gpus: int | None, inner: int) -> _Shards:
    replicate = read.count("data_parallel_replicate_degree")
    shard = read.whole("data_parallel_shard_degree", -1)
    if shard == -1:
        if gpus is None:
            raise InputError("gpus", None, want="the number of GPUs: the file shards over all that are left",
                             fix="Give --gpus.")  # fmt: skip
        shard = max(gpus // (inner * replicate), 1)
    said = read.values.get("fsdp_reshard_after_forward", "default")
    if shard == 1 and said == "default":
        return _Shards(replicate, 0)
    # By default weights stay gathered between the micro-batches of a pipeline.
    kept = said == "never" or (said == "default" and read.count("pipeline_parallel_degree") > 1)
    return _Shards(replicate * shard, 3, "never" if kept else "always", shard if replicate > 1 else 0)


def _layers(parts: object) -> tuple[int, ...]:
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        return ()
    return tuple(sum(str(module).startswith("layers.") for module in part) for part in parts)


def _recipe(model: Mapping[str, Any]) -> str | None:
    """The name of a model in our catalog, where the file says which it starts from."""
    said = str(model.get("recipe") or f"{model.get('name', '')}_{str(model.get('flavor', '')).lower()}")
    recipes = runtimes.runtime("torchtitan").can.recipes
    return next((name for name, recipe in recipes.items() if recipe.partition(".")[2] == said), None)


def _deepspeed(record: Mapping[str, Any], name: str, gpus: int | None) -> ImportedLaunch:
    zero = Numbers(_section(record, "zero_optimization", name), f"{name}: zero_optimization")
    top = Numbers(record, name)
    stage = zero.whole("stage", 0)
    if not 0 <= stage <= 3:
        raise InputError(f"{name}: zero_optimization.stage", stage, want="0, 1, 2 or 3")
    tp = Numbers(_section(record, "tensor_parallel", name), f"{name}: tensor_parallel").count("autotp_size")
    mbs, steps = top.count("train_micro_batch_size_per_gpu"), top.count("gradient_accumulation_steps")
    batch = top.whole("train_batch_size", 0)
    if not batch and gpus is None:
        fix = "Give --gpus; the file has no train_batch_size to tell it from."
        raise InputError(name, None, want="the number of GPUs", fix=fix)
    dp = batch // (mbs * steps) if batch else (gpus or tp) // tp
    if dp < 1:
        want = "a batch of at least one micro-batch per step"
        raise InputError(f"{name}: train_batch_size", batch, want=want)
    overlap = ("grad",) if zero.values.get("overlap_comm", stage == 3) or stage == 0 else ()
    offloaded = _section(zero.values, "offload_optimizer", name).get("device", "none") != "none"
    fields: dict[str, Any] = {"offload": "optimizer" if offloaded else "none", "grads": "bf16"}
    fields["recompute"] = "full" if record.get("activation_checkpointing") else "none"
    fields["grads"] = "bf16"  # unless data_types.grad_accum_dtype says otherwise
    if _section(record, "data_types", name).get("grad_accum_dtype") == "fp32":
        fields["grads"] = "fp32"
    strategy = Strategy(
        tp=tp, dp=dp, mbs=mbs, zero=stage, overlap=(*overlap, *(("param",) if stage == 3 else ())), **fields
    )
    half = _section(record, "fp16", name).get("enabled") is True
    kind = str(_section(record, "optimizer", name).get("type", "AdamW")).lower()
    return ImportedLaunch(
        framework="deepspeed",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=batch or (None if record.get("gradient_accumulation_steps") == "auto" else mbs * steps * dp),
        seq=None,
        precision="fp16" if half else "bf16",
        optimizer="sgd" if kind == "sgd" else "adam",
        model=None,
        recipe=None,
        ignored=_unused(record, zero.values),
    )


# Settings of DeepSpeed that change speed or memory and have no place in a strategy.
_REPORTED: Final = ("offload_param", "zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients")


def _unused(record: Mapping[str, Any], zero: Mapping[str, Any]) -> tuple[str, ...]:
    autos = [
        name for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps") if record.get(name) == "auto"
    ]
    named = [f"zero_optimization.{name}" for name in _REPORTED if zero.get(name) and zero[name] != {"device": "none"}]
    return (*(f"{name} auto, taken as 1" for name in autos), *named)
