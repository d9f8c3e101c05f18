"""Write the project's table of published runs from a survey: ``python -m tools.restate_runs RUNS.csv``."""

from __future__ import annotations

import csv
import io
import sys
from collections import Counter
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from astra.catalog import hardware
from astra.spec.cluster import Cluster, Pool
from astra.spec.model import ModelSpec
from astra.spec.request import PlanRequest
from astra.validate.runs import Run, Skipped, read_runs
from astra.validate.table import COLUMNS, RUNS, SHARED


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


def restate(rows: list[Run | Skipped]) -> tuple[str, str]:
    """The text of both files."""
    models, pools, clusters, work, citations, rules, asides = (_Numbered() for _ in range(7))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in rows:
        if isinstance(run, Skipped):
            continue
        model, cluster, measured = run.request.model, run.request.cluster, run.measured
        assert isinstance(model, ModelSpec)
        assert isinstance(cluster, Cluster)
        writer.writerow((
            run.id, run.framework, run.precision, models.place(_sparse(model)),
            clusters.place([[pools.place(_pool_entry(pool)), pool.gpus] for pool in cluster.pools]),
            work.place(_work(run.request)), str(run.strategy), _shown(measured.step_s),
            _shown(measured.peak_gib), measured.peak_of,
            {True: "1", False: "0", None: ""}[measured.oom], asides.place(run.aside) if run.aside else "",
            " ".join(str(rules.place(rule)) for rule in run.filled), citations.place(run.citation),
        ))  # fmt: skip
    left_out = Counter((run.source, run.reason) for run in rows if isinstance(run, Skipped))
    shared = {
        "models": models.entries,
        "pools": pools.entries,
        "clusters": clusters.entries,
        "work": work.entries,
        "citations": citations.entries,
        "rules": rules.entries,
        "asides": asides.entries,
        "left_out": [[source, reason, count] for (source, reason), count in sorted(left_out.items())],
    }
    return page.getvalue(), msgspec.json.format(msgspec.json.encode(shared), indent=1).decode() + "\n"


def _work(request: PlanRequest) -> dict[str, Any]:
    """The fields of a request besides its model and cluster, as far as they are not as usual."""
    return {
        field.name: getattr(request, field.name)
        for field in msgspec.structs.fields(PlanRequest)
        if field.name not in ("model", "cluster", "headroom", "money") and getattr(request, field.name) != field.default
    }


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
        "name": pool.name,
        "device": known,
        "device_changes": {name: value for name, value in own.items() if value != catalog[name]},
        "node": pool.node.name,
        "node_changes": {name: value for name, value in own_node.items() if value != node[name]},
    }


def main(arguments: list[str]) -> int:
    """Write the shipped table from a survey of runs."""
    folder = Path(str(files("astra.validate"))) / "data"
    lines, shared = restate(read_runs(arguments[0]))
    (folder / RUNS).write_text(lines, encoding="utf-8")
    (folder / SHARED).write_text(shared, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
