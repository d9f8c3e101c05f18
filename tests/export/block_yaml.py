"""A reader of the YAML that exports are written in, block style with quoted or plain scalars, and of nothing else."""

from __future__ import annotations

import json
import re
from typing import Any, Final

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: Final = {"null": None, "true": True, "false": False}
_AMBIGUOUS: Final = ("y", "n", "yes", "no", "on", "off", "nan", "inf")


def read(text: str) -> Any:
    """The data; anything that is not of the form is an error."""
    assert text.endswith("\n")
    assert "\r" not in text
    lines = [line for line in text[:-1].split("\n") if not line.startswith("#")]
    value, rest = _block(lines, 0)
    assert not rest, rest[:3]
    return value


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    if lines[0][indent:].startswith("- ") or lines[0][indent:] == "-":
        return _sequence(lines, indent)
    return _mapping(lines, indent)


def _mapping(lines: list[str], indent: int) -> tuple[dict[Any, Any], list[str]]:
    found: dict[Any, Any] = {}
    while lines and lines[0].strip() and _indent(lines[0]) == indent and not lines[0][indent:].startswith("- "):
        line = lines[0][indent:]
        quoted = _QUOTED.match(line)
        key_text = quoted.group() if quoted else line[: line.index(":")]
        assert line[len(key_text)] == ":", line
        key = scalar(key_text)
        assert key not in found
        found[key], lines = _value(line[len(key_text) + 1 :], lines[1:], indent)
    return found, lines


def _sequence(lines: list[str], indent: int) -> tuple[list[Any], list[str]]:
    found = []
    while lines and _indent(lines[0]) == indent and lines[0][indent:].startswith("-"):
        line = lines[0][indent + 1 :]
        inner = _QUOTED.match(line[1:])
        nested = (
            line[1:] and not line[1:].startswith(("[", "{", "|")) and ":" in line[(inner.end() + 1 if inner else 1) :]
        )
        if nested:
            value, lines = _block([" " * (indent + 2) + line[1:], *lines[1:]], indent + 2)
        else:
            value, lines = _value(line, lines[1:], indent)
        found.append(value)
    return found, lines


def _value(text: str, rest: list[str], indent: int) -> tuple[Any, list[str]]:
    if not text:
        return _block(rest, indent + 2)
    assert text[0] == " ", text
    text = text[1:]
    if text == "|":
        return _literal(rest, indent + 2)
    if text in ("{}", "[]"):
        return ({} if text == "{}" else []), rest
    if text.startswith("["):
        return _flow(text), rest
    return scalar(text), rest


def _literal(lines: list[str], indent: int) -> tuple[str, list[str]]:
    taken = 0
    while taken < len(lines) and (not lines[taken] or _indent(lines[taken]) >= indent):
        taken += 1
    return "".join(f"{line[indent:]}\n" for line in lines[:taken]), lines[taken:]


def _flow(text: str) -> list[Any]:
    assert text.endswith("]"), text
    found, inside = [], text[1:-1]
    while inside:
        quoted = _QUOTED.match(inside)
        item = quoted.group() if quoted else inside.partition(", ")[0]
        found.append(scalar(item))
        inside = inside[len(item) :]
        assert not inside or inside.startswith(", "), text
        inside = inside.removeprefix(", ")
    return found


def scalar(text: str) -> Any:
    """One scalar on one line."""
    assert text.isprintable(), text
    if text in _WORDS:
        return _WORDS[text]
    if _NUMBER.fullmatch(text):
        return json.loads(text)
    if _PLAIN.fullmatch(text) and text.lower() not in _AMBIGUOUS:
        return text
    assert _QUOTED.fullmatch(text), text
    wide = re.sub(r"(?<!\\)((?:\\\\)*)\\U([0-9A-F]{8})", _narrow, text)
    return json.loads(wide)


def _narrow(found: re.Match[str]) -> str:
    """YAML's escape of any character in JSON's form."""
    return found.group(1) + json.dumps(chr(int(found.group(2), 16)))[1:-1]
