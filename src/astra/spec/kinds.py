"""Kinds of values in a request: how each is read, whether it comes from a flag, a keyword, a TOML file or JSON.

Every kind turns what was given into one plain form and reads that form back to itself. What cannot be read is an
``InputError`` that names the place, never another exception.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any, Final, NamedTuple

import msgspec

from astra.errors import InputError, UnknownName
from astra.spec.mixed import MixedStrategy, OnePool
from astra.spec.names import check_name
from astra.spec.record import Spec, decode
from astra.spec.strategy import Strategy
from astra.spec.synonyms import meant_by, near_to
from astra.units import DAY_S, parse_count, parse_seconds

_TOKEN_BATCH: Final = re.compile(r"(.*?)\s*tok(?:en)?s?", re.IGNORECASE | re.DOTALL)
_LONGEST_NUMBER: Final = 100  # letters: no count needs more
Read = Callable[[Any, str], Any]  # a value and the place that errors name -> its plain form


class FieldKind(NamedTuple):
    """How the values of a field are read, and how its flag is given."""

    read: Read
    metavar: str = "TEXT"
    repeats: bool = False  # the flag may be given again
    words: tuple[str, ...] = ()  # the only values there are
    switch: bool = False  # the flag has no value


def _number(value: Any) -> float | int | None:
    """A number given as one (numpy's too) or as text; None for all else, truth values among it."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, str) and len(value) <= _LONGEST_NUMBER:
        return parse_count(value.strip().removeprefix("$"))
    return None


def whole(least: int, most: int) -> FieldKind:
    """A whole number: ``1024``, ``1k``, ``4e6``."""

    def read(value: Any, where: str) -> int:
        found = _number(value)
        if found is None or not least <= found <= most or found != int(found):
            raise InputError(where, value, want=f"a whole number from {least:,} to {most:,}")
        return int(found)

    return FieldKind(read, "N")


def number(
    least: float = 0.0, most: float = 1e12, *, above: bool = False, example: str = "", unit: str = "N"
) -> FieldKind:
    """A number: ``300B``, ``2.5``, ``$400k``; ``above`` leaves the least one out."""
    such = f", such as {example}" if example else ""

    def read(value: Any, where: str) -> float:
        found = _number(value)
        if found is None or not least <= found <= most or (above and found == least):
            span = f"above {least:g}, at most" if above else f"from {least:g} to"
            raise InputError(where, value, want=f"a number {span} {most:g}{such}")
        return float(found)

    return FieldKind(read, unit)


def fraction(below: float, *, share: bool = False) -> FieldKind:
    """A fraction: ``0.08`` or ``8%``; a ``share`` is above zero, and at most all: ``0.7`` or ``70%``."""
    want = "above 0, at most 1, such as 0.7 or 70%" if share else f"from 0 to below {below:g}, such as 0.08 or 8%"

    def read(value: Any, where: str) -> float:
        percent = isinstance(value, str) and value.strip().endswith("%")
        found = _number(value.strip().removesuffix("%") if isinstance(value, str) else value)
        found = math.nan if found is None else found / 100 if percent else found
        if not 0 <= found < below or (share and not found):
            raise InputError(where, value, want=f"a fraction {want}")
        return float(found)

    return FieldKind(read, "F")


def share() -> FieldKind:
    """A fraction above zero, at most all."""
    return fraction(math.nextafter(1.0, 2.0), share=True)


def one_of(*words: str) -> FieldKind:
    """A word out of a few, whatever way it was spelled."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str):
            raise InputError(where, value, want=f"one of {', '.join(words)}")
        found = meant_by(value, words)
        if found is None:
            listed = f"It is one of {', '.join(words)}."
            near = near_to(value, words)
            if near:
                raise InputError(where, value, want="a known name", fix=f"{near} {listed}")
            raise UnknownName(where, value, words, fix=listed)
        return found

    return FieldKind(read, "{" + ",".join(words) + "}", words=words)


def switch() -> FieldKind:
    """Yes or no, and nothing that only looks like it."""

    def read(value: Any, where: str) -> bool:
        if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # numpy's is no bool
            return bool(value)
        raise InputError(where, value, want="true or false")

    return FieldKind(read, switch=True)


def named(want: str, *, lower: bool = False) -> FieldKind:
    """A name that is looked up later, in a catalog or a registry; ``lower``: in small letters."""

    def read(value: Any, where: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise InputError(where, value, want=want)
        name = check_name(where, value.strip(" "))
        return name.lower() if lower else name

    return FieldKind(read, "NAME")


def texts(want: str, metavar: str, *, split: str = "") -> FieldKind:
    """Texts in a list; one by itself may stand without it."""
    apart = re.compile(f"[{split}]") if split else None

    def read(value: Any, where: str) -> tuple[str, ...]:
        if value is None:
            return ()
        found = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
        if found is None or not all(isinstance(text, str) for text in found):
            raise InputError(where, value, want=want)
        if apart is not None:
            found = [part.strip(" ") for text in found for part in apart.split(text)]
            if not all(found):
                raise InputError(where, value, want=want)
        return tuple(found)

    return FieldKind(read, metavar, repeats=True)


def pairs(metavar: str) -> FieldKind:
    """Restrictions as texts, ``tp=8``, or as a mapping, ``{"tp": 8}``."""
    want = "restrictions such as 'tp=8', ['tp=8', 'pp=4'] or {'tp': 8}"

    def word(value: Any, where: str) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, Integral) and abs(int(value)) < 10**18:
            return str(int(value))
        if not isinstance(value, str):
            raise InputError(where, value, want=want)
        return value

    def words(value: Any, where: str) -> str:
        several = value if isinstance(value, list | tuple) else (value,)
        return ",".join(word(each, where) for each in several)

    def read(value: Any, where: str) -> tuple[str, ...]:
        if isinstance(value, Mapping):
            return tuple(f"{word(key, where)}={words(each, where)}" for key, each in value.items())
        given = (value,) if isinstance(value, str) else value
        if not isinstance(given, list | tuple) or not all(isinstance(text, str) for text in given):
            raise InputError(where, value, want=want)
        return tuple(given)

    return FieldKind(read, metavar, repeats=True)


def file(want: str) -> FieldKind:
    """The path of a file."""
    return FieldKind(lambda value, where: path_text(value, where, want), "FILE")


def described(record: type[Spec], want: str) -> FieldKind:
    """A record by its name or the path of its file, or the record itself."""

    def read(value: Any, where: str) -> Any:
        if isinstance(value, record | Mapping):
            return read_record(record, value, where)
        return path_text(value, where, want)

    return FieldKind(read, "FILE")


def rule_lines() -> FieldKind:
    """The path of a file with rules, or the rules themselves, a line each."""
    want = "the path of a file with rules, or a list of rules"

    def read(value: Any, where: str) -> str | tuple[str, ...]:
        if not isinstance(value, list | tuple):
            return path_text(value, where, want)
        if not all(isinstance(line, str) for line in value):
            raise InputError(where, value, want=want)
        return tuple(value)

    return FieldKind(read, "FILE")


def batch(most: int) -> FieldKind:
    """A global batch: samples (``1024``) as a number, tokens (``4M tokens``, ``4Mtok``) as text."""
    samples, tokens = whole(1, most), number(1, 1e12, example="4M tokens")

    def read(value: Any, where: str) -> int | str:
        amount = _before_tokens(value) if isinstance(value, str) else None
        if amount is not None:
            tokens.read(amount, where)
            return str(value).strip()
        try:
            return int(samples.read(value, where))
        except InputError as error:
            want = f"{error.want}, in samples per step, or tokens, such as '4M tokens'"
            raise InputError(where, value, want=want) from None

    return FieldKind(read, "N")


def batch_tokens(batch: str) -> tuple[float, float]:
    """The tokens of a batch that was given in tokens, with k and M as powers of 1,000 and of 1,024."""
    amount = _before_tokens(batch) or ""
    return parse_count(amount) or 0.0, parse_count(amount, kilo=1024.0) or 0.0


def _before_tokens(text: str) -> str | None:
    found = _TOKEN_BATCH.fullmatch(text.strip()) if len(text) <= _LONGEST_NUMBER else None
    return None if found is None else found.group(1)


def _duration(value: Any, where: str) -> str | float:
    days = _number(value) if not isinstance(value, str) else (parse_seconds(value) or 0) / DAY_S
    if days is None or not 0 < days <= 1e9:
        raise InputError(where, value, want="a time above zero, such as 14d, 36h, 20min or 2w")
    return value.strip() if isinstance(value, str) else float(days)


def duration() -> FieldKind:
    """A time: ``14d``, ``36h``, ``2w``, or a number of days."""
    return FieldKind(_duration, "TIME")


def seconds(*, none: bool = False) -> FieldKind:
    """A time as a flag spells it, in seconds; ``none``: zero is one."""

    def read(value: Any, where: str) -> float:
        if none and _number(value) == 0:
            return 0.0
        return parse_seconds(str(_duration(value, where))) or 0.0

    return FieldKind(read, "TIME")


def times(unit: float, kind: FieldKind, metavar: str) -> FieldKind:
    """A number that a flag spells in a larger unit: minutes, megabytes."""
    return FieldKind(lambda value, where: kind.read(value, where) * unit, metavar)


def priced() -> FieldKind:
    """An amount and the dollars for each, as a flag spells both: ``50@23``."""

    def read(value: Any, where: str) -> tuple[float, float]:
        amount, _, usd = str(value).partition("@")
        found = _number(amount), _number(usd)
        if found[0] is None or found[1] is None or not all(0 <= each <= 1e9 for each in found if each is not None):
            raise InputError(where, value, want="terabytes and dollars for each, such as 50@23")
        return float(found[0]), float(found[1])

    return FieldKind(read, "TB@USD")


def word_list(metavar: str = "TEXT") -> FieldKind:
    """A strategy, in words or as a record."""

    def read(value: Any, where: str) -> str:
        if isinstance(value, Strategy | MixedStrategy | OnePool):
            return str(value)
        if not isinstance(value, str) or not value.strip():
            raise InputError(where, value, want="a strategy such as 'tp8 pp4 dp2 mbs1 sp zero1 recompute=selective'")
        return value

    return FieldKind(read, metavar)


def read_record(record: type[Spec], value: Any, where: str) -> Any:
    """A record of a kind, checked throughout: one made in Python may hold anything."""
    if not isinstance(value, record | Mapping):
        raise InputError(where, value, want=f"a {record.__name__}, or a table of its fields")
    try:
        plain = msgspec.to_builtins(value, enc_hook=_item) if isinstance(value, record) else value
        return decode(record, plain, where=where)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise InputError(where, None, want=f"a {record.__name__} with plain values") from None


def _item(value: Any) -> Any:
    """A number of numpy as Python's."""
    if isinstance(value, Real):
        return int(value) if isinstance(value, Integral) else float(value)
    raise TypeError(type(value).__name__)


def path_text(value: Any, where: str, want: str) -> str:
    """A path or a name as text."""
    try:
        found = os.fspath(value)
    except TypeError:
        found = None
    if not isinstance(found, str) or not found.strip():
        raise InputError(where, value, want=want)
    return found
