"""The one TOML writer; the reader is in ``astra.files``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

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
    return ".".join(name if _BARE.fullmatch(name) else _text(name) for name in path)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key((name,))} = {_value(each)}' for name, each in value.items())}}}"
    return _text(value) if isinstance(value, str) else repr(value)


def _text(text: str) -> str:
    """A basic string: JSON's, but that DEL is a control character too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
