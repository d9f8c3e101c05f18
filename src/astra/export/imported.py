"""What was understood of somebody's configuration, and strict reading of its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from astra.errors import InputError
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy


class ImportedLaunch(NamedTuple):
    """A configuration as far as Astra knows what to do with it; None where the file does not say."""

    framework: str
    strategy: Strategy
    gpus: int
    global_batch: int | None
    seq: int | None
    precision: str
    optimizer: str
    model: ModelSpec | None  # where the file gives the shape
    recipe: str | None  # a catalog name, where the file names a known recipe
    ignored: tuple[str, ...]  # settings that decide speed or memory and have no word in a strategy
    unknown: tuple[str, ...] = ()  # settings that are not understood
    mtp: int | None = None  # multi-token-prediction layers that are trained
    task: str = "pretrain"
    lora_rank: int | None = None


class Numbers:
    """Settings with their place, read strictly."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self._where = values, where

    def whole(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.values.get(name, default)
        if value in ("auto", None):
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(f"{self._where}.{name}", value, want="a whole number")
        return value

    def count(self, name: str, default: int = 1) -> int:
        """A whole number above zero."""
        value = self.whole(name, default)
        if value < 1:
            raise InputError(f"{self._where}.{name}", value, want="a whole number above zero")
        return value
