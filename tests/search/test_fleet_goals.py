"""Goals of time and money over several pools: against every number of nodes planned outright, and as laws."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import astra
from astra.search.fleet.records import MixedPlanSet
from tests.tiers import sampled

MODEL = "llama-3.2-1b"
PRICES = {"H100": 4.0, "A100-80": 1.4}
WORK: dict[str, Any] = {
    "batch": 32, "seq": 2048, "tokens": 1e11, "fix": "vp=1", "money": {"price": ["H100=4.0", "A100-80=1.4"]},
    "rank": "expected",
}  # fmt: skip
FLEET = ["16xH100", "16xA100-80"]


def planned(**asked: Any) -> MixedPlanSet:
    found = astra.plan(MODEL, gpus=FLEET, **{**WORK, **asked})
    assert isinstance(found, MixedPlanSet)
    return found


def judged(plan: Any) -> tuple[float, float]:
    """Days and dollars as they are to be expected."""
    assert plan.estimate.cost is not None
    assert plan.estimate.cost.expected is not None
    return plan.estimate.cost.expected.days, plan.estimate.cost.expected.usd


@pytest.fixture(scope="module")
def outright() -> list[tuple[float, float]]:
    """The fastest plan of every number of nodes that uses all of them."""
    found = []
    for one, other in product((0, 8, 16), (0, 8, 16)):
        gpus = [f"{count}x{name}" for count, name in ((one, "H100"), (other, "A100-80")) if count]
        if gpus:
            found.append(judged(astra.plan(MODEL, gpus=gpus, **WORK).best))
    return found


@pytest.fixture(scope="module")
def front() -> list[tuple[float, float]]:
    return [judged(plan) for plan in planned(objective="pareto").plans]


def test_the_cheapest_is_that_of_any_number_of_nodes(outright: list[tuple[float, float]]) -> None:
    answer = planned(objective="cheapest")
    assert answer.objective == "cheapest"
    assert judged(answer.best)[1] <= min(usd for _, usd in outright) * 1.001


@pytest.mark.parametrize("place", sampled((1, 4, 7), every=3))
def test_a_budget_buys_the_fastest_within_it(outright: list[tuple[float, float]], place: int) -> None:
    budget = sorted(usd for _, usd in outright)[place]
    days, usd = judged(planned(budget=budget * 1.001).best)
    assert usd <= budget * 1.001
    assert days <= min(days for days, usd in outright if usd <= budget) * 1.001


@pytest.mark.parametrize("place", sampled((1, 4, 7), every=3))
def test_a_deadline_is_kept_for_the_least(outright: list[tuple[float, float]], place: int) -> None:
    deadline = sorted(days for days, _ in outright)[place]
    days, usd = judged(planned(deadline=f"{deadline * 1.001}d").best)
    assert days <= deadline * 1.001
    assert usd <= min(usd for days, usd in outright if days <= deadline) * 1.001


def test_the_front_is_one(front: list[tuple[float, float]], outright: list[tuple[float, float]]) -> None:
    """Faster is dearer, and nothing planned outright is better in both than all of it."""
    assert front == sorted(front)
    assert [usd for _, usd in front] == sorted((usd for _, usd in front), reverse=True)
    for days, usd in outright:
        assert any(other <= days * 1.001 and price <= usd * 1.001 for other, price in front)


@pytest.mark.parametrize("goal", [{"objective": "cheapest"}, {"objective": "dollars-per-token"}, {"deadline": "90d"}])
def test_a_pool_that_is_too_dear_changes_nothing(goal: dict[str, Any]) -> None:
    """Whatever plans are judged by: of two pools the same words mean what they mean for one."""
    work: dict[str, Any] = {"batch": 64, "seq": 4096, "tokens": 1e10, "money": {"price": ["H100=4.0", "A100-80=400"]}}
    alone = astra.plan("llama-2-70b", gpus=["64xH100"], **work, **goal).best
    beside = astra.plan("llama-2-70b", gpus=["64xH100", "8xA100-80"], **work, **goal).best
    assert beside.strategy == f"H100-SXM5-80GB: {alone.strategy}"
    assert judged(beside) == pytest.approx(judged(alone))


def test_what_cannot_be_had_is_told_with_what_can() -> None:
    with pytest.raises(astra.NoFeasiblePlan, match="The cheapest costs"):
        planned(budget=1.0)
    with pytest.raises(astra.InputError, match="one pool of GPUs"):
        planned(objective="energy")
    with pytest.raises(astra.InputError, match="tokens"):
        planned(objective="cheapest", tokens=None)
