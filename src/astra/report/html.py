"""Results as HTML for notebooks: one self-contained block, every text escaped, no scripts."""

from __future__ import annotations

from typing import Final

from astra.answer import Estimate, Plan, PlanSet
from astra.report import explain
from astra.report.markup import quoted
from astra.units import show_dollars, show_seconds

_CELL: Final = "padding:2px 10px;text-align:{side};border-bottom:1px solid #8884"
_COLOR: Final = {"compute": "#3a9d5d", "communication": "#d9a21b", "idle": "#c8553d", "other": "#4f7cac"}


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
    return _page(best, planset.plans, remarks)


def estimate_html(estimate: Estimate) -> str:
    """One strategy's figures and its step as a bar."""
    remarks = [
        *estimate.violations,
        explain.dominates(estimate),
        explain.memory_sentence(estimate),
        explain.certainty(estimate),
        *estimate.warnings,
    ]
    return _page(estimate, [Plan(rank=1, strategy=estimate.strategy, estimate=estimate)], remarks)


def _page(best: Estimate, plans: list[Plan], remarks: list[str]) -> str:
    listed = "".join(f"<li>{quoted(remark)}</li>" for remark in remarks if remark)
    return (
        '<div style="font-family:sans-serif;font-size:90%;max-width:70em">'
        f"<b>{quoted(best.model)} on {quoted(best.gpus)}</b>{_ranking(plans)}{_bar(best)}"
        f'<ul style="margin:.4em 0;padding-left:1.4em">{listed}</ul></div>'
    )


def _ranking(plans: list[Plan]) -> str:
    headers = ("#", "strategy", "step time", "tokens/s", "MFU", "peak GiB", "bubble", "days", "cost")
    head = "".join(_cell(name, tag="th", left=name == "strategy") for name in headers)
    body = "".join(f"<tr>{''.join(_plan_cells(plan))}</tr>" for plan in plans)
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _plan_cells(plan: Plan) -> list[str]:
    estimate = plan.estimate
    days = "-" if estimate.train_days is None else f"{estimate.train_days:,.1f}"
    usd = "-" if estimate.train_usd is None else show_dollars(estimate.train_usd)
    return [
        _cell(str(plan.rank)),
        _cell(plan.strategy, left=True),
        _cell(f"{explain.show_step(estimate.step_s)} ±{explain.error_bar(estimate):.0%}"),
        _cell(f"{estimate.tokens_per_s:,.0f}"),
        _cell(f"{estimate.mfu:.1%}"),
        _cell(f"{estimate.peak_reserved_gib:.1f}/{estimate.memory_usable_gib:.1f}"),
        _cell(explain.show_share(estimate.bubble_fraction)),
        _cell(days),
        _cell(usd),
    ]


def _cell(content: str, *, tag: str = "td", left: bool = False) -> str:
    return f'<{tag} style="{_CELL.format(side="left" if left else "right")}">{quoted(content)}</{tag}>'


def _bar(estimate: Estimate) -> str:
    pieces = []
    for share in explain.shares(estimate):
        title = quoted(f"{share.label}: {show_seconds(share.seconds)} ({share.fraction:.1%})")
        style = (
            f"width:{100 * max(share.fraction, 0.0):.2f}%;background:{_COLOR[share.group]};border-right:1px solid #fff8"
        )
        pieces.append(f'<span title="{title}" style="{style}"></span>')
    return f'<div style="display:flex;height:1em;margin:.5em 0">{"".join(pieces)}</div>'
