"""The pieces of the partition by brute force, what is exact of its bounds, and the work its short cuts save."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import inf
from time import monotonic

import numpy as np
import pytest

from astra.partition.ends import applies, least_end, solve_ended
from astra.partition.problem import (
    Effort,
    Problem,
    StageRun,
    end_times,
    ends_of_model,
    least_end_by_layers,
    least_sum_of,
    memory_caps,
    narrowed,
    stage_times,
)
from astra.partition.solve import bound, solve
from tests.partition.brute_force import every_pipeline
from tests.partition.test_partition import random_problem, with_ends

# Of what the searches below did on 2026-11-19, in units of effort, and of how close their bounds were. Less work and
# closer bounds are better; more work or wider bounds mean that a short cut no longer cuts.
WORK = {"solve": 26_640.0, "limited": 23_625.0, "bound": 3_904.0, "ended": 83_231.0, "stages": 16_525.0}
CLOSE = {"bound": 0.92107, "end": 0.51376}


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_the_most_layers_a_stage_has_room_for(seed: int, kinds: int) -> None:
    """Where what stays and what is kept are lightest in the same layers, so many fit somewhere, and no more."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, pools=2, depth=9, most_stages=4, kinds=kinds)
    room = rng.choice([0.02, 0.2, 1.0])
    pools = tuple(
        tuple(
            one._replace(
                kept_bytes=one.stay_bytes * 0.4,
                limit_bytes=one.fixed_bytes + room * rng.uniform(0, 1) * one.stay_bytes[-1],
            )
            for one in pool
        )
        for pool in problem.pools
    )
    caps = memory_caps(problem._replace(pools=pools, uniform_layers=kinds == 1))
    for row, one in enumerate(one for pool in pools for one in pool):
        for place in range(caps.shape[1]):
            weight = 1 + 0.4 * problem.in_flight[place + 1]
            free = one.limit_bytes - one.fixed_bytes
            fitting = [
                count
                for count in range(10)
                if min(weight * (one.stay_bytes[count:] - one.stay_bytes[: 10 - count])) <= free
            ]
            assert caps[row, place] == (max(fitting, default=0) if place < one.stages else 0)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_the_least_end_of_stages_with_some_layers_or_more(seed: int, alike: bool) -> None:
    rng = np.random.default_rng(seed)
    depth = 7
    table = rng.uniform(0, 1, (4, depth + 1) if alike else (4, depth + 1, depth + 1))
    least = least_end_by_layers(table)
    for layers in range(1, depth + 1):
        stages = [(front, back) for front in range(depth + 1) for back in range(front) if front - back >= layers]
        ends = [table[:, front - back] if alike else table[:, front, back] for front, back in stages]
        assert least[layers] == np.min(ends)
    assert least[0] == -inf


@pytest.mark.parametrize("seed", range(20))
def test_the_least_sum_of_layers_dealt_to_pools(seed: int) -> None:
    rng = np.random.default_rng(seed)
    depth, sizes = int(rng.integers(1, 7)), rng.integers(1, 3, int(rng.integers(1, 4)))
    times = np.concatenate(
        (np.zeros((sizes.sum(), 1)), np.cumsum(rng.uniform(0.1, 2, (sizes.sum(), depth)), axis=1)), 1
    )
    held, starts = rng.integers(0, depth + 1, sizes.sum()).astype(float), np.cumsum([0, *sizes])[:-1]
    rows = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    sums = [
        sum(min((times[row, n] for row in rows[pool] if n <= held[row]), default=inf) for pool, n in enumerate(dealt))
        for dealt in product(range(depth + 1), repeat=len(sizes))
        if sum(dealt) == depth
    ]
    assert least_sum_of(times, held, starts) == pytest.approx(min(sums))


@pytest.mark.parametrize("least", [0.0, 1e-9, 0.3, 2.0, 7.0])
def test_the_least_value_that_is_able_is_closed_in_on(least: float) -> None:
    asked: list[float] = []

    def able(tried: np.ndarray) -> np.ndarray:
        asked.extend(tried)
        return tried >= least

    low, high = narrowed(able, 0.0, 7.0, 3)
    assert low <= least <= high
    assert high - low == pytest.approx(7.0 / 32**3)
    assert len(asked) == 3 * 32
    assert narrowed(lambda tried: np.zeros(32, bool), 0.0, 1.0, 2)[1] == 1.0, "the upper end is taken to be able"


def test_embedding_and_head_of_a_single_stage_are_in_its_time() -> None:
    problem = random_problem(np.random.default_rng(5), pools=1, depth=6, most_stages=1)
    for number, one in enumerate(problem.pools[0]):
        alone = problem._replace(pools=((one,),))
        (whole,) = stage_times(problem, (StageRun(0, number, (6,)),))
        assert whole == pytest.approx(one.time_s[-1] + ends_of_model(alone))
    others = [ends_of_model(problem._replace(pools=((one,),))) for one in problem.pools[0]]
    assert ends_of_model(problem) <= min(others)


