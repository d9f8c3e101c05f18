"""A fleet shared from end to end: curves as ``astra plan`` answers, advice that does, GPUs that nobody has twice."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import astra
from astra.catalog.requests import write_toml
from astra.cli import main
from astra.errors import NoFeasiblePlan
from astra.questions.answering import answered
from astra.questions.engines import Engine, Given
from astra.report.shared import fleet_page, gantt_svg, ranges
from astra.sharing.declared import sharing_of
from astra.sharing.records import FleetReport
from astra.units import DAY_S, parse_count

pytest.importorskip("highspy", reason="[fleet] is not installed; make test installs it")
from astra.sharing.share import share

TABLES: dict[str, Any] = {
    "pools": {"new": "32xH100", "old": "16xA100-80"},
    "jobs": {
        "chat": {"model": "llama-2-7b", "tokens": "50B", "deadline": "6d", "counts": [8, 16, 32]},
        "code": {"model": "llama-2-7b", "tokens": "20B", "weight": 3, "counts": [8, 16]},
        "tune": {"model": "llama-2-7b", "tokens": "5B", "task": "lora", "start": "1d", "counts": [8]},
    },
    "request": {"batch": 64, "seq": 2048},
}


class Here:
    """Plans in this process, each once for all tests."""

    name, workers = "here", 1

    def answers(self, questions: Any) -> Any:
        for question in questions:
            yield Given(_line(question.key, question.request), 1)

    def close(self) -> None:
        pass


@cache
def _line(key: str, request: Any) -> bytes:
    return answered(key, request)


def here() -> Engine:
    return Here()


def shared(**changed: Any) -> FleetReport:
    return share(sharing_of({**TABLES, **changed}, "s.toml", Path()), here)


def jobs(**changed: dict[str, Any]) -> dict[str, Any]:
    return {name: {**job, **changed.get(name, {})} for name, job in TABLES["jobs"].items()}


def test_points_are_what_astra_plan_answers() -> None:
    report = shared()
    point = next(point for point in report.curves if (point.job, point.pool, point.gpus) == ("chat", "new", 16))
    best = astra.plan("llama-2-7b", gpus="16xH100", tokens="50B", batch=64, seq=2048).best
    assert best.estimate.cost is not None
    assert best.estimate.cost.expected is not None
    assert point.strategy == best.strategy
    assert point.seconds == best.estimate.cost.expected.days * DAY_S
    assert point.usd == best.estimate.cost.expected.usd


@pytest.mark.parametrize("goal", ["completion", "dollars", "deadlines"])
def test_nobody_has_a_node_twice_and_every_wish_is_kept(goal: str) -> None:
    report = shared(goal=goal)
    for place, job in enumerate(report.jobs):
        pool = next(pool for pool in report.pools if pool.name == job.pool)
        assert len(set(job.nodes)) * pool.node_gpus == job.gpus
        assert max(job.nodes) < pool.gpus // pool.node_gpus
        assert job.start_s >= job.ready_s
        assert job.deadline_s is None or job.end_s <= job.deadline_s
        for other in report.jobs[:place]:
            if other.pool == job.pool and set(other.nodes) & set(job.nodes):
                assert other.end_s <= job.start_s + 1e-6 or job.end_s <= other.start_s + 1e-6


def test_goals_are_best_in_what_they_say() -> None:
    soon, cheap = shared(), shared(goal="dollars")
    assert cheap.usd <= soon.usd
    assert soon.weighted_completion_s <= cheap.weighted_completion_s
    assert cheap.usd < soon.usd, "the two differ here"


def refused(**changed: Any) -> str:
    with pytest.raises(NoFeasiblePlan) as caught:
        shared(**changed)
    return str(caught.value)


HARD: dict[str, dict[str, Any]] = {
    "chat": {"model": "llama-2-7b", "tokens": "50B", "deadline": "2d"},
    "code": {"model": "llama-2-7b", "tokens": "20B", "deadline": "30h", "pools": ["new"]},
}


def hard(**changed: dict[str, Any]) -> dict[str, Any]:
    return {name: {**job, **changed.get(name, {})} for name, job in HARD.items()}


def on_time(report: FleetReport) -> bool:
    return not any(job.late_s for job in report.jobs)


def test_each_advice_alone_makes_the_deadlines_possible_and_a_little_less_does_not() -> None:
    told = refused(jobs=hard())
    assert told.startswith("no schedule meets every deadline: ")

    said = told.partition("later deadlines: ")[2].partition(". more")[0]
    later = {name: _up(text) for name, text in re.findall(r"(\w+) ([\d.]+ \w+) instead of", said)}
    assert later
    assert on_time(shared(jobs=hard(**{name: {"deadline": f"{hours}h"} for name, hours in later.items()})))
    assert "late" in refused(jobs=hard(**{name: {"deadline": f"{0.97 * hours}h"} for name, hours in later.items()}))

    found = re.search(r"more GPUs: ([\d,]+) in new", told)
    assert found is not None
    gpus = int(found[1])
    assert on_time(shared(pools={**TABLES["pools"], "new": f"{gpus}xH100"}, jobs=hard()))
    assert "late" in refused(pools={**TABLES["pools"], "new": f"{gpus - 8}xH100"}, jobs=hard())

    said = told.partition("fewer tokens: ")[2]
    tokens = {name: parse_count(text) for name, text in re.findall(r"(\w+) ([\d.]+[BM]) instead of", said)}
    assert tokens
    assert on_time(shared(jobs=hard(**{name: {"tokens": count} for name, count in tokens.items()})))


def test_what_was_not_tried_is_not_said_to_be_in_vain() -> None:
    """A ten-thousandth of the tokens would be in time; shares are tried down to one of 64."""
    job = {"model": "llama-2-7b", "tokens": "20000B", "deadline": "30h", "pools": ["new"]}
    told = refused(jobs={"chat": job})
    assert "fewer tokens: not even 1.6% of them would do" in told
    assert on_time(shared(jobs={"chat": {**job, "tokens": "2B"}}))


def _up(text: str) -> float:
    """Hours of a time as it is shown, with what showing it may have cut off."""
    number, _, unit = text.partition(" ")
    return (float(number) + 0.05) * (24 if unit == "days" else 1)


def test_late_jobs_are_least_late_where_that_is_the_goal() -> None:
    report = shared(goal="deadlines", jobs=hard())
    assert report.late_s > 0
    assert "behind its deadline" in report.draw(100, False)


def test_a_job_without_a_plan_says_why() -> None:
    told = refused(jobs={"big": {"model": "llama-3.1-405b", "tokens": "1B", "counts": [8]}})
    assert told.startswith("big has no plan on any of its pools")


def test_a_job_that_may_have_no_number_of_gpus_is_told_what_there_is() -> None:
    told = refused(jobs={"big": {"model": "llama-2-7b", "tokens": "1B", "min_gpus": 9999}})
    assert "min_gpus" in told
    assert all(name in told for name in TABLES["pools"])


def test_the_picture_has_every_job_and_is_xml() -> None:
    report = shared(title="<b>&", jobs=jobs(**{"chat": {"deadline": "6d"}}))
    root = ElementTree.fromstring(gantt_svg(report))
    said = " ".join(root.itertext())
    assert all(job.name in said for job in report.jobs)
    assert "<b>&" in said
    assert "<b>" not in fleet_page(report).replace("<body>", "")


@pytest.mark.parametrize(("numbers", "text"), [([0, 1, 2, 5], "0-2, 5"), ([3], "3"), ([1, 3], "1, 3")])
def test_nodes_in_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "jobs.toml"
    few = {"a": {"model": "llama-2-7b", "tokens": "5B", "counts": [8]},
           "b": {"model": "llama-2-7b", "tokens": "9B", "counts": [16]}}  # fmt: skip
    path.write_text(write_toml({"pools": {"p": "16xH100"}, "jobs": few, "request": {"batch": 64, "seq": 2048}}))
    picture, page = tmp_path / "who.svg", tmp_path / "who.html"
    assert main(["fleet", str(path), "--json", "--plot", str(picture), "--report", str(page), "--workers", "1"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["schema"] == "astra.fleet/1"
    assert [job["name"] for job in record["jobs"]] == ["a", "b"]
    assert picture.read_text().startswith("<svg")
    assert page.read_text().startswith("<!doctype html>")
    assert main(["fleet", str(path), "--plot", "who.pdf"]) == 2
