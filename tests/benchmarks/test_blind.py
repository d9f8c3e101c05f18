"""Blind runs stay blind: they are read, none is in Astra's own table, and every one has its first prediction."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

from astra.validate.runs import Run, read_runs
from astra.validate.sources import use_of
from astra.validate.table import published

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
RUNS = FOLDER / "blind" / "runs.csv"


def test_every_run_is_read() -> None:
    assert [found for found in read_runs(RUNS) if not isinstance(found, Run)] == []


def what(run: Run) -> tuple[int, int, int, int, float | None]:
    """What two rows of one run have in common, whoever wrote them down."""
    job = run.job
    return job.model.layers, job.model.hidden, job.pool.gpus, job.workload.global_batch, run.measured.step_s


def test_none_is_in_the_table_that_is_fitted_on() -> None:
    ours = {what(run) for run in published() if isinstance(run, Run) and run.measured.step_s}
    assert ours
    for run in read_runs(RUNS):
        assert isinstance(run, Run)
        assert what(run) not in ours, run.id
        assert use_of(run.source, run.job.model.name) == "test", run.id


def test_every_run_has_its_first_prediction() -> None:
    first = json.loads((FOLDER / "results" / "2026-11-18_blind.json").read_text(encoding="utf-8"))
    with RUNS.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert [row["id"] for row in rows] == [row["id"] for row in first["rows"]]
    told = Counter(row["notes"].partition("conf=")[2][:1] for row in rows)
    assert set(told) == {"A", "B", "C"}
    assert all(row["source_repo_or_paper"] and row["source_path_or_table"] for row in rows)
