"""What ``make test`` leaves out is run by ``make test-exhaustive``, and that is run by CI."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiers import EXPLORE, drawn, sampled

ROOT = Path(__file__).parents[2]


def test_both_are_run_by_ci() -> None:
    steps = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert any(step.startswith("make test ") for step in steps)
    assert "make test-exhaustive" in steps
    target = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ntest-exhaustive:")[1].split("\n\n")[0]
    assert "ASTRA_EXHAUSTIVE=1" in target
    assert "pytest -m exhaustive $(ARGS)" in target
    assert "-m 'not exhaustive'" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.skipif(EXPLORE, reason="make explore draws everything")
def test_a_sample_leaves_nothing_out() -> None:
    cases = sampled(range(10), every=4, first=1)
    assert [case for case in cases if isinstance(case, int)] == [1, 5, 9]
    assert [case.values[0] for case in cases if not isinstance(case, int)] == [0, 2, 3, 4, 6, 7, 8]
    assert {mark.name for case in cases if not isinstance(case, int) for mark in case.marks} == {"exhaustive"}


def test_examples_left_out_are_drawn_in_the_other_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> tuple[int, list[str]]:
        seen: list[float] = []

        def law(number: float) -> None:
            seen.append(number)

        test = drawn(30, few=7)(given(st.floats(0, 1))(law))
        test()
        return len(seen), [mark.name for mark in getattr(test, "pytestmark", [])]

    monkeypatch.setattr("tests.tiers.EXPLORE", False)
    monkeypatch.setattr("tests.tiers.TIMES", 1)
    monkeypatch.setattr("tests.tiers.EXHAUSTIVE", False)
    assert made() == (7, [])
    monkeypatch.setattr("tests.tiers.EXHAUSTIVE", True)
    assert made() == (30, ["exhaustive"])
