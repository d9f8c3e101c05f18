"""Answers as rows of plain columns: for data frames, spreadsheets and CSV files."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, Final

from astra.answer import Estimate, PlanSet, PriceTag, Table
from astra.answer_money import AffordReport, Choice, RentReport
from astra.errors import InputError, visible
from astra.report.choices import judged
from astra.study.records import Sweep

Row = dict[str, Any]
_ENDS: Final = ("low", "high")


@singledispatch
def records(answer: Table) -> list[Row]:
    """One row for each plan, choice, model or point; a column never changes its unit, which its name says."""
    raise InputError("records", type(answer).__name__, want="plans, something to rent, what a budget buys, or a sweep")


def _figures(record: object, names: str) -> Row:
    """Figures of a record by their names; a range is its two ends."""
    found: Row = {}
    for name in names.split():
        value, stem = getattr(record, name), name.removesuffix("_range")
        found |= {name: value} if stem == name else {f"{stem}_{end}": getattr(value, end, None) for end in _ENDS}
    return found


@records.register
def _of_plans(answer: PlanSet) -> list[Row]:
    return [{"rank": plan.rank} | _estimate(plan.estimate) | {"lost_by": plan.lost_by} for plan in answer.plans]


def _estimate(one: Estimate) -> Row:
    found = _figures(one, "model gpus strategy step_s step_s_range tokens_per_s tokens_per_s_per_gpu mfu "
                          "bubble_fraction peak_reserved_gib memory_limit_gib fits")  # fmt: skip
    usd = None if one.cost is None else one.cost.usd_range
    found |= {"days": one.train_days, "usd": one.train_usd}
    found |= {f"usd_{end}": getattr(usd, end, None) for end in _ENDS} | {"evidence": one.evidence}
    return found | {f"{term.replace(' ', '_')}_s": seconds for term, seconds in one.breakdown.items()}


@records.register
def _of_choices(answer: RentReport) -> list[Row]:
    return [_choice(place, choice, answer.judged_by) for place, choice in enumerate(answer.front, start=1)]


def _choice(place: int, choice: Choice, by: str) -> Row:
    cost = choice.cost
    return {
        "number": place,
        "roles": " ".join(choice.roles),
        **_figures(choice, "like gpu gpus nodes"),
        **_offer(cost.price),
        **_figures(judged(choice, by), "days days_range usd usd_range"),
        "ideal_days": cost.days,
        "ideal_usd": cost.usd,
        **_figures(cost, "startup_s kwh kg_co2"),
        **_figures(choice, "step_s tokens_per_s mfu peak_reserved_gib memory_limit_gib strategy evidence"),
    }


def _offer(price: PriceTag) -> Row:
    named = {"network": price.fabric, "price_date": price.date, "price_source": price.source}
    return _figures(price, "provider instance region market usd_per_gpu_h") | named


@records.register
def _of_models(answer: AffordReport) -> list[Row]:
    names = {"most": answer.most, "largest": answer.largest, "best": answer.best}
    return [
        {
            "model": row.model,
            "roles": " ".join(role for role, name in names.items() if name == row.model),
            **_figures(row, "parameters tokens tokens_range tokens_per_parameter loss days usd gpus choice"),
            **_offer(row.price),
            "strategy": row.strategy,
        }
        for row in answer.rows
    ]


@records.register
def _of_points(answer: Sweep) -> list[Row]:
    names = "step_s step_s_range tokens_per_s mfu peak_reserved_gib usd_per_billion_tokens new_strategy why"
    return [
        {**point.at, "strategy": point.strategy, "gpus_used": point.gpus, **_figures(point, names)}
        for point in answer.points
    ]


def frame(answer: Table, library: str) -> Any:
    """The rows as a data frame of pandas or polars, whichever is asked for."""
    try:
        module = importlib.import_module(library)
    except ImportError:
        fix = "Install it (pip install 'astra-planner[frames]'), or take .records(), which needs nothing."
        raise InputError(f"to_{library}", None, want=f"{library} to be installed", fix=fix) from None
    found = records(answer)
    columns = list(dict.fromkeys(name for row in found for name in row))
    return module.DataFrame({name: [row.get(name) for row in found] for name in columns})


def written(found: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV; text that a spreadsheet would take for a formula is kept text."""
    columns = list(dict.fromkeys(name for row in found for name in row))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in found)
    return page.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return "" if value is None else int(value) if isinstance(value, bool) else value
    shown = visible(value)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown
