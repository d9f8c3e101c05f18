"""Mixes of two GPU types, against planning every one of them: none missing on the front, none too many."""

from __future__ import annotations

import datetime as dt
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from astra.answer_money import RentReport
from astra.api import make_job
from astra.catalog.clusters import parse_cluster
from astra.catalog.hardware import device
from astra.errors import UnknownName
from astra.money.bill import checkpoint_bytes, outlook
from astra.partition.problem import Effort
from astra.renting import mixes
from astra.renting.mixes import LEAST_SHARE, Which
from astra.renting.rent import rent
from astra.rules.restrictions import Restrictions
from astra.search.detail import estimate
from astra.search.engine import search
from astra.search.fleet.plan import fleet_of
from astra.search.fleet.search import Planner
from astra.spec.job import Job
from astra.spec.money import Money

HEADER = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
MODEL, BATCH, SEQ, TOKENS, MOST, NODE = "qwen2.5-1.5b", 256, 4096, 1e10, 32, 8
GPUS = ("A100-80", "B200", "H100")
NAMES = {gpu: device(gpu).name for gpu in GPUS}
Key = tuple[tuple[str, int], ...]  # (GPU, how many), one or two
Points = dict[Key, tuple[float, float]]  # seconds and dollars


def asked(folder: Path, prices: dict[str, float], which: Which = "all", **money: Any) -> RentReport:
    rows = [f"Acme,box,{gpu},{NODE},x,on-demand,{usd},USD,2026-11-01,acme.example,\n" for gpu, usd in prices.items()]
    path = folder / "prices.csv"
    path.write_text(HEADER + "".join(rows))
    options = Money(**{"prices": str(path), "providers": ("Acme",), "startup_s": 0.0, "goodput": "ideal", **money})
    return rent(
        MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus=",".join(prices), max_gpus=MOST, money=options,
        today=dt.date(2026, 11, 15), mixes=which, assume_network=True, rank="expected",
    )  # fmt: skip


def job_on(gpus: str) -> Job:
    return make_job(
        MODEL, gpus=gpus, cluster=None, node=None, batch=BATCH, seq=SEQ, tokens=TOKENS, precision="bf16",
        optimizer="adam", task="pretrain", lora_rank=16, runtime="megatron", headroom=0.08,
    )  # fmt: skip


def sizes(first: str, second: str) -> list[tuple[int, int]]:
    """Powers of two of nodes, at most MOST together, neither with too small a share of the peak FLOP/s."""
    out = []
    for a in (NODE, 2 * NODE, 4 * NODE):
        for b in (NODE, 2 * NODE, 4 * NODE):
            peaks = [n * device(gpu).peak("bf16") for n, gpu in ((a, first), (b, second))]
            if a + b <= MOST and min(peaks) / sum(peaks) >= LEAST_SHARE:
                out.append((a, b))
    return out


@cache
def alone(gpu: str, gpus: int) -> float:
    """Seconds of the whole run, from the planner and the simulator."""
    job = job_on(f"{gpus}x{gpu}")
    best = search(job, Restrictions(), keep=1).candidates[0].strategy
    return TOKENS / estimate(job, [best])[0].tokens_per_s


def planner(first: str, second: str) -> Planner:
    """A new one each time: what it was asked before may let one know more groups."""
    cluster = parse_cluster(f"{MOST}x{first}+{MOST}x{second}")
    made = Planner(fleet_of(cluster, job_on(f"{NODE}x{first}"), exact=False)[0], exact=False)
    made.use(Effort())  # however long it takes
    return made


@cache
def mixed(first: str, second: str, a: int, b: int) -> float | None:
    """Seconds of the whole run, without any limit or bound."""
    one = planner(first, second)
    candidates = [*one.same_replicas((a, b))[:1], *one.sharing((a, b), every=False, limit=np.inf)[:1]]
    costed = one.cost(candidates, most=2)
    return TOKENS / costed[0].estimate.tokens_per_s if costed else None


def every_choice(prices: dict[str, float]) -> Points:
    points: Points = {}
    for gpu, usd in prices.items():
        for gpus in range(NODE, MOST + 1, NODE):
            points[((NAMES[gpu], gpus),)] = (alone(gpu, gpus), alone(gpu, gpus) * usd * gpus / 3600)
    for first, second in combinations(sorted(prices), 2):
        for a, b in sizes(first, second):
            seconds = mixed(first, second, a, b)
            if seconds is not None:
                usd = seconds * (a * prices[first] + b * prices[second]) / 3600
                points[tuple(sorted(((NAMES[first], a), (NAMES[second], b))))] = (seconds, usd)
    return points


def undominated(points: Points) -> set[Key]:
    return {
        key
        for key, (time_s, usd) in points.items()
        if not any(t <= time_s and d <= usd and (t, d) != (time_s, usd) for t, d in points.values())
    }


def keys(report: RentReport) -> set[Key]:
    return {tuple(sorted((part.gpu, part.gpus) for part in choice.parts)) for choice in report.front}


