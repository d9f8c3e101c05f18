"""Studies from end to end: as ``astra plan`` answers, whole after kill -9, the same whoever answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.catalog.requests import write_request, write_toml
from astra.cli import main
from astra.errors import AstraError, OutputError
from astra.questions.answering import answered
from astra.questions.engines import Local
from astra.questions.run import JOURNAL_FILE, Progress, Results, run
from tests.questions.studies import TABLES, asked, made_up, many, study

parquet = pytest.importorskip("pyarrow.parquet", reason="[study] is not installed; make test installs it")

SIX: dict[str, Any] = {
    "models": ["llama-2-7b"],
    "fleets": ["8xH100", "16xA100-80", "1xL40S"],
    "workloads": {"short": {"batch": 32, "seq": 2048}, "long": {"batch": 4, "seq": "64k"}},
    "request": {"tokens": "10B", "top": 2},
}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parquet.read_table(folder / f"{name}.parquet").to_pylist()
    return found


def lines(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / JOURNAL_FILE).read_text().splitlines()]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study, answered by processes."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "s.toml").write_text(write_toml(SIX))
    assert main(["study", str(folder / "s.toml"), "--out", str(folder / "out"), "--json",
                 "--report", str(folder / "s.html")]) == 0  # fmt: skip
    return folder


def test_rows_are_what_astra_plan_answers(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    questions, plans = rows(answers / "out", "questions"), rows(answers / "out", "plans")
    assert [row["question"] for row in questions] == list(range(6))
    for row in questions:
        request = answers / "request.toml"
        request.write_text(write_request(json.loads(row["request"]), "plan"))
        code = main(["plan", str(request), "--json"])
        record = json.loads(capsys.readouterr().out)
        own = [plan for plan in plans if plan["question"] == row["question"]]
        if code:
            assert (row["status"], row["error"], own) == ("no plan", record["error"]["message"], [])
            continue
        assert row["status"] == "planned"
        assert [plan["strategy"] for plan in own] == [plan["strategy"] for plan in record["plans"]]
        for plan, said in zip(own, (plan["estimate"] for plan in record["plans"]), strict=True):
            for name in ("step_s", "tokens_per_s", "mfu", "peak_reserved_gib", "warnings", "evidence"):
                assert plan[name] == said[name], name
            assert plan["expected_usd"] == said["cost"]["expected"]["usd"]
            assert {term["term"]: term["seconds"] for term in plan["breakdown"]} == said["breakdown"]
        assert row["step_s"] == own[0]["step_s"]
    assert {row["status"] for row in questions} == {"planned", "no plan"}, "both kinds were looked at"


def test_the_page_stands_alone_and_has_every_fleet(answers: Path) -> None:
    page = (answers / "s.html").read_text()
    assert all(fleet in page for fleet in SIX["fleets"])
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_a_second_run_asks_nothing_and_writes_the_same(answers: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = answers / "out"
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert main(["study", str(answers / "s.toml"), "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "6 were answered before; nothing was asked" in shown
    assert "8xH100" in shown
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def processes_of(parent: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found += [int(entry.name), *processes_of(int(entry.name))]
    return found


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc is Linux's")
def test_nothing_is_lost_or_done_twice_by_kill_9(tmp_path: Path, answers: Path) -> None:
    """The study is killed again and again while it runs; what was kept stays letter by letter, and all ends up once."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "astra", "study", str(answers / "s.toml"), "--out", str(out), "--workers", "2"]
    kept = b""
    for wanted in (1, 3):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while _journal(out).count(b"\n") < wanted:
            assert child.poll() is None, "it is killed while questions are open"
            time.sleep(0.002)
        workers = processes_of(child.pid)
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
        assert _journal(out).startswith(kept), "what was kept is as it was"
        kept = _journal(out)[: _journal(out).rindex(b"\n") + 1]
        _gone(workers)
    subprocess.run(command, check=True, capture_output=True)
    assert _journal(out).startswith(kept)
    assert sorted(lines(out)) == sorted({question.key for question in asked(study_of_six())})
    for name in ("questions.parquet", "plans.parquet"):
        assert (out / name).read_bytes() == (answers / "out" / name).read_bytes()


