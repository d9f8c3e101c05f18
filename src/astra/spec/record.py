"""What every input record shares: frozen, keyword-only, unknown fields refused, checked once."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from astra.errors import InputError, uninterrupted


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the input records."""


def decode(kind: type[Any], value: Any, *, where: str) -> Any:
    """Build ``kind`` from plain data, turning the decoder's complaint into an InputError that names the place."""
    try:
        with uninterrupted():  # msgspec may crash where an exception comes out of nowhere
            return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise InputError(f"{where}{': ' + place if place else ''}", None, want=_wanted(reason)) from None
    except InputError as error:
        if not where or error.where.startswith(where):
            raise
        raise InputError(f"{where}: {error.where}", error.got, want=error.want, fix=error.fix) from None


def _wanted(reason: str) -> str:
    """The decoder's ``Expected `int`, got `str``` as ``int (got str)``."""
    plain = reason.replace("`", "").rstrip(".")
    if plain.startswith("Expected ") and ", got " in plain:
        want, _, got = plain.removeprefix("Expected ").partition(", got ")
        return f"{want} (got {got})"
    if plain.startswith("Object contains unknown field "):
        return f"no field {plain.removeprefix('Object contains unknown field ')}: it is not known here"
    if plain.startswith("Object missing required field "):
        return f"the field {plain.removeprefix('Object missing required field ')}, which is missing"
    if plain.startswith("Invalid enum value "):
        return f"a word that is known here, not {plain.removeprefix('Invalid enum value ')}"
    return plain[:1].lower() + plain[1:]


def finite(value: float) -> bool:
    """Whether a number is one that can be counted with."""
    try:
        return math.isfinite(value)
    except (OverflowError, TypeError):  # an integer beyond any float, or no number
        return False


def check(condition: bool, where: str, got: object, want: str, fix: str = "") -> None:
    """Raise InputError unless ``condition`` holds."""
    if not condition:
        raise InputError(where, got, want=want, fix=fix)
