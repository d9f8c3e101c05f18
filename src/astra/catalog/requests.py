"""Requests in files: a TOML file of fields, or the plan file that an earlier request made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from astra.catalog.clusters import read_text
from astra.catalog.toml import load_toml, write_toml
from astra.errors import InputError
from astra.spec.fields import fields_of, unknown_field
from astra.spec.model import ModelSpec
from astra.spec.request import FIELDS, PlanRequest

_ANSWERS: Final = ("astra.plan", "astra.rent")
_LARGEST_TOML: Final = 2**20
_LARGEST_JSON: Final = 64 * 2**20
_PATHS: Final = ("model", "cluster", "rules")
_SHAPE: Final = {name for name in ModelSpec.__struct_fields__ if name != "name"}


def read_request_file(text: str) -> dict[str, Any] | None:
    """The fields a file asks for, by name; None if the text names no request but a model."""
    path = Path(text)
    kind = path.suffix.lower()
    if kind not in (".toml", ".json") or not path.is_file():
        return None
    return _from_toml(path) if kind == ".toml" else _from_json(path)


def write_request(asked: Mapping[str, Any], verb: str) -> str:
    """The plain form of a request as TOML; the verb given the file answers the same."""
    return f"# A request of Astra, every name resolved: astra {verb} FILE\n{write_toml(asked)}"


def _from_toml(path: Path) -> dict[str, Any] | None:
    try:
        fields = load_toml(read_text(path, what="a TOML file", limit_bytes=_LARGEST_TOML).encode())
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError(str(path), None, want=f"valid TOML ({reason})") from None
    if "model" not in fields and _SHAPE & set(fields):
        return None  # the shape of a model
    _check_names(fields, str(path))
    return {name: _placed(name, value, path.parent) for name, value in fields.items()}


def _from_json(path: Path) -> dict[str, Any] | None:
    text = read_text(path, what="a JSON file", limit_bytes=_LARGEST_JSON)
    if '"schema"' not in text[:200]:
        return None  # a model's config.json
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None  # told by the reader of models
    if not isinstance(record, dict) or not str(record.get("schema")).startswith("astra."):
        return None
    asked = record.get("asked")
    if str(record["schema"]).partition("/")[0] not in _ANSWERS or not isinstance(asked, dict) or not asked:
        fix = "Plan files of this version have it, under asked."
        raise InputError(str(path), record["schema"], want="a plan file that carries its request", fix=fix)
    _check_names(asked, f"{path}: asked")
    return asked


def _check_names(fields: Mapping[str, Any], where: str) -> None:
    for name in fields:
        if name not in FIELDS:
            raise unknown_field(name, fields_of(PlanRequest), f"{where}: {name[:80]}")


def _placed(name: str, value: Any, folder: Path) -> Any:
    """Paths in a file are from its folder, where there is such a file."""
    if name == "money" and isinstance(value, dict):
        return {key: _beside(each, folder) if key == "prices" else each for key, each in value.items()}
    return _beside(value, folder) if name in _PATHS else value


def _beside(value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or "\0" in value:
        return value
    there = folder / value
    try:
        return str(there) if there.exists() and (there.suffix or "/" in value) else value
    except OSError:
        return value
