"""Plan files of earlier versions, brought to the form that this version writes.

Within ``astra.plan/1`` fields are only ever added, so a file of an earlier version lacks some and has no wrong ones.
What is needed to go on with a plan and is missing is made from what the file has, by one step for each such field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from astra.catalog import hardware, models
from astra.errors import AstraError

_WORK: Final = {"global_batch": "batch"}
_KEPT: Final = ("seq", "tokens", "precision", "optimizer", "task", "lora_rank")
_SAID: Final = ("runtime", "headroom", "counts", "top")


def upgraded(record: Mapping[str, Any]) -> dict[str, Any]:
    """A plan's record with the fields that later versions added, as far as the file tells them."""
    whole = dict(record)
    for name, made in _ADDED.items():
        if name not in whole and (value := made(record)) is not None:
            whole[name] = value
    return whole


def _asked(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The request, from the description of it that the first plan files have; None if that is not whole."""
    said = record.get("request")
    work = said.get("workload") if isinstance(said, Mapping) else None
    if not isinstance(said, Mapping) or not isinstance(work, Mapping):
        return None
    several = said.get("pools")
    rows = list(several.values()) if isinstance(several, Mapping) else [said]
    pools = [pool for row in rows if isinstance(row, Mapping) and isinstance(pool := row.get("pool"), Mapping)]
    if len(pools) != len(rows):
        return None
    asked = {_WORK.get(name, name): work[name] for name in (*_WORK, *_KEPT) if work.get(name) is not None}
    asked |= {name: said[name] for name in _SAID if said.get(name) is not None}
    return {"model": _model(said), **_fleet(pools), **asked}


def _model(said: Mapping[str, Any]) -> Any:
    """The model by its name where the catalog has it, else by its shape."""
    name = said.get("model")
    return name if isinstance(name, str) and models.known_name(name) else said.get("model_spec", name)


def _fleet(pools: list[Mapping[str, Any]]) -> dict[str, Any]:
    """The GPUs by name where the catalog has all of them, else by what the file says of them."""
    try:
        texts = [_text(pool) for pool in pools]
    except (AstraError, KeyError, TypeError):
        return {"cluster": {"pools": pools}}
    return {"gpus": texts}


def _text(pool: Mapping[str, Any]) -> str:
    gpu, node = hardware.device(pool["device"]["name"]), hardware.node_type(pool["node"]["name"])
    return f"{pool['gpus']}x{gpu.name}@{node.name}"


_ADDED: Final[Mapping[str, Callable[[Mapping[str, Any]], Any]]] = {"asked": _asked}
