"""The front as a picture and the words about money."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.answer import NEVER_ENDS, Baseline, Cost, PriceTag, Range, Restarts
from astra.answer_money import Afforded, AffordReport
from astra.money import rates
from astra.report import money
from astra.report.drawing import SCREEN_LINES, scatter
from astra.units import show_dollars
from tests.report import records

TAG = PriceTag(
    usd_per_gpu_h=2.5, provider="Acme", instance="box", region="", market="on-demand", currency="USD",
    date="2026-11-01", source="acme.example", age_days=14,
)  # fmt: skip
EXPECTED = Restarts(
    goodput=0.8, days=12.5, days_range=Range(low=11.0, high=14.0), usd=125_000, usd_range=Range(low=1e5, high=1.5e5),
    interruptions=7.0, mtbf_h=40.0,
    checkpoint_gib=900.0, checkpoint_write_s=30.0, checkpoint_interval_s=3000.0, restart_s=900.0,
    sources=["failures: some paper"],
)  # fmt: skip
COST = Cost(
    gpus=512, days=10.0, days_range=Range(low=9.0, high=11.0), usd=100_000, usd_range=Range(low=9e4, high=1.1e5),
    usd_per_billion_tokens=50.0, price=TAG, parts={"gpus": 90_000, "storage": 10_000}, expected=EXPECTED,
)  # fmt: skip


def test_the_picture_puts_the_fastest_left_and_the_cheapest_low() -> None:
    drawn = scatter([(1.0, 1000.0), (5.0, 300.0), (30.0, 100.0)], ["F", " ", "C"], 80).splitlines()
    rows = [line.partition("│")[2] for line in drawn if "│" in line]
    assert rows[0].startswith("F")
    assert rows[-1].endswith("C")
    assert sum(row.count("o") for row in rows) == 1
    assert drawn[0].startswith("   $1,000")
    assert "24.0 h" in drawn[-2]
    assert "30.0 days" in drawn[-2]


def test_a_front_of_one_point_can_be_drawn() -> None:
    assert "C" in scatter([(2.0, 5.0)], ["C"], 60)


def test_the_bill_has_both_figures_and_the_source() -> None:
    text = " ".join(money.bill_sentences(records.estimate(cost=COST)))
    assert "Ideal: 10.0 days and $100.0k ($90.0k-110.0k) on 512 GPUs" in text
    assert "of it $10.0k storage." in text
    assert "Expected: 12.5 days and $125.0k ($100.0k-150.0k)" in text
    assert "7 interruptions" in text
    assert "Failures: some paper." in text
    assert "Acme box on-demand: $2.50 per GPU and hour, 2026-11-01 (acme.example)." in text
    assert money.bill_sentences(records.estimate()) == []


def test_the_shortest_time_between_failures_gives_no_warning_of_numpy() -> None:
    assert rates.best_interval_s(1.0, 1e-300) == 1e-300


@pytest.mark.parametrize("gpus", ["8xA100-80", ["8xA100-80", "8xH100"]])
def test_a_run_that_restarts_for_ever_is_not_billed_as_if_nothing_failed(gpus: str | list[str]) -> None:
    """Every interruption takes longer to recover from than the time to the next."""
    asked: dict[str, Any] = {"gpus": gpus, "batch": 64, "tokens": "1B", "fix": ["pp=1", "recompute=none"], "top": 1}
    often = astra.plan("llama-3.2-1b", **asked, money={"preemptions_per_node_day": 1e6})
    assert NEVER_ENDS in often.best.estimate.warnings
    assert "with restarts it would not end" in " ".join(str(often).split())
    assert "with restarts it would not end" in " ".join(often.draw(100, full=True).split())
    rarely = astra.plan("llama-3.2-1b", **asked, money={"preemptions_per_node_day": 1})
    assert NEVER_ENDS not in rarely.best.estimate.warnings
    without = astra.plan("llama-3.2-1b", **asked, money={"preemptions_per_node_day": 1e6, "goodput": "off"})
    assert NEVER_ENDS not in without.best.estimate.warnings


def test_no_figure_is_cut_off_on_a_narrow_page() -> None:
    report = astra.rent("qwen2.5-1.5b", tokens="10B", batch=48, seq=2048, gpus="H100", max_gpus=16)
    figures = [show_dollars(one.cost.expected.usd) for one in report.front if not one.like and one.cost.expected]
    assert figures
    for width in (60, 80, 100, 140):
        drawn = report.draw(width)
        assert max(len(line) for line in drawn.splitlines()) <= width
        assert all({f"{figure} ", f"{figure}\n"} & {drawn[at : at + len(figure) + 1] for at in _places(drawn, figure)}
                   for figure in figures)  # fmt: skip


def test_a_front_is_thinned_until_it_has_room_on_a_screen_and_keeps_what_it_speaks_of() -> None:
    report = astra.rent("llama-2-7b", tokens="100B", gpus="H100,A100,H200", max_gpus=512)
    whole = [one for one in report.front if not one.like]
    assert len(whole) > money.FEWEST_CHOICES
    for most in range(len(whole) + 1):
        kept = money.thinned(whole, most)
        assert len(kept) == max(most, sum(bool(one.roles) for one in whole))
        assert [one for one in whole if one in kept] == kept
        assert all(one in kept for one in whole if one.roles)
    for width in (80, 100, 120, 160):
        drawn = report.draw(width)
        assert drawn.count("\n") <= SCREEN_LINES
        assert all(one.name.split(" from ")[0] in drawn for one in whole if one.roles)
    told = " ".join(report.draw(100, full=True).split())
    assert all(one.name.split(" from ")[0] in told for one in report.front)


def test_what_a_budget_buys_has_its_gpus_in_whole_words_on_every_page() -> None:
    row = Afforded(
        model="some-model-70b", parameters=70_000_000_000, tokens=1e12, tokens_range=Range(low=9e11, high=1.1e12),
        tokens_per_parameter=14.3, loss=2.0, days=9.0, usd=1e6, gpus=1024, price=TAG,
        choice="1024xH100-SXM5-80GB from Nebius", strategy="tp1 pp1 dp1024 mbs1 zero1",
    )  # fmt: skip
    report = AffordReport(
        version="1", budget_usd=1e6, deadline_days=366.0, ratio=20.0, rows=[row], most="", largest="", best="", notes=[]
    )
    for width in (60, 80, 100, 140):
        lines = report.draw(width).splitlines()
        assert max(len(line) for line in lines) <= width
        assert any("1024xH100-SXM5-80GB" in line for line in lines[lines.index("") + 1 :])


def _places(text: str, word: str) -> list[int]:
    return [place for place in range(len(text)) if text.startswith(word, place)]


def test_a_choice_as_fast_as_the_fastest_and_far_cheaper_is_named() -> None:
    from msgspec.structs import replace

    report = astra.rent("qwen2.5-1.5b", tokens="10B", batch=48, seq=2048, gpus="H100", max_gpus=8,
                        money=astra.Money(goodput="ideal"))  # fmt: skip
    first = report.role("fastest")
    close = replace(first, name="the twin", roles=[], cost=replace(first.cost, usd=first.cost.usd / 2))
    assert "the twin" not in " ".join(money.advice(report))
    said = money.advice(replace(report, front=[close, *report.front]))
    assert f"the twin is as fast for {show_dollars(first.cost.usd / 2)} less." in " ".join(said)


def test_own_prices_are_called_so() -> None:
    from msgspec.structs import replace

    own = replace(TAG, provider="you", instance="", market="owned", date=None, source="700 W")
    assert money.price_words(own) == "Your own hardware: $2.50 per GPU and hour (700 W)."
    assert money.price_words(replace(own, market="given")).startswith("A price of your own: $2.50")


def test_what_is_saved() -> None:
    from msgspec.structs import replace

    now = records.estimate(cost=COST)
    saved = Baseline(
        estimate=now, step_s_saved=1.0, days_saved=3.0, usd_saved=20_000.0, expected_days_saved=4.0,
        expected_usd_saved=25_000.0, usd_saved_range=Range(low=18_000.0, high=22_000.0),
    )  # fmt: skip
    planset = replace(records.planset(), baseline=saved)
    (sentence,) = money.saved_sentences(planset)
    assert "3.0 days saved, $20.0k ($18.0k-22.0k) saved, with restarts $25.0k saved." in sentence
    dearer = replace(planset, baseline=replace(saved, days_saved=-3.0, usd_saved=-5.0, expected_usd_saved=None))
    assert "3.0 days more, $5.00 more." in money.saved_sentences(dearer)[0]
    assert money.saved_sentences(records.planset()) == []
    assert money.bill(records.planset()) == []
    assert money.bill(planset), "what is saved is said also without a price"
