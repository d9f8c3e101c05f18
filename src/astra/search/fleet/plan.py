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
from astra.layers.kinds import layer_kinds
from astra.money.bill import against
from astra.partition.problem import Effort
from astra.rules.table import Rule
from astra.search.bounds import products_s
from astra.search.fleet import sites
from astra.search.fleet.absences import absences
from astra.search.fleet.detail import estimate as estimate_mixed
from astra.search.fleet.found import search
from astra.search.fleet.lone import check_alone, estimate_alone, read_alone
from astra.search.fleet.pools import Fleet, Limits, check_strategy, joined_fleet, make_fleet
from astra.search.fleet.records import Alternative, Marginal, MixedEstimate, MixedPlanSet
from astra.search.fleet.search import CLOSE, MANY_POOLS, MOST_EFFORT, Costed, Kind, Planner, Progress
from astra.search.fleet.spread import spread
from astra.search.fleet.summary import STARTED_BY, with_run
from astra.search.fleet.worth import Remarks, Worth
from astra.search.ledger import able, lost_by, no_coverage
from astra.search.words import joint_words
from astra.search.world import World, figures_of
from astra.spec.cluster import Cluster, Pool
from astra.spec.job import Job
from astra.spec.mixed import is_mixed, on_one_pool, parse_mixed
from astra.spec.money import Money
from astra.spec.workload import PRECISIONS
from astra.units import show_seconds

MOST_POOLS: Final = 8
EQUAL: Final = 1.05  # upper ends this close: a plan that can be started today is worth more
MOST_GPUS: Final = 1_000_000
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
    started, wanted, money = time.perf_counter(), world.request, world.money
    if world.goal.objective.name != "fastest":
        from astra.search.fleet.by_goal import plan_goal  # noqa: PLC0415 - few goals are about money

        return plan_goal(world)
    exact = wanted.counts == "exact"
    fleet, left_out = fleet_in(world)
    able(fleet.job, several=True)
    planner = Planner(fleet, exact=exact, limits=Limits(fleet.job, world.restrictions, world.rules), upper=world.upper)
    now = None if wanted.baseline is None else _estimated(fleet, wanted.baseline, money, world.rules, "baseline")
    names = planner.fleet.names
    if wanted.time_budget is not None:
        planner.use(Effort(MOST_EFFORT, until_s=time.monotonic() + wanted.time_budget))
    alone, candidates = search(planner, progress=progress)
    again = sites.searching(planner)
    local = sites.asked_for(planner.fleet, wanted.local_steps, again)
    between = sites.remarks(planner.fleet, candidates, again)
    candidates = sorted([*candidates, *local, *between.sooner], key=lambda each: each.estimate.step_s)
    if not candidates:
        idle = "".join(f" {name} {reason}." for name, reason in left_out.items())
        raise NoFeasiblePlan(f"{planner.nothing_fits()}{idle}")
    fastest, starts = candidates[0], STARTED_BY.get(fleet.job.runtime.exports_to, "Megatron-LM")
    ranked = _ranked(candidates, starts) if world.upper else candidates
    launched = [each for each in ranked if starts in each.estimate.runs_on]
    shown = launched if wanted.launchable and launched else ranked
    shown = list({str(each.strategy): each for each in shown}.values())[: wanted.top]
    best = shown[0]
    if wanted.strict and best.estimate.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(best.estimate))
    plans = [_plan(rank, each, best, fleet, money) for rank, each in enumerate(shown, start=1)]
    unproven = _left_open(planner, fastest)
    worth = Worth(planner, fastest)
    without = worth.without(_missed(planner, best, asked=wanted.worth))
    more = worth.one_more(range(len(names)) if wanted.worth and not exact else [])
    unused = _idle(planner, best, candidates, left_out, worth if wanted.worth else None)
    return MixedPlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=record(world, fleet),
        asked=world.resolved.plain("plan"),
        plans=plans,
        search=_search_record(planner, len(candidates), time.perf_counter() - started),
        rejects=_rejects(planner, left_open=bool(unproven)),
        notes=[
            f"runtime {fleet.job.runtime.title}", *_joined(fleet), *unused, *_limits_of(planner), *unproven,
            *_cut_short("without", without, names), *_cut_short("with one more node of", more, names),
            *absences(fleet, best, alone, without.by_pool),
        ],
        baseline=None if now is None else against(plans[0].estimate, now),
        alone=[_alternative(planner, place, each, best) for place, each in alone.items()],
        without=[_alternative(planner, place, each, best) for place, each in without.by_pool.items()],
        marginal=_marginal(planner, fastest, more),
        launchable=_plan(1, launched[0], best, fleet, money) if launched else None,
        conceivable=_plan(1, min(ranked, key=_upper_s) if world.upper else fastest, best, fleet, money),
        left_out=left_out,
        lines=tuple(between.lines),
        local_steps=sites.of_asked(local, candidates) or between.local,
    )  # fmt: skip


def _missed(planner: Planner, best: Costed, *, asked: bool) -> list[int]:
    """Pools whose absence is planned: all that a plan uses where that is asked, else those that are not always there.

    Of two pools, what is left without one is the other alone.
    """
    pools = list(zip(planner.fleet.names, planner.fleet.cluster.pools, strict=True))
    if planner.exact or len(pools) < 3:
        return []
    return [
        place
        for place, (name, pool) in enumerate(pools)
        if name in best.estimate.used and (asked or pool.available < 1)
    ]


