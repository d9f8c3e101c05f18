"""Results as HTML for notebooks: one self-contained block, every text escaped, no scripts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Estimate, Plan, PlanSet
from astra.answer_money import AffordReport, RentReport
from astra.report import explain
from astra.report.afford import sentences
from astra.report.choices import roles_of, time_of, usd_of, usd_range_of, usd_spread
from astra.report.markup import quoted
from astra.report.money import advice
from astra.spec.mixed_text import on_one_line
from astra.study.records import Sweep
from astra.units import show_count, show_dollars, show_seconds

_CELL: Final = "padding:2px 10px;text-align:{side};border-bottom:1px solid #8884;white-space:{wrap}"
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


def rent_html(report: RentReport) -> str:
    """What to rent: the sentences, the front as a picture, and the choices."""
    by, rows = report.judged_by, []
    for number, choice in enumerate(report.front, start=1):
        if not choice.like:
            cost = choice.cost.price
            rows.append((str(number), choice.name, f"{cost.usd_per_gpu_h:.2f}", time_of(choice, by),
                         show_dollars(usd_of(choice, by)), usd_spread(usd_range_of(choice, by)),
                         roles_of(choice)))  # fmt: skip
    heads = ("#", "choice", "$/GPU-h", "time", "cost", "range", "")
    return _block(f"What to rent for {report.request['model']}", _table(heads, rows, (1, 6)), report.plot().svg,
                  [*advice(report), *report.warnings])  # fmt: skip


def afford_html(report: AffordReport) -> str:
    """What a budget buys: the sentences, the models, and tokens and loss by their size."""
    rows = [
        (row.model, show_count(row.parameters), show_count(row.tokens), f"{row.tokens_per_parameter:.3g}",
         "-" if row.loss is None else f"{row.loss:.3f}", f"{row.days:,.1f}", show_dollars(row.usd), row.choice)
        for row in report.rows
    ]  # fmt: skip
    heads = ("model", "parameters", "tokens", "per parameter", "loss", "days", "cost", "on")
    return _block(f"What {show_dollars(report.budget_usd)} buys", _table(heads, rows, (0, 7)), report.plot().svg,
                  [*sentences(report), *report.notes])  # fmt: skip


def sweep_html(found: Sweep) -> str:
    """The charts of a sweep, and its points."""
    heads = (*found.over, "tokens/s", "MFU", "best plan")
    rows = [
        (*(point.at[name] for name in found.over),
         "-" if point.tokens_per_s is None else f"{point.tokens_per_s:,.0f}",
         "-" if point.mfu is None else f"{point.mfu:.1%}", point.strategy or point.why)
        for point in found.points
    ]  # fmt: skip
    return _block(
        f"{found.model} on {found.gpus}", _table(heads, rows, (len(heads) - 1,)), found.plot().svg, found.notes
    )


def _block(title: str, table: str, svg: str, remarks: Sequence[str]) -> str:
    listed = "".join(f"<li>{quoted(remark)}</li>" for remark in remarks if remark)
    return (
        '<div style="font-family:sans-serif;font-size:90%;max-width:70em">'
        f"<b>{quoted(title)}</b>{svg}{table}"
        f'<ul style="margin:.4em 0;padding-left:1.4em">{listed}</ul></div>'
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    head = "".join(_cell(name, tag="th", left=place in left) for place, name in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(_cell(cell, left=place in left) for place, cell in enumerate(row))}</tr>" for row in rows
    )
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _page(best: Estimate, plans: list[Plan], remarks: list[str]) -> str:
    listed = "".join(f"<li>{quoted(remark)}</li>" for remark in remarks if remark)
    return (
        '<div style="font-family:sans-serif;font-size:90%;max-width:70em">'
        f"<b>{quoted(best.model)} on {quoted(best.gpus)}</b>{_ranking(plans)}{_bar(best)}"
        f'<ul style="margin:.4em 0;padding-left:1.4em">{listed}</ul></div>'
    )


def _ranking(plans: list[Plan]) -> str:
    told = [any(plan.estimate.train_days is not None for plan in plans)]
    told.append(any(plan.estimate.train_usd is not None for plan in plans))
    headers = ["#", "strategy", "step time", "tokens/s", "MFU", "peak GiB", "bubble"]
    headers += [name for name, known in zip(("days", "cost"), told, strict=True) if known]
    head = "".join(_cell(name, tag="th", left=name == "strategy") for name in headers)
    body = "".join(f"<tr>{''.join(_plan_cells(plan)[: len(headers)])}</tr>" for plan in plans)
    return f'<table style="border-collapse:collapse"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _plan_cells(plan: Plan) -> list[str]:
    estimate = plan.estimate
    days = "-" if estimate.train_days is None else f"{estimate.train_days:,.1f}"
    usd = "-" if estimate.train_usd is None else show_dollars(estimate.train_usd)
    return [
        _cell(str(plan.rank)),
        _cell(on_one_line(plan.strategy, estimate.as_usual), left=True),
        _cell(f"{explain.show_step(estimate.step_s)} ±{explain.error_bar(estimate):.0%}"),
        _cell(f"{estimate.tokens_per_s:,.0f}"),
        _cell(f"{estimate.mfu:.1%}"),
        _cell(f"{estimate.peak_reserved_gib:.1f}/{estimate.memory_usable_gib:.1f}"),
        _cell(explain.show_share(estimate.bubble_fraction)),
        _cell(days),
        _cell(usd),
    ]


def _cell(content: str, *, tag: str = "td", left: bool = False) -> str:
    side, wrap = ("left", "normal") if left else ("right", "nowrap")
    return f'<{tag} style="{_CELL.format(side=side, wrap=wrap)}">{quoted(content)}</{tag}>'


def _bar(estimate: Estimate) -> str:
    pieces = []
    for share in explain.shares(estimate):
        title = quoted(f"{share.label}: {show_seconds(share.seconds)} ({share.fraction:.1%})")
        style = (
            f"width:{100 * max(share.fraction, 0.0):.2f}%;background:{_COLOR[share.group]};border-right:1px solid #fff8"
        )
        pieces.append(f'<span title="{title}" style="{style}"></span>')
    return f'<div style="display:flex;height:1em;margin:.5em 0">{"".join(pieces)}</div>'
