"""Shell scripts and command lines that start a training job: Megatron-LM's, Megatron-Bridge's, Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Final, NamedTuple

from astra.errors import InputError
from astra.export.bash_run import Script, ways
from astra.export.import_bridge import LINE, read_words
from astra.export.import_megatron import from_words, shape_flags, split, world_of
from astra.export.import_megatron_yaml import read_nemo
from astra.export.import_sharding import json_record
from astra.export.import_trainer import from_flags, read_trainer
from astra.export.imported import Arguments, ImportAsked, ImportedLaunch
from astra.export.yaml_reading import parse_yaml

# Programs that take a model's flags and do not train it.
_OTHER_PROGRAM: Final = re.compile(
    r"generat|inference|text_gen|server|evaluat|convert|merge|checkpoint_util|preprocess|tasks/|export|prompt|quantize"
    r"|prune|mmlu|extract|benchmark_|eval_"
)
_LISTS: Final = re.compile(r"data|path|file|prefix|host|blend")  # flags of as many values as one likes
# Flags that a command line of a training job has.
_TRAINS: Final = frozenset(("--num-layers", "--tensor-model-parallel-size", "--micro-batch-size"))
_PER_DEVICE: Final = frozenset(("--per_device_train_batch_size", "--per_gpu_train_batch_size"))
_CONFIGURED: Final = re.compile(r"[\w./${}-]+\.(?:ya?ml|toml)")
_STARTS: Final = re.compile(
    r"(?:^|/)(?:llamafactory-cli|axolotl|accelerate|run_train\.py|torchtitan\S*|flagscale|nemo)$"
)


def read_script(text: str, asked: ImportAsked) -> ImportedLaunch:
    """The job that a script starts; several that differ are listed to choose from."""
    found: list[tuple[Script, list[str], _Reader]] = []
    scripts = ways(text, asked.parameters)
    for script in scripts:
        found += [(script, words, reader) for words, reader in _jobs(script)]
    if not found:
        raise _nothing(scripts, asked)
    read = [_StartedJob(script, _shape(words), reader(script, words, asked)) for script, words, reader in found]
    return _one(read, asked)


def _nothing(scripts: list[Script], asked: ImportAsked) -> InputError:
    """Why no job was found: another program, another file, or none at all."""
    commands = [words for script in scripts for words in script.commands]
    files = [word for words in commands for word in words if _CONFIGURED.fullmatch(word) and _starts(words)]
    further = [words[1:] for words in commands if words[0] in ("source", ".", "bash", "sh", "sbatch")]
    runs = [named for words in further if (named := next((word for word in words if word[0] != "-"), None)) is not None]
    want = "a command that trains: of Megatron-LM, Megatron-Bridge, the Hugging Face Trainer or Accelerate"
    fix = "No command with --micro-batch-size, --num-layers or --per_device_train_batch_size was found."
    others = [name for words in commands for name in _programs(words) if _OTHER_PROGRAM.search(name)]
    if others:
        fix = f"{others[0]} does not train."
    elif files:
        fix = f"It trains what a file says: import {files[0]}."
    elif runs:
        fix = f"It goes on in another file: import {runs[-1]}, or put both in one."
    return InputError(asked.name, None, want=want, fix=fix)


def _starts(words: list[str]) -> bool:
    return any(_STARTS.search(word) for word in words) or any(word.startswith("--config") for word in words)


_NEMO: Final = re.compile(r"(?:trainer\.(?:devices|num_nodes)|model\.(?:micro|global)_batch_size)=")
_Reader = Callable[[Script, list[str], ImportAsked], ImportedLaunch]


def _jobs(script: Script) -> list[tuple[list[str], _Reader]]:
    """Commands that train, of one way through a script, and how each is read."""
    found: list[tuple[list[str], _Reader]] = []
    for words in script.commands:
        if words[0] in ("echo", "printf") or any(_OTHER_PROGRAM.search(word) for word in _programs(words)):
            continue
        reader = _reader(words)
        if reader is not None:
            _check_said(words)
            found.append((words, reader))
    return found


def _check_said(words: list[str]) -> None:
    """Where a program would say flags, what it does not say here would be missing silently."""
    owner, start = "", next((at for at, word in enumerate(words) if word.endswith(".py")), 0)
    for before, word in pairwise(words[start:]):
        owner = before if before.startswith("--") else owner
        if word.startswith(("$(", "`")) and not before.startswith("-") and not _LISTS.search(owner):
            want = "flags that stand in the script: what a program says may hold any"
            raise InputError("script", word[:80], want=want, fix="Run it, and put what it says in its place.")


def _programs(words: list[str]) -> list[str]:
    """The files and modules that a command runs."""
    modules = [after for word, after in pairwise(words) if word == "-m"]
    return [word for word in words if word.endswith(".py")] + modules


def _reader(words: list[str]) -> _Reader | None:
    flags = {word.partition("=")[0] for word in words}
    if flags & _TRAINS:
        return lambda script, words, asked: from_words(words, script.variables, asked, files=script.files)
    if sum(LINE.match(word.lstrip("+")) is not None for word in words) > 1:
        return _bridge
    if flags & _PER_DEVICE:
        return _trainer
    if words[:2] == ["accelerate", "launch"] and "--config_file" in flags and not _CONFIGURED.search(words[-1]):
        return _accelerated
    return None


def _bridge(script: Script, words: list[str], asked: ImportAsked) -> ImportedLaunch:
    launcher, _ = split(words, asked.name)
    gpus = asked.gpus or world_of(launcher, script.variables, words)
    if any(_NEMO.match(word.lstrip("+")) for word in words):
        return _nemo(words, asked._replace(gpus=gpus))
    return read_words(words, asked._replace(gpus=gpus))


def _nemo(words: list[str], asked: ImportAsked) -> ImportedLaunch:
    """NeMo's configuration, which must lie beside the script, with what a command sets in it."""
    said = dict(pair for word in words if len(pair := word.lstrip("+").split("=", 1)) == 2)
    folder, name = said.get("--config-path", "conf"), said.get("--config-name", "").removesuffix(".yaml")
    file = f"{folder}/{name}.yaml"
    found = asked.file_named(file) if name else None
    record = parse_yaml(found[1], found[0]) if found is not None else None
    if not isinstance(record, dict):
        want = "NeMo's configuration beside the script: a command sets some of it alone"
        fix = f"Copy {file} there." if name else "Import the YAML."
        raise InputError(f"{asked.name}: --config-name", name or None, want=want, fix=fix)
    for key, value in said.items():
        if not key.startswith("-"):
            _set(record, key.split("."), value)
    return read_nemo(record, asked)


