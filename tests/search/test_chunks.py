"""Chunks of a pipeline: as few as are no worse worth telling."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.search.attempts import LEAST_BETTER
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


def test_plans_are_in_order() -> None:
    highs = [plan.estimate.step_s_range.high for plan in astra.plan(**ASKED, top=8).plans]
    assert highs == sorted(highs)


@pytest.mark.parametrize("asked", [{"fix": ["vp=20", *SAME]}, {"fix": SAME, "minimum": {"vp": 20}}])
def test_chunks_that_are_asked_for_stay(asked: dict[str, Any]) -> None:
    assert parse_strategy(astra.plan(**ASKED, **asked, top=1).best.strategy).vp == 20
