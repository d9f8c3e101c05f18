"""The optimiser against brute force: every subset and order of pools, every choice, stage count and layer split."""

from __future__ import annotations

from itertools import combinations, permutations, product

import numpy as np
import pytest

from astra.space.one_pool import applies, solve_one
from astra.space.partition import Choice, Problem, Run, solve, stage_times, value


def compositions(total: int, parts: int, least: int) -> list[tuple[int, ...]]:
    """Every way to deal ``total`` layers to ``parts`` stages with at least ``least`` each."""
    spare = total - parts * least
    if spare < 0:
        return []
    bars = combinations(range(spare + parts - 1), parts - 1)
    return [
        tuple(b - a - 1 + least for a, b in zip((-1, *cut), (*cut, spare + parts - 1), strict=True)) for cut in bars
    ]


def fits(problem: Problem, runs: tuple[Run, ...]) -> bool:
    """Memory of every stage, in plain terms."""
    stages = [(run.pool, run.choice, count) for run in runs for count in run.layers]
    left = sum(count for _, _, count in stages)
    for place, (pool, number, count) in enumerate(stages):
        choice = problem.pools[pool][number]
        from_end = len(stages) - place
        need = choice.stay_bytes[left] - choice.stay_bytes[left - count]
        need += (choice.kept_bytes[left] - choice.kept_bytes[left - count]) * problem.in_flight[from_end]
        need += choice.fixed_bytes
        need += choice.first_bytes if place == 0 else 0.0
        need += choice.last_bytes if from_end == 1 else 0.0
        if need > choice.limit_bytes:
            return False
        left -= count
    return True


def brute_force(problem: Problem) -> float:
    """The least value over everything there is."""
    depth = len(problem.pools[0][0].time_s) - 1
    best = np.inf
    pools = range(len(problem.pools))
    for used in range(1, len(problem.pools) + 1):
        if problem.every and used < len(problem.pools):
            continue
        for order in permutations(pools, used):
            for numbers in product(*(range(len(problem.pools[pool])) for pool in order)):
                most = [problem.pools[pool][number].stages for pool, number in zip(order, numbers, strict=True)]
                counts = [[n] if problem.every else range(1, n + 1) for n in most]
                for stages in product(*counts):
                    best = min(best, best_split(problem, order, numbers, stages, depth))
    return best


def best_split(problem: Problem, order, numbers, stages, depth) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
    if problem.stages is not None and sum(stages) != problem.stages:
        return float(np.inf)
    best = np.inf
    ends = np.cumsum(stages)
    for split in compositions(depth, sum(stages), problem.least_layers):
        runs = tuple(
            Run(pool, number, split[end - count : end])
            for pool, number, count, end in zip(order, numbers, stages, ends, strict=True)
        )
        if fits(problem, runs):
            best = min(best, value(problem, stage_times(problem, runs)))
    return float(best)


def random_problem(rng: np.random.Generator, pools: int, depth: int, most_stages: int, *, kinds: int = 1) -> Problem:
    """Pools with one to three choices; memory that binds on early stages in about half of the cases."""
    kind = rng.integers(0, kinds, depth)
    tight = rng.random() < 0.5

    def prefix(low: float, high: float) -> np.ndarray:
        return np.concatenate(([0.0], np.cumsum(rng.uniform(low, high, kinds)[kind])))

    def choice() -> Choice:
        stay, kept = prefix(0.5, 2.0), prefix(0.1, 1.0)
        room = rng.uniform(0.3, 1.2) * (stay[-1] + 2 * kept[-1]) if tight else 1e9
        return Choice(
            stages=int(rng.integers(1, most_stages + 1)),
            time_s=prefix(0.5, 4.0),
            first_s=rng.uniform(0, 1),
            last_s=rng.uniform(0, 3),
            send_s=rng.uniform(0, 0.3),
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


@pytest.mark.parametrize("seed", range(300))
def test_equals_brute_force_on_small_cases(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pools = int(rng.integers(1, 4))
    depth = int(rng.integers(1, 9))
    agree(random_problem(rng, pools, depth, most_stages=int(rng.integers(1, 4)), kinds=int(rng.integers(1, 3))))


@pytest.mark.parametrize("seed", range(12))
def test_equals_brute_force_on_deep_models(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    agree(random_problem(rng, pools=2, depth=int(rng.integers(14, 25)), most_stages=3))


@pytest.mark.parametrize("seed", range(4))
def test_equals_brute_force_on_twelve_stages(seed: int) -> None:
    """Three pools with four stages each, 24 layers: only full pools, so that every split can be listed."""
    rng = np.random.default_rng(2000 + seed)
    problem = random_problem(rng, pools=3, depth=24, most_stages=4)
    one = tuple((pool[0]._replace(stages=2 + (seed + place) % 2, limit_bytes=1e9),) for place, pool in
                enumerate(problem.pools))  # fmt: skip
    hops = {pair: hop[:1, :1] for pair, hop in problem.hop_s.items()}
    agree(problem._replace(pools=one, hop_s=hops, every=True))


@pytest.mark.parametrize("seed", range(60))
def test_a_given_number_of_stages(seed: int) -> None:
    rng = np.random.default_rng(3000 + seed)
    problem = random_problem(rng, pools=2, depth=int(rng.integers(4, 9)), most_stages=3)
    agree(problem._replace(stages=int(rng.integers(2, 6)), every=False, least_layers=int(rng.integers(1, 3)),
                           sum_weight=0.5))  # fmt: skip


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
    problem = random_problem(rng, pools=1, depth=int(rng.integers(1, 25)), most_stages=int(rng.integers(1, 9)))
    if seed % 3 == 0:
        problem = problem._replace(stages=int(rng.integers(1, 6)), every=False)
    assert applies(problem)
    one, other = solve_one(problem), solve(problem)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert fits(problem, one.runs)
        assert one.value_s == pytest.approx(other.value_s, rel=1e-9)
        assert sum(map(sum, (run.layers for run in one.runs))) == len(problem.pools[0][0].time_s) - 1
