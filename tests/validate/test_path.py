"""A published run is replayed by the user's own path: its request, printed, gives the same number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import astra
from astra.cli import main
from astra.validate.replay import replay
from astra.validate.runs import Run
from astra.validate.table import published
from tests.tiers import sampled
from tests.validate.test_runs import run as run_of

PARTS = 24  # of the table


@pytest.mark.parametrize("part", sampled(range(PARTS), every=PARTS))
def test_estimate_on_a_printed_request_gives_the_same_number(part: int) -> None:
    """Every run of the table, through JSON, so that nothing but what is printed can matter."""
    table = [run for run in published() if isinstance(run, Run)]
    mine = set(list(dict.fromkeys(id(run.request) for run in table))[part::PARTS])
    runs = {(id(run.request), run.strategy): run for run in table if id(run.request) in mine}
    rows = replay(list(runs.values()))
    assert len(rows) > 1000 / PARTS
    for row in rows:
        assert row.request is not None, row.skipped
        asked = json.loads(json.dumps(row.request))
        found = astra.estimate(asked.pop("model"), **asked)
        assert found.step_s == pytest.approx(row.predicted_step_s, rel=1e-9), row.id
        assert [stage.peak_allocated_gib for stage in found.stages] == pytest.approx(row.predicted_peak_gib), row.id


@pytest.mark.parametrize("run", ["dgxc-0007", "amp-0054"])
def test_the_text_of_a_run_is_a_file_for_estimate(run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--show", run]) == 0
    path = tmp_path / "run.toml"
    path.write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["validate", "--show", run, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    assert main(["estimate", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step_s"] == pytest.approx(row["predicted_step_s"], rel=1e-9)


def test_a_run_that_is_not_there_is_an_input_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "--show", "dgxc-9999"]) == 2
    assert "dgxc" in capsys.readouterr().err


def test_no_rule_looks_at_who_published_a_run() -> None:
    """The same row under every name of a source is the same request and strategy."""
    usual = run_of()
    for source in ("sailor", "amp", "simumax", "mbridge", "mlperf", "torchtitan"):
        other = run_of(id=f"{source}-0001", source_repo_or_paper=f"someone/{source}@1234567")
        assert other.request == usual.request
        assert other.strategy == usual.strategy
