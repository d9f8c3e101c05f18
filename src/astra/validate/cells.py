"""Cells of a table of runs: words, numbers and switches, or the reason a row cannot be replayed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

Row = Mapping[str, str]

_SILENT: Final = frozenset(("", "-", "?", "na", "n/a", "nan", "none", "null", "unknown"))
_NUMBER: Final = re.compile(
    r"[~≈]?\s*(-?(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d*\.?\d+\.?(?:e[-+]?\d+)?))\s*([a-z]*)", re.IGNORECASE
)
# What may stand behind a number: seconds and gigabytes, in which columns are, or a part of them.
_UNITS: Final = {
    "": 1.0,
    "s": 1.0,
    "sec": 1.0,
    "ms": 1e-3,
    "gb": 1.0,
    "gib": 1.0,
    "g": 1.0,
    "mb": 2**-10,
    "mib": 2**-10,
}
_LARGEST: Final = 1e15
_SWITCHES: Final = dict.fromkeys(("1", "1.0", "true", "yes", "on"), True) | dict.fromkeys(
    ("0", "0.0", "false", "no", "off"), False
)


class Missing(Exception):
    """The row cannot be replayed, for this reason."""


def words_of(row: Row, name: str) -> str:
    """A cell as one line of printable text; empty where there is none."""
    cell = row.get(name)
    if not isinstance(cell, str):
        return ""
    plain = cell if cell.isprintable() else "".join(letter if letter.isprintable() else " " for letter in cell)
    return plain.strip()


def number(row: Row, name: str, thousand: float = 1000.0) -> float | None:
    """A positive number; None where the cell is silent or zero. What is written but cannot be meant is refused.

    ``1,024``, ``~1.2``, ``350 ms``, ``75.2 GiB`` and ``12k`` are numbers too.
    """
    words = words_of(row, name)
    if words.lower() in _SILENT:
        return None
    found = _NUMBER.fullmatch(words)
    scale = (_UNITS | {"k": thousand}).get(found.group(2).lower()) if found else None
    if found is None or scale is None:
        raise Missing(f"not a number: {name}")
    value = float(found.group(1).replace(",", "")) * scale
    if not 0 <= value <= _LARGEST:
        raise Missing(f"out of range: {name}")
    return value or None


def count(row: Row, name: str) -> int | None:
    """A whole number, as `number`; of those that are counted in thousands, such as 8k tokens, a thousand is 1,024."""
    value = number(row, name, 1024.0)
    if value is not None and value != int(value):
        raise Missing(f"not a whole number: {name}")
    return None if value is None else int(value)


def degree(row: Row, name: str) -> int | None:
    """A whole number of one or more; None where the cell is silent. A zero is no degree."""
    value = count(row, name)
    if value is None and words_of(row, name).lower() not in _SILENT:
        raise Missing(f"out of range: {name}")
    return value


def needed(row: Row, name: str, what: str) -> int:
    """A whole number without which there is nothing to replay."""
    value = count(row, name)
    if value is None:
        raise Missing(f"incomplete: {what} is missing")
    return value


def switch(words: str) -> bool | None:
    """On or off, as tables write it; None where it is neither."""
    return _SWITCHES.get(words.strip().lower())
