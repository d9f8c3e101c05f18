"""Runtime profiles by name."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final

from astra.errors import InputError, UnknownName, fold
from astra.files import load_toml
from astra.spec.record import decode
from astra.spec.runtime import Runtime

DEFAULT: Final = "megatron"
# Where nobody names one: the first of these that can train the model, frameworks of whole clusters before others.
USUAL: Final = (DEFAULT, "megatron-bridge", "nemo", "torchtitan", "fsdp-eager", "deepspeed", "pytorch")
_DATA: Final = Path(__file__).parent / "data"
_FOLDER: Final = _DATA / "runtimes"
_JOINED: Final = (
    "can",
    "usual",
    "host",
    "memory",
    "effects",
    "kernels",
)  # tables of a file that are joined with those of the one it is like


@cache
def runtime(name: str) -> Runtime:
    """The profile of one runtime."""
    chosen = {fold(candidate): candidate for candidate in runtime_names()}.get(fold(name)) or _aliases().get(fold(name))
    standing = {} if chosen else {"standing_for": name}
    chosen = chosen or _stand_ins().get(fold(name))
    if chosen is None:
        known = runtime_names()
        raise UnknownName("runtime", name, known, fix=f"Known runtimes: {', '.join(known)}.")
    parsed: Runtime = decode(Runtime, _table(chosen) | standing, where=f"runtime {chosen}")
    return parsed


@cache
def _aliases() -> dict[str, str]:
    """Folded alias to name."""
    return {fold(alias): name for name in runtime_names() for alias in _table(name).get("aliases", ())}


@cache
def _stand_ins() -> dict[str, str]:
    """Folded names of frameworks without a runtime to the one that stands in for each."""
    usual = ((name, _table(name).get("usual", {})) for name in runtime_names())
    return {fold(word): name for name, words in usual for word in words.get("stands_for", ())}


def _table(name: str, children: tuple[str, ...] = ()) -> dict[str, Any]:
    """A runtime's file over the one it is like; tables are joined key by key, anything else is replaced."""
    if name in children or name not in runtime_names():
        want = f"a runtime that is not like {name} itself" if name in children else "a runtime of the catalog"
        raise InputError(f"runtime {children[-1]}: like", name, want=want)
    own = load_toml((_FOLDER / f"{name}.toml").read_bytes())
    like = own.pop("like", None)
    if like is None:
        return own
    other = _table(like, (*children, name))
    other.pop("aliases", None)  # names of its own, also those that tables of runs use
    for words in ("called", "stands_for"):
        other.get("usual", {}).pop(words, None)
    return _over(own, other)


def _over(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = {key: _over(own[key], other[key]) for key in own if key in _JOINED and key in other}
    return {**other, **own, **joined}


def runtimes() -> tuple[Runtime, ...]:
    """Every runtime, by name."""
    return tuple(runtime(name) for name in runtime_names())


@cache
def runtime_names() -> tuple[str, ...]:
    """Every runtime there is a profile for."""
    files_there = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files_there if name.endswith(".toml")))
