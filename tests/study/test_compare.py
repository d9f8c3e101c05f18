"""Differences add up, whatever is compared."""

from __future__ import annotations

from itertools import permutations

import pytest

import astra
from astra.report.study_text import term_rows, verdict
from astra.spec.request import PlanRequest
from astra.study.compare import compared
from astra.study.records import Side
from tests.report import records

REQUEST = PlanRequest(model="llama-2-13b", gpus=("16xA100-80",), batch=64, seq=2048)
STRATEGIES = ("tp2 pp4 dp2 mbs1 sp zero1", "tp1 pp1 dp16 mbs1 zero1 recompute=full", "tp8 pp2 dp1 mbs2 sp")


def side(strategy: str) -> Side:
    estimate = astra.estimate(REQUEST, strategy=strategy)
    return Side(name=strategy, estimate=estimate, tokens_per_step=64 * 2048)


SIDES = {strategy: side(strategy) for strategy in STRATEGIES}


@pytest.mark.parametrize(("first", "second"), list(permutations(STRATEGIES, 2)))
def test_terms_and_memory_add_up(first: str, second: str) -> None:
    found = compared(SIDES[first], SIDES[second])
    one, two = found.first.estimate, found.second.estimate
    assert sum(term.difference_s for term in found.terms) == pytest.approx(two.step_s - one.step_s, abs=1e-12)
    assert sum(term.first_s for term in found.terms) == pytest.approx(one.step_s, rel=1e-12)
    shown = term_rows(found)
    assert sum(row[3] for row in shown) == pytest.approx(two.step_s - one.step_s, abs=1e-12)
    assert len(shown) <= len(found.terms)
    held = [max(each.stages, key=lambda stage: stage.peak_reserved_gib).peak_allocated_gib for each in (one, two)]
    assert sum(found.memory.values()) == pytest.approx(held[1] - held[0], abs=1e-9)


def test_the_other_way_round_is_the_opposite() -> None:
    one, two = (SIDES[strategy] for strategy in STRATEGIES[:2])
    there, back = compared(one, two), compared(two, one)
    forth = {term.term: term.difference_s for term in there.terms}
    assert {term.term: -term.difference_s for term in back.terms} == pytest.approx(forth)
    assert there.within_error == back.within_error


def test_nothing_differs_from_itself() -> None:
    found = compared(SIDES[STRATEGIES[0]], SIDES[STRATEGIES[0]])
    assert all(term.difference_s == 0 for term in found.terms)
    assert verdict(found) == "Both are as fast by this model."


def test_what_makes_a_comparison_unequal_is_said() -> None:
    one = Side(name="a", estimate=records.estimate(), tokens_per_step=1000)
    two = Side(name="b", estimate=records.estimate(gpus="8xA100", runtime="fsdp"), tokens_per_step=2000)
    found = compared(one, two)
    assert [note.partition(" ")[2].partition(":")[0] for note in found.notes[1:]] == ["GPUs differ", "runtimes differ"]
    assert "compare tokens per second" in found.draw(100)
