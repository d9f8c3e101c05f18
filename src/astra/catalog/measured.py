"""Collectives that a user has measured with ``astra profile``, for the servers of a cluster file."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from astra.catalog import hardware
from astra.errors import AstraError, InputError
from astra.files import read_json
from astra.spec.cluster import CollectiveSweep, Device

_WANTED: Final = "a profile written by astra profile on several GPUs"


def read_sweeps(path: Path, gpu: Device) -> tuple[CollectiveSweep, ...]:
    """The sweeps of a profile that was measured between GPUs of this type, or of the type it is a variant of."""
    try:
        document = read_json(path, "profile")
        between = document.get("collectives") or {}
        rows = [row for row in document["rows"] if row["op"] == "collective" and "seconds" in row]
        measured_on, backend = str(between.get("gpu", "")), between.get("backend")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError("profile", str(path), want=_WANTED) from None
    if not rows:
        raise InputError("profile", str(path), want=_WANTED, fix="It holds no collectives: one GPU has none.")
    if backend != "nccl" or not _same(measured_on, gpu):
        want = f"one measured between {gpu.name} by NCCL, not between {measured_on} by {backend}"
        raise InputError("profile", str(path), want=want)
    try:
        return _sweeps(rows)
    except (ValueError, KeyError, TypeError):
        raise InputError("profile", str(path), want=f"{_WANTED}; its rows cannot be read") from None


def _sweeps(rows: list[dict[str, Any]]) -> tuple[CollectiveSweep, ...]:
    groups: dict[tuple[str, int, int], dict[float, float]] = defaultdict(dict)
    for row in rows:
        groups[row["collective"], row["ranks"], row["stride"]][float(row["bytes"])] = float(row["seconds"])
    return tuple(
        CollectiveSweep(
            op=op,
            ranks=ranks,
            stride=stride,
            nbytes=tuple(sorted(found)),
            seconds=tuple(found[x] for x in sorted(found)),
        )
        for (op, ranks, stride), found in sorted(groups.items())
    )


def _same(measured_on: str, gpu: Device) -> bool:
    try:
        return hardware.device(measured_on).name in (gpu.name, gpu.relative)
    except AstraError:  # not in the catalog: a GPU of the user's own goes by its own name
        return measured_on == gpu.name
