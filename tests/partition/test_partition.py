"""The optimiser against brute force: every subset and order of pools, every choice, stage count and layer split."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from astra.partition import solve as partition
from astra.partition.ends import applies, least_end, solve_ended, solve_one
from astra.partition.problem import Effort, Problem, StageChoice, end_times, memory_caps, stage_times, value
from astra.partition.solve import bound, solve
from tests.partition.brute_force import best_split, brute_force, every_pipeline, fits
from tests.tiers import sampled


def random_problem(
    rng: np.random.Generator, pools: int, depth: int, most_stages: int, *, kinds: int = 1, sends: float = 1.0
) -> Problem:
    """Pools with one to three choices; memory that binds on early stages in about half of the cases."""
    kind = rng.integers(0, kinds, depth)
    tight = rng.random() < 0.5

    def prefix(low: float, high: float) -> np.ndarray:
        return np.concatenate(([0.0], np.cumsum(rng.uniform(low, high, kinds)[kind])))

    def choice() -> StageChoice:
        stay, kept = prefix(0.5, 2.0), prefix(0.1, 1.0)
        room = rng.uniform(0.3, 1.2) * (stay[-1] + 2 * kept[-1]) if tight else 1e9
        return StageChoice(
            stages=int(rng.integers(1, most_stages + 1)),
            time_s=prefix(0.5, 4.0),
            first_s=rng.uniform(0, 1),
            last_s=rng.uniform(0, 3),
            send_s=sends * rng.uniform(0, 0.3),
            stay_bytes=stay,
            kept_bytes=kept,
            fixed_bytes=rng.uniform(0, 1),
            first_bytes=rng.uniform(0, 1),
            last_bytes=rng.uniform(0, 1),
            limit_bytes=room,
        )

    tables = tuple(tuple(choice() for _ in range(rng.integers(1, 4 if depth < 10 else 3))) for _ in range(pools))
    hops = {}
    for i in range(pools):
        for k in range(i):
            hops[i, k] = rng.uniform(0, 1.0, (len(tables[i]), len(tables[k])))
            hops[k, i] = hops[i, k].T
    m = int(rng.integers(1, 40))
    places = np.arange(pools * most_stages + 1)
    return Problem(
        pools=tables,
        hop_s=hops,
        in_flight=np.minimum(places, m).astype(np.float64),
        sum_weight=1.0,
        max_weight=float(m - 1),
        every=bool(rng.random() < 0.2),
    )


def agree(problem: Problem) -> None:
    expected, found = brute_force(problem), solve(problem)
    if not np.isfinite(expected):
        assert found is None
        return
    assert found is not None
    assert fits(problem, found.runs)
    assert sum(sum(run.layers) for run in found.runs) == len(problem.pools[0][0].time_s) - 1
    assert found.value_s == pytest.approx(value(problem, stage_times(problem, found.runs)), rel=1e-12)
    assert found.value_s == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", sampled(range(300), every=3))
def test_equals_brute_force_on_small_cases(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(1, 4))
    depth = int(rng.integers(1, 9))
    most_stages, kinds = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    problem = random_problem(rng, pools, depth, most_stages, kinds=kinds)
    agree(problem)
    if kinds == 1:  # which may be known
        agree(problem._replace(uniform_layers=True))


@pytest.mark.parametrize("seed", sampled(range(20), every=2))
def test_equals_brute_force_on_deep_models(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    agree(random_problem(rng, pools=2, depth=int(rng.integers(14, 25)), most_stages=2))


@pytest.mark.parametrize("seed", sampled(range(60), every=3))
def test_equals_brute_force_with_more_pools_than_stages(seed: int) -> None:
    rng = np.random.default_rng(5000 + seed)
    problem = random_problem(rng, pools=4, depth=int(rng.integers(3, 7)), most_stages=int(rng.integers(1, 3)))
    agree(problem._replace(in_flight=problem.in_flight[: int(rng.integers(2, 5))], every=False))


@pytest.mark.parametrize("sizes", sampled([(2, 3, 2), (3, 3, 2), (1, 2, 4), (4, 4, 4)], every=2))
def test_equals_brute_force_on_up_to_twelve_stages(sizes: tuple[int, ...]) -> None:
    """Three pools, 24 layers: only full pools, so that every split can be listed; 1.4 million of each order at most."""
    rng = np.random.default_rng(sum(sizes))
    problem = random_problem(rng, pools=3, depth=24, most_stages=4)
    choices = tuple((pool[0]._replace(stages=size),) for pool, size in zip(problem.pools, sizes, strict=True))
    hops = {pair: hop[:1, :1] for pair, hop in problem.hop_s.items()}
    if sum(sizes) > 10:  # one order alone, by a hop that no other order can afford
        hops = {pair: hop + (0 if pair in ((0, 1), (1, 2)) else 1e6) for pair, hop in hops.items()}
        expected = best_split(problem._replace(pools=choices, hop_s=hops), (0, 1, 2), (0, 0, 0), sizes, 24)
        found = solve(problem._replace(pools=choices, hop_s=hops, every=True))
        assert (found.value_s if found else np.inf) == pytest.approx(expected, rel=1e-9)
        return
    agree(problem._replace(pools=choices, hop_s=hops, every=True))


@pytest.mark.parametrize("seed", sampled(range(60), every=4))
def test_many_pools_without_order_first(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way taken with many pools, by the problem without order, gives the same optimum."""
    rng = np.random.default_rng(5000 + seed)
    problem = random_problem(rng, int(rng.integers(2, 6)), int(rng.integers(4, 16)), int(rng.integers(1, 4)))
    if seed % 2:
        problem = problem._replace(hop_s={pair: np.zeros_like(hop) for pair, hop in problem.hop_s.items()})
    if seed % 3 == 0:
        problem = problem._replace(stages=int(rng.integers(2, 8)), every=False)
    monkeypatch.setattr(partition, "_MANY_POOLS", 99)
    plain = solve(problem)
    monkeypatch.setattr(partition, "_MANY_POOLS", 2)
    quick = solve(problem)
    assert (plain is None) == (quick is None)
    close = bound(problem)
    if plain is not None and quick is not None:
        assert fits(problem, quick.runs)
        assert quick.value_s == pytest.approx(plain.value_s, rel=1e-9)
        assert close.least <= plain.value_s * (1 + 1e-9)
        assert close.pipeline is None or fits(problem, close.pipeline.runs)


