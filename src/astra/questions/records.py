"""What a study answers."""

from __future__ import annotations

from typing import ClassVar, Final

from astra.answer import Result

STUDY_SCHEMA: Final = "astra.study/1"


# What is kept of a plan, by the types of its columns: a word of pyarrow each.
FIGURES: Final = {
    "strategy": "string", "gpus_used": "int64", "runtime": "string", "step_s": "double", "step_s_low": "double",
    "step_s_high": "double", "tokens_per_s": "double", "tokens_per_s_per_gpu": "double",
    "model_tflops_per_gpu": "double", "mfu": "double", "hfu": "double", "bubble_fraction": "double",
    "microbatches": "int64", "stages": "int64", "peak_allocated_gib": "double", "peak_reserved_gib": "double",
    "peak_gib_low": "double", "peak_gib_high": "double", "memory_limit_gib": "double", "provenance_worst": "string",
    "evidence": "string", "days": "double", "usd": "double", "usd_low": "double", "usd_high": "double",
    "expected_days": "double", "expected_usd": "double", "usd_per_billion_tokens": "double",
    "usd_per_gpu_h": "double", "provider": "string", "market": "string", "startup_s": "double", "kwh": "double",
    "kg_co2": "double",
}  # fmt: skip


class StudyPoint(Result, frozen=True, kw_only=True):
    """A question and the first of its plans."""

    at: dict[str, str]  # the setting of each axis
    status: str  # planned, no plan, refused, failed
    why: str  # where there is no plan
    strategy: str | None
    gpus_used: int | None
    step_s: float | None
    step_s_low: float | None  # four in five published runs of its kind are in between
    step_s_high: float | None
    tokens_per_s: float | None
    mfu: float | None
    days: float | None  # as expected, with restarts, where tokens are given
    usd: float | None
    usd_per_billion_tokens: float | None
    evidence: str | None  # those runs


class BestFleet(Result, frozen=True, kw_only=True):
    """The best fleet for one setting of all other axes."""

    at: dict[str, str]  # the setting of each axis but the fleets
    judged_by: str  # what decides: tokens per second, dollars, kWh, kg of CO2
    fleets: int  # how many were asked
    planned: int  # how many have a plan
    best: StudyPoint


class StudyProblem(Result, frozen=True, kw_only=True):
    """Questions without a plan for one reason."""

    status: str
    kind: str  # of error
    sentence: str  # of the first of them
    questions: int
    first: dict[str, str]  # where that is


class StudyReport(Result, frozen=True, kw_only=True):
    """A study, as far as it has come."""

    drawn_by: ClassVar[str] = "report.studied.study_parts"
    schema: str = STUDY_SCHEMA
    title: str
    folder: str
    files: list[str]
    fingerprint: dict[str, str]
    axes: dict[str, list[str]]
    engine: str
    workers: int
    questions: int
    answered: int  # of them, so far
    before: int  # of those, by an earlier run
    again: int  # how often a question was asked again because its worker ended
    statuses: dict[str, int]
    plans: int
    seconds: float  # of this run
    questions_per_s: float
    best: list[BestFleet]
    problems: list[StudyProblem]  # the most frequent first
    points: list[StudyPoint]  # every question, where they are few
    notes: list[str]
