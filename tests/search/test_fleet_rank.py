"""Plans over several pools are ranked by the upper ends of their steps' intervals."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import astra
from astra.search.fleet.plan import EQUAL
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from tests.tiers import sampled

FLEETS = (["16xH100", "16xA100-80"], ["64xH100", "64xA100-80"], ["16xH100", "4xA100-80", "2xL40S"])


@cache
def planned(model: str, fleet: tuple[str, ...], rank: str = "upper", top: int = 20) -> MixedPlanSet:
    found = astra.plan(model, gpus=list(fleet), batch=128, seq=4096, rank=rank, top=top)
    assert isinstance(found, MixedPlanSet)
    return found


@cache
def large(rank: str) -> MixedPlanSet:
    found = astra.plan("llama-3-70b", gpus=["64xH100", "64xA100-80"], batch=512, seq=4096, rank=rank)
    assert isinstance(found, MixedPlanSet)
    return found


def uppers(answer: MixedPlanSet) -> list[float]:
    return [plan.estimate.step_s_range.high for plan in answer.plans]


def launched(answer: MixedPlanSet, place: int) -> bool:
    estimate = answer.plans[place].estimate
    assert isinstance(estimate, MixedEstimate)
    return "Megatron-LM" in estimate.runs_on


@pytest.mark.parametrize("fleet", sampled(FLEETS, every=3))
def test_plans_are_ordered_by_the_upper_end(fleet: list[str]) -> None:
    answer = planned("llama-2-13b", tuple(fleet))
    first, *rest = uppers(answer)
    assert rest == sorted(rest)
    assert first <= EQUAL * min(rest)
    if first > min(rest):  # only for a plan that Megatron-LM runs as it is
        assert launched(answer, 0)
    equal = [place for place, upper_s in enumerate(uppers(answer)) if upper_s <= EQUAL * min(first, *rest)]
    assert launched(answer, 0) or not any(launched(answer, place) for place in equal)


@pytest.mark.parametrize("fleet", sampled(FLEETS, every=3))
def test_the_expected_order_is_that_of_steps(fleet: list[str]) -> None:
    steps = [plan.estimate.step_s for plan in planned("llama-2-13b", tuple(fleet), "expected").plans]
    assert steps == sorted(steps)


@pytest.mark.parametrize("fleet", sampled(FLEETS, every=3))
def test_no_plan_of_the_expected_order_has_a_lower_upper_end(fleet: list[str]) -> None:
    """Whatever is found for the one order is there for the other, and more that is doubted less."""
    if fleet == FLEETS[2]:
        pytest.xfail("0.4% since groups are asked for by times, which differ between the orders (docs/mixed.md)")
    upper, expected = (planned("llama-2-13b", tuple(fleet), rank) for rank in ("upper", "expected"))
    assert min(uppers(upper)) <= min(uppers(expected)) * (1 + 1e-9)
    assert min(plan.estimate.step_s for plan in expected.plans) <= upper.best.estimate.step_s * (1 + 1e-9)


def test_a_fleet_is_no_worse_by_the_upper_end_than_a_pool_alone_whose_quickest_plan_is_a_daring_one() -> None:
    """Hidden exchanges of experts are quicker as expected, and doubted: each pool's surest plan must be met too."""
    pools = ["24xH100-NVL-94GB", "192xRTX6000-Ada"]
    asked: dict[str, Any] = {"batch": 3, "seq": 4096, "optimizer": "sgd", "task": "finetune"}
    together = astra.plan("mixtral-8x22b", gpus=pools, **asked)
    assert isinstance(together, MixedPlanSet)
    alone_s = [astra.plan("mixtral-8x22b", gpus=pool, **asked).best.estimate.step_s_range.high for pool in pools]
    assert together.conceivable.estimate.step_s_range.high <= min(alone_s) * (1 + 1e-9)


def test_the_first_plan_does_not_depend_on_how_many_are_shown() -> None:
    fleet = tuple(FLEETS[0])
    assert planned("llama-2-13b", fleet, top=1).best.strategy == planned("llama-2-13b", fleet).best.strategy


def test_groups_of_published_kinds_come_before_quicker_ones_of_unpublished_kinds() -> None:
    """ZeRO-3 beside ZeRO-1 is 0.6% quicker as expected and may take 22% longer."""
    surest, quickest = large("upper").conceivable.estimate, large("expected").best.estimate
    assert surest.step_s < 1.02 * quickest.step_s
    assert surest.step_s_range.high < 0.9 * quickest.step_s_range.high
    first = large("upper").best.estimate  # Megatron-LM runs it as it is, and it takes no more than a twentieth longer
    assert launched(large("upper"), 0)
    assert first.step_s_range.high <= EQUAL * surest.step_s_range.high


def test_a_plan_is_doubted_as_its_most_doubted_group_is() -> None:
    """The interval does not depend on which group is written first."""
    answer = large("expected")
    groups = [f"[{part}" for part in answer.best.strategy.split("[") if part.strip()]
    assert len(groups) == 2
    turned = " ".join(group.strip() for group in reversed(groups))
    again = astra.estimate("llama-3-70b", gpus=["64xH100", "64xA100-80"], batch=512, seq=4096, strategy=turned)
    assert again.step_s == pytest.approx(answer.best.estimate.step_s)
    assert again.step_s_range.high == pytest.approx(answer.best.estimate.step_s_range.high)