def with_ends(rng: np.random.Generator, problem: Problem, *, alike: bool) -> Problem:
    """What follows the pipeline: grows with the layers, more or less, and matters more or less."""
    depth = len(problem.pools[0][0].time_s) - 1
    size = rng.choice([0.1, 1.0, 10.0, 100.0])

    def table() -> np.ndarray:
        base = size * (rng.uniform(0, 1, (4, 1)) + rng.uniform(0.1, 1) * np.arange(depth + 1) / depth)
        base = base + size * rng.uniform(0, 0.5) / np.maximum(np.arange(depth + 1), 1)  # short stages hide less
        if alike:
            return np.asarray(base)
        apart = np.maximum(np.subtract.outer(np.arange(depth + 1), np.arange(depth + 1)), 0)
        return np.asarray(base[:, apart] + size * rng.uniform(0, 0.2, (4, depth + 1, depth + 1)))

    return problem._replace(ends=tuple(tuple(table() for _ in pool) for pool in problem.pools))


def agree_with_ends(problem: Problem) -> None:
    """The whole step, pipeline and what follows it, against brute force."""
    expected, found = brute_force(problem), solve_ended(problem)
    if not np.isfinite(expected):
        assert found is None
        return
    assert found is not None
    runs = found.pipeline.runs
    assert fits(problem, runs)
    whole = value(problem, stage_times(problem, runs)) + max(end_times(problem.ends, runs))
    assert found.total_s == pytest.approx(whole, rel=1e-12)
    assert found.total_s == pytest.approx(expected, rel=1e-9)
    assert solve_ended(problem, below=found.total_s) is None


def no_end_is_below_the_bound(problem: Problem) -> None:
    """Of all pipelines that beat a limit, none has a shorter end than ``least_end`` says."""
    every = [np.concatenate(column) for column in zip(*every_pipeline(problem), strict=True)]
    best = every[0].min()
    for below in (np.inf, 1.5 * best, 1.01 * best) if np.isfinite(best) else ():
        shortest = every[1][every[0] < below].min()
        assert least_end(problem, below) <= shortest * (1 + 1e-9)


