"""Blind runs stay blind: they are read, none is in Astra's own table, and every one has its first prediction."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest

from astra.validate.measured import use_of
from astra.validate.runs import Run, read_runs
from astra.validate.table import published

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
FIRST, SECOND, THIRD = (FOLDER / "blind" / f"runs{number}.csv" for number in ("", "2", "3"))
every = pytest.mark.parametrize("runs", [FIRST, SECOND, THIRD], ids=["first", "second", "third"])


@every
def test_every_run_is_read(runs: Path) -> None:
    assert [found for found in read_runs(runs) if not isinstance(found, Run)] == []


def what(run: Run) -> tuple[int, int, int, int, float | None]:
    """What two rows of one run have in common, whoever wrote them down."""
    job = run.job
    return job.model.layers, job.model.hidden, job.pool.gpus, job.workload.global_batch, run.measured.step_s


@every
def test_none_is_in_the_table_that_is_fitted_on(runs: Path) -> None:
    ours = {what(run) for run in published() if isinstance(run, Run) and run.measured.step_s}
    assert ours
    for run in read_runs(runs):
        assert isinstance(run, Run)
        assert what(run) not in ours, run.id
        assert use_of(run.source, run.job.model.name) == "test", run.id


def test_the_second_set_has_none_of_the_first_nor_its_places() -> None:
    first, second = ([run for run in read_runs(runs) if isinstance(run, Run)] for runs in (FIRST, SECOND))
    seen = {what(run) for run in first if run.measured.step_s}
    assert [run.id for run in second if what(run) in seen] == []
    places = [{run.citation.partition(":")[0].partition("@")[0] for run in runs} for runs in (first, second)]
    assert not places[0] & places[1]


def test_the_third_set_has_none_of_the_others() -> None:
    others, third = ([run for run in read_runs(runs) if isinstance(run, Run)] for runs in (FIRST, THIRD))
    others += [run for run in read_runs(SECOND) if isinstance(run, Run)]
    seen = {what(run) for run in others if run.measured.step_s}
    assert [run.id for run in third if what(run) in seen] == []


@pytest.mark.parametrize(
    ("runs", "kept", "commit"),
    [
        (FIRST, "2026-11-18_blind.json", "7d4e1a2c"),
        (SECOND, "2026-11-18_blind2.json", "7d4e1a2c"),
        (THIRD, "2026-11-19_blind3.json", "6b90ebe2"),
    ],
    ids=["first", "second", "third"],
)
def test_every_run_has_its_first_prediction(runs: Path, kept: str, commit: str) -> None:
    first = json.loads((FOLDER / "results" / kept).read_text(encoding="utf-8"))
    with runs.open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert first["commit"] == commit
    assert [row["id"] for row in rows] == [row["id"] for row in first["rows"]]
    told = Counter(row["notes"].partition("conf=")[2][:1] for row in rows)
    assert set(told) == {"A", "B", "C"}
    assert all(row["source_repo_or_paper"] and row["source_path_or_table"] for row in rows)