def _journal(out: Path) -> bytes:
    path = out / JOURNAL_FILE
    return path.read_bytes() if path.exists() else b""


def study_of_six() -> Any:
    from astra.questions.declared import study_of

    return study_of(SIX, "s.toml", Path())


def _gone(workers: list[int]) -> None:
    """Workers end by themselves when nobody is left to answer to."""
    patience_s = time.monotonic() + 300
    while any(_runs(worker) for worker in workers):
        assert time.monotonic() < patience_s, "a worker stayed behind"
        time.sleep(0.01)


def _runs(process: int) -> bool:
    """It is there, and not only because nobody asked how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_edited_study_asks_what_is_new(tmp_path: Path) -> None:
    folder = str(tmp_path)
    told: list[Progress] = []
    for tables in ({}, {"models": [*reversed(TABLES["models"]), "llama-2-13b"]}):
        results = Results(folder)
        report = run(study(**tables), results, Local(2, made_up), follow=told.append)
        results.close()
    assert (report.questions, report.before, report.answered) == (24, 16, 24)
    assert len(lines(tmp_path)) == 24
    assert [progress.now for progress in told] == [*range(1, 17), *range(1, 9)]
    assert told[-1].left_s == 0.0
    assert told[16].done == 17
    middle = told[19]
    assert middle.left_s == pytest.approx(middle.seconds, rel=1e-9), "4 of 8 are done, so as much is left"


def test_some_questions_now_and_the_rest_later(tmp_path: Path) -> None:
    reports = []
    for most in (3, 0, None):
        results = Results(str(tmp_path))
        reports.append(run(many(8), results, Local(1, made_up), most=most))
        results.close()
    assert [report.answered for report in reports] == [3, 3, 8]
    assert "5 questions are not answered yet" in reports[1].notes[0]
    assert len(rows(tmp_path, "questions")) == 8


def failing(key: str, request: Any) -> bytes:
    """The real path, with a bug for one batch."""
    from astra.questions import answering

    if request.batch == 16:
        vars(answering)["api"] = None
    return answered(key, request)


def test_a_bug_is_recorded_and_stops_nothing_and_may_be_retried(tmp_path: Path) -> None:
    results = Results(str(tmp_path))
    found = study(fleets=["8xH100"], prices=["spot"], models=["llama-2-7b"],
                  workloads=[{"batch": 8}, {"batch": 16}])  # fmt: skip
    report = run(found, results, Local(1, failing))
    assert report.statuses == {"planned": 1, "no plan": 0, "refused": 0, "failed": 1}
    assert report.problems[0].kind == "AttributeError"
    report = run(found, results, Local(1), retry=True)
    assert (report.before, report.statuses["planned"]) == (1, 2)
    results.close()


def test_a_refused_question_says_why(tmp_path: Path) -> None:
    results = Results(str(tmp_path))
    contradiction = study(goals=["fastest", {"name": "both", "objective": "cheapest"}], prices=["spot"],
                          models=["llama-2-7b"], fleets=["8xH100"], workloads=[{"precision": "mxfp8"}])  # fmt: skip
    report = run(contradiction, results, Local(1))
    results.close()
    assert report.statuses["refused"] + report.statuses["no plan"] == 2
    assert all(row["error"] for row in rows(tmp_path, "questions"))


def other_version(key: str, request: Any) -> bytes:
    return made_up(key, request).replace(f'"version":"{astra.__version__}"'.encode(), b'"version":"0.0.1"')


def test_answers_of_another_version_are_not_mixed_in(tmp_path: Path) -> None:
    results = Results(str(tmp_path))
    with pytest.raises(AstraError, match="another Astra"):
        run(many(2), results, Local(1, other_version))
    results.close()
    assert lines(tmp_path) == []


def test_two_studies_do_not_write_in_one_folder(tmp_path: Path) -> None:
    results = Results(str(tmp_path))
    with pytest.raises(OutputError, match="another process"):
        Results(str(tmp_path))
    results.close()
