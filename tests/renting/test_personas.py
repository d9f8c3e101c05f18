"""Four who ask, and what each could follow with money of their own. Prices are the catalog's; figures may move."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest

from astra.answer_money import Choice, RentReport
from astra.renting.rent import rent
from astra.spec.money import Money


@cache
def researcher() -> RentReport:
    return rent("llama-3.2-1b", tokens="20B", budget=5_000, mixes="none")


@cache
def fine_tuner() -> RentReport:
    return rent("qwen3-8b", task="lora", tokens="100M", batch=64, seq=2048, budget=200, mixes="none")


@cache
def start_up() -> RentReport:
    return rent(
        "llama-3.1-70b", tokens="1T", seq=8192, budget="2M", deadline="30d", gpus="H100,H200,B200", mixes="none"
    )


@cache
def platform_lead() -> RentReport:
    money = Money(usd_per_gpu=35_000, usd_per_kwh=0.09, pue=1.2, watts_per_gpu=1275, use=0.7, capital_rate=0.08,
                  staff_usd_per_gpu_year=2_500)  # fmt: skip
    return rent("llama-3-8b", tokens="200B", gpus="H100", own="256xH100", money=money, mixes="none")


EVERYONE = (researcher, fine_tuner, start_up, platform_lead)


def judged(choice: Choice) -> tuple[float, float]:
    assert choice.cost.expected is not None
    return choice.cost.expected.days_range.high, choice.cost.expected.usd_range.high


@pytest.mark.parametrize("answer", EVERYONE, ids=lambda answer: answer.__name__)
def test_what_is_named_first_can_be_followed(answer: object) -> None:
    report: RentReport = answer()  # type: ignore[operator]
    for choice in report.front:
        if choice.roles:
            assert choice.nodes == 1 or choice.cost.price.fabric, "no network is made up"
            assert choice.cost.days * 86400 >= 3 * choice.cost.startup_s, "start-up is at most a third of it"
            assert judged(choice)[0] <= 366
            assert choice.cost.price.source
    shown = [choice for choice in report.front if not choice.like or choice.roles]
    for faster, slower in pairwise(shown):
        assert judged(faster)[0] < judged(slower)[0]
        assert judged(faster)[1] > judged(slower)[1]


def test_a_researcher_stays_far_below_the_budget_where_more_buys_nothing() -> None:
    chosen = researcher().chosen[0]
    assert judged(chosen)[1] < 2_500, "more machines would stand and start"
    assert chosen.cost.parts["startup"] <= chosen.cost.usd / 3
    assert judged(researcher().role("cheapest"))[1] < 300


def test_a_fine_tuner_rents_one_server() -> None:
    chosen = fine_tuner().chosen[0]
    assert chosen.nodes == 1
    assert judged(chosen)[1] < 40


def test_a_start_up_meets_its_deadline_at_the_upper_end_too() -> None:
    chosen = start_up().chosen[0]
    assert judged(chosen)[0] <= 30
    assert judged(chosen)[1] <= 2e6
    assert judged(chosen)[1] == min(judged(choice)[1] for choice in start_up().front if judged(choice)[0] <= 30)
    assert not any("within doubt" in warning for warning in start_up().warnings)


def test_a_platform_lead_sees_own_and_rented_in_one_front_with_the_break_even() -> None:
    report = platform_lead()
    markets = {choice.cost.price.market for choice in report.front}
    assert markets == {"owned", "on-demand"}
    (found,) = report.own
    # By hand: an annuity of 8% over four years, people, and energy of an hour of use.
    yearly = 35_000 * 0.08 / (1 - 1.08**-4) + 2_500
    energy = 1.275 * 1.2 * 0.09
    assert found.own_usd_per_gpu_h == pytest.approx(energy + yearly / (0.7 * 8766))
    assert found.rented_usd_per_gpu_h is not None
    assert found.even_use == pytest.approx(yearly / 8766 / (found.rented_usd_per_gpu_h - energy))
    assert "Owning is cheaper from" in str(report)
    mine = [choice for choice in report.front if choice.cost.price.market == "owned"]
    assert max(choice.gpus for choice in mine) <= 256, "no more than there are"
    assert all(choice.cost.startup_s == 0 for choice in mine)
    kwh = mine[0].cost.kwh
    assert mine[0].cost.expected is not None
    assert kwh == pytest.approx(1.275 * 1.2 * mine[0].gpus * mine[0].cost.expected.days * 24)
