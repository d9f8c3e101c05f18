"""What to rent, against trying everything: no dominated choice on the front, no undominated one missing."""

from __future__ import annotations

import datetime as dt
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import astra
from astra.answer_money import Choice, RentReport
from astra.api import make_job
from astra.catalog.clusters import parse_gpus
from astra.errors import InputError, NoFeasiblePlan, UnknownName
from astra.evidence.bars import Doubt
from astra.money.bill import checkpoint_bytes, outlook
from astra.renting.rent import rent
from astra.rules.restrictions import Restrictions
from astra.search.detail import estimate
from astra.search.engine import search
from astra.spec.money import Money
from tests.tiers import drawn

HEADER = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
TODAY = dt.date(2026, 11, 15)
MODEL, BATCH, SEQ, TOKENS, MOST = "qwen2.5-1.5b", 48, 2048, 1e10, 32
NODES = {"H100": 8, "A100-80": 8, "GB200": 4, "L40S": 8}
prices_of = st.dictionaries(st.sampled_from(sorted(NODES)), st.floats(0.2, 12), min_size=1)


def written(folder: Path, prices: dict[str, float], market: str = "on-demand") -> str:
    rows = [
        f"Acme,box,{gpu},{NODES[gpu]},x,{market},{usd},USD,2026-11-01,acme.example,\n" for gpu, usd in prices.items()
    ]
    path = folder / "prices.csv"
    path.write_text(HEADER + "".join(rows))
    return str(path)


def asked(prices: str, **more: Any) -> RentReport:
    plain = {"prices": prices, "providers": ("Acme",), "startup_s": 0.0, "goodput": "ideal"}
    money = Money(**{**plain, **more.pop("money", {})})
    request = {"gpus": ",".join(NODES), "max_gpus": MOST, "assume_network": True, **more}
    return rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, money=money, today=TODAY, **request)


@cache
def by_hand(gpu: str, gpus: int, rank: str) -> tuple[float, float] | None:
    """Seconds of the whole run and bytes of a checkpoint, from the planner and the simulator."""
    job = make_job(
        MODEL, gpus=f"{gpus}x{gpu}", cluster=None, node=None, batch=BATCH, seq=SEQ, tokens=TOKENS, precision="bf16",
        optimizer="adam", task="pretrain", lora_rank=16, runtime="megatron", headroom=0.08,
    )  # fmt: skip
    found = search(job, Restrictions(), keep=1, doubt=Doubt(job) if rank == "upper" else None).candidates
    if not found:
        return None
    result = estimate(job, [found[0].strategy])[0]
    step_s = result.step_s_range.high if rank == "upper" else result.step_s
    return TOKENS * step_s / (BATCH * SEQ), checkpoint_bytes(job)


