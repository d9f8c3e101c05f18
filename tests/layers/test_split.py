"""Layers dealt to stages: the largest stage is as small as it can be, and kinds of rank stand for every rank."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate, combinations_with_replacement, pairwise, product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from astra.layers.kinds import layer_kinds
from astra.layers.split import even, kinds, split, stack, stages, weighted
from astra.provenance import Ints
from astra.schedule.base import in_a_loop, in_a_v
from tests.oracle.requests import KINDS, model

Placed = Callable[[int, int], Ints]

SMALL = settings(max_examples=80, deadline=None)


@SMALL
@given(st.integers(1, 14), st.integers(1, 6), st.floats(0, 6))
def test_no_split_has_a_smaller_largest_stage(layers: int, count: int, head: float) -> None:
    assume(count <= layers)
    chosen = split(layers, count, head)
    assert sum(chosen) == layers
    assert len(chosen) == count
    least = min(
        max([*early, layers - sum(early) + head])
        for early in combinations_with_replacement(range(layers + 1), count - 1)
        if sum(early) <= layers
    )
    assert max([*chosen[:-1], chosen[-1] + head]) == pytest.approx(least)


@SMALL
@given(st.integers(1, 200), st.integers(1, 40), st.floats(0, 10))
def test_early_stages_are_the_smaller_and_differ_by_one(layers: int, count: int, head: float) -> None:
    assume(count <= layers)
    early = split(layers, count, head)[:-1]
    assert list(early) == sorted(early)
    assert not early or early[-1] - early[0] <= 1
    assert min(early, default=1) >= 1  # only the stage with the head may do without a layer


def test_even_splits() -> None:
    assert even(12, 4) == (3, 3, 3, 3)
    assert even(12, 5) is None
    assert split(12, 1, 5.0) == (12,)
    assert split(12, 4, 0.0) == (3, 3, 3, 3)
    assert split(12, 4, 2.0) == (3, 3, 4, 2)
    assert split(32, 4, 1.5) == (8, 8, 9, 7)


@SMALL
@given(st.sampled_from(KINDS), st.sampled_from((in_a_loop, in_a_v)), st.integers(1, 4), st.integers(1, 3), st.data())
def test_sorts_stand_for_every_rank(kind: str, placed: Placed, pp: int, vp: int, data: st.DataObject) -> None:
    spec = model(kind, layers=8)
    depth = len(layer_kinds(spec))
    cuts = sorted(data.draw(st.lists(st.integers(0, depth), min_size=pp * vp - 1, max_size=pp * vp - 1)))
    layers = tuple(np.diff([0, *cuts, depth]).tolist())
    place = tuple(tuple(chunk) for chunk in placed(pp, vp).tolist())
    every, stage_kinds = (stages(spec, place, layers, every_rank=each) for each in (True, False))
    assert every.rank.tolist() == list(range(pp))
    assert every.counts.sum() == depth
    order = kinds(spec)
    for rank in range(pp):
        held = [chunk[rank] for chunk in place]
        mine = [i for k in held for i in range(sum(layers[:k]), sum(layers[: k + 1]))]
        away = [abs(k - other) == 1 and other not in held for k in held for other in range(pp * vp)]
        wanted = [sum(layer_kinds(spec)[i] == kind for i in mine) for kind in order]
        assert every.counts[rank].tolist() == wanted
        assert every.chunk_layers[rank] == max(layers[k] for k in held)
        assert every.sends[rank] == sum(away)
        alike = [
            at
            for at in range(len(stage_kinds.rank))
            if stage_kinds.counts[at].tolist() == wanted
            and stage_kinds.chunk_layers[at] == every.chunk_layers[rank]
            and (stage_kinds.first[at], stage_kinds.last[at]) == (0 in held, pp * vp - 1 in held)
            and stage_kinds.sends[at] == sum(away)
        ]
        assert len(alike) == 1
        assert stage_kinds.rank[alike[0]] <= rank <= stage_kinds.until[alike[0]]


def test_stacked_tables_repeat_a_sort_that_is_there() -> None:
    spec = model("dense", layers=8)
    tables = [stages(spec, ((0,),), (8,)), stages(spec, ((0, 1, 2, 3),), (2, 2, 3, 1))]
    wide = stack(tables)
    assert wide.rank.shape == (2, max(len(table.rank) for table in tables))
    assert set(wide.rank[0].tolist()) == {0}
    assert wide.counts[1].sum() == 8


@SMALL
@given(
    work=st.lists(st.sampled_from([0.3, 1.0, 2.0, 0.77]), min_size=2, max_size=8),
    count=st.integers(2, 4),
    ends=st.tuples(st.floats(0, 3), st.floats(0, 3)),
)
def test_weighted_stages_have_the_smallest_largest_one(
    work: list[float], count: int, ends: tuple[float, float]
) -> None:
    assume(count <= len(work))

    def largest(layers: tuple[int, ...]) -> float:
        bounds = [0, *accumulate(layers)]
        sums = [sum(work[a:b]) for a, b in pairwise(bounds)]
        sums[0] += ends[0]
        sums[-1] += ends[1]
        return max(sums)

    every = [
        layers
        for layers in product(range(len(work) + 1), repeat=count)
        if sum(layers) == len(work) and min(layers[:-1]) > 0
    ]
    found = weighted(tuple(work), count, *ends)
    assert found in every
    assert largest(found) <= min(map(largest, every)) * (1 + 1e-5) + 1e-6
