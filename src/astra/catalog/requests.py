"""Requests in files: a TOML file of fields, or the plan file that an earlier request made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from astra.catalog.plan_files import upgraded
from astra.catalog.toml import write_toml
from astra.errors import InputError
from astra.files import parse_json, parse_toml, read_text
from astra.spec.fields import fields_of, read_fields, unknown_field
from astra.spec.model import ModelSpec
from astra.spec.request import FIELDS, PlanRequest

_ANSWERS: Final = ("astra.plan", "astra.rent")
_ANSWER: Final = re.compile(r'\s*\{\s*"schema"\s*:\s*"astra\.')  # every answer begins with it
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
    text = _text(path, "request")
    fields = {} if text is None else parse_toml(text, str(path))
    if text is None or ("model" not in fields and _SHAPE & set(fields)):
        return None  # the shape of a model
    _check_names(fields, str(path))
    return {name: placed(name, value, path.parent) for name, value in fields.items()}


def _from_json(path: Path) -> dict[str, Any] | None:
    text = _text(path, "plan")
    if text is None or not _ANSWER.match(text):
        return None  # a model's config.json
    record = upgraded(parse_json(text, str(path)))
    schema, asked = str(record["schema"]), record.get("asked")
    if schema.partition("/")[0] not in _ANSWERS or not isinstance(asked, dict) or not asked:
        fix = "Plan files have it, under asked; this one was cut or edited."
        raise InputError(str(path), schema, want="a plan file that carries its request", fix=fix)
    _check_names(asked, f"{path}: asked")
    return asked


def _text(path: Path, kind: Literal["request", "plan"]) -> str | None:
    """The text of a file; None if it cannot be read, which is told by the reader of models."""
    try:
        return read_text(path, kind)
    except InputError:
        return None


def _check_names(fields: Mapping[str, Any], where: str) -> None:
    for name in fields:
        if name not in FIELDS:
            raise unknown_field(name, fields_of(PlanRequest), f"{where}: {name[:80]}")


def read_plain(fields: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """The fields of a plan in a table of a file, in their plain forms; its money options stay a table."""
    relative = {name: placed(name, value, folder) for name, value in fields.items()}
    read = read_fields(PlanRequest, relative, lambda name: f"{where}.{name}", taken="plan")
    return read | ({"money": relative["money"]} if isinstance(relative.get("money"), dict) else {})


def placed(name: str, value: Any, folder: Path) -> Any:
    """Paths in a file are from its folder, where there is such a file."""
    if name == "money" and isinstance(value, dict):
        return {key: _relative_to(each, folder) if key == "prices" else each for key, each in value.items()}
    return _relative_to(value, folder) if name in _PATHS else value


def _relative_to(value: Any, folder: Path) -> Any:
    if not isinstance(value, str) or "\0" in value:
        return value
    there = folder / value
    try:
        return str(there) if there.exists() and (there.suffix or "/" in value) else value
    except OSError:
        return value
