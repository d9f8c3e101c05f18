"""A choice of ``astra rent`` as a plan that can be exported: its GPUs, its node type, its strategy and its bill."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

from astra.answer import PLAN_SCHEMA
from astra.answer_money import RENT_SCHEMA
from astra.errors import InputError
from astra.files import read_json
from astra.spec.request import FIELDS

_AGAIN: Final = "Ask again with astra rent --out RENT.json."
_GOAL: Final = ("objective", "budget", "deadline")  # the choice is made


def read_rented(path: str | PathLike[str]) -> dict[str, Any] | None:
    """The record of an answer of ``astra rent``; None if the file holds something else."""
    try:
        record = read_json(path, "plan")
    except InputError:
        return None
    return record if isinstance(record, dict) and record.get("schema") == RENT_SCHEMA else None


def plan_of_choice(record: Mapping[str, Any], pick: int | None, where: str) -> dict[str, Any]:
    """The record of a plan on the GPUs of one choice: that of a row of the front, or the one that was chosen."""
    choice = _picked(record, pick, where)
    parts, asked = choice.get("parts"), record.get("asked")
    if not isinstance(parts, list) or not isinstance(asked, dict):
        raise InputError(where, None, want="an answer of astra rent, whole", fix=_AGAIN)
    if len(parts) != 1:
        gpus = " ".join(f"--gpus {part['gpus']}x{part['gpu']}" for part in parts)
        fix = f"Plan it on its pools: astra plan MODEL {gpus}."
        raise InputError("--pick", pick, want="a choice of one GPU type", fix=fix)
    kept = {name: value for name, value in asked.items() if name in FIELDS and FIELDS[name].on("plan")}
    kept = {name: value for name, value in kept.items() if name not in _GOAL}
    gpus = f"{choice['gpus']}x{choice['gpu']}"
    estimate = {name: value for name, value in choice.items() if name != "gpus"} | {"gpus": gpus}
    return {
        "schema": PLAN_SCHEMA,
        "version": record.get("version", ""),
        "request": {},
        "asked": kept | {"gpus": [gpus], "node": choice["node"]},
        "plans": [{"rank": 1, "strategy": choice.get("strategy"), "estimate": estimate}],
    }


def _picked(record: Mapping[str, Any], pick: int | None, where: str) -> Mapping[str, Any]:
    """A row of the front by its number, or the first that the goal chose; of a whole front the best trade."""
    front = record.get("front")
    if not isinstance(front, list) or not front or not all(isinstance(choice, dict) for choice in front):
        raise InputError(f"{where}: front", None, want="the choices of astra rent", fix=_AGAIN)
    if pick is not None and pick > len(front):
        raise InputError("--pick", pick, want=f"a row of the front, which has {len(front)}", fix="1 is the fastest.")
    if pick is not None:
        picked: Mapping[str, Any] = front[pick - 1]
        return picked
    chosen = record.get("chosen")
    if record.get("objective") != "pareto" and isinstance(chosen, list) and chosen and isinstance(chosen[0], dict):
        return dict(chosen[0])
    for role in ("chosen", "knee"):
        for choice in front:
            if role in choice.get("roles", ()):
                return dict(choice)
    return dict(front[0])