@pytest.mark.exhaustive  # the two tests below compare two GPU types with brute force in the default run
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(prices=st.fixed_dictionaries({}, optional=dict.fromkeys(GPUS, st.floats(0.5, 8))).filter(bool))
@example(prices={"H100": 1.66, "B200": 7.76, "A100-80": 7.29})
@example(prices={"H100": 2.4, "B200": 6.3, "A100-80": 0.5})
def test_the_front_with_mixes_is_that_of_brute_force(tmp_path: Path, prices: dict[str, float]) -> None:
    report, wanted = asked(tmp_path, prices), undominated(every_choice(prices))
    assert keys(report) == wanted
    account = report.search.mixes
    assert account.considered == sum(len(sizes(*pair)) for pair in combinations(sorted(prices), 2))
    assert account.considered == account.dominated + account.planned
    assert (account.open, account.on_front) == (0, sum(len(key) > 1 for key in wanted))


def test_a_mix_on_the_front_is_billed_at_both_prices(tmp_path: Path) -> None:
    report = asked(tmp_path, {"H100": 1.66, "B200": 7.76})
    both = [choice for choice in report.front if len(choice.parts) == 2]
    assert both, "these prices leave a gap that a mix fills"
    for choice in both:
        hourly = sum(part.gpus * part.price.usd_per_gpu_h for part in choice.parts)
        assert choice.cost.usd == pytest.approx(choice.cost.days * 24 * hourly)
        assert choice.gpus == choice.cost.gpus == sum(part.gpus for part in choice.parts)
        assert choice.name == f"{' + '.join(f'{p.gpus}x{p.gpu}' for p in choice.parts)} from Acme"
        assert choice.cost.price.source == "acme.example"
        assert choice.cost.expected is not None
        assert any(choice.name in note for note in report.notes), "which runtimes can run it"


def test_idle_time_and_storage_move_the_front_as_they_should(tmp_path: Path) -> None:
    prices = {"H100": 1.66, "B200": 7.76}
    idle_s, usd_per_s = 3600.0, 2000 / (365.25 * 86400 / 12)
    points = {}
    for key, (time_s, usd) in every_choice(prices).items():
        total_s = time_s + idle_s
        points[key] = (total_s, total_s * (usd / time_s + usd_per_s) + 50.0)
    report = asked(
        tmp_path, prices, idle_s=idle_s, storage_tb=20, usd_per_tb_month=100, egress_tb=0.5, usd_per_tb_egress=100
    )
    assert keys(report) == undominated(points)
    for choice in report.front:
        key = tuple(sorted((part.gpu, part.gpus) for part in choice.parts))
        assert (choice.cost.days * 86400, choice.cost.usd) == pytest.approx(points[key])
        assert set(choice.cost.parts) == {"gpus", "idle", "storage", "egress"}
        assert sum(choice.cost.parts.values()) == pytest.approx(choice.cost.usd)


def test_restarts_move_the_front_as_they_should(tmp_path: Path) -> None:
    prices, often = {"H100": 1.66, "B200": 7.76}, Money(mtbf_gpu_h=10.0, restart_s=600.0)
    nbytes, points = checkpoint_bytes(job_on("8xH100")), {}
    for key, (time_s, usd) in every_choice(prices).items():
        gpus = np.array([sum(count for _, count in key)])
        useful = float(outlook(often, nbytes, gpus, gpus // NODE, "on-demand").goodput[0])
        points[key] = (time_s / useful, usd / useful)
    report = asked(tmp_path, prices, goodput="expected", mtbf_gpu_h=10.0, restart_s=600.0)
    assert keys(report) == undominated(points)
    assert keys(report) != undominated(every_choice(prices)), "failures this frequent change what is worth renting"
    assert report.search.mixes.on_front > 0


def test_mixes_may_be_left_out(tmp_path: Path) -> None:
    report = asked(tmp_path, {"H100": 1.66, "B200": 7.76}, which="none")
    assert all(len(choice.parts) == 1 for choice in report.front)
    assert report.search.mixes.considered == 0
    with pytest.raises(UnknownName, match="mixes"):
        asked(tmp_path, {"H100": 1.66}, which="few")  # type: ignore[arg-type]


def test_mixes_of_models_with_experts_are_counted_but_not_planned_unless_asked_for() -> None:
    report = rent("mixtral-8x7b", tokens=1e11, batch=256, seq=2048, max_gpus=64, money=Money(providers=("AWS",)))
    account = report.search.mixes
    assert account.planned == account.on_front == 0
    assert account.considered == account.dominated + account.open
    assert account.dominated > 0


def test_only_mixes_that_a_runtime_runs_are_told_unless_all_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = {"H100": 1.66, "B200": 7.76}
    assert asked(tmp_path, prices).search.mixes.on_front > 0
    monkeypatch.setattr(mixes, "LEAST_GAIN", 10.0)  # every one that could be on the front is planned
    report = asked(tmp_path, prices, which="some")
    assert report.search.mixes.on_front > 0
    for choice in report.front:
        if len(choice.parts) > 1:
            (note,) = [note for note in report.notes if note.startswith(choice.name)]
            assert "no runtime" not in note
