"""``plan`` for several pools with a goal of money: the plans of the goal as an answer."""

from __future__ import annotations

import time

import astra
from astra.answer import Plan, Reject, Search
from astra.catalog.hardware import catalog_hash
from astra.errors import NoCoverage, NoFeasiblePlan
from astra.money.bill import against
from astra.search.fleet.goals import Choice, GoalSearch, choose, nothing_allowed
from astra.search.fleet.plan import estimate_fleet, fleet_in, record
from astra.search.fleet.pools import Limits
from astra.search.fleet.records import MixedPlanSet
from astra.search.fleet.search import Planner
from astra.search.fleet.summary import STARTED_BY
from astra.search.ledger import able, lost_by, no_coverage
from astra.search.world import World


def plan_goal(world: World) -> MixedPlanSet:
    """The best plans by a goal, over how many nodes of each pool to use; of a front all of them."""
    started, wanted, goal = time.perf_counter(), world.request, world.goal
    fleet, left_out = fleet_in(world)
    able(fleet.job, several=True)
    exact = wanted.counts == "exact"
    planner = Planner(fleet, exact=exact, limits=Limits(fleet.job, world.restrictions, world.rules))
    now = None if wanted.baseline is None else estimate_fleet(world, wanted.baseline)
    found = choose(planner, goal, world.money, exact=exact)
    if not found.choices:
        raise nothing_allowed(goal, found.met) if found.met else NoFeasiblePlan(f"{planner.nothing_fits()}")
    starts = STARTED_BY.get(fleet.job.runtime.exports_to, "Megatron-LM")
    launched = [one for one in found.choices if starts in one.result.runs_on]
    shown = launched if wanted.launchable and launched else found.choices
    shown = shown if goal.objective.direction == "front" else shown[: wanted.top]
    if wanted.strict and shown[0].result.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(shown[0].result))
    plans = [_plan(rank, one, shown[0]) for rank, one in enumerate(shown, start=1)]
    seconds = time.perf_counter() - started
    return MixedPlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=record(world, fleet) | goal.record(),
        asked=world.resolved.plain("plan"),
        plans=plans,
        search=Search(
            considered=found.considered, evaluated=found.planned, feasible=len(found.met), seconds=seconds,
            strategies_per_s=found.considered / seconds,
        ),
        rejects=_rejects(found),
        notes=[f"runtime {fleet.job.runtime.title}", *_notes(world, found), *world.notes],
        objective=goal.objective.name,
        baseline=None if now is None else against(plans[0].estimate, now),
        alone=[],
        without=[],
        marginal=[],
        launchable=_plan(1, launched[0], shown[0]) if launched else None,
        conceivable=_plan(1, found.choices[0], shown[0]),
        left_out=left_out,
    )  # fmt: skip


def _plan(rank: int, one: Choice, best: Choice) -> Plan:
    return Plan(rank=rank, strategy=one.result.strategy, estimate=one.result, lost_by=lost_by(best.result, one.result))


def _rejects(found: GoalSearch) -> list[Reject]:
    sentence = "numbers of nodes proven worse by a lower bound"
    count = found.considered - found.planned - found.open
    return [Reject(reason="bound", sentence=sentence, strategies=count)] if count > 0 else []


def _notes(world: World, found: GoalSearch) -> list[str]:
    """Which nodes the first plan uses, and what was not looked at."""
    used, pools = found.choices[0].result.used, world.cluster.pools
    parts = [f"{used.get(name, 0)} of {pool.gpus} GPUs of {name}"
             for name, pool in zip(found.names, pools, strict=False)]  # fmt: skip
    notes = [f"{world.goal.objective.sentence}: {', '.join(parts)}"]
    if found.open:
        notes.append(f"{found.open} of {found.considered} numbers of nodes could be better and were not planned")
    return notes
