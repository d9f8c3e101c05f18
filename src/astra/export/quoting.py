"""Text that other programs read, one function for each language, with nothing a user wrote ever taken for syntax."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from astra.errors import visible

# Plain YAML scalars that no reader takes for a number, a boolean, a date or null.
_PLAIN: Final = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_RESERVED: Final = frozenset(["y", "n", "yes", "no", "true", "false", "on", "off", "null", "nan", "inf"])
# Letters that mean something in the middle of a line of Markdown or HTML; a colon makes a link of an address.
_MARKDOWN: Final = re.compile(r"[!#$&*:<>@\[\\\]_`|~]")


def shell(word: object) -> str:
    """One word of bash, on one line."""
    text = str(word).replace("\0", visible("\0"))  # no word can hold it
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(map(_shell_letter, text)) + "'"


def _shell_letter(letter: str) -> str:
    if letter in "\\'":
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return "".join(f"\\x{byte:02x}" for byte in letter.encode("utf-8", "surrogatepass"))


def comment(text: str) -> str:
    """A comment line of a shell, YAML or Python file."""
    return f"# {visible(text)}"


def directive(option: str, value: object = None) -> str:
    """A line of a batch script that Slurm reads."""
    said = "" if value is None else "=" + re.sub(r"[^A-Za-z0-9._:-]+", "-", str(value))
    return f"#SBATCH --{option}{said}"


def python(value: object) -> str:
    """Plain data as a Python literal."""
    return visible(repr(value))


def markdown(text: object) -> str:
    """Text inside a line or a table cell of Markdown."""
    return _MARKDOWN.sub(lambda found: f"\\{found.group()}", visible(str(text)))


def host_word(name: str) -> str:
    """One word of a host file, which knows no quotes."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "gpu"


def shell_array(name: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A bash array, one flag and its values per line."""
    return [f"{name}=(", *("  " + " ".join(shell(word) for word in row) for row in rows), ")"]


def yaml(value: Any) -> str:
    """Plain data as block-style YAML."""
    return "\n".join(_yaml_lines(value, 0)) + "\n"


def _yaml_lines(value: Any, indent: int) -> list[str]:
    pad = "  " * indent
    lines: list[str] = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            lines += _entry(f"{pad}{_scalar(str(key))}:", item, indent)
        return lines
    for item in value:
        if isinstance(item, Mapping) and item:
            inner = _yaml_lines(item, indent + 1)
            lines += [f"{pad}- {inner[0].lstrip()}", *inner[1:]]
        else:
            lines += _entry(f"{pad}-", item, indent)
    return lines


def _entry(start: str, item: Any, indent: int) -> list[str]:
    if isinstance(item, Mapping | list | tuple):
        if not item:
            return [f"{start} {'{}' if isinstance(item, Mapping) else '[]'}"]
        short = not isinstance(item, Mapping) and all(isinstance(part, int | float | str) for part in item)
        if short and not any(isinstance(part, str) and _literal(part) for part in item):
            return [f"{start} [{', '.join(_scalar(part) for part in item)}]"]
        return [start, *_yaml_lines(item, indent + 1)]
    if isinstance(item, str) and _literal(item):
        pad = "  " * (indent + 1)
        return [f"{start} |", *(f"{pad}{line}" if line else "" for line in item[:-1].split("\n"))]
    return [f"{start} {_scalar(item)}"]


def _literal(text: str) -> bool:
    """Whether a literal block keeps the text exactly: printable lines, one final line break, no leading space."""
    lines = text[:-1].split("\n")
    whole = text.endswith("\n") and len(lines) > 1 and bool(lines[-1]) and bool(lines[0])
    safe = text.replace("\n", "").isprintable()
    return whole and safe and not lines[0].startswith(" ")


def _scalar(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text = json.dumps(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text  # YAML 1.1 wants the point
    text = str(value)
    if _PLAIN.fullmatch(text) and text.lower() not in _RESERVED:
        return text
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(letter if letter.isprintable() else _yaml_escape(letter) for letter in quoted)


def _yaml_escape(letter: str) -> str:
    """Half of a surrogate pair is no character of YAML: it is shown instead."""
    code = ord(letter)
    return f"\\{visible(letter)}" if 0xD800 <= code <= 0xDFFF else f"\\U{code:08X}"


def json_text(value: Any) -> str:
    """Plain data as indented JSON."""
    return json.dumps(value, indent=2) + "\n"


def file_name(text: str) -> str:
    """A name with nothing in it that a path or a scheduler could stumble over."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "model"
