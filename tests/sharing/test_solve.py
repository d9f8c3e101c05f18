"""Schedules against all there are; bounds that hold; room that is never exceeded."""

from __future__ import annotations

import random

import pytest

from astra.sharing.problem import GOALS
from tests.sharing import brute_force

pytest.importorskip("highspy", reason="[fleet] is not installed; make test installs it")
from astra.sharing.solve import solve

SEEDS = range(12)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_better_than_what_is_found(seed: int, goal: str) -> None:
    problem = brute_force.drawn(random.Random(seed), 3)
    found = solve(problem, GOALS[goal])
    best = brute_force.best(problem, goal)
    assert found.values == pytest.approx(best, rel=1e-6, abs=1e-5)
    for bound, value in zip(found.bounds, found.values, strict=True):
        assert bound <= value * (1 + 1e-9) + 1e-6, "a bound is below what there is"
