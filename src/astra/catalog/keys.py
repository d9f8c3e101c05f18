"""Typed, checked access to a configuration read from JSON: every complaint names the file and the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError

_LARGEST: Final = 2**40
_MOST_LAYERS: Final = 10_000


class Keys:
    """The keys of one object."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self.where = config, where

    def refuse(self, key: str, got: object, want: str, fix: str = "") -> InputError:
        """The error for one key."""
        return InputError(f"{self.where}: {key}", got, want=want, fix=fix)

    def raw(self, *names: str) -> Any:
        """The first of several spellings that is present and not null, else None."""
        for name in names:
            value = self._config.get(name)
            if value is not None:
                return value
        return None

    def has(self, name: str) -> bool:
        """Whether the key is there, if only as null."""
        return name in self._config

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number; required unless a default is given."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise self.refuse(names[0], None, "this key with a whole number; it is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(names[0], value, "a whole number")
        if not least <= value <= most:
            raise self.refuse(names[0], value, f"a whole number from {least} to {most:,}")
        return value

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers."""
        return self.size(*names, default=default, most=_MOST_LAYERS)

    def size_or_none(self, name: str) -> int:
        """A whole number above zero, or null for none; it must be there."""
        if not self.has(name):
            raise self.refuse(name, None, "this key with a whole number, or null for none; it is missing")
        return self.size(name, default=0, least=0)

    def optional(self, name: str) -> int | None:
        """A whole number above zero, or None where the key is absent or null."""
        return None if self.raw(name) is None else self.size(name)

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, value, "true or false")
        return value

    def number(self, name: str, default: float) -> float:
        """A number above or at zero."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
            raise self.refuse(name, value, "a number")
        return float(value)

    def word(self, name: str, default: str) -> str:
        """A word."""
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, value, "a word in quotes")
        return value

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers, or None where the key is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(x, int) and not isinstance(x, bool) for x in value):
            raise self.refuse(name, value, "a list of whole numbers")
        return value

    def inside(self, name: str) -> Keys:
        """The keys of a nested object."""
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self.refuse(name, value, "an object with keys of its own")
        return Keys(value, f"{self.where}: {name}")

    def maybe_inside(self, name: str) -> Keys:
        """The keys of a nested object, or none where it is absent."""
        return Keys({}, self.where) if self.raw(name) is None else self.inside(name)

    def filled(self, **defaults: Any) -> Keys:
        """The same keys, with defaults for those that are absent."""
        return Keys({**defaults, **self._config}, self.where)

    def whole_head(self, hidden: int, heads: int) -> int:
        """Width of a head where no key gives it: hidden / heads."""
        if hidden % heads:
            want = f"a number of heads that divides the hidden size {hidden}, or head_dim given beside it"
            raise self.refuse("num_attention_heads", heads, want)
        return hidden // heads

    def only(self, name: str, allowed: object, why: str) -> None:
        """Refuse any value but one (or absence)."""
        value = self.raw(name)
        if value is not None and value != allowed:
            raise self.refuse(name, value, f"{allowed!r}: {why}")
