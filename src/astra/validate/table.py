"""The project's own table of published runs: restated facts with their sources, ready to be replayed.

``published_runs.csv`` has one line per run; models, GPUs, citations and rules, which many runs share, stand once in
``published.json`` and are referred to by number. ``python -m astra.calibrate.runs_table RUNS.csv`` writes both.
"""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import msgspec

from astra.calibrate.runs import Measured, Peak, Run, Skipped, read_runs
from astra.catalog import hardware, runtimes
from astra.spec._base import decode
from astra.spec.cluster import Device, NodeType, Pool
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime
from astra.spec.strategy import parse_strategy
from astra.spec.workload import Workload

RUNS: Final = "published_runs.csv"
SHARED: Final = "published.json"
COLUMNS: Final = (
    "id", "framework", "runtime", "settings", "model", "pool", "gpus", "precision", "computed_in", "task", "lora_rank",
    "batch", "seq", "strategy", "step_s", "peak_gib", "peak_of", "oom", "aside", "filled", "citation",
)  # fmt: skip


class _Numbered:
    """Things that are written once, in the order they are met."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self.entries: list[Any] = []

    def place(self, entry: Any) -> int:
        """Its number."""
        key = msgspec.json.encode(entry).decode()
        if key not in self._places:
            self._places[key] = len(self.entries)
            self.entries.append(entry)
        return self._places[key]


def published() -> list[Run | Skipped]:
    """Every run of the shipped table; rows of the survey that cannot be replayed come last, without their numbers."""
    folder = files("astra.calibrate") / "data"
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
        work |= {"task": row["task"], "lora_rank": int(row["lora_rank"])}
        job = jobs[key] = Job(
            model=models[int(row["model"])],
            pool=_pool(msgspec.json.encode(shared["pools"][int(row["pool"])]), gpus),
            workload=decode(Workload, work, where=row["id"]),
            runtime=_runtime(row["runtime"], shared["settings"][int(row["settings"])] if row["settings"] else {}),
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


def _runtime(name: str, changes: dict[str, Any]) -> Runtime:
    """A catalog runtime with what a run's recipe changes; kernels one by one."""
    entry = msgspec.to_builtins(runtimes.runtime(name))
    kernels = entry["kernels"] | changes.get("kernels", {})
    found: Runtime = decode(Runtime, entry | changes | {"kernels": kernels}, where="published.json")
    return found


def _runtime_changes(runtime: Runtime) -> dict[str, Any]:
    usual, own = msgspec.to_builtins(runtimes.runtime(runtime.name)), msgspec.to_builtins(runtime)
    changes = {name: value for name, value in own.items() if value != usual[name]}
    if "kernels" in changes:
        changes["kernels"] = {
            name: value for name, value in changes["kernels"].items() if value != usual["kernels"][name]
        }
    return changes


@cache
def _pool(encoded: bytes, gpus: int) -> Pool:
    """The pool of an entry: a catalog device with its changes, and a node with its links."""
    entry = msgspec.json.decode(encoded)
    device: Device = hardware.device(entry["device"])
    if entry["device_changes"]:
        device = decode(Device, msgspec.to_builtins(device) | entry["device_changes"], where="published.json")
    node = decode(NodeType, msgspec.to_builtins(hardware.node_type(entry["node"])) | entry["node_changes"], where="")
    return Pool(device=device, node=node, gpus=gpus)


def restate(rows: list[Run | Skipped]) -> tuple[str, str]:
    """The text of both files."""
    models, pools, settings, citations, rules, asides = (_Numbered() for _ in range(6))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in rows:
        if isinstance(run, Skipped):
            continue
        job, measured, work = run.job, run.measured, run.job.workload
        writer.writerow((
            run.id, run.framework, job.runtime.name,
            settings.place(changed) if (changed := _runtime_changes(job.runtime)) else "",
            models.place(_sparse(job.model)),
            pools.place(_pool_entry(job.pool)), job.pool.gpus, run.precision, work.precision, work.task,
            work.lora_rank, work.global_batch, work.seq,
            str(run.strategy), _shown(measured.step_s), _shown(measured.peak_gib), measured.peak_of,
            {True: "1", False: "0", None: ""}[measured.oom], asides.place(run.aside) if run.aside else "",
            " ".join(str(rules.place(rule)) for rule in run.filled), citations.place(run.citation),
        ))  # fmt: skip
    left_out = Counter((run.source, run.reason) for run in rows if isinstance(run, Skipped))
    shared = {
        "models": models.entries,
        "pools": pools.entries,
        "settings": settings.entries,
        "citations": citations.entries,
        "rules": rules.entries,
        "asides": asides.entries,
        "left_out": [[source, reason, count] for (source, reason), count in sorted(left_out.items())],
    }
    return page.getvalue(), msgspec.json.format(msgspec.json.encode(shared), indent=1).decode() + "\n"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _sparse(model: ModelSpec) -> dict[str, Any]:
    """A model without the fields that have their default."""
    entry: dict[str, Any] = {
        field.name: msgspec.to_builtins(getattr(model, field.name))
        for field in msgspec.structs.fields(ModelSpec)
        if field.required or getattr(model, field.name) != field.default
    }
    return entry


def _pool_entry(pool: Pool) -> dict[str, Any]:
    known = pool.device.name.partition(" (")[0]
    catalog, own = msgspec.to_builtins(hardware.device(known)), msgspec.to_builtins(pool.device)
    node, own_node = msgspec.to_builtins(hardware.node_type(pool.node.name)), msgspec.to_builtins(pool.node)
    return {
        "device": known,
        "device_changes": {name: value for name, value in own.items() if value != catalog[name]},
        "node": pool.node.name,
        "node_changes": {name: value for name, value in own_node.items() if value != node[name]},
    }


def main(arguments: list[str]) -> int:
    """Write the shipped table from a survey of runs."""
    folder = Path(__file__).parent / "data"
    lines, shared = restate(read_runs(arguments[0]))
    (folder / RUNS).write_text(lines, encoding="utf-8")
    (folder / SHARED).write_text(shared, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
