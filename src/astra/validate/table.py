"""The project's own table of published runs: restated facts with their sources, ready to be replayed.

``published_runs.csv`` has one line per run; models, clusters, work, citations and rules, which many runs share, stand
once in ``published.json`` and are referred to by number. ``python -m tools.restate_runs RUNS.csv`` writes both.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from astra.catalog import hardware
from astra.spec.cluster import Cluster, Device, NodeType, Pool
from astra.spec.model import ModelSpec
from astra.spec.record import decode
from astra.spec.request import PlanRequest
from astra.spec.strategy import parse_strategy
from astra.validate.measured import Measured, Peak
from astra.validate.runs import Run, Skipped

RUNS: Final = "published_runs.csv"
SHARED: Final = "published.json"
COLUMNS: Final = (
    "id", "framework", "precision", "model", "cluster", "work", "strategy", "step_s", "peak_gib", "peak_of", "oom",
    "aside", "filled", "citation",
)  # fmt: skip


def published() -> list[Run | Skipped]:
    """Every run of the shipped table; rows of the survey that cannot be replayed come last, without their numbers."""
    folder = files("astra.validate") / "data"
    shared = msgspec.json.decode((folder / SHARED).read_bytes())
    models: list[ModelSpec] = [decode(ModelSpec, entry, where=SHARED) for entry in shared["models"]]
    clusters = [_cluster(entry, shared["pools"]) for entry in shared["clusters"]]
    requests: dict[tuple[str, ...], PlanRequest] = {}
    lines = csv.DictReader(io.StringIO((folder / RUNS).read_text(encoding="utf-8")))
    runs: list[Run | Skipped] = []
    for row in lines:
        key = (row["model"], row["cluster"], row["work"])
        if key not in requests:
            requests[key] = PlanRequest(
                model=models[int(row["model"])], cluster=clusters[int(row["cluster"])], headroom=0.0,
                **shared["work"][int(row["work"])],
            )  # fmt: skip
        runs.append(_read(row, shared, requests[key]))
    for source, reason, count in shared["left_out"]:
        runs += [Skipped(f"{source} (left out {number})", source, reason) for number in range(1, count + 1)]
    return runs


def _read(row: dict[str, str], shared: dict[str, Any], request: PlanRequest) -> Run:
    peak_of: Peak = msgspec.convert(row["peak_of"], Peak)
    oom = {"1": True, "0": False}.get(row["oom"])
    return Run(
        id=row["id"],
        source=row["id"].rpartition("-")[0],
        citation=shared["citations"][int(row["citation"])],
        framework=row["framework"],
        precision=row["precision"],
        request=request,
        strategy=parse_strategy(row["strategy"]),
        measured=Measured(_number(row["step_s"]), _number(row["peak_gib"]), peak_of, oom),
        aside=shared["asides"][int(row["aside"])] if row["aside"] else "",
        filled=tuple(shared["rules"][int(place)] for place in row["filled"].split()),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _cluster(parts: list[tuple[int, int]], pools: list[dict[str, Any]]) -> Cluster:
    return Cluster(pools=tuple(_pool(msgspec.json.encode(pools[place]), gpus) for place, gpus in parts))


@cache
def _pool(encoded: bytes, gpus: int) -> Pool:
    """The pool of an entry: a catalog device with its changes, and a node with its links."""
    entry = msgspec.json.decode(encoded)
    device: Device = hardware.device(entry["device"])
    if entry["device_changes"]:
        device = decode(Device, msgspec.to_builtins(device) | entry["device_changes"], where=SHARED)
    node = decode(NodeType, msgspec.to_builtins(hardware.node_type(entry["node"])) | entry["node_changes"], where="")
    return Pool(device=device, node=node, gpus=gpus, name=entry["name"])
