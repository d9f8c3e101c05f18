"""What a user can say of a market: caps, regions, prices of one's own, discounts, networks, GPUs nobody lists."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

import pytest

from astra.answer_money import RentReport
from astra.catalog.prices import book, read_prices, to_csv
from astra.errors import InputError, NoFeasiblePlan
from astra.renting.rent import offers_of, rent
from astra.report.rent_page import rent_page
from astra.spec.mixed_text import short_form
from astra.spec.money import Money
from astra.spec.request import PlanRequest
from astra.units import show_dollars, show_seconds

HEADER = "provider,instance,gpu,gpus,region,market,usd_per_gpu_h,currency,date,source,notes"
TODAY = dt.date(2026, 11, 15)


def asked(**more: Any) -> RentReport:
    request: dict[str, Any] = {
        "tokens": 1e10,
        "batch": 48,
        "seq": 2048,
        "max_gpus": 64,
        "mixes": "none",
        "today": TODAY,
    }
    return rent("qwen2.5-1.5b", **{**request, **more})


def most(**more: Any) -> dict[str, int]:
    """The most GPUs of each type that are looked at."""
    request: Any = PlanRequest(model="gpt2", tokens=1e9, **more)
    found: dict[str, int] = {}
    for offer in offers_of(request, TODAY).offers:
        found[offer.device.name] = max(found.get(offer.device.name, 0), int(offer.counts[-1]))
    return found


def listed(folder: Path, *rows: str, more: str = "") -> str:
    path = folder / "mine.csv"
    path.write_text("\n".join([HEADER + more, *rows]) + "\n")
    return str(path)


def test_at_most_so_many_of_a_type() -> None:
    assert most(gpus="H200:64,H100", max_gpus=512) == {"H200-SXM5-141GB": 64, "H100-SXM5-80GB": 512}
    for wrong in ("H200:", "H200:0", "H200:many", "H200:1.5"):
        with pytest.raises(InputError, match="at most"):
            most(gpus=wrong)


def test_a_price_list_counts_for_gpus_that_nobody_else_sells(tmp_path: Path) -> None:
    unsold = "MI325X"
    assert all(price.gpu != unsold for price in book())
    path = listed(tmp_path, f"Acme,box,{unsold},8,x,on-demand,2.0,USD,2026-11-01,acme,,roce 400", more=",network")
    assert most(money=Money(prices=path), max_gpus=64)[unsold] == 64, "any GPU, without naming it"
    report = asked(gpus=unsold, money=Money(prices=path))
    assert {choice.gpu for choice in report.front} == {unsold}
    assert {choice.cost.price.fabric for choice in report.front} == {"roce 400 Gb/s per GPU"}


def test_a_network_in_the_list_joins_servers_and_is_its_own_source(tmp_path: Path) -> None:
    row = "Acme,box,H100,8,x,on-demand,1.0,USD,2026-11-01,acme.example,"
    alone = asked(gpus="H100", money=Money(prices=listed(tmp_path, row), providers=("Acme",)))
    assert {choice.nodes for choice in alone.front} == {1}
    assert any("Nobody says what joins" in note for note in alone.notes)
    told = {}
    for network in ("infiniband 400", "tcp 10"):
        path = listed(tmp_path, f"{row},{network}", more=",network")
        report = asked(gpus="H100", money=Money(prices=path, providers=("Acme",)))
        assert report.front[0].cost.price.fabric_source == "acme.example"
        told[network] = report.front[0].cost.days
    assert told["infiniband 400"] < told["tcp 10"], "the links are those that were told"
    assumed = asked(gpus="H100", assume_network=True, money=Money(prices=listed(tmp_path, row), providers=("Acme",)))
    assert max(choice.nodes for choice in assumed.front) > 1
    assert any("assumed" in note and "Acme" in note for note in assumed.notes)
    with pytest.raises(InputError, match="column network"):
        read_prices(listed(tmp_path, f"{row},infiniband fast", more=",network"), today=TODAY)


def test_own_prices_of_types_stand_beside_the_offers() -> None:
    report = asked(gpus="H100,A100-80", money=Money(price=("H100=0.5",)))
    mine = [choice for choice in report.front if choice.cost.price.provider == "you"]
    assert mine
    assert {(choice.gpu, choice.cost.price.usd_per_gpu_h) for choice in mine} == {("H100-SXM5-80GB", 0.5)}
    with pytest.raises(InputError, match="price"):
        asked(gpus="H100", money=Money(price=("H100=cheap",)))


def test_regions_and_discounts(tmp_path: Path) -> None:
    rows = [
        f"Acme {place},box,H100,8,{place},on-demand,2.0,USD,2026-11-01,acme," for place in ("eu-west-1", "us-east-1")
    ]
    path, names = listed(tmp_path, *rows), ("Acme eu-west-1", "Acme us-east-1")
    here = asked(gpus="H100", money=Money(prices=path, providers=names, regions=("eu",)))
    assert {choice.cost.price.region for choice in here.front} == {"eu-west-1"}
    less = asked(gpus="H100", money=Money(prices=path, providers=names, discount=0.25))
    full = asked(gpus="H100", money=Money(prices=path, providers=names))
    assert less.front[0].cost.usd == pytest.approx(0.75 * full.front[0].cost.usd)
    assert "less 25%" in less.front[0].cost.price.source
    with pytest.raises(InputError):
        asked(gpus="H100", money=Money(prices=path, providers=names, regions=("ap",)))


def test_several_markets_in_one_front(tmp_path: Path) -> None:
    rows = [
        "Acme,box,H100,8,x,on-demand,3.0,USD,2026-11-01,acme,,infiniband 400,",
        "Acme,box,H100,8,x,spot,1.5,USD,2026-11-01,acme,,infiniband 400,",
        "Acme,box,H100,8,x,reserved,1.0,USD,2026-11-01,acme,,infiniband 400,",
    ]
    path = listed(tmp_path, *rows, more=",network,term_days")
    money: dict[str, Any] = {"prices": path, "providers": ("Acme",), "market": "any"}
    shown = [choice for choice in asked(gpus="H100", money=Money(**money)).front if not choice.like]
    assert {choice.cost.price.market for choice in shown} == {"spot"}, "cheaper, and as fast for all that is known"
    assert "Acme spot" in shown[0].name
    taken = asked(gpus="H100", money=Money(**money, preemptions_per_node_day=200)).front
    assert {choice.cost.price.market for choice in taken} == {"on-demand"}, (
        "spot that is taken away all day is no bargain"
    )
    reasons = [entry.reason for entry in asked(gpus="H100", money=Money(**money)).unused]
    assert any("how long one commits" in reason for reason in reasons)


def test_what_a_row_says_is_written_and_read_back(tmp_path: Path) -> None:
    path = listed(
        tmp_path, "Acme,box,H100,8,x,reserved,2.0,USD,2026-11-01,acme,n,64,16,efa 400,30,3600,60,900,contract",
        more=",available,min_gpus,network,term_days,minimum_s,step_s,startup_s,terms",
    )  # fmt: skip
    (price,) = read_prices(path, today=TODAY)
    again = tmp_path / "again.csv"
    again.write_text(to_csv([price]))
    assert read_prices(again, today=TODAY) == (price,)
    (choice,) = asked(gpus="H100", money=Money(prices=path, providers=("Acme",), market="reserved")).front[-1:]
    tag = choice.cost.price
    assert (tag.available, tag.min_gpus, tag.term_s, tag.step_s, tag.startup_s) == (64, 16, 30 * 86400, 60, 900)
    assert (tag.fabric, tag.terms, tag.notes) == ("efa 400 Gb/s per GPU", "contract", "n")
    assert choice.gpus >= 16


def test_few_steps_are_warned_of() -> None:
    few, enough = (asked(gpus="H100", max_gpus=8, tokens=tokens) for tokens in (50 * 48 * 2048, 5000 * 48 * 2048))
    assert any("50 steps of 48 samples of 2,048 tokens" in warning for warning in few.warnings)
    assert not any("steps of" in warning for warning in enough.warnings)


def test_common_choices_are_told_as_the_front_is() -> None:
    """Failures this frequent are in the time and cost of both."""
    report = asked(gpus="H100", max_gpus=64, money=Money(mtbf_gpu_h=50.0, restart_s=1800.0))
    (common,) = report.popular
    assert common.cost.expected is not None
    assert common.cost.expected.usd > 1.05 * common.cost.usd
    (line,) = [
        line
        for line in report.draw(140, full=True).splitlines()
        if common.name in line and "wastes" not in line and "$" in line
    ][-1:]
    assert show_dollars(common.cost.expected.usd) in line


def test_narrow_pages_have_the_strategies_too() -> None:
    report = asked(gpus="H100", max_gpus=16)
    for width in (80, 100, 150):
        page = report.draw(width)
        for choice in report.front:
            if not choice.like:
                assert " ".join(short_form(choice.strategy, choice.as_usual)) in page


def test_every_row_says_who_sells_it_on_any_page() -> None:
    report = asked(gpus="B300,B200,RTXPRO6000", max_gpus=128, money=Money(g_co2_per_kwh=380.0))
    assert any(choice.cost.kg_co2 is not None for choice in report.front), "the table has all its columns"
    for width in range(80, 161, 4):
        rows = [line for line in report.draw(width, full=True).splitlines() if " from " not in line]
        for choice in report.front:
            name, seller = choice.name.split(" ", 1)[0], choice.cost.price.provider
            assert any(name in row and seller in row for row in rows), (width, choice.name)


def test_a_region_that_no_offer_names_is_refused(tmp_path: Path) -> None:
    path = listed(tmp_path, "Acme,box,H100,8,eu-west-1,on-demand,2.0,USD,2026-11-01,acme,")
    with pytest.raises(InputError, match=r"regions: got 'mars'"):
        asked(gpus="H100", money=Money(prices=path, regions=("mars",)))


def test_a_price_that_sells_more_than_there_is_is_no_offer(tmp_path: Path) -> None:
    row = "Acme,box,H100,8,x,on-demand,2.0,USD,2026-11-01,acme,,64,128"
    path = listed(tmp_path, row, more=",available,min_gpus")
    with pytest.raises(InputError, match=r"available: got 64, wanted room for one node, 128 GPUs or more"):
        asked(gpus="H100", max_gpus=2048, money=Money(prices=path, providers=("Acme",)))


def test_a_run_that_never_ends_is_no_choice(tmp_path: Path) -> None:
    path = listed(tmp_path, "Acme,box,H100,8,x,on-demand,2.0,USD,2026-11-01,acme,")
    with pytest.raises(NoFeasiblePlan, match=r"within a thousand years.*--mtbf-gpu-h"):
        asked(gpus="H100", money=Money(prices=path, providers=("Acme",), mtbf_gpu_h=0.001))


def test_spot_says_whose_interruptions_it_has(tmp_path: Path) -> None:
    rows = [f"{name},box,H100,8,x,spot,1.5,USD,2026-11-01,acme," for name in ("Acme", "AWS")]
    path = listed(tmp_path, *rows)

    def note(provider: str, **money: object) -> str:
        options = Money(prices=path, providers=(provider,), market="spot", **money)  # type: ignore[arg-type]
        return next(note for note in asked(gpus="H100", money=options).notes if note.startswith("Spot"))

    assert "20% of servers in a month" in note("Acme")
    assert "of Acme nobody tells" in note("Acme")
    assert "nobody tells" not in note("AWS")
    assert "assumed" not in note("Acme", preemptions_per_node_day=0.01)


def test_spot_tells_what_it_takes_if_machines_are_taken_more_or_less_often(tmp_path: Path) -> None:
    """The range beside the assumption is what the same choice is told with either end given."""
    path = listed(tmp_path, "Acme,box,H100,8,x,spot,1.5,USD,2026-11-01,acme,")

    def answer(**money: float) -> RentReport:
        return asked(gpus="H100", money=Money(prices=path, providers=("Acme",), market="spot", **money))  # type: ignore[arg-type]

    report = answer()
    best, note = report.role("knee"), next(note for note in report.notes if "is expected to take so long" in note)
    for per_month in (0.05, 0.5):
        often = answer(preemptions_per_node_day=-math.log(1 - per_month) / 30)
        (same,) = [one for one in often.front if (one.gpus, one.strategy) == (best.gpus, best.strategy)]
        assert same.cost.expected is not None
        days, usd = same.cost.expected.days, same.cost.expected.usd
        assert f"{show_seconds(days * 86400)} for {show_dollars(usd)} if {per_month:.0%} are" in note
    assert not any("is expected to take so long" in note for note in often.notes), "it is given"


@pytest.mark.parametrize(("provider", "says"), [("Acme", "a figure of AWS (Acme tells none)"), ("AWS", "of AWS:")])
def test_a_short_answer_on_spot_machines_says_whose_interruptions_it_has(
    tmp_path: Path, provider: str, says: str
) -> None:
    path = listed(tmp_path, f"{provider},box,H100,8,x,spot,1.5,USD,2026-11-01,acme,")
    report = asked(gpus="H100", money=Money(prices=path, providers=(provider,), market="spot"))
    assert says in " ".join(str(report).split())


def test_a_price_for_an_hour_of_own_gpus_is_of_those_alone() -> None:
    report = asked(gpus="H100", own="16xH100", money=Money(usd_per_gpu_h=0.5))
    of_markets = {choice.cost.price.market: choice.cost.price.usd_per_gpu_h for choice in report.front}
    assert of_markets["owned"] == 0.5
    assert {usd for market, usd in of_markets.items() if market != "owned"} != {0.5}
    assert not report.own, "nobody says what is paid for GPUs that are not used"


def test_servers_that_nobody_joins_are_named_with_their_gpus(tmp_path: Path) -> None:
    """A provider may be known for one type and not for another."""
    rows = (
        "Acme,plain,H100,8,x,on-demand,0.3,USD,2026-11-01,acme,,",
        "Acme,joined,A100-80,8,x,on-demand,1.0,USD,2026-11-01,acme,,infiniband 200",
    )
    report = asked(
        gpus="H100,A100-80", money=Money(prices=listed(tmp_path, *rows, more=",network"), providers=("Acme",))
    )
    assert {choice.nodes for choice in report.front if choice.gpu.startswith("H100")} == {1}
    (note,) = [note for note in report.notes if "Nobody says what joins" in note]
    assert "H100-SXM5-80GB of Acme" in note
    assert "A100" not in note


def test_old_prices_of_a_provider_are_one_sentence(tmp_path: Path) -> None:
    rows = [
        f"Acme,{gpu} box,{gpu},8,x,on-demand,{usd},USD,2026-07-01,acme,,infiniband 400"
        for gpu, usd in (("H100", 1.0), ("A100-80", 0.3))
    ]
    report = asked(
        gpus="H100,A100-80", money=Money(prices=listed(tmp_path, *rows, more=",network"), providers=("Acme",))
    )
    assert {choice.gpu for choice in report.front} == {"H100-SXM5-80GB", "A100-SXM4-80GB"}
    old = [warning for warning in report.warnings if "days old" in warning]
    assert old == ["The prices of Acme H100 box, A100-80 box are 137 days old (2026-07-01): check them."]


@pytest.mark.parametrize(("term", "mark"), [("", "≥$"), ("30", " $")])
def test_a_bill_that_is_a_floor_is_marked(tmp_path: Path, term: str, mark: str) -> None:
    row = f"Acme,box,H100,8,x,reserved,1.0,USD,2026-11-01,acme,,infiniband 400,{term}"
    money = Money(prices=listed(tmp_path, row, more=",network,term_days"), providers=("Acme",), market="reserved")
    report = asked(gpus="H100", money=money)
    rows = [line for line in report.draw(120).splitlines() if "xH100-SXM5-80GB" in line and "400 Gb" in line]
    assert rows
    assert all(mark in line for line in rows)
    assert ("≥$" in rent_page(report)) == (term == "")


def test_what_energy_chooses_is_in_the_table_with_its_strategy(tmp_path: Path) -> None:
    """Its grid is known and dear; what costs less and is as fast has none."""
    rows = (
        "GCP,a3-highgpu-8g,H100,8,us-central1,on-demand,9.0,USD,2026-11-01,acme,,infiniband 400",
        "Acme,box,H100,8,nowhere,on-demand,1.0,USD,2026-11-01,acme,,infiniband 400",
    )
    money = Money(
        prices=listed(tmp_path, *rows, more=",network"), providers=("GCP", "Acme"), regions=("us-central1", "nowhere")
    )
    report = asked(gpus="H100", money=money, objective="co2", max_gpus=16)
    chosen = report.chosen[0]
    assert chosen.name not in {choice.name for choice in report.front}
    text = report.draw(200)
    (line,) = [line for line in text.splitlines() if line.startswith("*")]
    assert line.split()[1] == "-"
    assert f"{chosen.gpus}x{chosen.gpu}" in line
    assert chosen.strategy.split()[0] in line
    assert rent_page(report).count("GCP") > 1
