"""What one pool's answer and a fleet's have in common: time by term, memory, who lost and what was left out."""

from __future__ import annotations

from typing import Final

from astra.answer import Estimate, PlanSet
from astra.report import drawing, explain, stages
from astra.report.layout import Part
from astra.report.terms import words

_GROUP_STYLE: Final = {"compute": "green", "communication": "yellow", "idle": "red", "other": "blue"}


def where_time_goes(estimate: Estimate, width: int) -> list[Part]:
    """The step by term, with what dominates it and what would help."""
    rows = explain.shares(estimate)
    cells = min(40, max(8, width - 62))
    chart = drawing.table(("term", "left"), ("", "left"), ("time", "right"), ("share", "right"), ("known", "left"))
    largest = max((row.fraction for row in rows), default=1.0)
    for row in rows:
        drawn = drawing.text((drawing.bar(row.fraction / largest, cells), _GROUP_STYLE[row.group]))
        chart.add_row(row.label, drawn, explain.show_step(row.seconds), f"{row.fraction:.1%}", row.source)
    total = sum(row.seconds for row in rows)
    chart.add_row("step", "", explain.show_step(total), f"{sum(row.fraction for row in rows):.1%}", "", style="bold")
    return [
        drawing.blank(),
        drawing.heading(f"Where the {explain.show_step(estimate.step_s)} go"),
        chart,
        drawing.blank(),
        *drawing.bullets([explain.dominates(estimate), explain.helps_most(estimate)]),
    ]


def by_stage(estimate: Estimate, width: int) -> list[Part]:
    """Time of a step on one rank of every stage."""
    note = f"{stages.time_unit(estimate)[0]} of a step on one rank; communication by kind, busy, then what is exposed"
    return [drawing.blank(), drawing.heading("Time per stage", note), stages.time_table(estimate, width=width)]


def memory(estimate: Estimate, width: int) -> list[Part]:
    """GiB by kind and stage, with the fullest."""
    equal = all(stage.own_limit_gib is None for stage in estimate.stages)
    room = f"; usable {estimate.memory_usable_gib:.1f}, limit {estimate.memory_limit_gib:.1f}" if equal else ""
    return [
        drawing.blank(),
        drawing.heading("Memory", f"GiB per GPU at its worst moment{room}"),
        stages.memory_table(estimate, width=width),
        drawing.blank(),
        *drawing.bullets([explain.memory_sentence(estimate)]),
    ]


def provenance(estimate: Estimate) -> list[Part]:
    """The source of each term."""
    if not estimate.provenance:
        return []
    out = drawing.table(("term", "left"), ("known", "left"))
    for term, source in estimate.provenance.items():
        out.add_row(words(term).label, source)
    return [drawing.blank(), drawing.heading("How each term is known"), out]


def others(planset: PlanSet) -> list[Part]:
    """By how much each of the other plans lost, and on what."""
    if len(planset.plans) < 2 or planset.objective == "pareto":  # none of a front has lost
        return []
    sentences = [explain.why_lost(planset.best, plan) for plan in planset.plans[1:]]
    return [drawing.blank(), drawing.heading("Why the others lost"), *drawing.bullets(sentences)]


def ledger(planset: PlanSet, limit: int | None = None) -> list[Part]:
    """What the search did, and what it left out for which reason."""
    parts: list[Part] = [drawing.blank(), drawing.heading("The search")]
    parts.append(drawing.prose(explain.search_sentence(planset)))
    shown, reasons, strategies = explain.ranked_rejects(planset.rejects, limit)
    if not shown:
        return parts
    ledger = drawing.table(("strategies", "right"), ("left out because", "wrap"))
    for reject in shown:
        ledger.add_row(f"{reject.strategies:,}", reject.sentence)
    if reasons:
        ledger.add_row(f"{strategies:,}", f"for {reasons} other reasons (--verbose lists them)", style="dim")
    return [*parts, drawing.blank(), ledger]
