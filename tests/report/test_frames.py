"""Answers as rows, pictures and notebook views: what they hold is what the answers hold."""

from __future__ import annotations

import csv
import io
import sys
import xml.etree.ElementTree as ET
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.answer import Table
from astra.errors import InputError
from astra.report.frames import records, written
from astra.spec.request import requested
from astra.study.sweep import read_axes, swept


@cache
def answers() -> dict[str, Table]:
    work: dict[str, Any] = {"batch": 64, "seq": 2048}
    return {
        "plan": astra.plan("llama-2-7b", gpus="8xH100", tokens=1e9, **work),
        "front": astra.plan("llama-2-7b", gpus="32xH100", tokens=1e9, objective="pareto", **work),
        "pools": astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], **work),
        "rent": astra.rent("llama-2-7b", tokens=1e10, gpus="H100", max_gpus=32, **work),
        "afford": astra.afford("llama-3.2-1b", budget=50, gpus="H100", max_gpus=8),
        "sweep": swept(requested("plan", "llama-2-7b", {"gpus": "8xH100", **work}), read_axes(["batch=32,64"])),
    }


NAMES = ("plan", "front", "pools", "rent", "afford", "sweep")


@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_figures_of_the_answer(name: str) -> None:
    answer = answers()[name]
    rows = answer.records()
    assert len({tuple(row) for row in rows}) == 1 or name == "pools", "every row has the same columns"
    told = answer.to_json()
    for row in rows:
        for column, value in row.items():
            assert value is None or isinstance(value, str | int | float | bool)
            assert " " not in column
            if isinstance(value, float):
                assert repr(value) in told, f"{column} is a figure of the record"


def test_a_plans_terms_add_up_to_its_step() -> None:
    plans = answers()["plan"]
    assert isinstance(plans, astra.PlanSet)
    for row, plan in zip(plans.records(), plans.plans, strict=True):
        terms = {f"{term.replace(' ', '_')}_s" for term in plan.estimate.breakdown}
        assert sum(row[term] for term in terms) == pytest.approx(row["step_s"])


@pytest.mark.parametrize("name", NAMES)
def test_pictures_are_svg_and_views_are_whole(name: str, tmp_path: Path) -> None:
    answer = answers()[name]
    picture = answer.plot()
    assert ET.fromstring(picture._repr_svg_()).tag.endswith("svg")
    picture.save(tmp_path / "answer.svg")
    assert (tmp_path / "answer.svg").read_text().strip() == picture.svg
    picture.save(tmp_path / "answer.html")
    assert picture.svg in (tmp_path / "answer.html").read_text()
    with pytest.raises(InputError, match="ends in"):
        picture.save(tmp_path / "answer.pdf")
    view = answer._repr_html_()
    assert view.startswith("<div")
    assert view.count("<div") == view.count("</div>")
    assert "<script" not in view
    assert len(repr(answer)) < 300


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    text = written([{"name": "=1+1", "usd": -2.5, "new": True, "why": None}])
    assert list(csv.reader(io.StringIO(text))) == [["name", "usd", "new", "why"], ["'=1+1", "-2.5", "1", ""]]


def test_a_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "polars"):
        monkeypatch.setitem(sys.modules, library, None)
        with pytest.raises(InputError, match=rf"{library}.*astra-planner\[frames\]"):
            getattr(answers()["plan"], f"to_{library}")()


def test_frames_hold_the_rows() -> None:
    pandas = pytest.importorskip("pandas")
    frame = answers()["rent"].to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(records(answers()["rent"])[0])
    assert frame["usd"].is_monotonic_decreasing or len(frame) == 1


def test_frames_of_polars_hold_the_rows() -> None:
    polars = pytest.importorskip("polars")
    frame = answers()["rent"].to_polars()
    assert isinstance(frame, polars.DataFrame)
    assert frame.columns == list(records(answers()["rent"])[0])
