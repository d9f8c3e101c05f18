"""Flags of a command line, read strictly."""

from __future__ import annotations

import math
import re
from typing import Any

from astra.errors import InputError


class Arguments:
    """Flags of a command line; the last of a repeated one counts."""

    def __init__(self, words: list[str], name: str) -> None:
        self._name = name
        self.read: set[str] = set()  # flags that were looked for
        self.flags: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in words:
            if word.startswith("--") and len(word) > 2:
                flag, equals, value = word.partition("=")
                current = self.flags[flag] = [value] if equals else []
            elif current is not None:
                current.append(word)

    def has(self, flag: str) -> bool:
        """Whether a switch is given."""
        self.read.add(flag)
        return flag in self.flags

    def text(self, flag: str, default: str = "") -> str:
        """The value of a flag."""
        self.read.add(flag)
        values = self.flags.get(flag)
        return values[0] if values else default

    def texts(self, flag: str) -> list[str]:
        """All values of a flag."""
        self.read.add(flag)
        return self.flags.get(flag, [])

    def one_of(self, flag: str, choices: tuple[str, ...], default: str) -> Any:
        """The value of a flag, which must be known."""
        value = self.text(flag, default)
        if value not in choices:
            raise InputError(f"{self._name}: {flag}", value, want=f"one of {', '.join(choices)}")
        return value

    def whole(self, flag: str, default: int | None = None) -> int:
        """The value of a flag that is a whole number."""
        text = self.text(flag)
        if not text and default is not None and flag not in self.flags:
            return default
        if not text:
            fix = "It stands there without one: a variable of the script is not set. Give its parameters behind --."
            raise InputError(f"{self._name}: {flag}", None, want="a whole number", fix=fix)
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise InputError(f"{self._name}: {flag}", text or None, want="a whole number")
        return int(text)

    def number(self, flag: str, default: float) -> float:
        """The value of a flag that is a number."""
        text = self.text(flag)
        try:
            value = float(text) if text else default
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise InputError(f"{self._name}: {flag}", text, want="a number")
        return value

    def count(self, flag: str, default: int | None = None) -> int:
        """The value of a flag that is a whole number above zero."""
        value = self.whole(flag, default)
        if value < 1:
            raise InputError(f"{self._name}: {flag}", value, want="a whole number above zero")
        return value

    def maybe(self, flag: str) -> int | None:
        """The value of a flag that may be absent."""
        return self.whole(flag) if self.has(flag) else None
