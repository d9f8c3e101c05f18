"""Bars of a page: where the step goes, and every stage's memory against its limit. They shrink with the screen."""

from __future__ import annotations

from typing import Final

from astra.answer import Estimate, StageEstimate
from astra.report import explain
from astra.report.markup import quoted, tag
from astra.report.page import heading, wide
from astra.report.terms import MEMORY_LABELS

_FILL: Final = {"optimizer": "optim"}  # a kind of memory, where the colour of that name is a kind of work
BEYOND: Final = "reserved beyond"


def time_table(estimate: Estimate) -> str:
    """The step by term, largest first, each with its bar and how it is known; the rows add up to the step."""
    rows = explain.shares(estimate)
    largest = max((row.fraction for row in rows), default=1.0)
    body = [
        tag(
            "tr",
            tag("td", quoted(row.label), class_="name"),
            tag("td", _bar(row.fraction / largest, row.group), class_="bar"),
            tag("td", quoted(explain.show_step(row.seconds)), class_="n"),
            tag("td", quoted(f"{row.fraction:.1%}"), class_="n"),
            tag("td", quoted(row.source)),
        )
        for row in rows
    ]
    total = sum(row.seconds for row in rows)
    body.append(
        tag("tr", tag("td", "step"), tag("td", ""), tag("td", quoted(explain.show_step(total)), class_="n"),
            tag("td", "100.0%", class_="n"), tag("td", ""), class_="best")
    )  # fmt: skip
    heads = (("term", None), ("", None), ("time", "n"), ("share", "n"), ("known", None))
    head = tag("tr", *(heading(name, side) for name, side in heads))
    return wide(tag("table", tag("thead", head), tag("tbody", *body), class_="bars"))


def _bar(fraction: float, name: str) -> str:
    width = 100 * min(max(fraction, 0.0), 1.0)
    return tag("i", class_=f"fill {name}", style=f"width:{width:.1f}%")


def memory_bars(estimate: Estimate) -> str:
    """One bar for each stage, or run of stages that read the same: kinds of memory, and the limit as a line."""
    rows = explain.memory_rows(estimate.stages)
    limits = [limit_gib(estimate, row.stage) for row in rows]
    most = max([estimate.memory_usable_gib, *limits, *(row.stage.peak_reserved_gib for row in rows)])
    kinds = list(dict.fromkeys(kind for row in rows for kind in row.stage.memory))
    several, body = len({row.stage.gpu for row in rows}) > 1, []
    for row, limit in zip(rows, limits, strict=True):
        stage = row.stage
        pieces = [_piece(kind, stage.memory.get(kind, 0.0), most) for kind in kinds]
        pieces.append(_piece(BEYOND, stage.peak_reserved_gib - stage.peak_allocated_gib, most))
        line = tag("b", class_="limit", style=f"left:{100 * limit / most:.2f}%", title=f"{limit:.1f} GiB allowed")
        state = "n" if stage.fits else "n bad"
        body.append(
            tag(
                "tr",
                tag("td", quoted(f"{row.name} ({stage.layers} layers{f', {stage.gpu}' if several else ''})")),
                tag("td", tag("div", *pieces, line, class_="stack"), class_="bar"),
                tag("td", quoted(f"{stage.peak_reserved_gib:.1f} / {limit:.1f}"), class_=state),
            )
        )
    head = tag("tr", heading("stage"), heading(""), heading("GiB / allowed", "n"))
    legend = [
        tag("span", tag("i", class_=f"key {_name(kind)}"), quoted(MEMORY_LABELS.get(kind, kind))) for kind in kinds
    ]
    legend.append(tag("span", tag("i", class_="key beyond"), quoted("reserved by the allocator beyond that")))
    return wide(tag("table", tag("thead", head), tag("tbody", *body), class_="bars")) + tag("p", *legend, class_="keys")


def limit_gib(estimate: Estimate, stage: StageEstimate) -> float:
    """What a stage may reserve: its own pool's limit, where stages live on several."""
    return float(getattr(stage, "memory_limit_gib", estimate.memory_limit_gib))


def _name(kind: str) -> str:
    return _FILL.get(kind, kind)


def _piece(kind: str, gib: float, most: float) -> str:
    if gib <= 0:
        return ""
    name = "beyond" if kind == BEYOND else _name(kind)
    style = f"width:{100 * gib / most:.2f}%"
    return tag("i", class_=f"fill {name}", style=style, title=f"{MEMORY_LABELS.get(kind, kind)} {gib:.1f} GiB")