def brute_force(prices: dict[str, float], money: Money, market: str, rank: str) -> set[tuple[str, int]]:
    """Every GPU type in every number of nodes, each compared with each."""
    points = {}
    for gpu, usd_per_gpu_h in prices.items():
        for gpus in range(NODES[gpu], MOST + 1, NODES[gpu]):
            found = by_hand(gpu, gpus, rank)
            if found is not None:
                seconds, nbytes = found
                if money.goodput == "expected":
                    nodes = np.array([gpus // NODES[gpu]])
                    seconds /= float(outlook(money, nbytes, np.array([gpus]), nodes, market).goodput[0])
                points[parse_gpus(f"{gpus}x{gpu}").device.name, gpus] = (seconds, seconds * usd_per_gpu_h * gpus / 3600)
    return {
        key
        for key, (time_s, usd) in points.items()
        if not any(t <= time_s and d <= usd and (t, d) != (time_s, usd) for t, d in points.values())
    }


def keys(choices: list[Choice]) -> set[tuple[str, int]]:
    return {(choice.gpu, choice.gpus) for choice in choices}


@drawn(20, few=7, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prices=prices_of, rank=st.sampled_from(["upper", "expected"]))
def test_the_front_is_that_of_brute_force(tmp_path: Path, prices: dict[str, float], rank: str) -> None:
    report = asked(written(tmp_path, prices), gpus=",".join(prices), rank=rank, mixes="none")
    assert keys(report.front) == brute_force(prices, Money(goodput="ideal"), "on-demand", rank)
    assert report.ranked_by == rank


@drawn(8, few=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prices=prices_of)
def test_and_also_with_restarts(tmp_path: Path, prices: dict[str, float]) -> None:
    often: dict[str, Any] = {"goodput": "expected", "mtbf_gpu_h": 500.0, "preemptions_per_node_day": 0.5}
    money = {**often, "market": "spot"}
    report = asked(written(tmp_path, prices, "spot"), gpus=",".join(prices), money=money, mixes="none")
    assert keys(report.front) == brute_force(prices, Money(market="spot", **often), "spot", "upper")
    assert report.judged_by == "expected"


@drawn(8, few=2, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(prices=prices_of, share=st.floats(0.05, 0.95))
def test_budget_and_deadline_choose_the_best_of_all(tmp_path: Path, prices: dict[str, float], share: float) -> None:
    path, gpus = written(tmp_path, prices), ",".join(prices)
    front = [(choice.cost.days_range.high, choice.cost.usd_range.high) for choice in asked(path, gpus=gpus).front]
    low, high = min(usd for _, usd in front), max(usd for _, usd in front)
    budget = low + share * (high - low)
    cap = max(budget, low * (1 + 1e-9))
    best, chosen = min(point for point in front if point[1] <= cap), asked(path, gpus=gpus, budget=cap).chosen[0]
    as_fast = chosen.cost.days_range.high <= best[0] * max(chosen.step_s_range.high / chosen.step_s, 1.05) ** 2
    assert chosen.cost.usd_range.high <= best[1]
    assert as_fast, "the cheapest of what is as fast for all that is known"
    least, most = min(days for days, _ in front), max(days for days, _ in front)
    days = max(least + share * (most - least), least * (1 + 1e-9))
    report = asked(path, gpus=gpus, deadline=days)
    assert report.chosen[0].cost.days_range.high <= days
    assert report.chosen[0].cost.usd_range.high == min(usd for time, usd in front if time <= days)
    assert not any("within doubt" in warning for warning in report.warnings)


def test_a_cap_within_doubt_is_said(tmp_path: Path) -> None:
    """What only the middle of the range keeps is chosen if nothing else can be, and told."""
    path = written(tmp_path, {"H100": 3.0})
    cheapest = min(asked(path, gpus="H100").front, key=lambda choice: choice.cost.usd_range.high).cost
    for cap, words in ((cheapest.usd_range.high * (1 + 1e-9), ""), (cheapest.usd * (1 + 1e-9), "The budget is within")):
        report = asked(path, gpus="H100", budget=cap)
        assert report.chosen[0].cost.usd <= cap
        assert any(words in warning for warning in report.warnings) == bool(words)
    with pytest.raises(NoFeasiblePlan, match="The least it could cost"):
        asked(path, gpus="H100", budget=cheapest.usd * 0.9)


def test_ends_knee_and_ranges(tmp_path: Path) -> None:
    report = asked(written(tmp_path, {"H100": 4.0, "A100-80": 1.0, "GB200": 9.0}), gpus="H100,A100-80,GB200")
    front = report.front
    assert [choice.cost.days for choice in front] == sorted(choice.cost.days for choice in front)
    assert [choice.cost.usd for choice in front] == sorted((choice.cost.usd for choice in front), reverse=True)
    shown = [choice for choice in front if not choice.like]
    assert "fastest" in shown[0].roles
    assert "cheapest" in front[-1].roles
    for hidden in (choice for choice in front if choice.like):
        instead = next(choice for choice in front if choice.name == hidden.like)
        assert hidden.cost.days <= instead.cost.days <= shown[0].cost.days or instead.cost.usd <= hidden.cost.usd
    assert report.role("knee") in front
    for choice in front:
        cost = choice.cost
        assert cost.usd == pytest.approx(cost.days * 24 * choice.gpus * cost.price.usd_per_gpu_h)
        spread = choice.step_s_range.high / choice.step_s
        assert cost.usd_range.high == pytest.approx(cost.usd * spread)
        assert cost.usd_range.low < cost.usd < cost.usd_range.high
        assert (cost.price.source, cost.price.date) == ("acme.example", "2026-11-01")
        assert cost.expected is not None
        assert cost.expected.usd == pytest.approx(cost.usd / cost.expected.goodput)
        assert cost.expected.days > cost.days
    assert report.to_dict()["front"][0]["cost"]["price"]["source"] == "acme.example"


def test_restarts_can_be_left_out(tmp_path: Path) -> None:
    report = asked(written(tmp_path, {"H100": 4.0}), gpus="H100", money={"goodput": "off"})
    assert all(choice.cost.expected is None for choice in report.front)


def test_popular_choices_say_what_they_waste() -> None:
    money = Money(goodput="ideal")
    report = rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="H100,H200", max_gpus=64, money=money)
    assert report.popular
    for choice in report.popular:
        cost = choice.cost
        if choice.waste is not None:
            instead = next(other for other in report.front if other.name == choice.waste.instead)
            assert instead.cost.days <= cost.days
            assert choice.waste.usd == pytest.approx(cost.usd - instead.cost.usd)
            assert choice.waste.usd >= 0
    assert any(choice.waste is not None for choice in report.popular)


def test_old_prices_are_left_out_unless_the_provider_is_named() -> None:
    usual = rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="H200", max_gpus=16)
    assert all("Vast" not in choice.name for choice in usual.front)
    assert any("older" in entry.reason for entry in usual.unused)
    named = rent(
        MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="H200", max_gpus=16, today=TODAY,
        money=Money(providers=("vast.ai",)),
    )  # fmt: skip
    assert all("Vast" in choice.name for choice in named.front)
    assert any("days old" in warning for warning in named.warnings)


def test_known_nodes_are_those_whose_links_are_in_the_catalog() -> None:
    request: dict[str, Any] = {"tokens": TOKENS, "batch": BATCH, "seq": SEQ, "gpus": "H100", "max_gpus": 16}
    assert not all(choice.node_known for choice in rent(MODEL, **request, assume_network=True).front)
    known = rent(MODEL, **request, known_nodes=True)
    assert all(choice.node_known for choice in known.front)
    assert not any("links" in note for note in known.notes)


def test_part_of_a_server_is_rented_alone() -> None:
    report = rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, max_gpus=64, money=Money(providers=("Crusoe",)))
    assert {choice.gpus for choice in report.front} == {1}
    with pytest.raises(InputError, match="room for one node"):
        rent(MODEL, tokens=TOKENS, gpus="H100", max_gpus=4, money=Money(providers=("CoreWeave",)))


