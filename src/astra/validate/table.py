"""The project's own table of published runs: restated facts with their sources, ready to be replayed.

``published_runs.csv`` has one line per run; models, GPUs, citations and rules, which many runs share, stand once in
``published.json`` and are referred to by number. ``python -m tools.restate_runs RUNS.csv`` writes both.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec

from astra.catalog import hardware, runtimes
from astra.spec._base import decode
from astra.spec.cluster import Device, NodeType, Pool
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy import parse_strategy
from astra.spec.workload import Workload
from astra.validate.runs import Measured, Peak, Run, Skipped

RUNS: Final = "published_runs.csv"
SHARED: Final = "published.json"
COLUMNS: Final = (
    "id", "framework", "runtime", "lora_targets", "model", "pool", "gpus", "precision", "computed_in", "task",
    "lora_rank", "batch", "seq", "strategy", "step_s", "peak_gib", "peak_of", "oom", "aside", "filled", "citation",
)  # fmt: skip


def published() -> list[Run | Skipped]:
    """Every run of the shipped table; rows of the survey that cannot be replayed come last, without their numbers."""
    folder = files("astra.validate") / "data"
    shared = msgspec.json.decode((folder / SHARED).read_bytes())
    models = [_model(entry) for entry in shared["models"]]
    jobs: dict[tuple[str, ...], Job] = {}
    lines = csv.DictReader(io.StringIO((folder / RUNS).read_text(encoding="utf-8")))
    runs: list[Run | Skipped] = [_read(row, shared, models, jobs) for row in lines]
    for source, reason, count in shared["left_out"]:
        runs += [Skipped(f"{source} (left out {number})", source, reason) for number in range(1, count + 1)]
    return runs


def _read(
    row: dict[str, str], shared: dict[str, Any], models: list[ModelSpec], jobs: dict[tuple[str, ...], Job]
) -> Run:
    key = tuple(row[name] for name in COLUMNS[2:13])
    job = jobs.get(key)
    if job is None:
        gpus = int(row["gpus"])
        work = {"global_batch": int(row["batch"]), "seq": int(row["seq"]), "precision": row["computed_in"]}
        work |= {"task": row["task"], "lora_rank": int(row["lora_rank"]), "lora_targets": row["lora_targets"] or "all"}
        job = jobs[key] = Job(
            model=models[int(row["model"])],
            pool=_pool(msgspec.json.encode(shared["pools"][int(row["pool"])]), gpus),
            workload=decode(Workload, work, where=row["id"]),
            runtime=runtimes.runtime(row["runtime"]),
            headroom=0.0,
        )
    peak_of: Peak = msgspec.convert(row["peak_of"], Peak)
    oom = {"1": True, "0": False}.get(row["oom"])
    measured = Measured(_number(row["step_s"]), _number(row["peak_gib"]), peak_of, oom)
    return Run(
        id=row["id"],
        source=row["id"].rpartition("-")[0],
        citation=shared["citations"][int(row["citation"])],
        framework=row["framework"],
        precision=row["precision"],
        job=job,
        strategy=parse_strategy(row["strategy"]),
        measured=measured,
        aside=shared["asides"][int(row["aside"])] if row["aside"] else "",
        filled=tuple(shared["rules"][int(place)] for place in row["filled"].split()),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _model(entry: dict[str, Any]) -> ModelSpec:
    model: ModelSpec = decode(ModelSpec, entry, where="published.json")
    return model


@cache
def _pool(encoded: bytes, gpus: int) -> Pool:
    """The pool of an entry: a catalog device with its changes, and a node with its links."""
    entry = msgspec.json.decode(encoded)
    device: Device = hardware.device(entry["device"])
    if entry["device_changes"]:
        device = decode(Device, msgspec.to_builtins(device) | entry["device_changes"], where="published.json")
    node = decode(NodeType, msgspec.to_builtins(hardware.node_type(entry["node"])) | entry["node_changes"], where="")
    return Pool(device=device, node=node, gpus=gpus)