def _set(record: dict[str, object], path: list[str], value: str) -> None:
    """Put an override in its place."""
    here: object = record
    for part in path[:-1]:
        here = here.setdefault(part, {}) if isinstance(here, dict) else None
    if isinstance(here, dict):
        read = {"True": True, "False": False, "true": True, "false": False, "null": None}
        here[path[-1]] = int(value) if re.fullmatch(r"[0-9]{1,9}", value) else read.get(value, value)


def _trainer(script: Script, words: list[str], asked: ImportAsked) -> ImportedLaunch:
    """TrainingArguments as flags, behind torchrun, deepspeed or accelerate."""
    launcher, args = split(words, asked.name)
    record = from_flags(args.flags)
    if record.get("deepspeed") is True and "zero_stage" in record:  # a script that makes its own configuration
        held = {
            "stage": record.pop("zero_stage"),
            "offload_optimizer": {"device": "cpu"} if record.get("offload") else {},
        }
        record["deepspeed"] = {"zero_optimization": held}
    written = script.files.get(str(record.get("deepspeed")))
    if written is not None:
        record["deepspeed"] = dict(json_record(str(record["deepspeed"]), written))
    gpus = asked.gpus or _processes(launcher) or world_of(launcher, script.variables, words)
    said = _launched(launcher, asked)
    remarks: tuple[str, ...] = ()
    if said is not None:
        if record.get("deepspeed") or record.get("fsdp"):
            remarks = ("the configuration of accelerate beside --deepspeed or --fsdp of the script",)
        else:
            record |= _as_arguments(said)
    found = read_trainer(record, asked._replace(gpus=gpus))
    return found._replace(ignored=(*found.ignored, *remarks))


