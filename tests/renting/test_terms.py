"""Random markets with terms, steps, start-up, spot, networks and limits, against plain arithmetic over every choice."""

from __future__ import annotations

import datetime as dt
import math
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astra.answer_money import Choice, RentReport
from astra.api import make_job
from astra.evidence.bars import Doubt
from astra.layers import weights
from astra.renting.rent import rent
from astra.rules.restrictions import Restrictions
from astra.search.detail import estimate
from astra.search.engine import search
from astra.spec.money import Money

MODEL, BATCH, SEQ, MOST, NODE = "qwen2.5-1.5b", 48, 2048, 32, 8
HEADER = (
    "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes,"
    "available,min_gpus,network,term_days,minimum_s,step_s,startup_s"
)
NETWORKS = {"H100": "infiniband 400", "A100-80": "infiniband 200"}  # those of the usual servers
BYTES_PER_S_PER_GPU, GPU_S, TAKEN_A_MONTH = 2e12 / 16384, 16384 * 54 * 86400 / 419, 0.2


class Row(NamedTuple):
    """An offer as its row says it; None where it says nothing."""

    gpu: str
    market: str
    usd: float
    joined: bool
    available: int | None = None
    min_gpus: int | None = None
    term_days: float | None = None
    minimum_s: float | None = None
    step_s: float | None = None
    startup_s: float | None = None


rows = st.builds(
    Row,
    gpu=st.sampled_from(sorted(NETWORKS)),
    market=st.sampled_from(["on-demand", "spot", "reserved"]),
    usd=st.floats(0.3, 9),
    joined=st.booleans(),
    available=st.none() | st.sampled_from([8, 12, 16, 20, 24, 1000]),
    min_gpus=st.none() | st.sampled_from([1, 8, 9, 16]),
    term_days=st.sampled_from([0.0, 0.2, 1.0, 7.0]),
    minimum_s=st.none() | st.sampled_from([60.0, 7200.0, 40_000.0]),
    step_s=st.none() | st.sampled_from([1.0, 3600.0, 20_000.0, 86_400.0]),
    startup_s=st.none() | st.sampled_from([0.0, 600.0, 9000.0]),
)
markets = st.lists(rows, min_size=1, max_size=5).filter(lambda some: any(map(sizes, some)))
asides = st.fixed_dictionaries(
    {},
    optional={
        "idle_s": st.sampled_from([3600.0, 130_000.0]),
        "discount": st.sampled_from([0.1, 0.35]),
        "storage_tb": st.just(50.0),
        "egress_tb": st.just(2.0),
    },
)


def written(folder: Path, offers: list[Row]) -> str:
    lines = [HEADER]
    for index, row in enumerate(offers):
        term = row.term_days if row.market == "reserved" else None
        network = NETWORKS[row.gpu] if row.joined else ""
        cells = [f"Acme {index}", "box", row.gpu, NODE, "x", row.market, row.usd, "USD", "2026-11-01", "acme", ""]
        cells += [row.available, row.min_gpus, network, term, row.minimum_s, row.step_s, row.startup_s]
        lines.append(",".join("" if cell is None else str(cell) for cell in cells))
    path = folder / "prices.csv"
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def asked(folder: Path, offers: list[Row], tokens: float, aside: Any = MappingProxyType({}), **more: Any) -> RentReport:
    names = tuple(f"Acme {index}" for index in range(len(offers)))
    money = Money(prices=written(folder, offers), providers=names, market="any", **aside)
    gpus = ",".join({row.gpu for row in offers})
    return rent(MODEL, tokens=tokens, batch=BATCH, seq=SEQ, gpus=gpus, max_gpus=MOST, money=money, mixes="none",
                today=dt.date(2026, 11, 15), **more)  # fmt: skip


@cache
def tokens_per_s(gpu: str, gpus: int) -> float:
    """From the planner and the simulator, at the upper end of the step's interval."""
    job = make_job(MODEL, gpus=f"{gpus}x{gpu}", batch=BATCH, seq=SEQ, runtime="megatron")
    found = search(job, Restrictions(), keep=1, doubt=Doubt(job)).candidates[0].strategy
    return BATCH * SEQ / estimate(job, [found])[0].step_s_range.high


@cache
def checkpoint_bytes() -> float:
    return 14.0 * weights.count(make_job(MODEL, gpus="8xH100", batch=BATCH, seq=SEQ).model).total


