"""The part of YAML that training configurations are written in, read with bounds and without surprises.

Block mappings and lists, flow lists and mappings of scalars, quoted and plain scalars, literal and folded blocks,
comments, several documents. Anchors, tags and anything else are refused with the line.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from astra.errors import InputError

_MOST_LINES: Final = 20_000
_MOST_DEPTH: Final = 40
_MOST_DOCUMENTS: Final = 64
_MOST_DIGITS: Final = 64  # of a number, which the pattern could look at again and again
_KEY: Final = re.compile(
    r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#:,\[\]{}&*!|>'"%@`-][^#:\n]*?|-?[\w./-]+)\s*:(?=\s|$)"""
)
_WORDS: Final = {
    "true": True,
    "yes": True,
    "on": True,
    "false": False,
    "no": False,
    "off": False,
    "null": None,
    "~": None,
    "": None,
}
_INT: Final = re.compile(r"[-+]?[0-9][0-9_]{0,17}")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]*(?:[eE][-+]?[0-9]{1,3})?")


class _YamlLine(NamedTuple):
    number: int
    indent: int
    text: str


def parse_yaml(text: str, name: str) -> Any:
    """The data of a configuration."""
    return _YamlReader(text, name).whole()


def parse_documents(text: str, name: str) -> list[Any]:
    """The data of each document of a file; one that has nothing in it is left out."""
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if re.fullmatch(r"---(\s.*)?|\.\.\.\s*", line):
            # The lines before keep their numbers for the errors.
            parts.append([""] * (sum(map(len, parts[-1:])) + 1))
        else:
            parts[-1].append(line)
        if len(parts) > _MOST_DOCUMENTS:
            raise InputError(name, None, want=f"at most {_MOST_DOCUMENTS} documents")
    found = [
        parse_yaml("\n".join(lines), name) for lines in parts if any(_without_comment(line).strip() for line in lines)
    ]
    return found or [{}]