@pytest.mark.parametrize("seed", range(24))
def test_with_one_stage_the_bound_of_the_end_is_its_end(seed: int) -> None:
    """To the grid it is looked for on, as nothing is left to choose; there is none where its time is too long."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, pools=1, depth=5, most_stages=1)._replace(stages=(None, 1)[seed % 2])
    choice = problem.pools[0][0]._replace(limit_bytes=1e9, first_s=0.0, last_s=0.0)
    table = np.tile(np.sort(rng.uniform(0, 1, 6)), (4, 1))
    problem = problem._replace(pools=((choice,),), ends=((table,),))
    found = solve_ended(problem)
    assert found is not None
    (end,) = end_times(problem.ends, found.pipeline.runs)
    value_s = found.total_s - end
    for below in (inf, 1.01 * found.total_s, 0.99 * value_s):
        least = inf if problem.max_weight and below < value_s else end
        assert least_end(problem, below) == pytest.approx(least, rel=3e-3)
        assert least_end(problem, below) <= least
    full = problem._replace(pools=((choice._replace(limit_bytes=0.0),),))
    assert least_end(full, inf) == inf


def test_layers_that_differ_in_any_choice_need_the_search_over_paths() -> None:
    problem = random_problem(np.random.default_rng(1), pools=1, depth=6, most_stages=2)
    one = problem.pools[0][0]
    other = one._replace(time_s=one.time_s + np.array([0, 0, 0.5, 0.5, 0.5, 0.5, 0.5]))
    assert applies(problem._replace(pools=((one, one),)))
    assert applies(problem._replace(pools=((), (one,))))
    for pools in (((one, other),), ((other, one),), ((one,), (one,))):
        assert not applies(problem._replace(pools=pools))
    assert not applies(problem._replace(pools=((one,),), least_layers=2))


def test_an_effort_is_over_when_it_is_spent_or_late() -> None:
    effort = Effort(2.0)
    effort.spend(2.0)
    assert effort.over
    assert not Effort().over
    assert Effort(until_s=monotonic() - 1).over
    assert not Effort(until_s=monotonic() + 1000).over


def problems(base: int) -> Iterator[Problem]:
    """Small problems of several pools and kinds of layers, some with many pools."""
    for seed in range(30):
        rng = np.random.default_rng(base + seed)
        kinds = 1 + seed % 2
        pools = int(rng.integers(2, 4)) if seed % 5 else 5
        problem = random_problem(rng, pools, int(rng.integers(6, 11)), most_stages=3, kinds=kinds)
        yield with_ends(rng, problem._replace(every=False, uniform_layers=kinds == 1), alike=kinds == 1)


def work(search: Callable[[Problem, Effort], object], *, only: Callable[[Problem], bool] = lambda _: True) -> float:
    effort = Effort()
    for problem in filter(only, problems(21_000)):
        search(problem, effort)
    return effort.spent


def test_short_cuts_save_as_much_work_as_they_did() -> None:
    def limited(problem: Problem, effort: Effort) -> object:
        best = solve(problem)
        return best and solve(problem, below=best.value_s * 1.001, effort=effort)

    found = {
        "solve": work(lambda problem, effort: solve(problem, effort=effort)),
        "limited": work(limited),
        "bound": work(lambda one, effort: bound(one, effort=effort), only=lambda one: one.uniform_layers),
        "ended": work(lambda problem, effort: solve_ended(problem, effort=effort)),
        "stages": work(lambda problem, effort: solve(problem._replace(stages=4), effort=effort)),
    }
    assert {name: units for name, units in found.items() if units > 1.0005 * WORK[name]} == {}


def test_bounds_are_as_close_as_they_were() -> None:
    """The mean of bound over truth: of the value without the order of pools, and of the shortest end."""
    values, ends = [], []
    for problem in problems(22_000):
        if len(problem.pools) > 3:
            continue
        every = [np.concatenate(column) for column in zip(*every_pipeline(problem), strict=True)]
        best = solve(problem)
        if best is None:
            continue
        if problem.uniform_layers:
            values.append(bound(problem).least / best.value_s)
        limits = (1.05 * every[0].min(), 1.3 * every[0].min(), inf)
        ends += [least_end(problem, below) / every[1][every[0] < below].min() for below in limits]
    found = {"bound": float(np.mean(values)), "end": float(np.mean(ends))}
    assert {name: part for name, part in found.items() if not CLOSE[name] <= part <= 1} == {}
