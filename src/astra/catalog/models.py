"""The models: those Astra knows by name, and those a user brings as a Hugging Face config or a TOML file.

Each known model is one file in ``data/models``, named after it; only the file asked for is parsed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from astra.errors import InputError, UnknownName, fold, nearest_names
from astra.files import load_toml, parse_json, parse_toml, read_text
from astra.spec.model import ModelSpec
from astra.spec.names import as_name
from astra.spec.record import decode

_FOLDER: Final = Path(__file__).parent / "data" / "models"
_ALIASES: Final = re.compile(r"^aliases\s*=\s*\[([^\]]*)\]", re.MULTILINE)
_QUOTED: Final = re.compile(r'"([^"]*)"')
_ACTIVE: Final = re.compile(r"-a\d+(\.\d+)?b(?![a-z])", re.IGNORECASE)  # parameters that one token meets
_TUNED: Final = re.compile(r"[-_](instruct|chat|base|hf|it|pt)$", re.IGNORECASE)
_BRING: Final = (
    "Or give the path of a Hugging Face config.json (or its folder), or of a TOML file with the model's shape "
    "(docs/models.md)."
)


def model(text: str | ModelSpec) -> ModelSpec:
    """A model by catalog name or alias, by path to a ``config.json`` or its folder, or by path to a TOML file.

    Names ignore case and punctuation, and a known name wins over a file of that name (write ``./name`` for the file).
    A Hugging Face id is a name, never fetched; a suffix such as ``-Instruct`` changes nothing in the shape. Where no
    file is called so, who publishes a model and how many of its parameters are active may be left out.
    """
    if isinstance(text, ModelSpec):
        return text
    wanted = text.strip()
    known = _find(wanted)
    if known is not None:
        return _load(known)
    if _is_path(wanted):
        return _read(Path(os.path.expanduser(wanted)), _short(wanted))
    raise UnknownName("model", wanted, model_names(), fix=_BRING)


@lru_cache(maxsize=1)
def models() -> tuple[ModelSpec, ...]:
    """Every model in the catalog, by name."""
    return tuple(_load(path) for path in sorted(_FOLDER.glob("*.toml"), key=lambda path: path.stem))


@lru_cache(maxsize=1)
def model_names() -> tuple[str, ...]:
    """The name of every model in the catalog."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def known_name(text: str) -> str | None:
    """The catalog's name of a model by its name or alias; None if it has none."""
    path = _find(text.strip())
    return None if path is None else path.stem


def is_known(spec: ModelSpec) -> bool:
    """Whether the catalog has this very model under its name."""
    return spec.name in model_names() and _load(_FOLDER / f"{spec.name}.toml") == spec


def _find(wanted: str) -> Path | None:
    """The catalog file of a name, an alias, either with the suffix of a tuned version, or a part that says enough."""
    if wanted.startswith((".", "/", "~")):
        return None
    for key in (fold(wanted), fold(_TUNED.sub("", wanted))):
        name = _by_name().get(key) or _by_alias().get(key)
        if name is not None:
            return _FOLDER / f"{name}.toml"
    short = None if _is_path(wanted) else _by_part().get(fold(wanted))
    return None if short is None else _FOLDER / f"{short}.toml"


@lru_cache(maxsize=1)
def _by_name() -> dict[str, str]:
    return {fold(name): name for name in model_names()}


@lru_cache(maxsize=1)
def _by_alias() -> dict[str, str]:
    """Folded alias to name."""
    return {fold(alias): name for alias, name in _aliases()}


@lru_cache(maxsize=1)
def _by_part() -> dict[str, str]:
    """The same for what is left of a name without publisher and active parameters, where one model alone has it."""
    found: dict[str, set[str]] = {}
    for alias, name in [*((name, name) for name in model_names()), *_aliases()]:
        own = alias.rpartition("/")[2]
        for part in (own, _ACTIVE.sub("", own)):
            found.setdefault(fold(part), set()).add(name)
    return {part: min(names) for part, names in found.items() if len(names) == 1}


def _aliases() -> Iterator[tuple[str, str]]:
    """Every alias with the name it is of. Reads one line of each file rather than parsing all of them."""
    for name in model_names():
        line = _ALIASES.search((_FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
        for alias in _QUOTED.findall(line.group(1)) if line else ():
            yield alias, name


@lru_cache(maxsize=256)
def _load(path: Path) -> ModelSpec:
    return _from_fields(load_toml(path.read_bytes()), path.name, path.stem)


def _is_path(text: str) -> bool:
    if "\0" in text:
        return False
    if "/" in text or "\\" in text or text.lower().endswith((".json", ".toml")):
        return True
    try:
        return bool(text) and Path(text).exists()
    except OSError:
        return False


def _read(path: Path, given: str) -> ModelSpec:
    """A model from a file or folder the user named."""
    try:
        if path.is_dir():
            path = path / "config.json"
        missing = not path.exists()
    except OSError as error:
        raise InputError(f"model {given}", None, want=f"a readable file ({error.strerror or error})") from None
    if missing:
        raise _no_file(path, given)
    text = read_text(path, "model")
    if path.suffix.lower() == ".toml":
        return _from_fields(parse_toml(text, str(path)), str(path), path.stem)
    config = parse_json(text, str(path))
    if not isinstance(config, dict):
        raise InputError(str(path), config, want="a JSON object, as in a Hugging Face config.json")
    from astra.catalog.huggingface import from_config  # noqa: PLC0415 - no model of the catalog needs it

    return from_config(config, where=str(path))


def _no_file(path: Path, given: str) -> InputError:
    near = UnknownName("model", Path(given).name, model_names()).nearest
    hint = f"Did you mean the catalog's {', '.join(near)}? " if near else ""
    return InputError(
        f"model {given}",
        None,
        want=f"a file that exists; there is no {_short(str(path))}",
        fix=f"{hint}A Hugging Face model is not fetched: download its config.json and give the path.",
    )


def _from_fields(fields: dict[str, Any], where: str, name: str) -> ModelSpec:
    _check_keys(fields, where)
    spec: ModelSpec = decode(ModelSpec, {"name": as_name(name), **fields}, where=where)
    return spec


def _check_keys(fields: dict[str, Any], where: str) -> None:
    known = _keys()
    for key, value in fields.items():
        if key not in known:
            near = nearest_names(key, known, count=1)
            fix = f"Did you mean {near[0]}?" if near else "docs/models.md lists the keys."
            raise InputError(f"{where}: {key}", value, want="a key of a model", fix=fix)
    for key, required in known.items():
        if required and key not in (*fields, "name"):
            raise InputError(f"{where}: {key}", None, want="this key with a whole number; it is missing")


@cache
def _keys() -> dict[str, bool]:
    """The keys of a model, and whether it must have each."""
    return {field.name: field.required for field in msgspec.structs.fields(ModelSpec)}


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:98]}...{text[-99:]}"
