"""What is answered about a shared fleet."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from astra.answer import Range, Result

FLEET_SCHEMA: Final = "astra.fleet/1"


class SharedJob(Result, frozen=True, kw_only=True):
    """A job, and the GPUs it gets."""

    name: str
    model: str
    tokens: float
    weight: float
    deadline_s: float | None
    ready_s: float  # not before
    pool: str
    gpus: int
    nodes: list[int]  # by their numbers in the pool
    start_s: float
    end_s: float
    late_s: float  # behind its deadline
    usd: float
    strategy: str
    step_s: float
    step_s_range: Range
    tokens_per_s: float
    mfu: float
    peak_reserved_gib: float
    memory_limit_gib: float
    runtime: str
    evidence: str  # published runs of its kind
    warnings: list[str]
    asked: dict[str, Any]  # the request of its plan


class CurvePoint(Result, frozen=True, kw_only=True):
    """What a job would take on so many GPUs of a pool."""

    job: str
    pool: str
    gpus: int
    seconds: float  # as expected, with restarts
    usd: float
    strategy: str
    chosen: bool


class PoolUse(Result, frozen=True, kw_only=True):
    """A pool and how busy it is."""

    name: str
    gpu: str
    gpus: int
    node_gpus: int  # given together
    busy: float  # share of its GPU-hours until the last job ends


class FleetReport(Result, frozen=True, kw_only=True):
    """Which GPUs each job gets, and when."""

    drawn_by: ClassVar[str] = "report.shared.fleet_parts"
    schema: str = FLEET_SCHEMA
    version: str
    title: str
    goal: str
    pools: list[PoolUse]
    jobs: list[SharedJob]
    curves: list[CurvePoint]
    end_s: float  # of the last job
    usd: float
    late_s: float  # weighted, of all jobs
    weighted_completion_s: float
    gap: float  # no schedule is better than this by more than this share, in what the goal makes small
    proven: bool  # nothing is better
    solver: str
    planned: int  # plans that were made for the curves
    notes: list[str]
