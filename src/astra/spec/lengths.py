"""Lengths of sequences: ``4096``, ``128k``, ``1M``."""

from __future__ import annotations

from typing import Any, Final

from astra.errors import InputError
from astra.spec.kinds import FieldKind, whole
from astra.units import parse_count

_SUFFIXES: Final = ("k", "m")


def length(least: int, most: int) -> FieldKind:
    """Tokens per sample, as a number; with a suffix as text, so that the answer can say how it was read."""
    plain = whole(least, most)

    def read(value: Any, where: str) -> Any:
        text = value.strip().lower() if isinstance(value, str) else ""
        if not text.endswith(_SUFFIXES) or parse_count(text[:50]) is None:
            return plain.read(value, where)
        try:
            plain.read(_count(text), where)
        except InputError as error:
            raise InputError(where, value, want=error.want) from None
        return text

    return plain._replace(read=read)


def tokens_of(length: int | str) -> int:
    """The tokens of a length: ``128k`` are 131,072, because lengths that are powers of two are told by 1,024.

    Any other number of thousands is as it is told: ``100k`` are 100,000.
    """
    return round(_count(length)) if isinstance(length, str) else length


def _count(text: str) -> float:
    number = parse_count(text[:-1]) or 0.0
    whole = int(number) if number == int(number) else 0
    kilo = 1024.0 if whole and whole & (whole - 1) == 0 else 1000.0
    return parse_count(text, kilo=kilo) or 0.0
