"""What holds for the best strategy of any job, and for the order of rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.columns import Column
from astra.cost.stage import Meshes, gather_parts, stage_costs
from astra.cost.step import evaluate
from astra.search.engine import search
from astra.search.space import Space
from astra.spec.job import Job
from tests.oracle.requests import with_memory
from tests.properties.jobs import FREE, GROUPS, best_s, jobs, with_device, with_links
from tests.tiers import drawn

SLACK = 1e-11  # rounding, which depends on what is timed together


@drawn(40, few=14)
@given(jobs, st.floats(1.01, 8.0))
def test_more_memory_never_hurts(job: Job, times: float) -> None:
    assert best_s(with_memory(job, job.pool.device.memory_bytes * times)) <= best_s(job) * (1 + SLACK)


@drawn(40, few=14)
@given(jobs, st.sampled_from(("flops_per_s", "memory_bytes_per_s", "host_bytes_per_s")), st.floats(1.1, 8.0))
def test_a_faster_gpu_never_hurts(job: Job, name: str, times: float) -> None:
    assert best_s(with_device(job, **{name: times})) <= best_s(job) * (1 + SLACK)


@drawn(40, few=14)
@given(jobs, st.floats(1.1, 8.0))
def test_faster_links_never_hurt(job: Job, times: float) -> None:
    assert best_s(with_links(job, times)) <= best_s(job) * (1 + SLACK)


@drawn(20, few=8)
@given(jobs, st.integers(1, 4))
def test_keeping_more_groups_changes_none_of_them(job: Job, keep: int) -> None:
    everything = [(c.strategy, c.step_s) for c in search(job, FREE, keep=GROUPS).candidates]
    some = search(job, FREE, keep=keep).candidates
    assert [candidate.step_s for candidate in some] == pytest.approx([s for _, s in everything[:keep]], rel=SLACK)
    assert everything == sorted(everything, key=lambda pair: pair[1])
    assert len({(s.tp, s.pp, s.ep) for s, _ in everything}) == len(everything)


@contextmanager
def shuffled(seed: int) -> Iterator[None]:
    """Factorisations in another order."""
    ordered = Space._degrees

    def degrees(self: Space) -> dict[str, Column]:
        columns = ordered(self)
        rows = np.random.default_rng(seed).permutation(len(columns["tp"]))
        return {name: column[rows] for name, column in columns.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Space, "_degrees", degrees)
        yield


@drawn(25, few=9)
@given(jobs, st.integers(0, 2**32 - 1))
def test_the_order_of_cores_is_irrelevant(job: Job, seed: int) -> None:
    before = search(job, FREE, keep=GROUPS)
    with shuffled(seed):
        after = search(job, FREE, keep=GROUPS)
    steps = [[candidate.step_s for candidate in found.candidates] for found in (before, after)]
    assert steps[1] == pytest.approx(steps[0], rel=SLACK)
    assert (after.considered, after.refused, after.dominated) == (before.considered, before.refused, before.dominated)


@drawn(25, few=9)
@given(jobs, st.integers(0, 2**32 - 1))
def test_the_order_of_meshes_is_irrelevant(job: Job, seed: int) -> None:
    space = Space(job, FREE)
    if not len(space.strategies):
        return
    meshes, _, _ = space.expand(np.arange(len(space.strategies)))
    rows = np.random.default_rng(seed).permutation(len(meshes))
    some = rows[: max(len(rows) // 3, 1)]

    def costed(chosen: Meshes) -> tuple[Column, Column]:
        costs = stage_costs(job, chosen, gather_parts(job, chosen.columns))
        result = evaluate(job, chosen, costs, space.recomputes, space.shardings)
        return result.bound_s, result.peak_bytes

    for whole, picked in zip(costed(meshes), costed(meshes.take(some)), strict=True):
        np.testing.assert_allclose(picked, whole[some], rtol=SLACK)
