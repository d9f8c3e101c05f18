"""Runtime profiles by name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

from astra.catalog.toml import load_toml
from astra.errors import UnknownName, fold
from astra.spec._base import decode
from astra.spec.runtime import Runtime

DEFAULT: Final = "megatron"
_FOLDER: Final = files("astra.catalog") / "data" / "runtimes"


@cache
def runtime(name: str) -> Runtime:
    """The profile of one runtime."""
    known = runtime_names()
    chosen = {fold(candidate): candidate for candidate in known}.get(fold(name))
    if chosen is None:
        raise UnknownName("runtime", name, known, fix=f"Known runtimes: {', '.join(known)}.")
    parsed: Runtime = decode(Runtime, load_toml((_FOLDER / f"{chosen}.toml").read_bytes()), where=f"runtime {chosen}")
    return parsed


@cache
def runtime_names() -> tuple[str, ...]:
    """Every runtime there is a profile for."""
    files_there = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files_there if name.endswith(".toml")))
