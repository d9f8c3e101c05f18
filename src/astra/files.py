"""The one way in for files that users name: regular, of bounded size, in UTF-8, and not nested beyond reason.

Each kind of file has the largest size it may have. What cannot be used is refused with an InputError, within a second
and 200 MB, whatever the path names: a device, a pipe, a folder, a file without end, text that grows when
it is parsed.
"""

from __future__ import annotations

import csv
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from astra.errors import InputError, shortened

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Kind = Literal[
    "cluster", "jobs", "launch", "model", "plan", "prices", "profile", "rehearsal", "request", "rules", "runs", "study"
]  # fmt: skip
KIB: Final = 1024
MIB: Final = 1024**2
# Values of a file, by what each of them costs to parse.
MOST_CELLS: Final = 2_000_000
MOST_JSON_VALUES: Final = 500_000
MOST_TOML_VALUES: Final = 50_000
MOST_DEPTH: Final = 64  # tables or lists inside each other
MOST_DOTS: Final = 16  # parts of a dotted TOML key, which costs the square of them
_LARGEST: Final = 2**63
_QUOTED: Final = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"""|\'\'\'.*?\'\'\'|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*', re.DOTALL
)
_DOTTED: Final = re.compile(rf"(?:\.[ \t]*[^\s.=\[\]{{}},]*[ \t]*){{{MOST_DOTS},}}")
_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_BYTE: Final = re.compile(r" \(byte ([0-9]+)\)$")
_KINDS: Final = {
    "a folder, not a regular file": stat.S_ISDIR,
    "a pipe, not a regular file: save what comes out of it": stat.S_ISFIFO,
    "a device, not a regular file": lambda mode: stat.S_ISCHR(mode) or stat.S_ISBLK(mode),
    "a socket, not a regular file": stat.S_ISSOCK,
}


class _FileLimit(NamedTuple):
    what: str
    most_bytes: int


LIMITS: Final[dict[Kind, _FileLimit]] = {
    "cluster": _FileLimit("a TOML file of a cluster", MIB),
    "launch": _FileLimit("a launch script or a configuration", 128 * KIB),
    "model": _FileLimit("a config.json or a TOML file of a model", 8 * MIB),
    "plan": _FileLimit("a plan file", 8 * MIB),
    "prices": _FileLimit("a CSV file of prices", 16 * MIB),
    "profile": _FileLimit("a profile written by astra profile", 16 * MIB),
    "rehearsal": _FileLimit("a rehearsal file", 16 * MIB),
    "request": _FileLimit("a TOML file of a request", MIB),
    "study": _FileLimit("a TOML file that declares a study", MIB),
    "jobs": _FileLimit("a TOML file of pools and jobs", MIB),
    "rules": _FileLimit("a file of rules", MIB),
    "runs": _FileLimit("a CSV file of published runs", 16 * MIB),
}
_TOML: Final = _FileLimit("a TOML file", MIB)


def read_bytes(path: str | os.PathLike[str], kind: Kind) -> bytes:
    """The content of a user's file, or an InputError that says why it cannot be used."""
    where, limit = os.fspath(path), LIMITS[kind]
    try:
        _check_regular(os.stat(path), where, limit)
        # Without O_NONBLOCK a pipe that takes the file's place in between would hang here.
        number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(number, "rb") as stream:
            _check_regular(os.fstat(number), where, limit)
            raw = stream.read(limit.most_bytes + 1)
    except FileNotFoundError:
        raise InputError(where, None, want=limit.what, fix="There is no such file.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(where, None, want=f"{limit.what} that can be read", fix=f"{reason}.") from None
    _check_size(len(raw), where, limit)
    return raw


def read_text(path: str | os.PathLike[str], kind: Kind) -> str:
    """The text of a user's file, which must be UTF-8; a byte order mark is dropped."""
    return decode_text(read_bytes(path, kind), os.fspath(path))


def read_json(path: str | os.PathLike[str], kind: Kind) -> Any:
    """The data of a user's JSON file."""
    return parse_json(read_text(path, kind), os.fspath(path))


def read_toml(path: str | os.PathLike[str], kind: Kind) -> dict[str, Any]:
    """The tables of a user's TOML file."""
    return parse_toml(read_text(path, kind), os.fspath(path))


def decode_text(raw: bytes, where: str) -> str:
    """Bytes as text."""
    if b"\0" in raw:
        raise InputError(where, None, want="text, not a binary file", fix=f"Byte {raw.index(0):,} is zero.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(f"{where}: line {line}", None, want="text in UTF-8", fix="Save the file as UTF-8.") from None


def parse_json(text: str, where: str) -> Any:
    """JSON text as plain data; ``where`` names it in errors."""
    _check_values(sum(map(text.count, ",[{")), MOST_JSON_VALUES, where)
    raw = text.encode("utf-8", "surrogatepass")
    try:
        found = msgspec.json.decode(raw)
    except RecursionError:
        raise _too_deep(where) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(where, None, want=f"whole JSON; {_place(str(error), raw)}") from None
    check_plain(found, where)
    return found


def own_text(module: str, name: str) -> str:
    """A text that comes with Astra, in the folder ``data`` beside a module (its ``__file__``)."""
    with open(os.path.join(os.path.dirname(module), "data", name), encoding="utf-8") as stream:
        return stream.read()


def load_toml(raw: bytes) -> dict[str, Any]:
    """TOML that comes with Astra; raises UnicodeDecodeError or TOMLDecodeError (both are ValueErrors)."""
    return tomllib.loads(raw.decode("utf-8"))


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """TOML text as plain data; ``where`` names it in errors."""
    _check_size(len(text), where, _TOML)
    bare = _QUOTED.sub("q", text)
    if _deepest(bare) > MOST_DEPTH:
        raise _too_deep(where)
    _check_values(sum(map(bare.count, ",[{.=")), MOST_TOML_VALUES, where)
    dotted = _DOTTED.search(bare)
    if dotted is not None:
        raise InputError(where, None, want=f"keys of at most {MOST_DOTS} parts", fix="One has more dots.")
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(where) from None
    except ValueError as error:
        reason = "a number has too many digits" if "int_max_str_digits" in str(error) else str(error)
        raise InputError(where, None, want=f"valid TOML ({shortened(reason, 200)})") from None
    check_plain(found, where)
    return found


def csv_rows(text: str, where: str, *, delimiter: str = ",", strict: bool = True) -> Iterator[tuple[int, list[str]]]:
    """The rows of CSV text that are not blank, each with the number of its last line; ``strict`` about quotes."""
    _check_values(text.count(delimiter) + text.count("\n"), MOST_CELLS, where)
    reader = csv.reader((line.group() for line in _LINE.finditer(text)), delimiter=delimiter, strict=strict)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise InputError(f"{where}: line {reader.line_num}", None, want=f"well-formed CSV ({error})") from None


def check_plain(data: Any, where: str) -> None:
    """Refuse data nested too deeply, and whole numbers that no record could hold."""
    level: list[tuple[str, Any]] = [(where, data if isinstance(data, dict | list) else [data])]
    for _ in range(MOST_DEPTH):
        inside: list[tuple[str, Any]] = []
        for place, container in level:
            for key, value in container.items() if isinstance(container, dict) else enumerate(container):
                if isinstance(value, dict | list):
                    inside.append((_inner(place, key, container), value))
                elif isinstance(value, int) and not -_LARGEST <= value < _LARGEST:
                    raise InputError(_inner(place, key, container), None, want="numbers of at most 18 digits")
        if not inside:
            return
        level = inside
    raise _too_deep(where)


def whole_number(text: str, most_digits: int = 9) -> int | None:
    """The whole number that plain digits spell; None for anything else, such as ``²`` or a thousand digits."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= most_digits else None


def _check_regular(found: os.stat_result, where: str, limit: _FileLimit) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = next((name for name, test in _KINDS.items() if test(found.st_mode)), "not a regular file")
        raise InputError(where, None, want=limit.what, fix=f"It is {kind}.")
    _check_size(found.st_size, where, limit)


def _check_size(size: int, where: str, limit: _FileLimit) -> None:
    if size > limit.most_bytes:
        most = f"{limit.most_bytes // MIB} MiB" if limit.most_bytes >= MIB else f"{limit.most_bytes // KIB} KiB"
        raise InputError(where, None, want=f"{limit.what} of at most {most}", fix="It is larger.")


def _check_values(values: int, most: int, where: str) -> None:
    if values > most:
        raise InputError(where, None, want=f"a file of at most {most:,} values", fix="It has more.")


def _deepest(text: str) -> int:
    """The most brackets that are open at once, in text without quotes."""
    depth = deepest = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _place(reason: str, raw: bytes) -> str:
    """The decoder's complaint with a line and a column for its byte."""
    found = _BYTE.search(reason)
    if found is None and "truncated" not in reason:
        return shortened(reason[:1].lower() + reason[1:], 200)
    before = raw[: int(found.group(1))] if found else raw
    line, column = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    plain = reason[: found.start() if found else None].removeprefix("JSON is malformed: ")
    return f"it breaks off or is damaged at line {line}, column {column} ({plain})"


def _too_deep(where: str) -> InputError:
    return InputError(where, None, want=f"at most {MOST_DEPTH} tables or lists inside each other: nested too deeply")


def _inner(place: str, key: object, container: object) -> str:
    """The place of a value inside a table or a list."""
    if len(place) > 400:
        return place
    return (
        f"{place}: {shortened(key, 40)}" if isinstance(key, str) and isinstance(container, dict) else f"{place}[{key}]"
    )
