"""Read what somebody runs today into a strategy: scripts, configurations and plan files."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

from astra.errors import InputError
from astra.export.flagscale import read_flagscale, read_model_args
from astra.export.import_bridge import LINE, read_sections, read_words
from astra.export.import_megatron_yaml import is_nemo, read_nemo, read_neox
from astra.export.import_script import read_script
from astra.export.import_sharding import KEYS as DEEPSPEED_KEYS
from astra.export.import_sharding import read_accelerate, read_deepspeed
from astra.export.import_torchtitan import read_nanotron, read_python, read_titan
from astra.export.import_trainer import read_call, read_trainer
from astra.export.imported import ImportAsked, ImportedLaunch, known_settings
from astra.export.pytorch import read_constants
from astra.export.yaml_reading import parse_documents
from astra.files import parse_json, parse_toml, read_text
from astra.spec.kinds import path_text, whole

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


def _trainer(*groups: str) -> set[str]:
    return {key for group in groups for key in known_settings("trainer").words[group]}


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
        lambda keys, record: any(key in record for key in _trainer("model")) and bool(keys & _trainer("batch", "seq")),
        read_trainer,
    ),
    (lambda keys, _: "per_device_train_batch_size" in keys, read_trainer),
    (lambda keys, _: bool(DEEPSPEED_KEYS & keys), read_deepspeed),
)


MOST_VOCAB: Final = 100_000_000


def import_file(
    path: str | PathLike[str], *, gpus: int | None = None, parameters: Sequence[str] = (), pick: str | None = None,
    vocab: int | None = None,
) -> ImportedLaunch:  # fmt: skip
    """A file of any kind that is understood; ``gpus`` and ``vocab`` where it does not say them."""
    shown = path_text(path, "file", "the path of a configuration")
    if gpus is not None:
        gpus = whole(1, 10_000_000).read(gpus, "gpus")
    if vocab is not None:
        vocab = whole(1, MOST_VOCAB).read(vocab, "vocab")
    asked = ImportAsked(Path(shown).name, gpus, tuple(parameters), pick, vocab, str(Path(shown).parent))
    return read(read_text(shown, "launch"), asked)


def read(text: str, asked: ImportAsked) -> ImportedLaunch:
    """The content of a file, with what the user says beside it."""
    name = asked.name
    if name.endswith((".yaml", ".yml")):
        documents = parse_documents(text, name)
        names = [str(place) for place in range(1, len(documents) + 1)]
        return read_config(documents[asked.choose(names)], asked)
    if name.endswith(".py"):
        return _python(text, asked)
    overrides = name.endswith(".txt") and LINE.search(text) is not None
    if not overrides and not name.endswith((".json", ".toml")):
        return read_script(text, asked)
    asked.choose(["1"])
    if overrides:
        return read_words(text.splitlines(), asked)
    if name.endswith(".toml"):
        return read_titan(parse_toml(text, name), asked)
    return read_config(parse_json(text, name), asked)


def _python(text: str, asked: ImportAsked) -> ImportedLaunch:
    """A Python file, read as text: it is never run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InputError(asked.name, None, want="a Python file") from None
    found = read_constants(tree, asked.name) or read_python(tree, asked) or read_call(tree, asked)
    if found is None:
        want = "a torchtitan configuration that sets config.parallelism, TrainingArguments, or an exported trainer"
        raise InputError(asked.name, None, want=want)
    return found
