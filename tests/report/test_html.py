"""The notebook view."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from astra.report.view import estimate_html, plans_html
from astra.spec.mixed_text import on_one_line
from tests.report import records

VOID = {"br", "hr", "img"}


class Balance(HTMLParser):
    """Collects text and checks that every tag is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(page: str) -> Balance:
    parser = Balance()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


def test_plans_are_balanced_and_complete() -> None:
    planset = records.planset()
    page = parsed(plans_html(planset))
    assert page.tags.count("tr") == 1 + len(planset.plans)
    for plan in planset.plans:
        assert on_one_line(plan.strategy, plan.estimate.as_usual) in page.words, "as in the terminal"


@pytest.mark.parametrize("draw", [lambda hostile: plans_html(records.planset(plans=[hostile], notes=["<b>n</b>"])),
                                  lambda hostile: estimate_html(hostile.estimate)])  # fmt: skip
def test_text_is_escaped(draw: object) -> None:
    hostile = records.plan(1, model='<script>alert("x")</script>', warnings=["<img src=x>"])
    assert callable(draw)
    page = parsed(draw(hostile))
    assert "script" not in page.tags
    assert "img" not in page.tags
    assert any("<script>" in words for words in page.words)


def test_no_plans() -> None:
    assert "No strategy" in "".join(parsed(plans_html(records.planset(plans=[]))).words)


def test_notebook_hook() -> None:
    assert records.planset()._repr_html_().startswith("<div")
