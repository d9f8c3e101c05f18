"""Runtime profiles by name, and how far off their step times are."""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Any, Final

from astra.errors import InputError, UnknownName, fold
from astra.files import load_toml
from astra.spec._base import decode
from astra.spec.runtime import Runtime

DEFAULT: Final = "megatron"
# Where nobody names one: the first of these that can train the model, frameworks of whole clusters before others.
USUAL: Final = (DEFAULT, "megatron-bridge", "nemo", "torchtitan", "fsdp-eager", "deepspeed")
_DATA: Final = files("astra.catalog") / "data"
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
    chosen = {fold(candidate): candidate for candidate in runtime_names()}.get(fold(name))
    if chosen is None:
        known = runtime_names()
        raise UnknownName("runtime", name, known, fix=f"Known runtimes: {', '.join(known)}.")
    parsed: Runtime = decode(Runtime, _table(chosen), where=f"runtime {chosen}")
    return parsed


def _table(name: str, children: tuple[str, ...] = ()) -> dict[str, Any]:
    """A runtime's file over the one it is like; tables are joined key by key, anything else is replaced."""
    if name in children or name not in runtime_names():
        want = f"a runtime that is not like {name} itself" if name in children else "a runtime of the catalog"
        raise InputError(f"runtime {children[-1]}: like", name, want=want)
    own = load_toml((_FOLDER / f"{name}.toml").read_bytes())
    like = own.pop("like", None)
    return own if like is None else _over(own, _table(like, (*children, name)))


def _over(own: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    joined = {key: _over(own[key], other[key]) for key in own if key in _JOINED and key in other}
    return {**other, **own, **joined}


@cache
def runtime_names() -> tuple[str, ...]:
    """Every runtime there is a profile for."""
    files_there = (entry.name for entry in _FOLDER.iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files_there if name.endswith(".toml")))


def step_error(runtime: str, *, moe: bool) -> float:
    """The relative error that four in five step times of such runs stay below, each predicted without its source."""
    bars, model = _step_errors(), "moe" if moe else "dense"
    return bars.get((runtime, model)) or bars["", model]


@cache
def _step_errors() -> dict[tuple[str, str], float]:
    """Error bars by runtime (empty: all runtimes) and kind of model, written by tools.leave_out."""
    lines = csv.DictReader(io.StringIO((_DATA / "step_errors.csv").read_text(encoding="utf-8")))
    return {(line["runtime"], line["model"]): float(line["error"]) for line in lines}
