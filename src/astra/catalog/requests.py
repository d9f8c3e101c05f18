"""Requests in files: a TOML file of fields, or the plan file that an earlier request made, of whatever version."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal

from astra.catalog import hardware, models
from astra.errors import AstraError, InputError
from astra.files import parse_json, parse_toml, read_text
from astra.spec.fields import fields_of, read_fields, unknown_field
from astra.spec.model import ModelSpec
from astra.spec.request import FIELDS, PlanRequest

_WORK: Final = {"global_batch": "batch"}
_KEPT: Final = ("seq", "tokens", "precision", "optimizer", "task", "lora_rank")
_SAID: Final = ("runtime", "headroom", "counts", "top")


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's record with the fields that later versions added, as far as the file tells them."""
    whole = dict(record)
    for name, made in _ADDED.items():
        if name not in whole and (value := made(record)) is not None:
            whole[name] = value
    return whole


def _asked(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request, from the description of it that the first plan files have; None if that is not whole."""
    said = record.get("request")
    work = said.get("workload") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(work, Mapping):
        return None
    several = said.get("pools")
    rows = list(several.values()) if isinstance(several, Mapping) else [said]
    pools = [pool for row in rows if isinstance(row, Mapping) and isinstance(pool := row.get("pool"), Mapping)]
    if len(pools) != len(rows):
        return None
    asked = {_WORK.get(name, name): work[name] for name in (*_WORK, *_KEPT) if work.get(name) is not None}
    asked |= {name: said[name] for name in _SAID if said.get(name) is not None}
    return {"model": _model_said(said), **_fleet(pools), **asked}


def _model_said(said: Mapping[str, Any]) -> Any:
    """The model by its name where the catalog has it, else by its shape."""
    name = said.get("model")
    return name if isinstance(name, str) and models.known_name(name) else said.get("model_spec", name)


def _fleet(pools: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The GPUs by name where the catalog has all of them, else by what the file says of them."""
    try:
        texts = [_gpus_text(pool) for pool in pools]
    except (AstraError, KeyError, TypeError):
        return {"cluster": {"pools": pools}}
    return {"gpus": texts}


def _gpus_text(pool: Mapping[str, Any]) -> str:
    gpu, node = hardware.device(pool["device"]["name"]), hardware.node_type(pool["node"]["name"])
    return f"{pool['gpus']}x{gpu.name}@{node.name}"


_ADDED: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {"asked": _asked}


_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> str:
    """Plain data as TOML: numbers, texts, lists and tables of them, which read back to the same; no None."""
    lines, tables = [], []
    for name, value in values.items():
        inner = (*path, name)
        if isinstance(value, Mapping):
            tables.append(f"\n[{_key(inner)}]\n{write_toml(value, inner)}")
        elif isinstance(value, list) and value and all(isinstance(each, Mapping) for each in value):
            tables += [f"\n[[{_key(inner)}]]\n{write_toml(each, inner)}" for each in value]
        else:
            lines.append(f"{_key((name,))} = {_value(value)}\n")
    return "".join([*lines, *tables])


def _key(path: tuple[str, ...]) -> str:
    return ".".join(name if _BARE.fullmatch(name) else _toml_text(name) for name in path)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key((name,))} = {_value(each)}' for name, each in value.items())}}}"
    return _toml_text(value) if isinstance(value, str) else repr(value)


def _toml_text(text: str) -> str:
    """A basic string: JSON's, but that DEL is a control character too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


_ANSWERS: Final = ("astra.plan", "astra.rent")
_ANSWER: Final = re.compile(r'\s*\{\s*"schema"\s*:\s*"astra\.')  # every answer begins with it
_PATHS: Final = ("model", "cluster", "rules")
_SHAPE: Final = {name for name in ModelSpec.__struct_fields__ if name != "name"}


def is_answer(text: str) -> bool:
    """Whether a text is an answer of ours."""
    return _ANSWER.match(text) is not None


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
    if text is None:
        return None
    read = parse_json(text, str(path))
    if not is_answer(text):
        return None  # a model's config.json
    record = upgraded(read)
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
