"""Results as HTML for notebooks: one block of the same parts as pages, every text escaped, no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from astra.answer import Estimate, Plan, PlanSet
from astra.answer_money import AffordReport, RentReport
from astra.report import explain
from astra.report.afford import sentences
from astra.report.markup import quoted, tag
from astra.report.money import advice
from astra.report.page import bullets
from astra.report.plan_page import ranking
from astra.report.rent_page import front_table
from astra.report.study_view import afford_table
from astra.report.sweep import points_table
from astra.study.records import Sweep
from astra.units import show_dollars, show_seconds

_COLOR: Final = {"compute": "#3a9d5d", "communication": "#d9a21b", "idle": "#c8553d", "other": "#4f7cac"}
_STYLE: Final = (
    "div.astra{font:90% sans-serif;max-width:70em}div.astra ul{margin:.4em 0;padding-left:1.4em}"
    "div.astra table{border-collapse:collapse}div.astra .n{text-align:right;white-space:nowrap}"
    "div.astra td,div.astra th{padding:2px 10px;text-align:left;border-bottom:1px solid #8884}"
)


def plans_html(planset: PlanSet) -> str:
    """The ranking as a table, the best plan's step as a bar, and the reasons."""
    if not planset.plans:
        return "<div>No strategy is legal and fits.</div>"
    best = planset.best.estimate
    remarks = [
        explain.dominates(best),
        explain.helps_most(best),
        explain.memory_sentence(best),
        explain.certainty(best),
        *(explain.why_lost(planset.best, plan) for plan in planset.plans[1:2]),
        explain.search_sentence(planset),
        *explain.all_warnings(planset),
        *planset.notes,
    ]
    return _plans(best, planset.plans, remarks)


def estimate_html(estimate: Estimate) -> str:
    """One strategy's figures and its step as a bar."""
    remarks = [
        *estimate.violations,
        explain.dominates(estimate),
        explain.memory_sentence(estimate),
        explain.certainty(estimate),
        *estimate.warnings,
    ]
    return _plans(estimate, [Plan(rank=1, strategy=estimate.strategy, estimate=estimate)], remarks)


def _plans(best: Estimate, plans: Sequence[Plan], remarks: Iterable[str]) -> str:
    return _block(f"{best.model} on {best.gpus}", ranking(plans, short=True), _bar(best), remarks=remarks)


def rent_html(report: RentReport) -> str:
    """What to rent: the sentences, the front as a picture, and the choices."""
    title = f"What to rent for {report.request['model']}"
    return _block(title, report.plot().svg, front_table(report), remarks=[*advice(report), *report.warnings])


def afford_html(report: AffordReport) -> str:
    """What a budget buys: the sentences, the models, and tokens and loss by their size."""
    title = f"What {show_dollars(report.budget_usd)} buys"
    return _block(title, report.plot().svg, afford_table(report), remarks=[*sentences(report), *report.notes])


def sweep_html(found: Sweep) -> str:
    """The charts of a sweep, and its points."""
    return _block(f"{found.model} on {found.gpus}", found.plot().svg, points_table(found), remarks=found.notes)


def _block(title: str, *content: str, remarks: Iterable[str]) -> str:
    return tag("div", tag("style", _STYLE), tag("b", quoted(title)), *content, bullets(remarks), class_="astra")


def _bar(estimate: Estimate) -> str:
    pieces = []
    for share in explain.shares(estimate):
        title = f"{share.label}: {show_seconds(share.seconds)} ({share.fraction:.1%})"
        style = (
            f"width:{100 * max(share.fraction, 0.0):.2f}%;background:{_COLOR[share.group]};border-right:1px solid #fff8"
        )
        pieces.append(tag("span", title=title, style=style))
    return tag("div", *pieces, style="display:flex;height:1em;margin:.5em 0")
