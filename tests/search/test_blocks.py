"""Counts searched in blocks give what one table of all of them gives, and the bound that leaves degrees out is one."""

from __future__ import annotations

import numpy as np
import pytest

import astra
from astra.cost import step
from astra.partition.problem import Effort
from astra.search import blocks as streams
from astra.search.blocks import CountStream
from astra.search.counts import CountSpace, grid_bound_s, tabulate
from astra.search.degrees import degrees
from astra.search.floors import Floors
from tests.search.test_counts import CASES, case

ASKED = (
    {"model": "mixtral-8x7b", "gpus": "96xH100", "batch": 96, "seq": 4096, "tokens": "1T", "objective": "pareto"},
    {"model": "llama-3-8b", "gpus": "128xA100-80", "batch": 120, "seq": 2048, "tokens": "1T", "objective": "cheapest"},
    {"model": "llama-3.1-8b", "gpus": "64xL40S", "batch": 60, "seq": 4096, "tokens": "1B", "objective": "pareto",
     "runtime": "torchtitan"},
)  # fmt: skip


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: asked["model"])
def test_blocks_give_the_same_plans(asked: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    whole = astra.plan(**asked)  # type: ignore[arg-type]
    monkeypatch.setattr(streams, "MOST_ROWS", 200)
    in_blocks = astra.plan(**asked)  # type: ignore[arg-type]
    assert [plan.strategy for plan in in_blocks.plans] == [plan.strategy for plan in whole.plans]
    assert [plan.estimate.step_s for plan in in_blocks.plans] == [plan.estimate.step_s for plan in whole.plans]
    assert in_blocks.search.considered == pytest.approx(whole.search.considered, rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_no_core_is_faster_than_its_degrees_allow(name: str) -> None:
    job, counts, restrictions = case(name)
    table = tabulate(job, CountSpace(job, counts, restrictions))
    least_s = grid_bound_s(job, table.space, table.grids, table.gathered)
    bound_s = step.least_seconds(job, least_s, table.waits[table.place])
    columns = {degree: table.space.grids[degree][table.grids] for degree in ("tp", "cp", "pp", "dp")}
    for at in np.unique(table.place):
        rows = table.place == at
        limit_s = np.full(len(counts), bound_s[rows].min() * (1 + 1e-9))
        some = {degree: column[rows] for degree, column in columns.items()}
        stream = CountStream(job, counts, restrictions, {}, Effort(), np.ones(len(counts), bool))
        stream.come_closer(limit_s)
        assert stream.hopeful(some, limit_s)[bound_s[rows].argmin()]
        assert not stream.hopeful(some, 0.3 * limit_s).any()


def test_every_count_is_visited_once() -> None:
    job, counts, restrictions = case("experts")
    stream = CountStream(job, counts, restrictions, {}, Effort(), np.ones(len(counts), bool))
    no_limit = np.full(len(counts), np.inf)
    seen: list[int] = []
    while (block := stream.next(no_limit)) is not None:
        seen += block.tolist()
    assert sorted(seen) == sorted(set(seen))
    space = CountSpace(job, counts, restrictions)
    assert set(space.gpus().tolist()) <= set(seen)


@pytest.mark.parametrize("name", CASES)
def test_floors_come_closer_and_never_pass_the_work(name: str) -> None:
    job, counts, restrictions = case(name)
    columns, known = degrees(job, counts, restrictions), dict[bytes, np.ndarray]()
    pairs = np.unique(np.stack([columns["tp"], columns["cp"]]), axis=1)
    own = [floor(pairs) for floor in Floors(job, restrictions, columns, known, Effort()).closer_and_closer()]
    again = [floor(pairs) for floor in Floors(job, restrictions, columns, known, Effort()).closer_and_closer()]
    assert len(again) == len(own) + 1  # the first is what the same GPU left behind
    for floors in (own, again):
        assert np.isfinite(floors[-1]).any()
        assert all((looser <= floors[-1] * (1 + 1e-9)).all() for looser in floors)
