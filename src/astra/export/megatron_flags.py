"""Megatron-LM's many flags, sorted by what not reading them could cost (``data/megatron_flags.toml``)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from astra.export.base import template
from astra.files import load_toml


@cache
def _sorted() -> dict[str, Any]:
    return load_toml(template("megatron_flags.toml").encode())


@cache
def shape_flags() -> frozenset[str]:
    """What fixes the model: read, or of no use without the rest of it."""
    return frozenset(f"--{name}" for name in _sorted()["shape"])


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Of flags that change nothing of a step, and of those that do."""
    return re.compile(f"--(?:{'|'.join(_sorted()['harmless'])})"), re.compile("|".join(_sorted()["costly"]))


def unread(flags: Mapping[str, Sequence[str]], read: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Flags nobody read: those that decide speed or memory, with their values, and those that are not known."""
    harmless, costs = _patterns()
    costly: list[str] = []
    unknown: list[str] = []
    for flag in sorted(set(flags) - set(read)):
        said = " ".join(flags[flag])
        shown = f"{flag} {said}".strip()
        if said in _sorted()["usual"].get(flag.removeprefix("--"), ()) or harmless.fullmatch(flag):
            continue
        (costly if costs.search(flag) else unknown).append(shown)
    return tuple(costly), tuple(unknown)
