"""Read what somebody runs today into a strategy: scripts, configurations and plan files."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Final

from astra.errors import InputError
from astra.export.import_bridge import LINE, read_words
from astra.export.import_configs import read_config
from astra.export.import_pytorch import read_constants
from astra.export.import_script import read_script
from astra.export.import_torchtitan import read_python, read_titan
from astra.export.import_trainer import read_call
from astra.export.imported import ImportAsked, ImportedLaunch
from astra.export.yaml_reading import parse_documents
from astra.files import parse_json, parse_toml, read_text
from astra.spec.kinds import path_text, whole

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


def import_text(
    text: str, *, name: str, gpus: int | None = None, parameters: Sequence[str] = (), pick: str | None = None,
    vocab: int | None = None,
) -> ImportedLaunch:  # fmt: skip
    """The content of a file, understood by its name's ending."""
    return read(text, ImportAsked(name, gpus, tuple(parameters), pick, vocab))


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