def useful(gpus: int, spot: bool) -> float:
    """Daly's goodput at Daly's interval, in plain Python."""
    rate = gpus / GPU_S + (gpus // NODE) * (-math.log(1 - TAKEN_A_MONTH) / (30 * 86400) if spot else 0)
    mean, write = 1 / rate, checkpoint_bytes() / (gpus * BYTES_PER_S_PER_GPU)
    ratio = math.sqrt(write / (2 * mean))
    work = math.sqrt(2 * write * mean) * (1 + ratio / 3 + ratio**2 / 9) - write
    return work / (mean * math.exp(900 / mean) * (math.exp((work + write) / mean) - 1))


def figures(row: Row, gpus: int, tokens: float, aside: Any = MappingProxyType({})) -> tuple[float, float]:
    """Seconds from the order to the end and dollars, by hand."""
    start = row.startup_s if row.startup_s is not None else 900 + 120 * math.log2(gpus // NODE)
    time_s = start + tokens / tokens_per_s(row.gpu, gpus) / useful(gpus, row.market == "spot") + aside.get("idle_s", 0)
    billed = time_s if not row.step_s else math.ceil(time_s / row.step_s) * row.step_s
    term = row.term_days * 86400 if row.market == "reserved" and row.term_days else 0
    rent_usd = max(billed, row.minimum_s or 0, term) * gpus * row.usd * (1 - aside.get("discount", 0)) / 3600
    stored_usd = 50 * 23 * ("storage_tb" in aside) * time_s / (365.25 / 12 * 86400)
    return time_s, rent_usd + stored_usd + 2 * 90 * ("egress_tb" in aside)


def sizes(row: Row) -> list[int]:
    """GPUs it is sold in: one server where nobody says what joins several."""
    most = min(MOST if row.joined else NODE, row.available or MOST)
    return [gpus for gpus in range(NODE, most + 1, NODE) if gpus >= (row.min_gpus or 1)]


def every_choice(offers: list[Row], tokens: float, aside: Any) -> dict[tuple[float, float], set[tuple[int, int]]]:
    """What has the same time and dollars is one point: either may be told."""
    points: dict[tuple[float, float], set[tuple[int, int]]] = {}
    for index, row in enumerate(offers):
        for gpus in sizes(row):
            time_s, usd = figures(row, gpus, tokens, aside)
            points.setdefault((round(time_s, 3), round(usd, 4)), set()).add((index, gpus))
    return points


def undominated(points: Any) -> set[tuple[float, float]]:
    return {
        (time_s, usd) for time_s, usd in points
        if not any(t <= time_s and d <= usd and (t, d) != (time_s, usd) for t, d in points)
    }  # fmt: skip


def judged(choice: Choice) -> tuple[float, float]:
    assert choice.cost.expected is not None
    return choice.cost.expected.days_range.high * 86400, choice.cost.expected.usd_range.high


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(offers=markets, tokens=st.sampled_from([2e8, 3e9, 4e10]), aside=asides)
def test_the_front_of_a_market_is_that_of_plain_arithmetic(
    tmp_path: Path, offers: list[Row], tokens: float, aside: dict[str, float]
) -> None:
    rates = {"storage_tb": ("usd_per_tb_month", 23.0), "egress_tb": ("usd_per_tb_egress", 90.0)}
    more = dict(rate for name, rate in rates.items() if name in aside)
    report, points = asked(tmp_path, offers, tokens, {**aside, **more}), every_choice(offers, tokens, aside)
    best = undominated(points)
    told = {(int(choice.parts[0].price.provider.split()[1]), choice.gpus): judged(choice) for choice in report.front}
    for (index, gpus), (time_s, usd) in told.items():
        assert (time_s, usd) == pytest.approx(figures(offers[index], gpus, tokens, aside), rel=1e-6)
    assert len(told) == len(best)
    assert all(any(key in told for key in points[point]) for point in best), "nothing is missing"
    for choice in report.front:
        assert sum(choice.cost.parts.values()) == pytest.approx(choice.cost.usd)
        assert choice.cost.billed_days >= choice.cost.days * (1 - 1e-12)
        row = offers[int(choice.parts[0].price.provider.split()[1])]
        assert (choice.nodes == 1) or row.joined, "no network is made up"


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    offers=markets, tokens=st.sampled_from([2e8, 4e10]), more=st.sampled_from(["cheaper", "freer", "looser", "sooner"])
)
def test_a_better_offer_never_hurts(tmp_path: Path, offers: list[Row], tokens: float, more: str) -> None:
    """Cheaper, more of it free, looser terms, a quicker start: every point of the old front is met or beaten."""
    row = offers[0]
    better = {
        "cheaper": row._replace(usd=row.usd * 0.8),
        "freer": row._replace(available=None, min_gpus=None),
        "looser": row._replace(minimum_s=None, step_s=None, term_days=0.0),
        "sooner": row._replace(startup_s=0.0),
    }[more]
    before, after = (asked(tmp_path, some, tokens).front for some in (offers, [better, *offers[1:]]))
    for choice in before:
        time_s, usd = judged(choice)
        assert any(t <= time_s * (1 + 1e-9) and d <= usd * (1 + 1e-9) for t, d in map(judged, after))


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(offers=markets, share=st.floats(0.01, 1))
def test_a_later_deadline_is_never_dearer_and_caps_hold_at_the_upper_end(
    tmp_path: Path, offers: list[Row], share: float
) -> None:
    front = [judged(choice) for choice in asked(tmp_path, offers, 3e9).front]
    least, most = front[0][0], front[-1][0]
    early = least + share * (most - least)
    first, later = (
        judged(asked(tmp_path, offers, 3e9, deadline=limit / 86400 * (1 + 1e-9)).chosen[0]) for limit in (early, most)
    )
    assert first[0] <= early * (1 + 1e-8)
    assert later[1] <= first[1] * (1 + 1e-9)


def test_the_expected_bill_is_the_mean_of_runs_that_fail_at_random(tmp_path: Path) -> None:
    """Failures drawn at random: start-up, work between checkpoints, work lost, restarts, and the bill in its steps."""
    offers = [Row("H100", "spot", 2.0, False, step_s=600.0)]
    money = Money(prices=written(tmp_path, offers), providers=("Acme 0",), market="spot", mtbf_gpu_h=40.0,
                  preemptions_per_node_day=6.0, restart_s=500.0)  # fmt: skip
    (choice,) = rent(MODEL, tokens=4e9, batch=BATCH, seq=SEQ, gpus="H100", max_gpus=8, money=money, mixes="none",
                     today=dt.date(2026, 11, 15)).front  # fmt: skip
    told, drawn = choice.cost.expected, np.random.default_rng(5)
    assert told is not None
    work_s, mean_s = choice.cost.days * 86400 - choice.cost.startup_s, told.mtbf_h * 3600
    assert mean_s == pytest.approx(1 / (8 / (40 * 3600) + 6 / 86400))
    elapsed, billed = [], []
    for _ in range(600):
        time_s, done_s, fails_in = choice.cost.startup_s, 0.0, drawn.exponential(mean_s)
        while done_s < work_s:
            part_s = min(told.checkpoint_interval_s, work_s - done_s)
            needs_s = part_s + told.checkpoint_write_s
            if fails_in >= needs_s:
                time_s, done_s, fails_in = time_s + needs_s, done_s + part_s, fails_in - needs_s
                continue
            time_s, down_s = time_s + fails_in, 500.0
            while (fails_in := drawn.exponential(mean_s)) < down_s:  # it fails again before it trains
                time_s += fails_in
            time_s, fails_in = time_s + down_s, fails_in - down_s
        elapsed.append(time_s)
        billed.append(math.ceil(time_s / 600) * 600 * 8 * 2.0 / 3600)
    for values, said in ((elapsed, told.days * 86400), (billed, told.usd)):
        error = np.std(values) / math.sqrt(len(values))
        assert abs(np.mean(values) - said) <= 4 * error + 0.01 * said
    assert told.usd > 1.1 * choice.cost.usd, "failures this frequent are worth telling"


def test_what_is_gone_before_it_has_started_is_never_named_first(tmp_path: Path) -> None:
    offers = [Row("H100", "on-demand", 3.0, True), Row("A100-80", "on-demand", 1.0, True)]
    report = asked(tmp_path, offers, 1.5e9)
    trained = [choice.cost.days * 86400 - choice.cost.startup_s for choice in report.front]
    named = [choice.cost.days * 86400 - 3 * choice.cost.startup_s for choice in report.front if choice.roles]
    assert min(named) >= 0
    assert len(trained) >= len(named)


def test_a_reservation_bills_its_term(tmp_path: Path) -> None:
    (choice,) = asked(tmp_path, [Row("H100", "reserved", 2.0, False, term_days=30.0)], 1e9).front
    assert choice.cost.usd == pytest.approx(30 * 24 * 8 * 2.0)
    assert choice.cost.parts["unused"] > 0.9 * choice.cost.usd
    assert choice.cost.price.term_s == 30 * 86400