@pytest.mark.parametrize("seed", sampled(range(300), every=5))
def test_the_whole_step_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(7000 + seed)
    kinds = int(rng.integers(1, 3))
    problem = random_problem(
        rng, int(rng.integers(1, 4)), int(rng.integers(1, 9)), most_stages=int(rng.integers(1, 4)), kinds=kinds
    )
    problem = with_ends(rng, problem, alike=kinds == 1)
    agree_with_ends(problem)
    no_end_is_below_the_bound(problem)
    if kinds == 1:
        agree_with_ends(problem._replace(uniform_layers=True))
        no_end_is_below_the_bound(problem._replace(uniform_layers=True))


@pytest.mark.parametrize("seed", sampled(range(40), every=3))
def test_the_whole_step_of_deep_models_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(8000 + seed)
    problem = random_problem(rng, pools=2, depth=int(rng.integers(14, 25)), most_stages=2)
    agree_with_ends(with_ends(rng, problem, alike=seed % 2 == 0))


@pytest.mark.parametrize("sizes", sampled([(2, 3, 2), (3, 2, 3), (1, 2, 4), (2, 2, 2)], every=2))
def test_the_whole_step_of_three_full_pools_equals_brute_force(sizes: tuple[int, ...]) -> None:
    """24 layers on up to 8 stages in every order."""
    rng = np.random.default_rng(9000 + sum(sizes))
    problem = random_problem(rng, pools=3, depth=24, most_stages=4)
    choices = tuple((pool[0]._replace(stages=size),) for pool, size in zip(problem.pools, sizes, strict=True))
    hops = {pair: hop[:1, :1] for pair, hop in problem.hop_s.items()}
    agree_with_ends(with_ends(rng, problem._replace(pools=choices, hop_s=hops, every=True), alike=True))