class _YamlReader:
    def __init__(self, text: str, name: str) -> None:
        self._name = name
        self._raw = text.replace("\t", "    ").splitlines()
        if len(self._raw) > _MOST_LINES:
            raise InputError(name, None, want=f"a configuration of at most {_MOST_LINES:,} lines")
        lines = [(at, line) for at, line in enumerate(self._raw) if _without_comment(line).strip()]
        self._lines = [
            _YamlLine(at, len(line) - len(line.lstrip()), _without_comment(line).strip()) for at, line in lines
        ]
        if self._lines and self._lines[0].text == "---":
            del self._lines[0]
        self._at = 0

    def whole(self) -> Any:
        if not self._lines:
            return {}
        found = self._value(self._lines[0].indent, 0)
        if self._at < len(self._lines):
            raise self._wrong("one document, its lines indented alike")
        return found

    def _wrong(self, want: str) -> InputError:
        line = self._lines[min(self._at, len(self._lines) - 1)]
        return InputError(f"{self._name}: line {line.number + 1}", line.text[:80], want=want)

    def _value(self, indent: int, depth: int) -> Any:
        if depth > _MOST_DEPTH:
            raise self._wrong(f"at most {_MOST_DEPTH} levels")
        line = self._lines[self._at]
        if line.text == "-" or line.text.startswith("- "):
            return self._list(indent, depth)
        if line.text[0] not in "[{" and _KEY.match(line.text):
            return self._mapping(indent, depth)
        self._at += 1
        return self._flow(line.text)

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        while self._at < len(self._lines) and self._lines[self._at].indent == indent:
            line = self._lines[self._at]
            match = _KEY.match(line.text)
            if match is None:
                if line.text.startswith("- "):
                    break
                raise self._wrong("a key and a colon")
            key = str(self._scalar(match.group(1))) if match.group(1)[0] in "\"'" else match.group(1)
            if key in found:
                raise self._wrong(f"{key} once")
            self._at += 1
            found[key] = self._after(line.text[match.end() :].strip(), indent, depth)
        return found

    def _after(self, rest: str, indent: int, depth: int) -> Any:
        """The value behind a key: on its line, or on the lines below."""
        if rest in ("|", "|-", "|+", ">", ">-", ">+"):
            return self._block(indent, folded=rest[0] == ">")
        if rest:
            return self._flow(rest)
        below = self._lines[self._at] if self._at < len(self._lines) else None
        if below is not None and (below.indent > indent or (below.indent == indent and below.text.startswith("- "))):
            return self._value(below.indent, depth + 1)
        return None

    def _list(self, indent: int, depth: int) -> list[Any]:
        found: list[Any] = []
        while self._at < len(self._lines):
            line = self._lines[self._at]
            if line.indent != indent or not (line.text == "-" or line.text.startswith("- ")):
                break
            rest = line.text[1:].strip()
            if rest and _KEY.match(rest) and rest[0] not in "[{":
                inner = indent + len(line.text) - len(line.text[1:].lstrip())
                self._lines[self._at] = _YamlLine(line.number, inner, rest)
                found.append(self._value(inner, depth + 1))
                continue
            self._at += 1
            found.append(self._after(rest, indent, depth))
        return found

    def _block(self, indent: int, *, folded: bool) -> str:
        lines = []
        while self._at < len(self._lines) and self._lines[self._at].indent > indent:
            lines.append(self._raw[self._lines[self._at].number].strip())
            self._at += 1
        return (" " if folded else "\n").join(lines)

    def _flow(self, text: str) -> Any:
        """A scalar, or a list or mapping in brackets, which may go on over lines."""
        if text[0] not in "[{":
            return self._scalar(text)
        while text.count("[") + text.count("{") > text.count("]") + text.count("}") and self._at < len(self._lines):
            text += " " + self._lines[self._at].text
            self._at += 1
        value, rest = self._bracket(text, 0)
        if rest.strip():
            raise self._wrong("nothing behind a bracket that closes")
        return value

    def _bracket(self, text: str, depth: int) -> tuple[Any, str]:
        if depth > _MOST_DEPTH:
            raise self._wrong(f"at most {_MOST_DEPTH} levels")
        closes, is_list = ("]", True) if text[0] == "[" else ("}", False)
        items: list[Any] = []
        pairs: dict[str, Any] = {}
        rest = text[1:].lstrip()
        while rest and rest[0] != closes:
            key = None
            if not is_list:
                match = _KEY.match(rest) or re.match(r"""("[^"]*"|'[^']*')\s*:""", rest)
                if match is None:
                    raise self._wrong("a key and a colon")
                key, rest = str(self._scalar(match.group(1))), rest[match.end() :].lstrip()
            if rest[:1] in ("[", "{"):
                value, rest = self._bracket(rest, depth + 1)
            else:
                match = re.match(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\]}]*)""", rest)
                value, rest = self._scalar(match.group(1).strip() if match else ""), rest[match.end() if match else 0 :]
            if key is None:
                items.append(value)
            else:
                pairs[key] = value
            rest = rest.lstrip()
            if rest[:1] == ",":
                rest = rest[1:].lstrip()
            elif rest[:1] != closes:
                raise self._wrong("a comma or a bracket that closes")
        if not rest:
            raise self._wrong("a bracket that closes")
        return (items if is_list else pairs), rest[1:]

    def _scalar(self, text: str) -> Any:
        if text[:1] == '"':
            try:
                return json.loads(text)
            except ValueError:
                raise self._wrong("text in double quotes") from None
        if text[:1] == "'":
            return text[1:-1].replace("''", "'")
        if text[:1] in ("&", "*", "!", "%", "@", "`"):
            raise self._wrong("plain values: anchors, tags and the like are not read")
        if text.lower() in _WORDS:
            return _WORDS[text.lower()]
        return _plain(text)


def _plain(text: str) -> int | float | str:
    """A number, or the text that it is."""
    if len(text) <= _MOST_DIGITS:
        if _INT.fullmatch(text):
            return int(text.replace("_", ""))
        if _FLOAT.fullmatch(text) and re.search(r"[0-9]", text):
            return float(text.replace("_", ""))
    return text


def _without_comment(line: str) -> str:
    """A line up to a number sign that begins a comment."""
    if "#" not in line:
        return line
    quote = ""
    for at, letter in enumerate(line):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter == "#" and (at == 0 or line[at - 1].isspace()):
            return line[:at]
    return line
