"""What a worker does: plan one request exactly as ``astra plan`` does, and say it as one line of plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

from astra import api
from astra.answer import Plan, PlanSet, Range
from astra.errors import AstraError, NoFeasiblePlan
from astra.questions.declared import fingerprint
from astra.questions.records import FIGURES
from astra.spec.request import PlanRequest

PLANNED: Final = "planned"
NO_PLAN: Final = "no plan"  # nothing is legal and fits, or within the goal
REFUSED: Final = "refused"  # the request contradicts itself, or asks for what the runtime or the GPU cannot do
FAILED: Final = "failed"  # a bug, or a worker that ended again and again
STATUSES: Final = (PLANNED, NO_PLAN, REFUSED, FAILED)
_TYPES: Final[dict[str, Callable[[Any], Any]]] = {"string": str, "int64": int, "double": float}


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
    """A plan as columns: its ``FIGURES``, each in its type, and what is told of it."""
    found, cost = plan.estimate, plan.estimate.cost
    known = {name: getattr(found, name) for name in FIGURES if name in found.__struct_fields__}
    known |= _ends("step_s", found.step_s_range) | _ends("peak_gib", found.peak_gib_range)
    known |= {"strategy": plan.strategy, "stages": len(found.stages), "days": found.train_days}
    known["gpus_used"] = round(found.tokens_per_s / found.tokens_per_s_per_gpu)
    if cost is not None:  # ideal, and as it is to be expected with restarts
        known |= {name: getattr(cost, name) for name in FIGURES if name in cost.__struct_fields__}
        known |= {name: getattr(cost.price, name) for name in ("usd_per_gpu_h", "provider", "market")}
        known |= {f"expected_{name}": getattr(cost.expected, name, None) for name in ("days", "usd")}
        known |= _ends("usd", cost.usd_range)
    figures = {name: known[name] for name in FIGURES if name in known}
    return {
        "rank": plan.rank,
        **{name: value if value is None else _TYPES[FIGURES[name]](value) for name, value in figures.items()},
        "breakdown": [{"term": term, "seconds": float(seconds)} for term, seconds in found.breakdown.items()],
        "warnings": list(found.warnings),
        "lost_by": plan.lost_by,
    }


def _ends(name: str, both: Range) -> dict[str, float]:
    return {f"{name}_low": both.low, f"{name}_high": both.high}
