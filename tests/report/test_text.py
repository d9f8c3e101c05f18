"""The text reports: what must be on the page, and that the page fits."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

import astra
from astra.answer import ModelReport
from astra.report import drawing
from astra.search.fleet.records import MixedPlanSet
from astra.units import show_seconds
from tests.report import records

WIDTHS = [60, 80, 100, 140, 160]


@pytest.mark.parametrize("width", [80, 100, 140])
def test_plans_show_every_part(width: int) -> None:
    planset = records.planset(notes=["seq was assumed"])
    page = planset.draw(width=width, full=True)
    for plan in planset.plans:
        assert show_seconds(plan.estimate.step_s) in page
        assert f"{plan.estimate.tokens_per_s:,.0f}" in page
    for part in (
        planset.best.strategy,
        "Where the 5.60 s go",
        "Memory",
        "Why the others lost",
        "#2 is",
        "Considered 1,000,000 strategies in 50.0 ms (20.0 million per second)",
        "rule number 10 is broken by these",
        "note: seq was assumed",
        "$492.6k",
    ):
        assert part in page.replace("\n", " ") or part in page


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_page(width: int) -> None:
    pages = [
        records.planset().draw(width=width, full=True),
        records.estimate(violations=["no " * 60], legal=False).draw(width=width, full=True),
    ]
    assert max(len(line) for page in pages for line in page.splitlines()) <= width


@pytest.mark.parametrize("width", [80, 160])
def test_no_cell_is_cut_off(width: int) -> None:
    """Rich marks what it cuts with an ellipsis; rows left out use it too, so the test keeps those away."""
    stages = [records.stage(index) for index in range(4)]
    assert "…" not in records.planset().draw(width=width)
    assert "…" not in records.estimate(stages=stages).draw(width=width)


def test_the_drawn_breakdown_sums_to_the_step() -> None:
    estimate = records.estimate()
    page = estimate.draw(width=100)
    section = page[page.index("Where the") : page.index("Of the step")]
    percents = [float(found) for found in re.findall(r"([0-9.]+)%", section)]
    assert sum(percents[:-1]) == pytest.approx(100.0, abs=0.4)
    assert percents[-1] == 100.0


def test_rejects_are_listed_when_asked_for_and_limited_where_nothing_fits() -> None:
    short, full = (records.planset().draw(width=100, full=full) for full in (False, True))
    assert "rule number 10 " not in short
    assert "rule number 0 " in full
    none = records.planset(plans=[]).draw(width=100)
    assert "rule number 0 " not in none
    assert "for 3 other reasons" in none


def test_the_short_answer_says_what_more_there_is() -> None:
    planset = records.planset(notes=["seq was assumed."])
    page = " ".join(planset.draw(width=100).split())
    for part in ("Expect 5.21 s to 5.99 s per step", "Of the step, 75% is compute", "Stage 0 of 0-3 is the fullest",
                 "#2 is", "Considered 1,000,000 strategies", "note: seq was assumed", "-v: time and memory by stage",
                 "--report FILE.html", "astra explain"):  # fmt: skip
        assert part in page
    for part in ("Where the", "Why the others lost", "rule number"):
        assert part not in page


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3.1-70b", "gpus": "64xH100", "batch": 1024, "seq": 8192, "tokens": 1e12},
        {"model": "llama-2-70b", "gpus": "512xH100", "batch": 1024, "seq": 4096, "tokens": 1e12},
        {"model": "mixtral-8x7b", "gpus": "64xA100-80", "batch": 1024, "seq": 4096, "tokens": 1e12},
        {"model": "llama-2-7b", "gpus": "24xA100-80", "batch": 512, "seq": 4096},
        {"model": "llama-2-13b", "gpus": ["8xH100", "16xA100-80"], "batch": 256, "seq": 4096, "tokens": 1e11},
    ],
)
def test_a_real_answer_is_one_screen(asked: dict[str, Any]) -> None:
    planset = astra.plan(**asked)
    if isinstance(planset, MixedPlanSet):
        lines = planset.draw(100).splitlines()
    else:
        lines = planset.draw(100).splitlines()
        assert len(planset.best.estimate.draw(width=100).splitlines()) <= 40
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100


class Terminal(io.StringIO):
    """Somewhere a person looks."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (100, 30), (100, 40)])
