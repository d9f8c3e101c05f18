"""``plan`` and ``estimate`` for several pools: inputs checked, plans compared, pools that cannot help named."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np

import astra
from astra.answer import Plan, Reject, Search
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoCoverage, NoFeasiblePlan
from astra.money.bill import against
from astra.partition.problem import Effort
from astra.rules.table import Rule
from astra.search.attempts import untried
from astra.search.fleet.detail import estimate as estimate_mixed
from astra.search.fleet.pools import Fleet, Limits, check_strategy, in_order, joined_fleet, make_fleet
from astra.search.fleet.records import Alternative, LineRemark, MixedEstimate, MixedPlanSet
from astra.search.fleet.search import CLOSE, MANY_POOLS, MOST_EFFORT, Costed, Kind, Planner, Progress
from astra.search.fleet.small import FEW_GPUS as EVERY_PART
from astra.search.fleet.spread import check_alone, read_alone, spread
from astra.search.fleet.summary import STARTED, STARTED_BY, estimate_alone
from astra.search.fleet.worth import FleetAnswer, Remarks, remarks
from astra.search.ledger import able, lost_by, no_coverage
from astra.search.words import joint_words
from astra.search.world import World, figures_of
from astra.spec.cluster import Cluster, Pool
from astra.spec.job import Job
from astra.spec.mixed_text import is_mixed, on_one_pool, parse_mixed
from astra.spec.money import Money
from astra.spec.workload import PRECISIONS
from astra.units import show_seconds

MOST_POOLS: Final = 8
EQUAL: Final = 1.05  # upper ends this close: a plan that can be started today is worth more
MOST_GPUS: Final = 1_000_000
SEARCHING: Final = 0.6  # of the time allowed: what is begun ends, and the least step of the fleet is found, in the rest
_KINDS: Final[Mapping[Kind, str]] = {
    "one shape": "pipelines with one shape for all stages", "groups": "groups of pools that share the batch",
}  # fmt: skip


def check_cluster(cluster: Cluster) -> None:
    """Refuse what cannot be planned at all."""
    if len(cluster.pools) > MOST_POOLS:
        raise InputError("gpus", f"{len(cluster.pools)} pools", want=f"at most {MOST_POOLS} pools")
    if cluster.gpus > MOST_GPUS:
        raise InputError("gpus", cluster.gpus, want=f"at most {MOST_GPUS:,} GPUs in all")


def fleet_of(cluster: Cluster, job: Job, *, exact: bool) -> tuple[Fleet, dict[str, str]]:
    """The pools that can take part, each with its own precision, and why the others cannot.

    ``job`` is the request with any pool. A GPU without fp8 computes in bf16, which is what fp8 training keeps its
    activations and weights in; bf16 and fp16 do not mix.
    """
    pools, jobs, left_out = [], [], {}
    for pool in cluster.pools:
        wanted = job.workload.precision
        low = job.workload.low and not pool.device.computes(wanted)
        precision = "bf16" if low and wanted == "fp8" else wanted
        if not pool.device.computes(precision):
            left_out[pool.name] = f"has no {wanted} ({', '.join(sorted(pool.device.flops_per_s))})"
            continue
        workload = msgspec.structs.replace(job.workload, precision=precision)
        pools.append(pool)
        jobs.append(joint_words(msgspec.structs.replace(job, pool=pool, workload=workload)))
    if left_out and (exact or not pools):
        raise _no_common_precision(cluster, job.workload.precision, left_out)
    known = {name for pool in pools for name in (pool.name, pool.zone)}
    joints = tuple(joint for joint in cluster.joints if known.issuperset(joint.ends))
    kept = msgspec.structs.replace(cluster, pools=tuple(pools), joints=joints)
    return joined_fleet(make_fleet(kept, jobs)), left_out


def fleet_in(world: World) -> tuple[Fleet, dict[str, str]]:
    """The fleet of a request, which is checked on one pool, and the pools that cannot take part."""
    check_cluster(world.cluster)
    job = world.job_on(any_pool(world.cluster, world.workload.precision))
    return fleet_of(world.cluster, job, exact=world.request.counts == "exact")


def any_pool(cluster: Cluster, precision: str) -> Pool:
    """One pool that has the precision, to check the rest of a request with."""
    for pool in cluster.pools:
        if pool.device.computes(precision):
            return pool
    raise _no_common_precision(cluster, precision, {pool.name: f"has no {precision}" for pool in cluster.pools})


def _no_common_precision(cluster: Cluster, wanted: str, left_out: Mapping[str, str]) -> InputError:
    common = [name for name in PRECISIONS if all(pool.device.computes(name) for pool in cluster.pools)]
    fix = f"All of them have {' and '.join(common)}." if common else "They have no training precision in common."
    reasons = "; ".join(f"{name} {reason}" for name, reason in left_out.items())
    return InputError("precision", wanted, want=f"one that every pool has ({reasons})", fix=fix)


def plan_fleet(world: World, progress: Progress | None = None) -> MixedPlanSet:
    """The best plans over several pools, what each pool is worth, and what can be launched as it is."""
    started, began, wanted, money = time.perf_counter(), time.monotonic(), world.request, world.money
    if world.goal.objective.name != "fastest":
        from astra.search.fleet.goals import plan_goal  # noqa: PLC0415 - few goals are about money

        return plan_goal(world)
    exact = wanted.counts == "exact"
    fleet, left_out = fleet_in(world)
    able(fleet.job, several=True)
    limits = Limits(fleet.job, world.restrictions, world.rules)
    planner = Planner(in_order(fleet), exact=exact, limits=limits, upper=world.upper)
    now = None if wanted.baseline is None else _estimated(fleet, wanted.baseline, money, world.rules, "baseline")
    if wanted.time_budget is not None:
        planner.use(Effort(MOST_EFFORT, until_s=began + SEARCHING * wanted.time_budget))
    alone, candidates = planner.search(progress=progress)
    lines, local_steps = tuple[LineRemark, ...](), None
    if fleet.cluster.lines or wanted.local_steps is not None:
        from astra.search.fleet.sites import over_sites  # noqa: PLC0415 - most fleets are on one site

        candidates, lines, local_steps = over_sites(planner, candidates, wanted.local_steps)
    if not candidates:
        idle = "".join(f" {name} {reason}." for name, reason in left_out.items())
        raise NoFeasiblePlan(f"{nothing_fits(planner)}{idle}")
    fastest, starts = candidates[0], STARTED_BY.get(fleet.job.runtime.exports_to, "Megatron-LM")
    ranked = _ranked(candidates, starts) if world.upper else candidates
    launched = [each for each in ranked if starts in each.estimate.runs_on]
    shown = launched if wanted.launchable and launched else ranked
    shown = _shown(list({str(each.strategy): each for each in shown}.values()), wanted.top)
    best = shown[0]
    if wanted.strict and best.estimate.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(best.estimate))
    plans = [_plan(rank, each, best, fleet, money) for rank, each in enumerate(shown, start=1)]
    unproven = _left_open(planner, fastest, lines)
    said = Remarks([], [], {}, [], None, None)
    if wanted.worth or best.estimate.idle or left_out or any(pool.available < 1 for pool in fleet.cluster.pools):
        said = remarks(planner, FleetAnswer(fastest, best, candidates, alone, left_out), money, asked=wanted.worth)
    return MixedPlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=record(world, fleet),
        asked=world.resolved.plain("plan"),
        plans=plans,
        search=_search_record(planner, len(candidates), time.perf_counter() - started),
        rejects=_rejects(planner, left_open=bool(unproven)),
        notes=[
            f"runtime {fleet.job.runtime.title}", *_joined(fleet), *said.idle, *_limits_of(planner), *unproven,
            *said.notes,
        ],
        baseline=None if now is None else against(plans[0].estimate, now),
        alone=_alternatives(planner, alone, best, fleet.names),
        without=_alternatives(planner, said.without, best, fleet.names),
        marginal=said.marginal,
        launchable=_plan(1, launched[0], best, fleet, money) if launched else None,
        conceivable=_plan(1, min(ranked, key=_upper_s) if world.upper else fastest, best, fleet, money),
        left_out=left_out,
        lines=lines, local_steps=local_steps, return_first=said.return_first, rent_next=said.rent_next,
    )  # fmt: skip


def _shown(ranked: Sequence[Costed], top: int) -> list[Costed]:
    """The first plans; where no target of astra export starts any of them, the last of them is one that it starts."""
    started = [each for each in ranked if not STARTED.isdisjoint(each.estimate.runs_on)]
    if top > 1 and started and not any(each is started[0] for each in ranked[:top]):
        return [*ranked[: top - 1], started[0]]
    return list(ranked[:top])


def _ranked(candidates: Sequence[Costed], starts: str) -> list[Costed]:
    """Plans by the upper ends of their steps' intervals; of close ones that first which the runtime, or any, starts."""
    ranked = sorted(candidates, key=_upper_s)
    equal = [each for each in ranked if _upper_s(each) <= EQUAL * _upper_s(ranked[0])]
    first = [each for each in equal if starts in each.estimate.runs_on][:1]
    first = first or [each for each in equal if not STARTED.isdisjoint(each.estimate.runs_on)][:1]
    return [*first, *(each for each in ranked if not any(each is one for one in first))]


def _upper_s(each: Costed) -> float:
    return each.estimate.step_s_range.high


def _search_record(planner: Planner, feasible: int, seconds: float) -> Search:
    frame_space = planner.frame_space
    return Search(
        considered=frame_space.frames, evaluated=frame_space.solved, feasible=feasible, seconds=seconds,
        strategies_per_s=frame_space.frames / seconds,
    )  # fmt: skip


def _rejects(planner: Planner, *, left_open: bool) -> list[Reject]:
    sentence = "frames (pipelines, micro-batch, chunks, stages) proven slower by a lower bound"
    if left_open:
        sentence += ", or left open (see the notes)"
    return [
        Reject(reason="bound", sentence=sentence, strategies=planner.frame_space.frames - planner.frame_space.solved)
    ]


def _joined(fleet: Fleet) -> list[str]:
    """Pools that were given apart and are one."""
    return [
        f"{' and '.join(parts)} have the same servers in one network: they are one pool, {name}"
        for name, parts in fleet.joined.items()
    ]


def _limits_of(planner: Planner) -> list[str]:
    """What was not searched, so that nobody takes the answer for more than it is."""
    job = planner.fleet.job
    if planner.limits.unsearched:
        lacking = ", ".join(planner.limits.unsearched)
        notes = [f"pipelines over several pools are not searched: they need {lacking}, which is not allowed"]
    else:
        cut = sum(planner.counts) <= EVERY_PART
        kept = ["zero 0-1", "recompute of whole layers", "no offload", *([] if cut else ["uncut pools"])]
        kept += [] if any(cp > 1 for cp in planner.frame_space.cp) else ["cp=1"]
        kept += [] if job.model.moe is None else ["etp=1", "three ep for each tp"]
        notes = [
            f"searched of pipelines over several pools: {', '.join(kept)}; "
            "of groups on one pool all that astra plan has"
        ]
    notes += untried(job.model, job.runtime, planner.limits.restrictions, "groups with a part of the batch")
    pools = len(planner.counts)
    if pools >= MANY_POOLS:
        notes.append(
            f"with {pools} pools a pipeline within {1 - CLOSE:.1%} of its bound counts as the best of its kind"
        )
    return notes


