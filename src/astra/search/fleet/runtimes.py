"""The best plan of each runtime that joins pools, each timed as that runtime runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from astra.answer import Plan, PlanSet
from astra.errors import AstraError
from astra.search.fleet.records import BRIDGE, MixedEstimate, RuntimePlan
from astra.spec.request import PlanRequest

# Who runs it, the runtime that models it, and the target of astra export that starts it.
_ROWS: Final = (
    ("Megatron-LM", "megatron", "megatron"),
    ("FlagScale", "flagscale", "flagscale"),
    ("PyTorch trainer", "pytorch", "pytorch"),
    (BRIDGE, "pytorch", "pytorch"),
)
_MOST: Final = 100


def by_runtime(request: PlanRequest, plan: Callable[[PlanRequest], PlanSet]) -> list[RuntimePlan]:
    """A row for each; times over the fastest of them."""
    found = [(row, _best(request, plan, *row[:2])) for row in _ROWS]
    fastest = min((best.estimate.step_s for _, best in found if isinstance(best, Plan)), default=None)
    return [
        RuntimePlan(
            runs_on=name, runtime=runtime, target=target, strategy=best.strategy, step_s=best.estimate.step_s,
            times=None if fastest is None else best.estimate.step_s / fastest,
        )
        if isinstance(best, Plan)
        else RuntimePlan(runs_on=name, runtime=runtime, target=target, strategy=None, step_s=None, times=None,
                         why=best)
        for (name, runtime, target), best in found
    ]  # fmt: skip


def _best(request: PlanRequest, plan: Callable[[PlanRequest], PlanSet], name: str, runtime: str) -> Plan | str:
    """The fastest plan that somebody can run, or why there is none."""
    asked = replace(
        request,
        runtime=runtime,
        launchable=name != BRIDGE,
        top=_MOST,
        baseline=None,
        by_runtime=False,
        node_lost=False,
        worth=False,
    )
    try:
        answer = plan(asked)
    except AstraError as error:
        return str(error)
    for each in answer.plans:
        if isinstance(each.estimate, MixedEstimate) and name in each.estimate.runs_on:
            return each
    return "no plan was found that it can run as it is"
