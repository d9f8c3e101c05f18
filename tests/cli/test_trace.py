"""``astra trace``: pictures of a plan file's step, and what is said of files that cannot be drawn."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

import astra
from astra.cli import main


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    found = astra.plan("llama-2-13b", gpus="16xA100-80", batch=64, seq=2048, top=2, fix=("pp=4",))
    path.write_text(found.to_json(), encoding="utf-8")
    return path


@pytest.mark.parametrize(("name", "start"), [("a.svg", "<svg"), ("a.html", "<!doctype html>"), ("a.json", '{"trace')])
def test_the_ending_of_the_name_chooses_the_picture(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, start: str
) -> None:
    file = tmp_path / name
    assert main(["trace", str(plan), "--pick", "2", "--out", str(file)]) == 0
    assert file.read_text(encoding="utf-8").startswith(start)
    assert f"Wrote {file}." in capsys.readouterr().out


def test_json_is_the_record_and_adds_up_to_the_plan(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(plan), "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    step_s = json.loads(plan.read_text(encoding="utf-8"))["plans"][0]["estimate"]["step_s"]
    assert record["schema"] == "astra.timeline/1"
    for lane in record["lanes"]:
        assert sum(end - start for _, start, end, *_ in lane["spans"]) == pytest.approx(step_s, rel=1e-9)


def test_a_plan_of_another_version_is_told_so(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = json.loads(plan.read_text(encoding="utf-8"))
    record["plans"][0]["estimate"]["step_s"] *= 1.01
    other = tmp_path / "other.json"
    other.write_text(json.dumps(record), encoding="utf-8")
    assert main(["trace", str(other)]) == 0
    assert "made by another version" in capsys.readouterr().out


def test_a_png_is_drawn_or_told_what_it_needs(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.png"
    there = find_spec("resvg_py") is not None
    assert main(["trace", str(plan), "--out", str(file)]) == (0 if there else 2)
    if there:
        assert file.read_bytes().startswith(b"\x89PNG")
    else:
        assert "pip install 'astra-planner[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--out", "a.pdf"], "A browser prints the .html as PDF"),
        (["--out", "step"], "wanted a name that ends in .svg, .html, .png or .json"),
        (["--pick", "7"], "a rank in the file, which has 2 plans"),
        (["--pick", "best"], "the rank of a plan"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(
    plan: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["trace", str(plan), *words]) == 2
    assert said in capsys.readouterr().err
