"""Kinds of values in a request: how each is read, whether it comes from a flag, a keyword, a TOML file or JSON.

Every kind turns what was given into one plain form and reads that form back to itself. What cannot be read is an
``InputError`` that names the place, never another exception.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any, ClassVar, Final

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


class FieldKind:
    """How the values of a field are read; ``repeats`` says that its flag may be given again."""

    metavar: str = "TEXT"
    repeats: ClassVar[bool] = False

    def read(self, value: Any, where: str) -> Any:
        """The plain form of a value."""
        raise NotImplementedError


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


class Whole(FieldKind):
    """A whole number: ``1024``, ``1k``, ``4e6``."""

    metavar = "N"

    def __init__(self, least: int, most: int) -> None:
        self._least, self._most = least, most

    def read(self, value: Any, where: str) -> int:
        """The number."""
        found = _number(value)
        if found is None or not self._least <= found <= self._most or found != int(found):
            raise InputError(where, value, want=f"a whole number from {self._least:,} to {self._most:,}")
        return int(found)


class Number(FieldKind):
    """A number: ``300B``, ``2.5``, ``$400k``; ``above`` leaves the least one out."""

    def __init__(
        self, least: float = 0.0, most: float = 1e12, *, above: bool = False, example: str = "", unit: str = "N"
    ) -> None:
        self._least, self._most, self._above, self.metavar = least, most, above, unit
        self._example = f", such as {example}" if example else ""

    def read(self, value: Any, where: str) -> float:
        """The number."""
        found = _number(value)
        if found is None or not self._least <= found <= self._most or (self._above and found == self._least):
            span = f"above {self._least:g}, at most" if self._above else f"from {self._least:g} to"
            raise InputError(where, value, want=f"a number {span} {self._most:g}{self._example}")
        return float(found)


class Fraction(FieldKind):
    """A fraction: ``0.08`` or ``8%``."""

    metavar = "F"

    def __init__(self, below: float) -> None:
        self._below = below

    def read(self, value: Any, where: str) -> float:
        """The fraction."""
        percent = isinstance(value, str) and value.strip().endswith("%")
        found = _number(value.strip().removesuffix("%") if isinstance(value, str) else value)
        found = math.nan if found is None else found / 100 if percent else found
        if not 0 <= found < self._below:
            raise InputError(where, value, want=f"a fraction from 0 to below {self._below:g}, such as 0.08 or 8%")
        return float(found)


class OneOf(FieldKind):
    """A word out of a few."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.metavar = "{" + ",".join(words) + "}"

    def read(self, value: Any, where: str) -> str:
        """The word itself, whatever way it was spelled."""
        if not isinstance(value, str):
            raise InputError(where, value, want=f"one of {', '.join(self.words)}")
        found = meant_by(value, self.words)
        if found is None:
            listed = f"It is one of {', '.join(self.words)}."
            near = near_to(value, self.words)
            if near:
                raise InputError(where, value, want="a known name", fix=f"{near} {listed}")
            raise UnknownName(where, value, self.words, fix=listed)
        return found


class Switch(FieldKind):
    """Yes or no."""

    def read(self, value: Any, where: str) -> bool:
        """True or false, and nothing that only looks like it."""
        if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):  # numpy's is no bool
            return bool(value)
        raise InputError(where, value, want="true or false")


class Named(FieldKind):
    """A name that is looked up later, in a catalog or a registry."""

    metavar = "NAME"

    def __init__(self, want: str) -> None:
        self._want = want

    def read(self, value: Any, where: str) -> str:
        """The name as it was given."""
        if not isinstance(value, str) or not value.strip():
            raise InputError(where, value, want=self._want)
        return check_name(where, value.strip(" "))


class LowerName(Named):
    """A name in small letters."""

    def read(self, value: Any, where: str) -> str:
        """The name."""
        return super().read(value, where).lower()


class Texts(FieldKind):
    """Texts in a list; one by itself may stand without it."""

    repeats = True

    def __init__(self, want: str, metavar: str, *, split: str = "") -> None:
        self._want, self.metavar = want, metavar
        self._split = re.compile(f"[{split}]") if split else None

    def read(self, value: Any, where: str) -> tuple[str, ...]:
        """Every text by itself."""
        if value is None:
            return ()
        texts = [value] if isinstance(value, str) else list(value) if isinstance(value, list | tuple) else None
        if texts is None or not all(isinstance(text, str) for text in texts):
            raise InputError(where, value, want=self._want)
        if self._split is not None:
            texts = [part.strip(" ") for text in texts for part in self._split.split(text)]
            if not all(texts):
                raise InputError(where, value, want=self._want)
        return tuple(texts)


