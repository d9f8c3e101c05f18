"""What studies answer: plans under changed conditions, two side by side, points of a sweep; and answers read again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import msgspec
from msgspec.structs import replace

from astra.answer import Baseline, Estimate, Plan, PlanSet, Range, Result, Table
from astra.answer_money import RentReport
from astra.errors import InputError
from astra.search.fleet.records import MixedEstimate, MixedPlanSet, MixedStage

COMPARISON_SCHEMA: Final = "astra.comparison/1"
EXPLANATION_SCHEMA: Final = "astra.explanation/1"
SWEEP_SCHEMA: Final = "astra.sweep/1"


class Changed(Result, frozen=True, kw_only=True):
    """The best plan after one change of what was asked."""

    key: str  # memory, batch, cluster-links, node-links, gpu, precision, restrictions, or a word of the strategy
    change: str  # in words
    strategy: str | None = None  # None: nothing fits, or it cannot be run
    step_s: float | None = None
    tokens_per_s: float | None = None
    gain: float | None = None  # of tokens per second
    usd_per_billion_tokens: float | None = None
    evidence: str = ""
    why: str = ""  # where there is no plan


class TermDifference(Result, frozen=True, kw_only=True):
    """One term of two steps."""

    term: str
    first_s: float
    second_s: float
    difference_s: float  # second less first; these sum to the difference of the steps


class Side(Result, frozen=True, kw_only=True):
    """One of two that are compared."""

    name: str  # such as plan.json #1
    estimate: Estimate
    tokens_per_step: float


class Comparison(Result, frozen=True, kw_only=True):
    """Two strategies side by side."""

    drawn_by: ClassVar[str] = "report.study_text.comparison_parts"
    schema: str = COMPARISON_SCHEMA
    first: Side
    second: Side
    terms: list[TermDifference]  # largest difference first
    memory: dict[str, float]  # GiB by kind on the fullest stage, second less first; sums to the difference allocated
    within_error: bool  # the intervals of the two step times overlap
    notes: list[str]


class Known(Result, frozen=True, kw_only=True):
    """How sure a figure is."""

    figure: str
    value: str
    how: str  # the range, and what it rests on


class Explanation(Result, frozen=True, kw_only=True):
    """Why a plan is as it is."""

    drawn_by: ClassVar[str] = "report.study_text.explanation_parts"
    schema: str = EXPLANATION_SCHEMA
    rank: int
    estimate: Estimate
    bounds: list[str]  # what takes the step's time, as sentences
    binds: list[str]  # what keeps the plan from being faster, the most first
    next: Comparison | None  # against the plan that comes after it; the best, if this is another
    changes: list[Changed]  # what brings most first
    skipped: list[str]  # changes that there was no time for
    known: list[Known]
    warnings: list[str]


class SweepPoint(Result, frozen=True, kw_only=True):
    """The best plan at one place of a sweep."""

    at: dict[str, str]  # by the name of what is swept
    strategy: str | None = None  # None: nothing fits, or it cannot be run
    gpus: int | None = None
    step_s: float | None = None
    step_s_range: Range | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    peak_reserved_gib: float | None = None
    usd_per_billion_tokens: float | None = None
    new_strategy: bool = False  # degrees or recompute are others than at the point before
    why: str = ""


class Sweep(Table, frozen=True, kw_only=True):
    """How the best plan moves with one or two numbers."""

    drawn_by: ClassVar[str] = "report.sweep.sweep_parts"
    shown_by: ClassVar[str] = "report.view.sweep_html"
    schema: str = SWEEP_SCHEMA
    model: str
    gpus: str
    over: list[str]  # what is swept, the one that is charted first
    points: list[SweepPoint]
    request: dict[str, Any]  # what does not change, resolved
    notes: list[str]

    def __repr__(self) -> str:
        return f"<Sweep {self.model} on {self.gpus} over {' and '.join(self.over)}: {len(self.points)} points>"


_AGAIN: Final = "Make it again with astra plan --out or astra rent --out."


def answer_of(record: Mapping[str, Any], where: str) -> PlanSet | RentReport:
    """The answer that a record is the plain form of: of one pool, of several, or of something to rent."""
    try:
        if str(record.get("schema", "")).startswith("astra.rent/"):
            return msgspec.convert(record, RentReport)
        return _mixed(record) if "conceivable" in record else msgspec.convert(record, PlanSet)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise InputError(where, None, want=f"an answer as this version writes it: {error}", fix=_AGAIN) from None


def _mixed(record: Mapping[str, Any]) -> MixedPlanSet:
    """Plans over several pools hold more than the fields that all plans have."""
    found = msgspec.convert(record, MixedPlanSet)
    launchable, now = record.get("launchable"), record.get("baseline")
    plans, best = [_plan(plan) for plan in record["plans"]], _plan(record["conceivable"])
    baseline = now and replace(msgspec.convert(now, Baseline), estimate=_estimate(now["estimate"]))
    return replace(found, plans=plans, conceivable=best, launchable=launchable and _plan(launchable), baseline=baseline)


def _plan(record: Mapping[str, Any]) -> Plan:
    return replace(msgspec.convert(record, Plan), estimate=_estimate(record["estimate"]))


def _estimate(record: Mapping[str, Any]) -> MixedEstimate:
    stages = [msgspec.convert(stage, MixedStage) for stage in record["stages"]]
    return replace(msgspec.convert(record, MixedEstimate), stages=stages)
