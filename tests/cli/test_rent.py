"""``astra rent`` and the money options of ``astra plan`` from the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import FakePlanner, Shown

Command = Callable[..., Shown]
RENT = ("rent", "qwen2.5-1.5b", "--tokens", "10B", "--batch", "48", "--seq", "2048", "--max-gpus", "16")
PLAN = ("plan", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--seq", "2048")


def test_the_table_the_picture_and_the_sources(astra_command: Command) -> None:
    shown = astra_command(*RENT, "--gpus", "H100,A100-80", "--width", "120", "-v")
    assert shown.code == 0
    for said in ("Cheapest", "Fastest", "Time against money", "logarithmic", "Prices", "per GPU and hour", "Left out"):
        assert said.lower() in shown.out.lower()
    assert "Llama 3 (arXiv 2407.21783" in shown.out, "the failure rate names its source"
    assert max(len(line) for line in shown.out.splitlines()) <= 120
    quiet = astra_command(*RENT, "--gpus", "H100,A100-80", "-q").out
    assert len(quiet) < len(shown.out)


def test_the_record_can_be_drawn_from(astra_command: Command) -> None:
    record = astra_command(*RENT, "--gpus", "H100", "--json").record
    assert record["schema"] == "astra.rent/1"
    for choice in record["front"]:
        assert {"days", "usd", "usd_range", "price", "expected"} <= set(choice["cost"])
        assert choice["cost"]["price"]["date"]
        assert choice["cost"]["price"]["source"]
    assert [role for choice in record["front"] for role in choice["roles"] if role != "knee"] == ["fastest", "cheapest"]
    assert record["search"]["considered"] > 0


def test_narrow_pages(astra_command: Command) -> None:
    shown = astra_command(*RENT, "--gpus", "H100", "--width", "80")
    assert max(len(line) for line in shown.out.splitlines()) <= 80


def test_assumed_values_are_said(astra_command: Command) -> None:
    shown = astra_command("rent", "qwen2.5-1.5b", "--tokens", "1B", "--gpus", "H100", "--max-gpus", "8", "--json")
    assert [note for note in shown.record["notes"] if "was assumed" in note] == [
        "--seq 4096 was assumed.",
        "--batch 1024 (samples) was assumed.",
    ]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("rent", "qwen2.5-1.5b"), 2, "--tokens"),
        ((*RENT, "--gpus", "H1000"), 2, "Did you mean"),
        ((*RENT, "--gpus", "64xH100"), 2, "without a number"),
        ((*RENT, "--gpus", ","), 2, "GPU types"),
        ((*RENT, "--providers", ","), 2, "--providers"),
        ((*RENT, "--providers", "Nobody Inc"), 2, "providers"),
        ((*RENT, "--market", "monthly"), 2, "--market"),
        ((*RENT, "--budget", "0"), 2, "budget"),
        ((*RENT, "--gpus", "H100", "--budget", "9", "--deadline", "3d"), 3, "The least it could cost is"),
        ((*RENT, "--gpus", "H100", "--budget", "9", "--deadline", "1h"), 3, "The fastest takes"),
        ((*RENT, "--storage", "50"), 2, "--storage"),
        ((*RENT, "--egress", "-1@90"), 2, "--egress"),
        ((*RENT, "--idle", "soon"), 2, "--idle"),
        ((*RENT, "--mixes", "few"), 2, "--mixes"),
        ((*RENT, "--deadline", "soon"), 2, "deadline"),
        ((*RENT, "--usd-per-gpu-h", "-2"), 2, "--usd-per-gpu-h"),
        ((*RENT, "--usd-per-gpu-h", "nan"), 2, "--usd-per-gpu-h"),
        ((*RENT, "--pue", "0.4"), 2, "--pue"),
        ((*RENT, "--use", "50%"), 2, "--use"),
        ((*RENT, "--capital-rate", "8%"), 2, "--usd-per-gpu with it"),
        ((*RENT, "--lifetime-years", "3"), 2, "--usd-per-gpu with it"),
        ((*RENT, "--gpus", "H100:8,H100-SXM5-80GB:4"), 2, "It is 8 before"),
        ((*RENT, "--known-nodes", "--assume-network"), 2, "no --assume-network beside it"),
        ((*RENT, "--usd-per-gpu-h", "3", "--discount", "10%"), 2, "no price of your own for every GPU"),
        ((*RENT, "--usd-per-gpu-h", "3", "--providers", "AWS"), 2, "no price of your own for every GPU"),
        ((*RENT, "--usd-per-kwh", "0.1", "--regions", "us"), 2, "no price of your own for every GPU"),
        ((*PLAN, "--tokens", "1B", "--baseline", "train.sh"), 2, "There is no such file"),
        ((*RENT, "--gpus", "V100-32"), 2, "All of them have fp16"),
        ((*RENT, "--max-gpus", "0"), 2, "--max-gpus"),
        ((*RENT, "--prices", "/nowhere/prices.csv"), 2, "no such file"),
        ((*RENT, "--gpus", "H100", "--budget", "0.01"), 3, "least it could cost"),
        ((*RENT, "--gpus", "H100", "--deadline", "0.001h"), 3, "The fastest takes"),
    ],
)
def test_bad_input(astra_command: Command, arguments: tuple[str, ...], code: int, says: str) -> None:
    shown = astra_command(*arguments)
    assert (shown.code, shown.out) == (code, "")
    assert says in shown.err
    assert shown.err.count("\n") == 1


def test_a_price_file_with_a_wrong_column_is_named_by_line_and_column(astra_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("provider,instance,gpu,usd_per_gpu_h\nAcme,box,H100,2\n")
    shown = astra_command(*RENT, "--prices", str(path))
    assert shown.code == 2
    assert f"{path}: line 1" in shown.err
    assert "gpus" in shown.err
    header = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
    path.write_text(f"{header}Acme,box,H100,8,,on-demand,2,EUR,2026-01-01,acme,\n")
    shown = astra_command(*RENT, "--prices", str(path))
    assert "line 2, column currency" in shown.err


@pytest.mark.parametrize(
    ("options", "usd_per_gpu_h", "source"),
    [
        (("--usd-per-kwh", "0.1"), 0.07, "700 W x PUE 1 x $0.1/kWh"),
        (("--usd-per-gpu", "35064", "--lifetime-years", "2"), 2.0, "$35,064 over 2 years"),
        (
            ("--usd-per-gpu", "35.064k", "--usd-per-kwh", "0.1", "--pue", "1.2"),
            1.084,
            "PUE 1.2 x $0.1/kWh; $35,064 over",
        ),
    ],
)
def test_owned_hardware(astra_command: Command, options: tuple[str, ...], usd_per_gpu_h: float, source: str) -> None:
    price = astra_command(*PLAN, "--tokens", "1B", *options, "--json").record["plans"][0]["estimate"]["cost"]["price"]
    assert price["usd_per_gpu_h"] == pytest.approx(usd_per_gpu_h)
    assert source in price["source"]
    assert "Your own hardware: $" in astra_command(*PLAN, "--tokens", "1B", *options, "--width", "140", "-v").out


def test_common_choices_at_a_price_of_ones_own_are_of_each_gpu(astra_command: Command) -> None:
    own = ("--gpus", "H100,A100-80,H200", "--usd-per-gpu-h", "2", "--mixes", "none", "--json")
    popular = astra_command(*RENT, *own).record["popular"]
    assert [choice["parts"][0]["gpu"] for choice in popular] == ["H100-SXM5-80GB", "A100-SXM4-80GB", "H200-SXM5-141GB"]


def test_dollars_per_token_shows_dollars_without_tokens(astra_command: Command) -> None:
    record = astra_command(*PLAN, "--objective", "dollars-per-token", "--json").record
    assert record["plans"][0]["estimate"]["cost"]["usd_per_billion_tokens"] > 0
    assert "no --tokens: days and dollars are of a billion tokens" in record["notes"]


def test_a_users_price_file_is_named(astra_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    header = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes\n"
    path.write_text(f"{header}Acme,box,H100,8,,on-demand,2,USD,2026-01-01,acme,\n")
    record = astra_command(*PLAN, "--tokens", "1B", "--prices", str(path), "--json").record
    price = record["plans"][0]["estimate"]["cost"]["price"]
    assert (price["provider"], price["why"]) == ("Acme", f"from {path}")


def test_a_budget_beside_a_deadline(astra_command: Command) -> None:
    front = astra_command(*RENT, "--gpus", "H100,A100-80", "--json").record["front"]
    fast, cheap = front[0]["cost"]["expected"], front[-1]["cost"]["expected"]
    days, usd = cheap["days_range"]["high"] * 1.01, fast["usd_range"]["high"] * 1.01
    both = ("--deadline", f"{days}", "--budget", f"{usd}")
    record = astra_command(*RENT, "--gpus", "H100,A100-80", *both, "--json").record
    assert record["chosen"][0]["cost"]["expected"]["usd"] == cheap["usd"], "the cheapest in time"
    assert (record["objective"], record["request"]["most_usd"]) == ("deadline", pytest.approx(usd))
    hard = ("--deadline", f"{fast['days'] * 1.0001}", "--budget", f"{cheap['usd'] * 1.0001}")  # not even as expected
    shown = astra_command(*RENT, "--gpus", "H100,A100-80", *hard)
    assert shown.code == 3
    assert "The fastest within the budget takes" in shown.err


def test_idle_time_storage_and_egress_are_in_the_bill(astra_command: Command) -> None:
    extras = ("--idle", "6h", "--storage", "10@23", "--egress", "1@90")
    plain, more = (astra_command(*RENT, "--gpus", "H100", *some, "--json").record["front"][0] for some in ((), extras))
    assert plain["cost"]["parts"].keys() - {"unused"} == {"gpus", "startup"}
    parts = more["cost"]["parts"]
    assert parts["egress"] == 90
    assert parts["idle"] == pytest.approx(6 * more["gpus"] * more["cost"]["price"]["usd_per_gpu_h"])
    assert parts["storage"] == pytest.approx(10 * 23 * more["cost"]["days"] / (365.25 / 12))
    assert more["cost"]["days"] == pytest.approx(plain["cost"]["days"] + 0.25)


def test_plan_passes_the_money_options_on(astra_command: Command, planner: FakePlanner) -> None:
    assert astra_command(*PLAN, "--tokens", "1T").code == 0
    assert {"objective", "budget", "deadline", "baseline", "money"} & set(planner.asked) == set()
    astra_command(
        *PLAN, "--tokens", "1T", "--budget", "400k", "--baseline", "tp8", "--market", "spot", "--restart-min", "5"
    )
    assert planner.asked["budget"] == 400_000
    assert planner.asked["baseline"] == "tp8"
    money = planner.asked["money"]
    assert (money.market, money.restart_s, money.goodput) == ("spot", 300.0, "expected")
    astra_command(*PLAN, "--tokens", "1T", "--objective", "pareto", "--goodput", "expected", "--write-mb-s", "100")
    assert planner.asked["objective"] == "pareto"
    assert planner.asked["money"].write_bytes_per_s_per_gpu == 1e8
    shown = astra_command(*PLAN, "--objective", "fast")
    assert shown.code == 2
    assert "fastest" in shown.err


def test_a_picture_that_cannot_be_drawn_is_said_before_the_search(
    astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("astra.report.pictures.find_spec", lambda name: None)
    monkeypatch.setattr("astra.renting.rent.searched", None)
    shown = astra_command(*RENT, "--plot", str(tmp_path / "front.png"))
    assert shown.code == 2
    assert "resvg-py" in shown.err
    assert ".svg" in shown.err