class Pairs(FieldKind):
    """Restrictions as texts, ``tp=8``, or as a mapping, ``{"tp": 8}``."""

    repeats = True
    _want: Final = "restrictions such as 'tp=8', ['tp=8', 'pp=4'] or {'tp': 8}"

    def __init__(self, metavar: str) -> None:
        self.metavar = metavar

    def read(self, value: Any, where: str) -> tuple[str, ...]:
        """Every restriction as text."""
        if isinstance(value, Mapping):
            return tuple(f"{self._word(key, where)}={self._words(each, where)}" for key, each in value.items())
        texts = (value,) if isinstance(value, str) else value
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise InputError(where, value, want=self._want)
        return tuple(texts)

    def _words(self, value: Any, where: str) -> str:
        several = value if isinstance(value, list | tuple) else (value,)
        return ",".join(self._word(each, where) for each in several)

    def _word(self, value: Any, where: str) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, Integral) and abs(int(value)) < 10**18:
            return str(int(value))
        if not isinstance(value, str):
            raise InputError(where, value, want=self._want)
        return value


class File(FieldKind):
    """The path of a file."""

    metavar = "FILE"

    def __init__(self, want: str) -> None:
        self._want = want

    def read(self, value: Any, where: str) -> str:
        """The path as text."""
        return path_text(value, where, self._want)


class Described(FieldKind):
    """A record by its name or the path of its file, or the record itself."""

    metavar = "FILE"

    def __init__(self, record: type[Spec], want: str) -> None:
        self._record, self._want = record, want

    def read(self, value: Any, where: str) -> Any:
        """The name or path as text, or the record."""
        if isinstance(value, self._record | Mapping):
            return read_record(self._record, value, where)
        return path_text(value, where, self._want)


class RuleLines(FieldKind):
    """The path of a file with rules, or the rules themselves, a line each."""

    metavar = "FILE"

    def read(self, value: Any, where: str) -> str | tuple[str, ...]:
        """The path as text, or the lines."""
        want = "the path of a file with rules, or a list of rules"
        if not isinstance(value, list | tuple):
            return path_text(value, where, want)
        if not all(isinstance(line, str) for line in value):
            raise InputError(where, value, want=want)
        return tuple(value)


class Batch(FieldKind):
    """A global batch: samples (``1024``) as a number, tokens (``4M tokens``, ``4Mtok``) as text."""

    metavar = "N"

    def __init__(self, most: int) -> None:
        self._samples, self._tokens = Whole(1, most), Number(1, 1e12, example="4M tokens")

    def read(self, value: Any, where: str) -> int | str:
        """Samples, or the text that says tokens."""
        amount = _before_tokens(value) if isinstance(value, str) else None
        if amount is not None:
            self._tokens.read(amount, where)
            return str(value).strip()
        try:
            return self._samples.read(value, where)
        except InputError as error:
            want = f"{error.want}, in samples per step, or tokens, such as '4M tokens'"
            raise InputError(where, value, want=want) from None


def batch_tokens(batch: str) -> tuple[float, float]:
    """The tokens of a batch that was given in tokens, with k and M as powers of 1,000 and of 1,024."""
    amount = _before_tokens(batch) or ""
    return parse_count(amount) or 0.0, parse_count(amount, kilo=1024.0) or 0.0


def _before_tokens(text: str) -> str | None:
    found = _TOKEN_BATCH.fullmatch(text.strip()) if len(text) <= _LONGEST_NUMBER else None
    return None if found is None else found.group(1)


class Duration(FieldKind):
    """A time: ``14d``, ``36h``, ``2w``, or a number of days."""

    metavar = "TIME"
    want: Final = "a time above zero, such as 14d, 36h or 2w"

    def read(self, value: Any, where: str) -> str | float:
        """Days, or the text with its unit."""
        days = _number(value) if not isinstance(value, str) else (parse_seconds(value) or 0) / DAY_S
        if days is None or not 0 < days <= 1e9:
            raise InputError(where, value, want=self.want)
        return value.strip() if isinstance(value, str) else float(days)


class Seconds(Duration):
    """A time as a flag spells it, in seconds."""

    def read(self, value: Any, where: str) -> float:
        """The seconds."""
        return parse_seconds(str(super().read(value, where))) or 0.0


class Times(FieldKind):
    """A number that a flag spells in a larger unit: minutes, megabytes."""

    def __init__(self, unit: float, kind: Number, metavar: str) -> None:
        self._unit, self._kind, self.metavar = unit, kind, metavar

    def read(self, value: Any, where: str) -> float:
        """The number in SI."""
        return self._kind.read(value, where) * self._unit


class Priced(FieldKind):
    """An amount and the dollars for each, as a flag spells both: ``50@23``."""

    metavar = "TB@USD"

    def read(self, value: Any, where: str) -> tuple[float, float]:
        """Terabytes, and dollars for each."""
        amount, _, usd = str(value).partition("@")
        found = _number(amount), _number(usd)
        if found[0] is None or found[1] is None or not all(0 <= each <= 1e9 for each in found if each is not None):
            raise InputError(where, value, want="terabytes and dollars for each, such as 50@23")
        return float(found[0]), float(found[1])


class WordList(FieldKind):
    """A strategy, in words or as a record."""

    def __init__(self, metavar: str = "TEXT") -> None:
        self.metavar = metavar

    def read(self, value: Any, where: str) -> str:
        """The words."""
        if isinstance(value, Strategy | MixedStrategy | OnePool):
            return str(value)
        if not isinstance(value, str) or not value.strip():
            raise InputError(where, value, want="a strategy such as 'tp8 pp4 dp2 mbs1 sp zero1 recompute=selective'")
        return value


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
