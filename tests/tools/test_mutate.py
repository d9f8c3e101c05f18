"""Mistakes are found again, meet the quickest tests of their line, and are not run twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tools.mutate import Findings, Mutant, Watch, estimated, mutants

TEXT = "def area(width, height):\n    return width * height if width > 0 else 0\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "area.py"
    path.write_text(TEXT, encoding="utf-8")
    return path


def watch_of(file: Path, each: float = math.inf) -> Watch:
    """Three tests, of which two run the line of the formula."""
    watch = Watch([file], each)
    watch.lines = {"slow": {(str(file), 2)}, "other": set(), "quick": {(str(file), 2)}}
    watch.seconds = {"slow": 9.0, "other": 0.1, "quick": 1.0}
    return watch


def test_every_mistake_of_a_file(file: Path) -> None:
    found = {mutant.what for mutant in mutants(file)}
    assert found == {"Mult -> Div", "Gt -> GtE", "condition negated", "0 -> 1"}


def test_a_mistake_meets_the_quickest_tests_of_its_line(file: Path) -> None:
    inside, elsewhere = Mutant(file, 0, 0, 2, ""), Mutant(file, 0, 0, 1, "")
    assert watch_of(file).of(inside) == ["quick", "slow"]
    assert watch_of(file).of(elsewhere) == ["other", "quick", "slow"]
    assert watch_of(file, each=5).of(inside) == ["quick"]
    assert watch_of(file, each=0.5).of(inside) == ["quick"]  # one in any case


def test_what_was_run_is_not_run_again(file: Path, tmp_path: Path) -> None:
    out, (first, second, *_) = tmp_path / "out.json", mutants(file)
    findings = Findings([file], out)
    findings.add(first, survived=True, met=True)
    again = Findings([file], out)
    assert again.knows(first)
    assert not again.knows(second)
    assert again.survivors() == {(str(first.path), first.place, first.part)}
    file.write_text(TEXT.replace("area", "size"), encoding="utf-8")
    assert not Findings([file], out).knows(first)


def test_what_tests_ran_is_kept_for_the_same_state_alone(file: Path, tmp_path: Path) -> None:
    watch, kept = watch_of(file), tmp_path / "out.ran"
    fresh = Watch([file], math.inf)
    assert not fresh.knows(kept, "a")
    watch.keep(kept, "a")
    assert not fresh.knows(kept, "b")
    assert fresh.knows(kept, "a")
    assert (fresh.lines, fresh.seconds) == (watch.lines, watch.seconds)


def test_the_time_left_grows_with_what_survived(file: Path) -> None:
    left, findings = mutants(file), Findings([file], None)
    assert f"{len(left)} mutants left" in estimated(left, watch_of(file), findings)
    assert "33% survive" in estimated(left, watch_of(file), findings)
    findings.add(left[0], survived=True, met=True)
    assert "100% survive" in estimated(left[1:], watch_of(file), findings)
