"""The partition problem in plain terms: every subset and order of pools, every choice, stage count and layer split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, permutations, product

import numpy as np

from astra.partition.problem import Problem, StageRun


@lru_cache(maxsize=64)
def compositions(total: int, parts: int, least: int) -> np.ndarray:
    """Every way to deal ``total`` layers to ``parts`` stages with at least ``least`` each: [way, stage]."""
    spare = total - parts * least
    if spare < 0:
        return np.zeros((0, parts), np.int64)
    cuts = list(combinations(range(spare + parts - 1), parts - 1))
    bars = np.array(cuts, np.int64).reshape(len(cuts), parts - 1)
    edges = np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), spare + parts - 1)
    return np.diff(np.concatenate(edges, axis=1), axis=1) - 1 + least


def fits(problem: Problem, runs: tuple[StageRun, ...]) -> bool:
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
    return min((float(values.min()) for values, _ in every_pipeline(problem)), default=float(np.inf))


def every_pipeline(problem: Problem) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """What each pipeline takes, with its end, and its longest end: all splits of one order, choice and size at once."""
    depth = len(next(choice for pool in problem.pools for choice in pool).time_s) - 1
    pools = range(len(problem.pools))
    for used in range(1, len(problem.pools) + 1):
        if problem.every and used < len(problem.pools):
            continue
        for order in permutations(pools, used):
            if any(problem.must >> pool & 1 and pool not in order for pool in pools):
                continue
            for numbers in product(*(range(len(problem.pools[pool])) for pool in order)):
                most = [problem.pools[pool][number].stages for pool, number in zip(order, numbers, strict=True)]
                counts = [[n] if problem.every else range(1, n + 1) for n in most]
                for stages in product(*counts):
                    yield every_split(problem, order, numbers, stages, depth)


def best_split(
    problem: Problem, order: Sequence[int], numbers: Sequence[int], stages: Sequence[int], depth: int
) -> float:
    """The best of all layer splits of one skeleton."""
    return float(every_split(problem, order, numbers, stages, depth)[0].min())


def every_split(
    problem: Problem, order: Sequence[int], numbers: Sequence[int], stages: Sequence[int], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """All layer splits of one skeleton, as columns over the splits; infinite where one does not fit."""
    none = np.full(1, np.inf), np.full(1, np.inf)
    if problem.stages is not None and sum(stages) != problem.stages:
        return none
    if sum(stages) >= len(problem.in_flight):
        return none
    owners = [(pool, number) for pool, number, count in zip(order, numbers, stages, strict=True) for _ in range(count)]
    ways = compositions(depth, len(owners), problem.least_layers)
    if not len(ways):
        return none
    left = depth - np.concatenate((np.zeros((len(ways), 1), np.int64), np.cumsum(ways, axis=1)), axis=1)
    longest, total, able = np.zeros(len(ways)), np.zeros(len(ways)), np.ones(len(ways), bool)
    end = np.zeros(len(ways))
    for place, (pool, number) in enumerate(owners):
        choice = problem.pools[pool][number]
        before, after = left[:, place], left[:, place + 1]
        seconds = choice.time_s[before] - choice.time_s[after]
        need = choice.stay_bytes[before] - choice.stay_bytes[after] + choice.fixed_bytes
        need = need + (choice.kept_bytes[before] - choice.kept_bytes[after]) * problem.in_flight[len(owners) - place]
        seconds = seconds + (choice.first_s if place == 0 else hop(problem, owners[place - 1], owners[place]))
        need = need + (choice.first_bytes if place == 0 else 0.0)
        if place == len(owners) - 1:
            seconds, need = seconds + choice.last_s, need + choice.last_bytes
        else:
            seconds = seconds + hop(problem, owners[place], owners[place + 1])
        able &= need <= choice.limit_bytes
        longest, total = np.maximum(longest, seconds), total + seconds
        if problem.ends:
            row = problem.ends[pool][number][int(place == 0) + 2 * int(place == len(owners) - 1)]
            end = np.maximum(end, row[before - after] if row.ndim == 1 else row[before, after])
    values = np.where(able, problem.sum_weight * total + problem.max_weight * longest + end, np.inf)
    return values, np.where(able, end, np.inf)


def hop(problem: Problem, here: tuple[int, int], there: tuple[int, int]) -> float:
    """Seconds of a transfer between two stages."""
    if here[0] == there[0]:
        return problem.pools[here[0]][here[1]].send_s
    return float(problem.hop_s[here[0], there[0]][here[1], there[1]])
