"""Prices: every offer keeps the contract, the default is the documented one, faults are named by line and column."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from astra.catalog import hardware, prices
from astra.errors import InputError

ALL = prices.prices()
TODAY = dt.date(2026, 11, 15)
HEADER = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
ROW = "Acme,8x-big,H100,8,us,on-demand,2.5,USD,2026-10-01,acme.example,\n"


def offer(**changes: object) -> prices.Price:
    given_ = {"provider": "Acme", "instance": "i", "gpu": "T4", "gpus": 8, "region": "", "market": "on-demand"}
    rest = {"usd_per_gpu_h": 1.0, "date": TODAY, "source": "test"}
    price: prices.Price = msgspec.convert({**given_, **rest, **changes}, prices.Price)
    return price


def test_every_offer_is_of_a_known_gpu_dated_and_sourced() -> None:
    assert len(ALL) > 200
    for price in ALL:
        assert hardware.device(price.gpu).name == price.gpu
        assert price.source
        assert price.currency == "USD"
        assert dt.date(2024, 1, 1) <= price.date <= dt.date.today()
        assert 0.1 < price.usd_per_gpu_h < 20
        assert 1 <= price.gpus <= 16


def test_no_offer_is_listed_twice() -> None:
    keys = [(p.provider, p.instance, p.gpu, p.region, p.market, p.date) for p in ALL]
    assert len(keys) == len(set(keys))


def test_spot_and_reserved_are_cheaper_than_on_demand_of_the_same_instance() -> None:
    on_demand = {(p.provider, p.instance, p.gpu): p.usd_per_gpu_h for p in ALL if p.market == "on-demand"}
    compared = [p for p in ALL if p.market != "on-demand" and (p.provider, p.instance, p.gpu) in on_demand]
    assert len(compared) > 40
    for price in compared:
        assert price.usd_per_gpu_h <= on_demand[price.provider, price.instance, price.gpu]


def test_known_offers() -> None:
    p5 = prices.node_price(hardware.node_type("p5"))
    assert p5 is not None
    assert (p5.usd_per_gpu_h, p5.provider) == (6.88, "AWS")
    spot = prices.node_price(hardware.node_type("p5"), "spot")
    assert spot is not None
    assert spot.usd_per_gpu_h < p5.usd_per_gpu_h
    azure = prices.node_price(hardware.node_type("Standard_ND96isr_H100_v5"))
    assert azure is not None
    assert azure.usd_per_gpu_h == 12.29
    assert prices.node_price(hardware.node_type("dgx-h100")) is None


def test_prices_of_one_gpu_by_any_of_its_names() -> None:
    of_h100 = prices.prices("h100")
    assert of_h100 == tuple(p for p in ALL if p.gpu == "H100-SXM5-80GB")
    assert len(of_h100) > 20
    with pytest.raises(InputError, match="Did you mean"):
        prices.prices("H1000")


@pytest.mark.parametrize("gpu", hardware.names("devices"))
def test_the_default_is_an_offer_between_the_cheapest_and_the_dearest(gpu: str) -> None:
    on_demand = [p for p in prices.prices(gpu) if p.market == "on-demand"]
    default = prices.default_price(gpu)
    if not on_demand:
        assert default is None
    else:
        assert default in on_demand


@pytest.mark.parametrize("gpu", ["H100", "A100", "H200", "B200", "L40S", "A100-40"])
def test_the_default_of_a_common_gpu_is_fresh_and_in_the_middle(gpu: str) -> None:
    default = prices.default_price(gpu)
    assert default is not None
    assert not prices.is_stale(default, TODAY)
    on_demand = sorted(p.usd_per_gpu_h for p in prices.prices(gpu) if p.market == "on-demand")
    assert on_demand[0] < default.usd_per_gpu_h < on_demand[-1]


def test_the_rule_of_the_default() -> None:
    median = prices._median_provider
    old, now = TODAY - dt.timedelta(days=91), TODAY
    assert median([]) is None
    # A provider speaks with its newest offer, of its largest instance, the dearer one on a tie.
    newest = [offer(usd_per_gpu_h=9.0, date=TODAY - dt.timedelta(days=1)), offer(usd_per_gpu_h=2.0)]
    assert median(newest) == newest[1]
    largest = [offer(usd_per_gpu_h=1.0, gpus=1), offer(usd_per_gpu_h=2.0, gpus=8)]
    assert median(largest) == largest[1]
    tied = [offer(usd_per_gpu_h=2.0), offer(usd_per_gpu_h=3.0)]
    assert median(tied) == tied[1]
    # Over providers: the lower median of the recent ones.
    several = [offer(provider=str(usd), usd_per_gpu_h=usd, date=now) for usd in (4.0, 1.0, 3.0, 2.0)]
    assert median(several) == several[3]
    stale = [offer(provider=f"old {usd}", usd_per_gpu_h=usd, date=old) for usd in (7.0, 8.0, 9.0)]
    assert median([*stale, *several]) == several[3]


@given(st.lists(st.tuples(st.floats(0.1, 100), st.integers(0, 9), st.integers(0, 200)), min_size=1, max_size=30))
def test_the_default_does_not_depend_on_the_order_of_rows(rows: list[tuple[float, int, int]]) -> None:
    offers = [
        offer(usd_per_gpu_h=usd, provider=str(provider), date=TODAY - dt.timedelta(days=days))
        for usd, provider, days in rows
    ]
    forward, backward = prices._median_provider(offers), prices._median_provider(offers[::-1])
    assert forward is not None
    assert backward is not None
    assert forward.usd_per_gpu_h == backward.usd_per_gpu_h


def test_the_default_is_of_whole_servers_where_they_are_sold() -> None:
    parts = [offer(provider=name, gpus=1, usd_per_gpu_h=usd) for name, usd in (("a", 1.0), ("b", 1.1), ("c", 1.2))]
    servers = [offer(provider=name, gpus=8, usd_per_gpu_h=usd) for name, usd in (("c", 4.0), ("d", 5.0))]
    gpu = parts[0].gpu
    assert prices.default_price(gpu, offers=[*parts, *servers]) == servers[0]
    assert prices.default_price(gpu, offers=[*parts, *servers], whole=False) == parts[1]
    assert prices.default_price(gpu, offers=parts) == parts[1], "parts are better than nothing"
    found = prices.default_price("H100")
    assert found is not None
    assert prices.is_whole(found)


def test_age() -> None:
    price = offer(date=dt.date(2026, 8, 17))
    assert prices.age_days(price, TODAY) == 90
    assert not prices.is_stale(price, TODAY)
    assert prices.is_stale(price, TODAY + dt.timedelta(days=1))


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "prices.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_users_file(tmp_path: Path) -> None:
    quoted = ROW.replace("us,", '"us, east",').replace("8x-big", "16x")
    raw = (HEADER + ROW + "\n" + quoted).replace("\n", "\r\n").encode("utf-8-sig")
    first, second = prices.read_prices(written(tmp_path, raw), today=TODAY)
    assert (first.gpu, first.gpus, first.usd_per_gpu_h) == ("H100-SXM5-80GB", 8, 2.5)
    assert first.date == dt.date(2026, 10, 1)
    assert second.region == "us, east"


def test_columns_may_come_in_any_order(tmp_path: Path) -> None:
    names, cells = HEADER.strip().split(","), ROW.strip().split(",")
    turned = f"{','.join(names[::-1])}\n{','.join(cells[::-1])}\n"
    straight = prices.read_prices(written(tmp_path, HEADER + ROW), today=TODAY)
    assert prices.read_prices(written(tmp_path, turned), today=TODAY) == straight


FAULTS: dict[str, tuple[str | bytes, str]] = {
    "empty file": ("", "line 1"),
    "missing column": (HEADER.replace("date,", "") + ROW, "line 1: .*date missing"),
    "unknown column": (HEADER.replace("notes", "remarks") + ROW, "line 1: .*notes missing; remarks unknown"),
    "column twice": (HEADER.replace("\n", ",notes\n") + ROW, "line 1: .*twice"),
    "missing field": (HEADER + ROW + "Acme,8x-big\n", "line 3: got 2, wanted 11 fields"),
    "negative price": (HEADER + ROW.replace("2.5", "-2.5"), "line 2, column usd_per_gpu_h: got '-2.5'"),
    "zero price": (HEADER + ROW.replace("2.5", "0"), "line 2, column usd_per_gpu_h"),
    "no price": (HEADER + ROW.replace("2.5", ""), "line 2, column usd_per_gpu_h: .*2.49 dollars for a GPU"),
    "price that is no number": (HEADER + ROW.replace("2.5", "nan"), "line 2, column usd_per_gpu_h"),
    "price with another currency's sign": (HEADER + ROW.replace("2.5", "€2.5"), "line 2, column usd_per_gpu_h"),
    "price of a node-year": (HEADER + ROW.replace("2.5", "175200"), "line 2, column usd_per_gpu_h: .*at most 1000"),
    "future date": (HEADER + ROW.replace("2026-10-01", "2026-11-16"), "line 2, column date: .*after today"),
    "no date": (HEADER + ROW.replace("2026-10-01", ""), "line 2, column date: wanted a date"),
    "impossible date": (HEADER + ROW.replace("2026-10-01", "2026-02-30"), "line 2, column date: got '2026-02-30'"),
    "date in another form": (HEADER + ROW.replace("2026-10-01", "20261001"), "line 2, column date"),
    "other currency": (HEADER + ROW.replace("USD", "EUR"), "line 2, column currency: got 'EUR', .*It is one of USD"),
    "unknown market": (HEADER + ROW.replace("on-demand", "weekly"), "line 2, column market: .*on-demand, spot"),
    "unknown gpu": (HEADER + ROW.replace("H100", "Z100"), "line 2, column gpu: got 'Z100'"),
    "ambiguous gpu": (HEADER + ROW.replace("H100", "V100"), "line 2, column gpu: .*V100-SXM2-16GB"),
    "no gpus": (HEADER + ROW.replace(",8,", ",0,"), "line 2, column gpus: got '0'"),
    "fractional gpus": (HEADER + ROW.replace(",8,", ",8.5,"), "line 2, column gpus"),
    "no provider": (HEADER + ROW.replace("Acme", " "), "line 2, column provider"),
    "no source": (HEADER + ROW.replace("acme.example", ""), "line 2, column source"),
    "open quote": (HEADER + '"Acme,8x', "CSV"),
    "binary": (b"PK\x03\x04\x00\x00", "binary"),
    "not UTF-8": (HEADER.encode() + b"Caf\xe9", "line 2: .*UTF-8"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_by_line_and_column(tmp_path: Path, fault: str) -> None:
    text, said = FAULTS[fault]
    path = written(tmp_path, text)
    with pytest.raises(InputError, match=said) as caught:
        prices.read_prices(path, today=TODAY)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        prices.read_prices(tmp_path / "none.csv")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.text(max_size=120))
def test_any_text_is_prices_or_an_input_error(tmp_path: Path, text: str) -> None:
    raw = (HEADER + ROW + text).encode("utf-8", "replace")
    with suppress(InputError):
        assert len(prices.read_prices(written(tmp_path, raw), today=TODAY)) >= 1
