"""Schedules against all there are; bounds that hold; room that is never exceeded."""

from __future__ import annotations

import random

import pytest

from astra.sharing.problem import GOALS, SchedulingProblem, Task, TaskWay, nodes_of, placed, total
from tests.sharing import brute_force

pytest.importorskip("highspy", reason="[fleet] is not installed; make test installs it")
from astra.sharing.solve import solve

SEEDS = range(8)


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("seed", [*SEEDS, 2032])  # of 2032 the solver's grids and moves miss the best by 8%
def test_nothing_is_better_than_what_is_found(seed: int, goal: str) -> None:
    problem = brute_force.drawn(random.Random(seed), 3)
    found = solve(problem, GOALS[goal])
    best = brute_force.best(problem, goal)
    assert found.values == pytest.approx(best, rel=1e-6, abs=1e-5)
    assert found.bounds == found.values, "all were gone through"


@pytest.mark.parametrize("goal", GOALS)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_solver_alone_finds_the_best_too(seed: int, goal: str) -> None:
    """As of problems that are too large to go through."""
    problem = brute_force.drawn(random.Random(seed), 3)
    found = solve(problem, GOALS[goal], most_placed=0)
    assert found.values == pytest.approx(solve(problem, GOALS[goal]).values, rel=1e-6, abs=1e-5)
    for bound, value in zip(found.bounds, found.values, strict=True):
        assert bound <= value * (1 + 1e-9) + 1e-6, "a bound is below what there is"


@pytest.mark.parametrize("seed", range(2))
def test_larger_problems_have_room_and_honest_bounds(seed: int) -> None:
    draw = random.Random(100 + seed)
    problem = brute_force.drawn(draw, 6)
    found = solve(problem, GOALS["completion"])
    ways = tuple(task.ways[run.way] for task, run in zip(problem.tasks, found.schedule, strict=True))
    starts = [run.start_s for run in found.schedule]
    assert brute_force.fits(problem, ways, starts, list(range(6)))
    assert all(start_s >= task.ready_s for start_s, task in zip(starts, problem.tasks, strict=True))
    assert [len(nodes) for nodes in nodes_of(problem, found.schedule)] == [way.nodes for way in ways]
    bound = found.bounds[-1]
    for _ in range(500):  # no schedule that can be thought of is below the bound
        order = draw.sample(range(6), 6)
        other = placed(problem, [draw.randrange(len(task.ways)) for task in problem.tasks], order)
        late, done = (total(problem, other, cost) for cost in GOALS["completion"])
        assert late >= found.bounds[0] * (1 - 1e-9)
        assert late > found.values[0] or done >= bound * (1 - 1e-9)


def test_a_problem_whose_answer_is_known() -> None:
    """Two equal jobs on one node: the one that weighs more goes first (Smith's rule)."""
    way = TaskWay(0, 1, 10.0, 1.0)
    problem = SchedulingProblem((Task((way,), weight=1.0), Task((way,), weight=2.0)), (1,))
    found = solve(problem, GOALS["completion"])
    assert [run.start_s for run in found.schedule] == [10.0, 0.0]
    assert found.values == (0.0, 2 * 10.0 + 20.0)
    assert found.proven
