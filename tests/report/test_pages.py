"""Pages to show: whole, self-contained, and whatever is in a name stays text."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from html import unescape
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

import astra
from astra.answer import PlanSet
from astra.answer_money import RentReport
from astra.files import parse_toml
from astra.report import explain
from astra.report.charts import rounds
from astra.report.markup import quoted, tag
from astra.report.plan_page import memory_bars, plan_page, time_table
from astra.report.rent_page import rent_page
from astra.search.timeline import timeline_of
from astra.search.world import World
from astra.spec.request import read_request
from astra.study.records import answer_of
from tests.report import records

HOSTILE = "</pre></title><script>alert(1)</script><img src=x onerror=y>'\"&\u202e\x1b[31m"


class Page(HTMLParser):
    """Tags, attributes and text of a page, and whether its elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.names: set[str] = set()
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.names |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


@lru_cache
def answered(kind: str) -> PlanSet | RentReport:
    if kind == "rent":
        return astra.rent("llama-2-7b", gpus="H100,A100-80", max_gpus=64, tokens=1e11, batch=256, mixes="none")
    gpus: dict[str, Any] = {"plan": "16xH100", "fleet": ["8xH100", "8xA100-80"], "pareto": "64xH100"}
    goal: dict[str, Any] = {"objective": "pareto"} if kind == "pareto" else {}
    return astra.plan("llama-2-13b", gpus=gpus[kind], batch=64, seq=2048, tokens=1e11, **goal)


def page_of(answer: PlanSet | RentReport) -> str:
    if isinstance(answer, RentReport):
        return rent_page(answer)
    world = World.of(read_request("plan", answer.asked))
    return plan_page(answer, timeline_of(world, answer.best.strategy))


KINDS = ("plan", "fleet", "pareto", "rent")


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_whole_and_fetches_nothing(kind: str) -> None:
    text = page_of(answered(kind))
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not {"src", "href", "srcset", "data", "action"} & page.names
    assert not any(name.startswith("on") for name in page.names)
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text.replace("www.w3.org", "www.w3.org"))
    assert "default-src 'none'" in unescape(text)
    assert "prefers-color-scheme:dark" in text
    assert "@media print" in text
    assert 'name="viewport"' in text


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_has_every_part_of_the_answer(kind: str) -> None:
    answer = answered(kind)
    headings = re.findall(r"<h2>(.*?)</h2>", page_of(answer))
    wanted = {"The answer", "Evidence and doubt", "What was left out, and why", "What this rests on",
              "How to launch it", "The request"}  # fmt: skip
    if isinstance(answer, RentReport):
        wanted |= {"Time against money", "Common choices"}
    else:
        step = explain.show_step(answer.best.estimate.step_s)
        wanted |= {f"Where the {step} go", "Memory of every stage against its limit", "One step, stage by stage"}
        wanted |= {"The bill", "Runners-up"}
    if kind == "fleet":
        wanted |= {"What each pool is worth", "Who can run it"}
        wanted -= {"What was left out, and why"}
    assert wanted <= set(headings)


@pytest.mark.parametrize("kind", KINDS)
def test_the_request_on_the_page_is_the_one_that_was_asked(kind: str) -> None:
    answer = answered(kind)
    section = page_of(answer).rpartition("<h2>The request</h2>")[2]
    text = unescape(re.findall(r"<pre[^>]*>(.*?)</pre>", section, re.DOTALL)[0])
    verb = "rent" if isinstance(answer, RentReport) else "plan"
    assert read_request(verb, parse_toml(text, "page")) == read_request(verb, answer.asked)


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_of_a_file_is_the_page_of_the_answer(kind: str) -> None:
    answer = answered(kind)
    read = answer_of(json.loads(answer.to_json()), kind)
    assert type(read) is type(answer)
    assert read.to_json() == answer.to_json()
    assert page_of(read) == page_of(answer)


def hostile(value: Any, path: str = "") -> Any:
    """The same record with a hostile text in every free text of it."""
    if isinstance(value, dict):
        return {key: hostile(each, f"{path}.{key}") for key, each in value.items()}
    if isinstance(value, list):
        return [hostile(each, path) for each in value]
    kept = ("schema", "runtime", "objective", "judged_by", "strategy", "roles", "market", "provenance")
    return HOSTILE if isinstance(value, str) and not any(f".{name}" in path for name in kept) else value


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_never_markup(kind: str) -> None:
    answer = answered(kind)
    changed = answer_of(hostile(answer.to_dict()), kind)
    text = rent_page(changed) if isinstance(changed, RentReport) else plan_page(changed)
    page = Page(text)
    assert page.open == []
    assert not {"script", "img"} & set(page.tags)
    assert "onerror" not in page.names
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "alert(1)" in page.text, "the words are still there to be read"


def test_an_answer_without_plans_is_a_page_too() -> None:
    answer = answered("plan")
    assert isinstance(answer, PlanSet)
    text = plan_page(msgspec.structs.replace(answer, plans=[]))
    assert "No strategy is legal and fits." in text
    assert Page(text).open == []


def test_bars_are_to_scale() -> None:
    estimate = records.estimate()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", time_table(estimate))]
    told = [row.fraction for row in explain.shares(estimate)]
    assert widths == pytest.approx([100 * fraction / told[0] for fraction in told], abs=0.06)
    stage = estimate.stages[0]
    row = memory_bars(estimate).split("<tr>")[2]
    pieces = [float(width) for width in re.findall(r"width:([\d.]+)%", row)]
    limit = float(re.findall(r"left:([\d.]+)%", row)[0])
    assert sum(pieces) / limit == pytest.approx(stage.peak_reserved_gib / estimate.memory_limit_gib, rel=1e-3)


def test_a_stage_that_does_not_fit_is_marked_and_longer_than_the_limit() -> None:
    crowded = records.estimate(stages=[records.stage(0, activations_gib=70.0, fits=False)])
    assert 'class="n bad"' in memory_bars(crowded)
    assert "bad" not in memory_bars(records.estimate())


@pytest.mark.parametrize(("low", "high"), [(4.5, 290.0), (0.9, 1.1), (1e5, 9e6), (3.0, 3.0)])
def test_round_numbers_lie_between_the_ends(low: float, high: float) -> None:
    found = rounds(low, high)
    assert 1 <= len(found) <= 10
    assert all(low / 1.06 <= value <= high * 1.06 for value in found)


def test_attributes_are_quoted_and_words_are_escaped() -> None:
    assert tag("p", quoted("a<b"), title='"&') == '<p title="&quot;&amp;">a&lt;b</p>'
    assert tag("rect", x=1.50, class_="n", hidden=True, y=None) == '<rect x="1.5" class="n" hidden/>'
