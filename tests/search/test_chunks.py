"""Chunks of a pipeline: as few as are no worse worth telling."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.evidence.bars import UNEQUAL
from astra.search.attempts import LEAST_BETTER
from astra.search.plainer import is_plain
from astra.spec.strategy import parse_strategy, replace

ASKED: dict[str, Any] = {
    "model": "llama-3-70b", "gpus": "64xH100", "batch": 256, "seq": 8192, "runtime": "megatron-bridge"
}  # fmt: skip
SAME = ["tp=4", "pp=2", "cp=2"]


def upper_s(strategy: str, chunks: int) -> float:
    """The upper end of the same strategy in so many chunks."""
    return astra.estimate(**ASKED, strategy=str(replace(parse_strategy(strategy), vp=chunks))).step_s_range.high


def test_a_plan_has_the_fewest_chunks_that_are_as_good() -> None:
    best = astra.plan(**ASKED, fix=SAME, top=1).best.strategy
    chunks = parse_strategy(best).vp
    least = min(upper_s(best, count) for count in (2, 4, 5, 8, 10, 20))
    assert upper_s(best, chunks) <= least * (1 + LEAST_BETTER)
    assert all(upper_s(best, count) > least * (1 + LEAST_BETTER) for count in (2, 4, 5) if count < chunks)
    assert chunks < 20


@pytest.mark.parametrize(
    ("layers", "plain"),
    [((4, 4, 4, 4), True), ((2, 3, 3, 1), True), ((3, 3, 3, 0), True), ((2, 3, 3, 4), False), ((2, 2, 3, 3), False),
     ((3, 2, 3, 2), False), ((5, 4), True)],
)  # fmt: skip
def test_a_deal_is_plain_if_all_but_its_ends_are_alike(layers: tuple[int, ...], plain: bool) -> None:
    assert is_plain(layers) == plain


def test_uneven_chunks_are_dealt_plainly_where_that_costs_little() -> None:
    asked: dict[str, Any] = {"model": "llama-2-70b", "gpus": "512xH100", "batch": 1024, "seq": 4096}
    best = astra.plan(**asked, top=1).best
    least_s = astra.plan(**asked, top=1, fix=["vp=7"]).best.estimate.step_s  # three layers but for some chunks of two
    assert is_plain(parse_strategy(best.strategy).layers or (1, 1))
    assert best.estimate.step_s < least_s * 1.005
    crooked = astra.estimate(**asked, strategy="tp4 pp4 vp7 dp32 mbs1 sp zero1 layers=2*3,3*24,2")
    assert crooked.step_s < best.estimate.step_s < crooked.step_s * (1 + UNEQUAL)


def test_plans_are_in_order() -> None:
    highs = [plan.estimate.step_s_range.high for plan in astra.plan(**ASKED, top=8).plans]
    assert highs == sorted(highs)


@pytest.mark.parametrize("asked", [{"fix": ["vp=20", *SAME]}, {"fix": SAME, "minimum": {"vp": 20}}])
def test_chunks_that_are_asked_for_stay(asked: dict[str, Any]) -> None:
    assert parse_strategy(astra.plan(**ASKED, **asked, top=1).best.strategy).vp == 20
