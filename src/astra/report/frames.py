"""Answers as rows of plain columns: for data frames, spreadsheets and CSV files."""

from __future__ import annotations

import csv
import importlib
import io
from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any

from astra.answer import Estimate, PlanSet, PriceTag, Table
from astra.answer_money import AffordReport, Choice, RentReport
from astra.errors import InputError, visible
from astra.report.choices import days_of, days_range_of, usd_of, usd_range_of
from astra.study.records import Sweep

Row = dict[str, Any]


@singledispatch
def records(answer: Table) -> list[Row]:
    """One row for each plan, choice, model or point; a column never changes its unit, which its name says."""
    raise InputError("records", type(answer).__name__, want="plans, something to rent, what a budget buys, or a sweep")


@records.register
def _of_plans(answer: PlanSet) -> list[Row]:
    return [{"rank": plan.rank} | _estimate(plan.estimate) | {"lost_by": plan.lost_by} for plan in answer.plans]


def _estimate(one: Estimate) -> Row:
    cost = one.cost
    return {
        "model": one.model,
        "gpus": one.gpus,
        "strategy": one.strategy,
        "step_s": one.step_s,
        "step_s_low": one.step_s_range.low,
        "step_s_high": one.step_s_range.high,
        "tokens_per_s": one.tokens_per_s,
        "tokens_per_s_per_gpu": one.tokens_per_s_per_gpu,
        "mfu": one.mfu,
        "bubble_fraction": one.bubble_fraction,
        "peak_reserved_gib": one.peak_reserved_gib,
        "memory_limit_gib": one.memory_limit_gib,
        "fits": one.fits,
        "days": one.train_days,
        "usd": one.train_usd,
        "usd_low": None if cost is None else cost.usd_range.low,
        "usd_high": None if cost is None else cost.usd_range.high,
        "evidence": one.evidence,
    } | {f"{term.replace(' ', '_')}_s": seconds for term, seconds in one.breakdown.items()}


@records.register
def _of_choices(answer: RentReport) -> list[Row]:
    by = answer.judged_by
    return [_choice(place, choice, by) for place, choice in enumerate(answer.front, start=1)]


def _choice(place: int, choice: Choice, by: str) -> Row:
    days, usd, cost = days_range_of(choice, by), usd_range_of(choice, by), choice.cost
    return {
        "number": place,
        "roles": " ".join(choice.roles),
        "like": choice.like,
        "gpu": choice.gpu,
        "gpus": choice.gpus,
        "nodes": choice.nodes,
        **_offer(cost.price),
        "days": days_of(choice, by),
        "days_low": days.low,
        "days_high": days.high,
        "usd": usd_of(choice, by),
        "usd_low": usd.low,
        "usd_high": usd.high,
        "ideal_days": cost.days,
        "ideal_usd": cost.usd,
        "startup_s": cost.startup_s,
        "kwh": cost.kwh,
        "kg_co2": cost.kg_co2,
        "step_s": choice.step_s,
        "tokens_per_s": choice.tokens_per_s,
        "mfu": choice.mfu,
        "peak_reserved_gib": choice.peak_reserved_gib,
        "memory_limit_gib": choice.memory_limit_gib,
        "strategy": choice.strategy,
        "evidence": choice.evidence,
    }


def _offer(price: PriceTag) -> Row:
    return {
        "provider": price.provider,
        "instance": price.instance,
        "region": price.region,
        "market": price.market,
        "usd_per_gpu_h": price.usd_per_gpu_h,
        "network": price.fabric,
        "price_date": price.date,
        "price_source": price.source,
    }


@records.register
def _of_models(answer: AffordReport) -> list[Row]:
    names = {"most": answer.most, "largest": answer.largest, "best": answer.best}
    return [
        {
            "model": row.model,
            "roles": " ".join(role for role, name in names.items() if name == row.model),
            "parameters": row.parameters,
            "tokens": row.tokens,
            "tokens_low": row.tokens_range.low,
            "tokens_high": row.tokens_range.high,
            "tokens_per_parameter": row.tokens_per_parameter,
            "loss": row.loss,
            "days": row.days,
            "usd": row.usd,
            "gpus": row.gpus,
            "choice": row.choice,
            **_offer(row.price),
            "strategy": row.strategy,
        }
        for row in answer.rows
    ]


@records.register
def _of_points(answer: Sweep) -> list[Row]:
    return [
        {
            **point.at,
            "strategy": point.strategy,
            "gpus_used": point.gpus,
            "step_s": point.step_s,
            "step_s_low": None if point.step_s_range is None else point.step_s_range.low,
            "step_s_high": None if point.step_s_range is None else point.step_s_range.high,
            "tokens_per_s": point.tokens_per_s,
            "mfu": point.mfu,
            "peak_reserved_gib": point.peak_reserved_gib,
            "usd_per_billion_tokens": point.usd_per_billion_tokens,
            "new_strategy": point.new_strategy,
            "why": point.why,
        }
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