def estimate_fleet(world: World, strategy: str) -> MixedEstimate:
    """How a given strategy over several pools, or on one of them, would do."""
    return _estimated(fleet_in(world)[0], strategy, world.money, world.rules, "strategy")


def _estimated(fleet: Fleet, text: str, money: Money, user_rules: Sequence[Rule], where: str) -> MixedEstimate:
    """One pool by its name, groups in brackets, or a plain strategy dealt to the pools in their order."""
    with figures_of(where):
        named = on_one_pool(text)
        if named is not None:
            alone = read_alone(fleet, *named)
            check_alone(fleet, alone, user_rules, where)
            return _with_run(fleet, estimate_alone(fleet, alone, user_rules=user_rules), money)
        strategy = parse_mixed(text, fleet.usual) if is_mixed(text) else spread(fleet, text, where)
        check_strategy(fleet, strategy)
    return _with_run(fleet, estimate_mixed(fleet, strategy, user_rules=user_rules), money)


def _with_run(fleet: Fleet, result: MixedEstimate, money: Money) -> MixedEstimate:
    """With days and dollars of the whole run, when the tokens to train are known."""
    if fleet.job.workload.tokens is None:
        return result
    from astra.search.fleet.bill import with_run  # noqa: PLC0415 - where a run has a length

    return with_run(fleet, result, money)


def _plan(rank: int, each: Costed, best: Costed, fleet: Fleet, money: Money) -> Plan:
    result = _with_run(fleet, each.estimate, money)
    return Plan(rank=rank, strategy=str(each.strategy), estimate=result, lost_by=lost_by(best.estimate, each.estimate))