def test_owned_hardware_is_priced_by_energy_and_purchase() -> None:
    money = Money(usd_per_kwh=0.1, pue=1.25, usd_per_gpu=35_064.0, lifetime_years=4.0, watts_per_gpu=1000)
    report = rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="H100", max_gpus=8, money=money)
    price = report.front[0].cost.price
    assert price.usd_per_gpu_h == pytest.approx(0.125 + 1.0)
    assert price.market == "owned"
    assert "PUE 1.25" in price.source
    assert report.front[0].name == "8xH100-SXM5-80GB of your own"


def test_nothing_within_the_budget_says_the_least(tmp_path: Path) -> None:
    path = written(tmp_path, {"H100": 4.0})
    cheapest = asked(path, gpus="H100").role("cheapest")
    with pytest.raises(NoFeasiblePlan, match="least it could cost is") as caught:
        asked(path, gpus="H100", budget=0.01)
    assert cheapest.name in str(caught.value)
    with pytest.raises(NoFeasiblePlan, match="The fastest takes"):
        asked(path, gpus="H100", deadline="0.001h")


def test_bad_requests(tmp_path: Path) -> None:
    path = written(tmp_path, {"H100": 4.0})
    with pytest.raises(InputError, match="Did you mean"):
        asked(path, gpus="H1000")
    with pytest.raises(InputError, match="without a number"):
        asked(path, gpus="8xH100")
    with pytest.raises(UnknownName, match="providers"):
        rent(MODEL, tokens=TOKENS, money=Money(providers=("Nobody",)))
    with pytest.raises(InputError, match="reserved prices"):
        asked(path, gpus="H100", money={"market": "reserved"})
    with pytest.raises(NoFeasiblePlan, match="no strategy fits"):
        rent("llama-3.1-405b", tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="L4", max_gpus=8)
    for bad in (
        {"usd_per_gpu_h": -1.0},
        {"pue": 0.5},
        {"usd_per_kwh": -0.1},
        {"market": "monthly"},
        {"mtbf_gpu_h": 0.0},
    ):
        with pytest.raises(InputError):
            Money(**bad)
    with pytest.raises(InputError, match="not both"):
        Money(usd_per_gpu_h=2.0, usd_per_kwh=0.1)