def _ranked(candidates: Sequence[Costed], starts: str) -> list[Costed]:
    """Plans by the upper ends of their steps' intervals; of close ones that first which the runtime, or any, runs."""
    ranked = sorted(candidates, key=_upper_s)
    equal = [each for each in ranked if _upper_s(each) <= EQUAL * _upper_s(ranked[0])]
    first = [each for each in equal if starts in each.estimate.runs_on][:1]
    first = first or [each for each in equal if each.estimate.runs_on][:1]
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
    if planner.limits.unsearched:
        lacking = ", ".join(planner.limits.unsearched)
        notes = [f"pipelines over several pools are not searched: they need {lacking}, which is not allowed"]
    else:
        notes = [
            "pipelines over several pools are searched with zero 0-1, recompute of whole layers and no offload; "
            "groups on one pool with all that astra plan has"
        ]
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
            return with_run(fleet, estimate_alone(fleet, alone, user_rules=user_rules), money)
        strategy = parse_mixed(text, fleet.usual) if is_mixed(text) else spread(fleet, text, where)
        check_strategy(fleet, strategy)
    return with_run(fleet, estimate_mixed(fleet, strategy, user_rules=user_rules), money)


def _plan(rank: int, each: Costed, best: Costed, fleet: Fleet, money: Money) -> Plan:
    result = with_run(fleet, each.estimate, money)
    return Plan(rank=rank, strategy=str(each.strategy), estimate=result, lost_by=lost_by(best.estimate, each.estimate))


def _alternative(planner: Planner, place: int, each: Costed | None, best: Costed) -> Alternative:
    name = planner.fleet.names[place]
    if each is None:
        why = planner.why_not(place) or "the model does not fit."
        return Alternative(pool=name, strategy=None, step_s=None, times=None, why=why)
    step_s = each.estimate.step_s
    return Alternative(pool=name, strategy=str(each.strategy), step_s=step_s, times=step_s / best.estimate.step_s)


def _marginal(planner: Planner, best: Costed, more: Remarks) -> list[Marginal]:
    return [
        Marginal(
            pool=planner.fleet.names[place],
            gpus=planner.fleet.cluster.pools[place].node.gpus,
            step_s=each.estimate.step_s,
            gain=best.estimate.step_s / each.estimate.step_s - 1,
            strategy=str(each.strategy),
        )
        for place, each in more.by_pool.items()
        if each is not None and (place not in more.cut or each.estimate.step_s < best.estimate.step_s)
    ]


def _idle(
    planner: Planner, best: Costed, candidates: Sequence[Costed], left_out: Mapping[str, str], worth: Worth | None
) -> list[str]:
    """Sentences on GPUs without work, with what using them would change where that is known or asked."""
    notes = [f"{name} is left idle: it {reason}." for name, reason in left_out.items()]
    depth, names = len(layer_kinds(planner.fleet.job.model)), planner.fleet.names
    used = [best.estimate.used.get(name, 0) for name in names]
    known = {
        place: min(some, key=lambda each: each.estimate.step_s)
        for place, name in enumerate(names)
        if (some := [each for each in candidates if name in each.estimate.used and len(each.estimate.used) > 1])
    }
    asked = [place for place in range(len(names)) if not (used[place] or place in known or planner.why_not(place))]
    using = Remarks({}, []) if worth is None else worth.using(asked)
    for place, (name, pool) in enumerate(zip(names, planner.fleet.cluster.pools, strict=True)):
        if used[place] == pool.gpus:
            continue
        if used[place]:
            idle = pool.gpus - used[place]
            notes.append(f"{idle} of the {pool.gpus} GPUs of {name} are idle: no plan with them is faster.")
            continue
        other = known.get(place) or using.by_pool.get(place)
        if reason := planner.why_not(place):
            notes.append(f"{name} is left idle: {reason}")
        elif other is None and worth is None:
            notes.append(f"{name} is left idle: no plan with it was found that is faster.")
        elif other is None and place in using.cut:
            notes.append(f"{name} is left idle: no plan that uses it was found in the work allowed for this remark.")
        elif other is None:
            why = f"the model has {depth} layers" if len(names) > depth else "no plan that uses it fits"
            notes.append(f"{name} is left idle: {why}.")
        else:
            slower = other.estimate.step_s / best.estimate.step_s - 1
            notes.append(f"{name} is left idle: the best plan found that uses it is {slower:.1%} slower.")
    return notes


def _left_open(planner: Planner, best: Costed) -> list[str]:
    """What the search did not look at because its work was done, and what that could bring at most."""
    notes = []
    if planner.effort.late:
        least_s = least_step_s(planner.fleet)
        notes.append(
            f"the search stopped at the time allowed for it: no plan takes less than {show_seconds(least_s)}, every "
            f"matrix product at the GPUs' peaks, so that none is more than {best.estimate.step_s / least_s - 1:.0%} "
            "faster than the plan"
        )
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


def least_step_s(fleet: Fleet) -> float:
    """Seconds that no plan of a fleet is below: every matrix product of a step at the peaks of all its GPUs."""
    return 1 / sum(1 / float(products_s(job, np.asarray(job.pool.gpus))) for job in fleet.jobs)


def _cut_short(what: str, remarks: Remarks, names: Sequence[str]) -> list[str]:
    """Remarks that are the best plan met and not the best there is."""
    if not remarks.cut:
        return []
    pools = ", ".join(names[place] for place in remarks.cut)
    return [f"{what} {pools}: not all was looked at in the work allowed for this remark, plan it to know"]


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