def _alternatives(
    planner: Planner, found: Mapping[int, Costed | None], best: Costed, names: Sequence[str]
) -> list[Alternative]:
    """In the order in which pools were given."""
    places = sorted(found, key=lambda place: names.index(planner.fleet.names[place]))
    return [_alternative(planner, place, found[place], best) for place in places]


def _alternative(planner: Planner, place: int, each: Costed | None, best: Costed) -> Alternative:
    name = planner.fleet.names[place]
    if each is None:
        why = planner.frame_space.why_not(place) or "the model does not fit."
        return Alternative(pool=name, strategy=None, step_s=None, times=None, why=why)
    step_s = each.estimate.step_s
    return Alternative(pool=name, strategy=str(each.strategy), step_s=step_s, times=step_s / best.estimate.step_s)


def nothing_fits(planner: Planner) -> NoFeasiblePlan:
    """Why no plan was found, pool by pool."""
    job = planner.fleet.job
    asked = " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in planner.fleet.cluster.pools)
    why = [planner.frame_space.why_not(place) for place in range(len(planner.fleet.names))]
    reasons = [f"{name}: {reason}" for name, reason in zip(planner.fleet.names, why, strict=True) if reason]
    if planner.limits:
        reasons.append("The restrictions and rules may leave nothing to choose from: drop one of them.")
    fix = (
        "With --exact every GPU must have a place; drop it to use what helps."
        if planner.exact
        else "Try more GPUs, GPUs with more memory, a shorter sequence or another batch."
    )
    if planner.left_open:
        reasons.append("The search stopped at the work allowed for it, so that one may have been missed.")
    found = "no plan over these pools was found" if planner.left_open else "no plan over these pools fits"
    return NoFeasiblePlan(f"{job.model.name} on {asked}: {found}. {' '.join([*reasons, fix])}")


def _left_open(planner: Planner, best: Costed, lines: Sequence[LineRemark]) -> list[str]:
    """What the search did not look at because its work was done, and what that could bring at most."""
    notes = []
    if planner.effort.late:
        from astra.search.fleet.least import least_step_s  # noqa: PLC0415 - where an answer is wanted soon

        least_s = least_step_s(planner.fleet)
        notes.append(
            f"the search stopped at the time allowed for it: no plan takes less than {show_seconds(least_s)}, the "
            "compute of a step in the quickest shapes, so that none is more than "
            f"{best.estimate.step_s / least_s - 1:.0%} faster than the plan"
        )
        if planner.fleet.cluster.lines and not lines:
            notes.append("from which bandwidth another site pays was not looked for in the time allowed")
    bound_s = planner.left_open.get("pipelines", np.inf) + planner.host_s
    step_s = best.estimate.step_s
    if bound_s < step_s:
        notes.append(
            f"the search stopped at the work allowed for it: pipelines over pools left open take at least "
            f"{show_seconds(bound_s)}, so that none is more than {step_s / bound_s - 1:.1%} faster than the plan"
        )
    kinds = [name for kind, name in _KINDS.items() if kind in planner.left_open]
    if kinds:
        notes.append(f"of {' and '.join(kinds)} not all were looked at: the work allowed for them was done")
    return notes


def record(world: World, fleet: Fleet) -> dict[str, Any]:
    """The request as the answer tells it: enough to launch a plan of it."""
    pools = {
        name: {"gpus": pool.gpus, "gpu": pool.device.name, "node": pool.node.name, "zone": pool.zone,
               "precision": each.workload.precision, "pool": msgspec.to_builtins(pool)}
        for name, pool, each in zip(fleet.names, fleet.cluster.pools, fleet.jobs, strict=True)
    }  # fmt: skip
    between = fleet.cluster.between
    fields = {
        "gpus": fleet.cluster.gpus,
        "gpu": " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in fleet.cluster.pools),
        "pools": pools,
        "between": None if between is None else msgspec.to_builtins(between),
        "links": [msgspec.to_builtins(joint) for joint in fleet.cluster.joints],
        "counts": world.request.counts,
        "launchable_only": world.request.launchable,
        "objective": "fastest",
        "workload": msgspec.to_builtins(fleet.job.workload),  # in the precision of the first pool
    }
    return world.record() | world.limits_record() | fields
