"""Chunks of unequal layers: what is alive at the worst moment, against orders replayed from the published rules."""

from __future__ import annotations

from itertools import product

import pytest

from astra.schedule.registry import find
from astra.schedule.simulator import enough_microbatches, most_alive


def replayed_peak(p: int, m: int, rank: int, weights: tuple[int, ...]) -> int:
    """Megatron's interleaved 1F1B in plain words, p dividing m: groups of p through each chunk, last chunk back first.

    A rank is 2 (p-r-1) + (v-1) p forwards ahead; then forward and backward in turn, then what is left.
    """
    v, groups = len(weights), m // p
    chunks = [chunk for _ in range(groups) for chunk in range(v) for _ in range(p)]
    ahead = min(2 * (p - rank - 1) + (v - 1) * p, m * v)
    forward, backward = [weights[chunk] for chunk in chunks], [weights[v - 1 - chunk] for chunk in chunks]
    now = most = sum(forward[:ahead])
    for at, freed in enumerate(backward):
        now += forward[ahead + at] if ahead + at < m * v else 0
        most, now = max(most, now), now - freed
    assert now == 0
    return most


@pytest.mark.parametrize("v", [2, 3, 4])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5])
def test_interleaved_chunks_of_every_size(p: int, v: int) -> None:
    for weights, groups in product(product((0, 1, 2, 5), repeat=v), (1, 2, 3, 4, 7)):
        if not any(weights):
            continue
        layers = tuple(weights[chunk] for chunk in range(v) for _ in range(p))
        found = most_alive("interleaved", p, v, enough_microbatches("interleaved", p, groups * p), layers)
        for rank in range(p):
            assert found[rank] * sum(weights) == pytest.approx(replayed_peak(p, groups * p, rank, weights), rel=1e-12)


@pytest.mark.parametrize("schedule", ["interleaved", "zbv"])
def test_the_order_is_walked_far_enough(schedule: str) -> None:
    """Every slot of every rank by hand, for any number of micro-batches."""
    for p, m, weights in product((1, 2, 3, 4), range(1, 23), ((0, 1), (1, 0), (1, 3), (3, 2), (2, 2))):
        place = find(schedule).place(p, 2)
        layers = [0] * (2 * p)
        for chunk, rank in product(range(2), range(p)):
            layers[place[chunk, rank]] = weights[chunk]
        found = most_alive(schedule, p, 2, enough_microbatches(schedule, p, m), tuple(layers))
        for rank in range(p):
            now = most = 0
            for kind, _, chunk in find(schedule).slots(p, 2, m, rank).tolist():
                now += weights[chunk] * (kind == 0)
                most = max(most, now)
                now -= weights[chunk] * (kind == (2 if schedule == "zbv" else 1))
            assert found[rank] * sum(weights) == pytest.approx(most, rel=1e-12)


def test_equal_chunks_weigh_their_count() -> None:
    """On each rank for itself, also where ranks differ from one another."""
    assert most_alive("interleaved", 2, 2, 8, (3, 1, 3, 1)).tolist() == [2.5, 1.5]
    assert most_alive("1f1b", 4, 1, 8, (3, 1, 0, 2)).tolist() == [4, 3, 2, 1]


def test_an_empty_last_chunk_leaves_the_others_as_full() -> None:
    """Two layers and none on the last of 16 ranks: a group of 16 and the next one's first, not the mean of 8.5."""
    assert most_alive("interleaved", 16, 2, 960, (*[2] * 30, 1, 0))[-1] == 17
