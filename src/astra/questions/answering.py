"""What a worker does: plan one request exactly as ``astra plan`` does, and say it as one line of plain data."""

from __future__ import annotations

import time
from typing import Any, Final

import msgspec

from astra import api
from astra.answer import Plan, PlanSet
from astra.errors import AstraError, NoFeasiblePlan
from astra.questions.question import fingerprint
from astra.spec.request import PlanRequest

PLANNED: Final = "planned"
NO_PLAN: Final = "no plan"  # nothing is legal and fits, or within the goal
REFUSED: Final = "refused"  # the request contradicts itself, or asks for what the runtime or the GPU cannot do
FAILED: Final = "failed"  # a bug, or a worker that ended again and again
STATUSES: Final = (PLANNED, NO_PLAN, REFUSED, FAILED)


class StudyAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a question, as it is kept."""

    status: str
    error: str = ""
    kind: str = ""  # of the error
    version: str = ""
    catalog: str = ""
    objective: str = ""
    considered: int = 0
    evaluated: int = 0
    plans: list[dict[str, Any]] = []  # a row each, best first


class StudyLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the journal. What it took is not part of the answer, which is the same whoever gives it."""

    key: str
    answer: StudyAnswer
    cpu_s: float = 0.0


def answered(key: str, request: PlanRequest) -> bytes:
    """The line of a question. Never raises: what goes wrong is the answer."""
    began_s = time.process_time()
    try:
        found = of_plans(api.plan(request))
    except NoFeasiblePlan as error:
        found = without_plan(NO_PLAN, type(error).__name__, str(error))
    except AstraError as error:
        found = without_plan(REFUSED, type(error).__name__, str(error))
    except Exception as error:
        found = without_plan(FAILED, type(error).__name__, str(error))
    return line(key, found, time.process_time() - began_s)


def line(key: str, answer: StudyAnswer, cpu_s: float = 0.0) -> bytes:
    """An answer as a line of the journal."""
    return msgspec.json.encode(StudyLine(key=key, answer=answer, cpu_s=round(cpu_s, 6)))


def lost(key: str, times: int, reason: str) -> bytes:
    """The line of a question whose workers ended before they answered."""
    why = f"its worker ended {times} times before it answered ({reason}); --retry asks it again"
    return line(key, without_plan(FAILED, "WorkerDied", why))


def without_plan(status: str, kind: str, error: str) -> StudyAnswer:
    """The answer that there is no plan."""
    ours = fingerprint()
    return StudyAnswer(status=status, kind=kind, error=error, version=ours["version"], catalog=ours["catalog"])


def of_plans(planset: PlanSet) -> StudyAnswer:
    """The answer that plans are."""
    return StudyAnswer(
        status=PLANNED if planset.plans else NO_PLAN,
        error="" if planset.plans else "no strategy is legal and fits",
        version=planset.fingerprint["version"],
        catalog=planset.fingerprint["catalog"],
        objective=planset.objective,
        considered=int(planset.search.considered),
        evaluated=int(planset.search.evaluated),
        plans=[_row(plan) for plan in planset.plans],
    )


def _row(plan: Plan) -> dict[str, Any]:
    """A plan as columns of figures; ``tables.PLAN_COLUMNS`` has their types."""
    found = plan.estimate
    return {
        "rank": plan.rank,
        "strategy": plan.strategy,
        "gpus_used": round(found.tokens_per_s / found.tokens_per_s_per_gpu),
        "runtime": found.runtime,
        "step_s": float(found.step_s),
        "step_s_low": float(found.step_s_range.low),
        "step_s_high": float(found.step_s_range.high),
        "tokens_per_s": float(found.tokens_per_s),
        "tokens_per_s_per_gpu": float(found.tokens_per_s_per_gpu),
        "model_tflops_per_gpu": float(found.model_tflops_per_gpu),
        "mfu": float(found.mfu),
        "hfu": float(found.hfu),
        "bubble_fraction": float(found.bubble_fraction),
        "microbatches": int(found.microbatches),
        "stages": len(found.stages),
        "peak_allocated_gib": float(found.peak_allocated_gib),
        "peak_reserved_gib": float(found.peak_reserved_gib),
        "peak_gib_low": float(found.peak_gib_range.low),
        "peak_gib_high": float(found.peak_gib_range.high),
        "memory_limit_gib": float(found.memory_limit_gib),
        "provenance_worst": found.provenance_worst,
        "evidence": found.evidence,
        **_money(plan),
        "breakdown": [{"term": term, "seconds": float(seconds)} for term, seconds in found.breakdown.items()],
        "warnings": list(found.warnings),
        "lost_by": plan.lost_by,
    }


def _money(plan: Plan) -> dict[str, Any]:
    """Days and dollars: ideal, and as they are to be expected with restarts."""
    cost = plan.estimate.cost
    if cost is None:
        return {"days": plan.estimate.train_days}
    expected = cost.expected
    return {
        "days": float(cost.days),
        "usd": float(cost.usd),
        "usd_low": float(cost.usd_range.low),
        "usd_high": float(cost.usd_range.high),
        "expected_days": None if expected is None else float(expected.days),
        "expected_usd": None if expected is None else float(expected.usd),
        "usd_per_billion_tokens": float(cost.usd_per_billion_tokens),
        "usd_per_gpu_h": float(cost.price.usd_per_gpu_h),
        "provider": cost.price.provider,
        "market": cost.price.market,
        "startup_s": float(cost.startup_s),
        "kwh": None if cost.kwh is None else float(cost.kwh),
        "kg_co2": None if cost.kg_co2 is None else float(cost.kg_co2),
    }