def test_a_low_terminal_is_one_screen_too(monkeypatch: pytest.MonkeyPatch, columns: int, rows: int) -> None:
    planset = astra.plan("llama-2-70b", gpus="512xH100", batch=1024, seq=4096, tokens=1e12)
    monkeypatch.setenv("LINES", str(rows))
    monkeypatch.setattr(sys, "stdout", Terminal())
    page = planset.draw(columns)
    assert len(page.splitlines()) < rows, "beside the line for the next command"
    assert max(map(len, page.splitlines())) <= columns
    for part in ("Expect", "is the fullest", "The bill", "note:", "-v:"):
        assert part in page


def test_long_notes_are_counted_and_not_shown() -> None:
    notes = [f"{letter} note that goes on for quite a while, {'so ' * 40}" for letter in "ABCDE"]
    short = records.planset(notes=notes).draw(width=100)
    assert "A note" in short
    assert "3 more with -v" in " ".join(short.split())
    full = records.planset(notes=notes).draw(width=100, full=True)
    assert all(f"{letter} note" in full for letter in "ABCDE")


def test_brief_keeps_the_ranking_alone() -> None:
    page = records.planset().draw(width=100, brief=True)
    assert "tp8 pp4" in page
    assert "Where the" not in page


def test_an_empty_answer_still_shows_the_ledger() -> None:
    page = records.planset(plans=[]).draw(width=100)
    assert "No strategy is legal and fits." in page
    assert "rule number 10" in page


def test_money_and_days_appear_only_when_known() -> None:
    page = records.planset(plans=[records.plan(1)]).draw(width=120)
    assert "days" not in page
    assert "$" not in page


def test_an_illegal_estimate_says_why() -> None:
    estimate = records.estimate(
        legal=False, violations=["tp must divide the heads"], fits=False, memory_usable_gib=50.0
    )
    page = estimate.draw(width=100)
    assert "not legal" in page
    assert "tp must divide the heads" in page
    assert "does not fit" in page


def test_the_fullest_of_many_stages_is_told_and_all_are_shown_when_asked_for() -> None:
    stages = [records.stage(index, activations_gib=60.0 if index == 20 else 1.0 * (index % 7)) for index in range(32)]
    estimate = records.estimate(stages=stages)
    assert "Stage 20 of 0-31 is the fullest" in estimate.draw(width=120)
    full = estimate.draw(width=120, full=True)
    assert all(re.search(rf"^{index} ", full[full.index("\nMemory") :], re.MULTILINE) for index in range(32))


def test_colour_only_when_asked() -> None:
    assert "\x1b" not in records.planset().draw(width=100)
    assert "\x1b[" in records.planset().draw(width=100, color=True)


def test_brackets_in_names_are_not_markup() -> None:
    page = records.estimate(model="[red]my[/red] model").draw(width=100)
    assert "[red]my[/red] model" in page


def test_model_report() -> None:
    report = ModelReport(
        name="Llama-2-7B",
        family="decoder",
        shape={"layers": 32, "hidden": 4096, "tied_embeddings": False, "moe": {"experts": 8, "topk": 2}},
        parameters={"total": 6_738_415_616, "active": 6_738_415_616, "embedding": 262_144_000},
        flops_per_token={"forward": 1.4e10, "training": 4.2e10},
        source="a public config",
        date="2023-07-18",
    )
    page = report.draw(width=80)
    assert "6,738,415,616" in page
    assert "experts 8, topk 2" in page
    assert "a public config" in page


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "utf-8", "no-such-encoding", None])
def test_any_stream_can_carry_the_page(encoding: str | None) -> None:
    page = drawing.encodable(records.planset().draw(width=80, full=True), encoding)
    page.encode("ascii" if encoding in ("no-such-encoding", None) and page.isascii() else encoding or "utf-8")
    assert "Where the 5.60 s go" in page


@pytest.mark.parametrize(("fraction", "drawn"), [(0.0, ""), (1.0, "████"), (0.5, "██"), (1e-9, "▏"), (2.0, "████")])
def test_bar(fraction: float, drawn: str) -> None:
    assert drawing.bar(fraction, 4) == drawn


def test_planset_prints_as_the_report() -> None:
    assert "-v: time and memory by stage" in str(records.planset())
