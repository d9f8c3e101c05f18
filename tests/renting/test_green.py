"""Energy and CO2 of a run, and the choice that has the least, against plain arithmetic."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import astra
from astra.catalog.grid import grid
from astra.catalog.hardware import device
from astra.errors import InputError
from astra.renting.rent import rent
from astra.spec.money import Money
from tests.renting.test_terms import BATCH, HEADER, MODEL, MOST, SEQ, Row, figures, markets, sizes, written

TOKENS = 3e9


def chosen(path: str, names: tuple[str, ...], objective: str, **more: Any) -> Any:
    money = Money(prices=path, providers=names, market="any", **more.pop("money", {}))
    return rent(
        MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, max_gpus=MOST, money=money, mixes="none", objective=objective,
        today=dt.date(2026, 11, 15), **more,
    ).chosen[0]  # fmt: skip


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(offers=markets, hours=st.sampled_from([3.0, 8.0, 200.0]))
def test_the_least_energy_within_a_deadline(tmp_path: Path, offers: list[Row], hours: float) -> None:
    """Watts by GPUs by time, of every offer and count that ends in time; the cheapest of what is within a twentieth."""
    found, bills = [], []
    for row in offers:
        for gpus in sizes(row):
            time_s, usd = figures(row, gpus, TOKENS)
            if time_s <= hours * 3600 * (1 - 1e-9):
                found.append(0.99 * device(row.gpu).power_w / 1000 * 1.3 * gpus * time_s / 3600)
                bills.append(usd)
    assume(found)
    names = tuple(f"Acme {index}" for index in range(len(offers)))
    gpus_asked = ",".join({row.gpu for row in offers})
    best = chosen(
        written(tmp_path, offers), names, "energy", deadline=f"{hours}h", gpus=gpus_asked, money={"pue": 1.3}
    ).cost
    kwh, usd = best.kwh * best.expected.days_range.high / best.expected.days, best.expected.usd_range.high
    assert min(found) * (1 - 1e-6) <= kwh <= 1.05 * min(found) * (1 + 1e-6)
    places = [place for place, each in enumerate(found) if each <= min(found) * (1 + 1e-6)]
    assert usd <= min(bills[place] for place in places) * (1 + 1e-6), "no equal is cheaper"
    assert best.expected.days_range.high * 24 <= hours


def test_a_clean_grid_is_worth_a_dearer_offer(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    place = "GCP,{},H100,8,{},on-demand,{},USD,2026-11-01,mine,,,,infiniband 400,,,,"
    rows = [place.format("dirty", "us-central1", 2.0), place.format("clean", "us-west1", 3.0)]
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    iowa, oregon = grid("GCP", "us-central1"), grid("gcp", "us-west1")
    assert iowa is not None
    assert oregon is not None
    assert oregon.g_co2_per_kwh < iowa.g_co2_per_kwh
    clean = chosen(str(path), ("GCP",), "co2", gpus="H100", money={"regions": ("us-central1", "us-west1")})
    assert clean.cost.price.region == "us-west1"
    assert clean.cost.kg_co2 == pytest.approx(clean.cost.kwh * oregon.g_co2_per_kwh / 1000)
    assert "Oregon" in clean.cost.energy_source
    same = chosen(str(path), ("GCP",), "co2", gpus="H100", money={"g_co2_per_kwh": 100.0})
    assert same.cost.kg_co2 == pytest.approx(same.cost.kwh / 10)


def test_what_is_not_known_is_said() -> None:
    assert grid("AWS", "us-east-1/2 us-west-2") is None, "several regions have several grids"
    assert grid("Acme", "us-central1") is None
    with pytest.raises(InputError, match="grid is known"):
        astra.plan(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="8xH100", objective="co2")
    with pytest.raises(InputError, match="grid is known"):
        rent(MODEL, tokens=TOKENS, batch=BATCH, seq=SEQ, gpus="H100", max_gpus=8, objective="co2",
             money=Money(providers=("Nebius",)))  # fmt: skip