def test_plan_by_money_uses_as_many_gpus_as_are_worth_it() -> None:
    request: dict[str, Any] = {"gpus": "64xH100", "batch": BATCH, "seq": SEQ, "tokens": TOKENS, "top": 2}
    money = Money(usd_per_gpu_h=2.0, goodput="ideal")
    usual = astra.plan(MODEL, **request, objective="pareto", money=money)
    assert "of CUDA graphs all trades have what is usual on their GPUs alone" in usual.notes
    request["fix"] = "graphs=none"  # then both look at the same strategies
    front = astra.plan(MODEL, **request, objective="pareto", money=money)
    assert not any("CUDA graphs" in note for note in front.notes)
    points = [(plan.estimate.cost.days, plan.estimate.cost.usd) for plan in front.plans if plan.estimate.cost]
    assert points == sorted(points)
    assert [usd for _, usd in points] == sorted((usd for _, usd in points), reverse=True)
    cheapest = astra.plan(MODEL, **request, objective="cheapest", money=money).best.estimate.cost
    fastest = astra.plan(MODEL, **request, money=money).best.estimate.cost
    assert cheapest is not None
    assert fastest is not None
    assert cheapest.usd == pytest.approx(points[-1][1], rel=0.01)
    assert fastest.days == pytest.approx(points[0][0], rel=0.01)
    assert cheapest.usd < fastest.usd
    within = astra.plan(MODEL, **request, budget=points[-1][1] * 1.0001, money=money)
    assert within.best.estimate.cost is not None
    assert within.best.estimate.cost.usd <= points[-1][1] * 1.0001
    assert any("of the 64 GPUs" in note for note in within.notes)


def test_rules_of_ones_own_hold_for_every_part(tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("gpus > 16 or tp > 1\n")
    answer = astra.plan(
        MODEL, gpus="32xH100", batch=BATCH, seq=SEQ, tokens=TOKENS, objective="pareto", rules=path,
        money=Money(usd_per_gpu_h=2.0),
    )  # fmt: skip
    assert answer.search.considered > 0
    assert {plan.estimate.gpus.partition("x")[0] for plan in answer.plans} <= {"8", "16"}
    assert all("tp1 " in plan.strategy for plan in answer.plans)


def test_a_baseline_says_what_is_saved() -> None:
    request: dict[str, Any] = {"gpus": "16xH100", "batch": BATCH, "seq": SEQ, "tokens": TOKENS, "top": 1}
    answer = astra.plan(MODEL, **request, baseline="tp8 pp2 mbs1 sp zero1", money=Money(usd_per_gpu_h=3.0))
    assert answer.baseline is not None
    best, now = answer.best.estimate, answer.baseline.estimate
    assert best.cost is not None
    assert now.cost is not None
    assert answer.baseline.step_s_saved == pytest.approx(now.step_s - best.step_s)
    assert answer.baseline.usd_saved == pytest.approx(now.cost.usd - best.cost.usd)
    assert now.cost.usd > best.cost.usd
    with pytest.raises(InputError, match="baseline"):
        astra.plan(MODEL, **request, baseline="tp3 pp2 dp1 mbs1")
    with pytest.raises(InputError, match=r"^baseline: "):
        astra.plan(MODEL, **request, baseline="tp3")


@pytest.mark.parametrize("gpus", ["16xH100", ["8xH100", "8xA100-80"]])
def test_gpus_that_are_there_have_no_start_up_unless_it_is_said(gpus: Any) -> None:
    request: dict[str, Any] = {"gpus": gpus, "batch": BATCH, "seq": SEQ, "tokens": TOKENS, "top": 1}
    plain = astra.plan(MODEL, **request).best.estimate.cost
    said = astra.plan(MODEL, **request, money=Money(startup_s=7200.0)).best.estimate.cost
    assert plain is not None
    assert said is not None
    assert (plain.startup_s, said.startup_s) == (0.0, 7200.0)
    assert "startup" not in plain.parts
    assert said.days == pytest.approx(plain.days + 7200 / 86400)


def test_money_needs_a_price() -> None:
    with pytest.raises(InputError, match="price of MI250X"):
        astra.plan(MODEL, gpus="8xMI250X", batch=BATCH, seq=SEQ, tokens=TOKENS, objective="cheapest")
