"""What a plan says beside its strategy: how sure its figures are, and how it was billed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from astra.errors import visible


class PlanFigures(NamedTuple):
    """PlanFigures and words of a plan's estimate; None or empty where it has none."""

    step_low_s: float | None = None
    step_high_s: float | None = None
    peak_gib: float | None = None
    peak_low_gib: float | None = None
    peak_high_gib: float | None = None
    limit_gib: float | None = None
    days: float | None = None
    market: str = ""
    provider: str = ""
    region: str = ""
    save_every_s: float | None = None  # the interval of checkpoints that the expected bill counts with


def figures_of(estimate: Mapping[str, Any]) -> PlanFigures:
    """What an estimate tells, as far as it is well formed; it decides nothing."""
    step, peak = _part(estimate, "step_s_range"), _part(estimate, "peak_gib_range")
    cost = _part(estimate, "cost")
    price, expected = _part(cost, "price"), _part(cost, "expected")
    return PlanFigures(
        step_low_s=_number(step, "low"),
        step_high_s=_number(step, "high"),
        peak_gib=_number(estimate, "peak_reserved_gib"),
        peak_low_gib=_number(peak, "low"),
        peak_high_gib=_number(peak, "high"),
        limit_gib=_number(estimate, "memory_limit_gib"),
        days=_number(expected, "days") or _number(cost, "days"),
        market=_text(price, "market"),
        provider=_text(price, "provider"),
        region=_text(price, "region"),
        save_every_s=_number(expected, "checkpoint_interval_s"),
    )


def estimated_anew(figures: PlanFigures, estimate: Mapping[str, Any]) -> PlanFigures:
    """The same bill with the time and memory of another estimate."""
    new = figures_of(estimate)
    return new._replace(
        days=figures.days,
        market=figures.market,
        provider=figures.provider,
        region=figures.region,
        save_every_s=figures.save_every_s,
    )


def save_interval(figures: PlanFigures, step_s: float | None, *, usual: int = 1000) -> int:
    """Steps between checkpoints, as billed."""
    if figures.save_every_s is None or step_s is None:
        return usual
    return max(1, round(figures.save_every_s / step_s))


def _part(record: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = record.get(name)
    return found if isinstance(found, Mapping) else {}


def _number(record: Mapping[str, Any], name: str) -> float | None:
    value = record.get(name)
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if fine and value is not None else None


def _text(record: Mapping[str, Any], name: str) -> str:
    value = record.get(name)
    return visible(value) if isinstance(value, str) else ""