@pytest.mark.exhaustive
def test_twelve_stages_of_three_pools_whole_step() -> None:
    """1.35 million splits of one order, which the hops leave as the only one."""
    rng = np.random.default_rng(12)
    problem = random_problem(rng, pools=3, depth=24, most_stages=4)
    choices = tuple((pool[0]._replace(stages=4),) for pool in problem.pools)
    hops = {p: hop[:1, :1] + (0 if p in ((0, 1), (1, 2)) else 1e6) for p, hop in problem.hop_s.items()}
    problem = with_ends(rng, problem._replace(pools=choices, hop_s=hops, every=True), alike=True)
    expected = best_split(problem, (0, 1, 2), (0, 0, 0), (4, 4, 4), 24)
    found = solve_ended(problem)
    assert (found.total_s if found else np.inf) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_a_given_number_of_stages(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    problem = random_problem(rng, pools=2, depth=int(rng.integers(4, 9)), most_stages=3)
    agree(problem._replace(stages=int(rng.integers(2, 6)), every=False, least_layers=int(rng.integers(1, 3)),
                           sum_weight=0.5))  # fmt: skip


@pytest.mark.parametrize("kinds", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_layers_that_memory_leaves_room_for(seed: int, kinds: int) -> None:
    """[choice, place]: the most neighbouring layers, wherever they are cheapest to hold, that a stage has room for."""
    problem = random_problem(np.random.default_rng(6000 + seed), pools=2, depth=9, most_stages=4, kinds=kinds)
    caps = memory_caps(problem._replace(uniform_layers=kinds == 1))
    for row, choice in enumerate(choice for pool in problem.pools for choice in pool):
        for place in range(caps.shape[1]):
            held = [
                last - first
                for first, last in combinations(range(10), 2)
                if choice.fixed_bytes
                + (choice.stay_bytes[last] - choice.stay_bytes[first])
                + (choice.kept_bytes[last] - choice.kept_bytes[first]) * problem.in_flight[place + 1]
                <= choice.limit_bytes
            ]
            within = place < choice.stages
            assert caps[row, place] >= max(held, default=0) * within, "a stage that fits is not ruled out"
            if kinds == 1:
                assert caps[row, place] == max(held, default=0) * within


@pytest.mark.parametrize("worse", ["first_s", "last_s", "send_s", "stay_bytes", "stages", "hop", "end", "nothing"])
@pytest.mark.parametrize("seed", range(12))
def test_a_quicker_choice_that_is_worse_in_one_thing(seed: int, worse: str) -> None:
    """Whatever one choice does not replace another in, the optimum is that of brute force."""
    rng = np.random.default_rng(7500 + seed)
    problem = random_problem(rng, pools=2, depth=int(rng.integers(4, 9)), most_stages=3)._replace(every=False)
    slower = [pool[0] for pool in problem.pools]
    changed = {"send_s": 0.4, "first_s": 0.5, "last_s": 0.5, "stages": -1, "stay_bytes": slower[0].limit_bytes / 8}
    quicker = [
        choice._replace(
            time_s=choice.time_s * 0.97,
            **({worse: getattr(choice, worse) + changed[worse] * sign} if worse in changed else {}),
        )
        for choice, sign in zip(slower, (1, 1), strict=True)
    ]
    hop = rng.uniform(0, 0.3, (2, 2)) * np.ones((2, 2))
    hop[0] += 0.8 if worse == "hop" else 0.0  # of the quicker choice of the first pool
    pools = tuple((quick, slow) for quick, slow in zip(quicker, slower, strict=True) if quick.stages > 0)
    if len(pools) < 2:
        return
    problem = problem._replace(pools=pools, hop_s={(0, 1): hop, (1, 0): hop.T})
    agree(problem)
    ended = with_ends(rng, problem, alike=True)
    if worse == "end":
        ended = ended._replace(ends=tuple((one + 0.5, other) for one, other in ended.ends))
    agree_with_ends(ended)


def test_effort_is_spent_and_parts_of_it_give_back_what_they_leave() -> None:
    effort = Effort(10.0)
    with effort.part(0.5):
        assert effort.left == 5
        effort.spend(2.0)
        assert effort.left == 3
    assert (effort.left, effort.over) == (8, False)
    effort.spend(9.0)
    assert (effort.left, effort.over) == (0, True)
    problem, spent = random_problem(np.random.default_rng(11), pools=2, depth=8, most_stages=3), []
    for _ in range(2):
        whole = Effort()
        assert solve(problem, effort=whole) is not None
        spent.append(whole.spent)
    assert spent[0] == spent[1] > 0, "the same work is the same effort"


@pytest.mark.parametrize("seed", range(40))
def test_pools_that_must_take_part_and_a_number_of_stages_with_ends(seed: int) -> None:
    rng = np.random.default_rng(11_000 + seed)
    pools, depth = int(rng.integers(1, 4)), int(rng.integers(3, 8))
    problem = random_problem(rng, pools, depth, most_stages=3)
    problem = problem._replace(must=int(rng.integers(0, 2**pools)), every=False)
    agree(problem)
    problem = with_ends(rng, problem, alike=seed % 2 == 0)
    agree_with_ends(problem)
    for stages in (1, 2, 4):
        agree_with_ends(problem._replace(stages=stages))
        no_end_is_below_the_bound(problem._replace(stages=stages))
    if pools == 1:  # none of which is there to be used
        assert solve(problem._replace(must=2)) is solve_one(problem._replace(must=2)) is None


def test_a_limit_below_the_optimum_finds_nothing() -> None:
    problem = random_problem(np.random.default_rng(7), pools=2, depth=8, most_stages=3)._replace(every=False)
    best = solve(problem)
    assert best is not None
    assert solve(problem, below=best.value_s) is None
    again = solve(problem, below=best.value_s * 1.001)
    assert again is not None
    assert again.value_s == pytest.approx(best.value_s, rel=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_one_pool_alone_has_the_same_optimum(seed: int) -> None:
    rng = np.random.default_rng(4000 + seed)
    problem = random_problem(
        rng, pools=1, depth=int(rng.integers(1, 25)), most_stages=int(rng.integers(1, 9)), sends=(1.0, 30.0)[seed % 2]
    )
    if seed % 3 == 0:
        problem = problem._replace(stages=int(rng.integers(1, 6)), every=False)
    assert applies(problem)
    one, other = solve_one(problem), solve(problem)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert fits(problem, one.runs)
        assert one.value_s == pytest.approx(other.value_s, rel=1e-9)
        assert sum(map(sum, (run.layers for run in one.runs))) == len(problem.pools[0][0].time_s) - 1
