"""One pool of several by itself: the planner for one GPU type, and its plans as records of a mixed answer."""

from __future__ import annotations

from collections.abc import Sequence

from astra.answer import Estimate, StageEstimate
from astra.cost.stage import Gathered, parts_of, stage_costs
from astra.cost.step import states
from astra.errors import InputError
from astra.layers.kinds import layer_kinds
from astra.rules.table import Rule
from astra.search import detail
from astra.search.fleet.detail import part_of
from astra.search.fleet.menus import Found
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import GroupEstimate, MixedEstimate, MixedStage
from astra.search.fleet.summary import Fitted, runtimes_for
from astra.search.splits import best_splits
from astra.spec.job import Job
from astra.spec.mixed import Group, MixedStrategy, OnePool, Segment
from astra.spec.strategy import Strategy
from astra.units import GIB

Alone = tuple[OnePool, MixedEstimate]


def best_alone(
    fleet: Fleet, place: int, found: Found, user_rules: Sequence[Rule] = (), *, upper: bool = False
) -> Alone | None:
    """Of what the search of a pool by itself found, what ``astra plan`` puts first; None if nothing fits.

    ``upper``: by the upper end of the step's interval.
    """
    job, candidates, timed = found
    strategies = best_splits(job, candidates, user_rules, timed)
    results = detail.estimate(job, strategies, user_rules=user_rules, timed=timed)
    fitting = [pair for pair in zip(strategies, results, strict=True) if pair[1].fits and pair[1].legal]
    if not fitting:
        return None
    strategy, result = min(fitting, key=lambda pair: pair[1].step_s_range.high if upper else pair[1].step_s)
    plan, said = OnePool(pool=fleet.names[place], strategy=strategy), job.saying(strategy)
    return plan, _reported(fleet, said, plan, result, _pipeline_s(said, strategy, timed if said is job else ()))


def read_alone(fleet: Fleet, pool: str, text: str) -> OnePool:
    """The plain strategy that stands behind a pool's name."""
    job = fleet.jobs[fleet.place(pool)]
    strategy = job.strategy(text)
    if strategy.gpus > job.pool.gpus:
        raise InputError("strategy", f"{strategy.gpus} GPUs of {pool}", want=f"at most the {job.pool.gpus} there are")
    return OnePool(pool=pool, strategy=strategy)


def check_alone(fleet: Fleet, plan: OnePool, user_rules: Sequence[Rule], where: str) -> None:
    """Refuse numbers that do not define a run; what is only illegal is estimated."""
    job = part_of(fleet.jobs[fleet.place(plan.pool)], plan.strategy.gpus)
    strategy, depth = plan.strategy, len(layer_kinds(job.model))
    undefined = (
        strategy.pp * strategy.vp > depth + 2
        or strategy.dp * strategy.mbs > job.workload.global_batch
        or (strategy.layers and sum(strategy.layers) != depth)
        or (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp)
    )
    if undefined:
        broken = "; ".join(detail.legality(job, strategy, user_rules))
        raise InputError(where, str(plan), want="a strategy that defines a run", fix=f"It breaks: {broken}.")


def estimate_alone(fleet: Fleet, plan: OnePool, *, user_rules: Sequence[Rule] = ()) -> MixedEstimate:
    """The record of a plain strategy on one pool."""
    job = part_of(fleet.jobs[fleet.place(plan.pool)], plan.strategy.gpus).saying(plan.strategy)
    result = detail.estimate(job, [plan.strategy], user_rules=user_rules)[0]
    return _reported(fleet, job, plan, result, _pipeline_s(job, plan.strategy))


def _reported(fleet: Fleet, job: Job, plan: OnePool, result: Estimate, pipeline_s: float) -> MixedEstimate:
    """An estimate of one pool with what an answer over several pools adds."""
    strategy, used = plan.strategy, {plan.pool: plan.strategy.gpus}
    stages = [_stage(job, plan, stage, result.microbatches) for stage in result.stages]
    times = [stage.microbatch_s + (0.0 if "p2p" in strategy.overlap else stage.transfer_s) for stage in stages]
    group = GroupEstimate(
        index=0,
        text=str(strategy),
        dp=strategy.dp,
        mbs=strategy.mbs,
        microbatches=result.microbatches,
        samples=job.workload.global_batch,
        gpus=used,
        pipeline_s=pipeline_s,
        closed_form_s=(sum(times) - max(times)) / strategy.vp + result.microbatches * max(times),
        waits_s=0.0,
    )
    runs_on, needs = runtimes_for(
        _as_group(job, plan), Fitted(job.model, job.workload, zero=strategy.zero, offload=strategy.offload != "none")
    )
    fields = {name: getattr(result, name) for name in Estimate.__struct_fields__}
    fields |= {"strategy": str(plan), "stages": stages}
    idle = {
        name: pool.gpus - used.get(name, 0)
        for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)
        if pool.gpus > used.get(name, 0)
    }
    return MixedEstimate(
        **fields, groups=[group], used=used, idle=idle, precision={plan.pool: job.workload.precision}, runs_on=runs_on,
        needs=needs,
    )  # fmt: skip


def _stage(job: Job, plan: OnePool, stage: StageEstimate, microbatches: int) -> MixedStage:
    inside = sum(seconds for kind, seconds in stage.exposed_s.items() if kind not in ("dp", "pp"))
    traffic = stage.communication_s["pp"] if plan.strategy.pp > 1 else 0.0
    fields = {name: getattr(stage, name) for name in StageEstimate.__struct_fields__}
    return MixedStage(
        **fields,
        group=0,
        pool=plan.pool,
        tp=plan.strategy.tp,
        recompute=plan.strategy.recompute,
        microbatch_s=(stage.compute_s + inside) / microbatches,
        transfer_s=traffic / microbatches,
        memory_limit_gib=job.limit_bytes / GIB,
    )


def _pipeline_s(job: Job, strategy: Strategy, timed: Sequence[Gathered] = ()) -> float:
    """The pipeline in a step, as it is told in full."""
    row = detail.as_row(job, strategy)
    gathered = parts_of(job, row.meshes.columns, timed)
    costs = stage_costs(job, row.meshes, gathered, every_rank=True)
    _, _, between = states(job, row.meshes, costs, row.shardings)
    return detail.simulated(job, row, gathered, between.per_microbatch_s[0, 0])[0]


def _as_group(job: Job, plan: OnePool) -> MixedStrategy:
    """The same pipelines in brackets, for what runtimes ask of a shape; ZeRO stands beside it."""
    strategy = plan.strategy
    segment = Segment(
        pool=plan.pool, tp=strategy.tp, pp=strategy.pp, ep=strategy.ep, layers=detail.layers_of(job, strategy),
        recompute=strategy.recompute,
    )  # fmt: skip
    batch = job.workload.global_batch
    group = Group(
        dp=strategy.dp, mbs=strategy.mbs, cp=strategy.cp, vp=strategy.vp, segments=(segment,),
        microbatches=max(batch // (strategy.dp * strategy.mbs), 1),
    )  # fmt: skip
    return MixedStrategy(groups=(group,), zero=min(strategy.zero, 1))
