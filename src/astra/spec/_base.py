"""What every input record shares: frozen, keyword-only, unknown fields refused, checked once."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from astra.errors import InputError


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the input records."""


def decode(kind: type[Any], value: Any, *, where: str) -> Any:
    """Build ``kind`` from plain data, turning the decoder's complaint into an InputError that names the place."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        place = path.strip("`").removeprefix("$").removeprefix(".")
        raise InputError(f"{where}{': ' + place if place else ''}", None, want=_wanted(reason)) from None


def _wanted(reason: str) -> str:
    return reason.replace("Expected", "expected").replace("`", "").rstrip(".")


def check(condition: bool, where: str, got: object, want: str, fix: str = "") -> None:
    """Raise InputError unless ``condition`` holds."""
    if not condition:
        raise InputError(where, got, want=want, fix=fix)


def check_positive(where: str, **values: float | None) -> None:
    """Every value is a finite number above zero (None passes)."""
    for name, value in values.items():
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{where}.{name}", value, want="a number above zero")


def check_not_negative(where: str, **values: float | None) -> None:
    """Every value is a finite number at or above zero (None passes)."""
    for name, value in values.items():
        if value is not None and not (math.isfinite(value) and value >= 0):
            raise InputError(f"{where}.{name}", value, want="a number at or above zero")