def _accelerated(script: Script, words: list[str], asked: ImportAsked) -> ImportedLaunch:
    """A script of one's own behind accelerate, whose sizes are in the surroundings."""
    launcher, _ = split(words, asked.name)
    sizes = {"per_device_train_batch_size": "MICRO_BATCH_SIZE", "max_seq_length": "SEQ_LENGTH"}
    record = from_flags(
        {f"--{key}": [script.variables[name]] for key, name in sizes.items() if name in script.variables}
    )
    if "per_device_train_batch_size" not in record:
        want = "the size of a micro-batch: --per_device_train_batch_size, or MICRO_BATCH_SIZE"
        raise InputError(asked.name, None, want=want, fix="Or import the configuration of accelerate alone.")
    record |= {key: value for key, value in from_flags(launcher.flags).items() if key == "gradient_accumulation_steps"}
    said = _launched(launcher, asked)
    gpus = asked.gpus or _processes(launcher) or (_whole(said, "num_processes") if said else None)
    record |= _as_arguments(said or {})
    return read_trainer(record, asked._replace(gpus=gpus))


def _whole(record: Mapping[str, object], key: str) -> int | None:
    value = record.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _processes(launcher: Arguments) -> int | None:
    """What accelerate is told to start, on all nodes together."""
    return launcher.maybe("--num_processes") if launcher.has("--num_processes") else None


def _launched(launcher: Arguments, asked: ImportAsked) -> dict[str, object] | None:
    """The settings of accelerate: in a file that must lie beside the script, or as flags."""
    named = launcher.text("--config_file")
    if named:
        found = asked.file_named(named)
        if found is None:
            want = f"the configuration of accelerate beside the script: {named} is not there"
            raise InputError(f"{asked.name}: --config_file", named, want=want, fix="Copy it there, or import it alone.")
        record = parse_yaml(found[1], found[0])
        if not isinstance(record, dict):
            raise InputError(found[0], None, want="a configuration of accelerate")
        return record
    if launcher.has("--use_deepspeed"):
        file = launcher.text("--deepspeed_config_file")
        stage = launcher.text("--zero_stage", "2")
        inner = {"deepspeed_config_file": file} if file else {"zero_stage": int(stage) if stage.isdigit() else stage}
        return {"distributed_type": "DEEPSPEED", "deepspeed_config": inner}
    return {"distributed_type": "FSDP"} if launcher.has("--use_fsdp") else None


def _as_arguments(said: Mapping[str, object]) -> dict[str, object]:
    """Settings of accelerate in the words of the arguments, and whole for how the state is held."""
    if not said:
        return {}
    mesh = said.get("parallelism_config")
    sizes = (
        {ours: mesh.get(f"parallelism_config_{axis}_size") for ours, axis in _AXES.items()}
        if isinstance(mesh, Mapping)
        else {}
    )
    width = {"mixed_precision": said["mixed_precision"]} if "mixed_precision" in said else {}
    if width.get("mixed_precision") == "fp16":
        width["fp16"] = True
    return {"accelerate": dict(said), **{key: value for key, value in sizes.items() if value is not None}, **width}


_AXES: Final = {"tensor_parallel_size": "tp", "context_parallel_size": "cp", "sp_size": "sp",
                "dp_shard_size": "dp_shard", "dp_replicate_size": "dp_replicate"}  # fmt: skip


class _StartedJob(NamedTuple):
    """A job that a script starts, on one way through it."""

    script: Script
    shape: tuple[str, ...]
    found: ImportedLaunch


def _shape(words: list[str]) -> tuple[str, ...]:
    """The words that fix the model, also where they do not fix all of it."""
    pairs = zip(words, [*words[1:], ""], strict=True)
    return tuple(sorted(f"{flag} {value}" for flag, value in pairs if flag.partition("=")[0] in shape_flags()))


def _one(read: list[_StartedJob], asked: ImportAsked) -> ImportedLaunch:
    """The job; several, or several ways that a script may go, must come to the same, or one is picked."""
    different: dict[tuple[object, ...], _StartedJob] = {}
    for job in read:
        found = job.found
        decisive = (found.strategy, found.gpus, found.global_batch, found.seq, found.precision, found.model)
        different.setdefault((*decisive, job.shape), job)
    jobs = list(different.values())
    shown = [str(job.found.strategy) for job in jobs]
    tests = dict.fromkeys(test.rpartition(": ")[0] for job in read for test in job.script.decided)
    if len(jobs) > 1 and tests and asked.pick is None:
        want = f"tests that can be decided, since what is run depends on them ({'; '.join(tests)}): {'; '.join(shown)}"
        fix = "Give its parameters, astra import FILE -- A B, set its variables, or choose with --pick 1 and so on."
        raise InputError(asked.name, None, want=want, fix=fix)
    names = [str(place) for place in range(1, len(jobs) + 1)]
    return jobs[asked.choose(names, shown)].found
