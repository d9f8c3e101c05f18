"""The record of a strategy over several pools, or on one of them: stages, groups, the runtimes that can execute it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from astra.answer import Estimate, Range, StageEstimate
from astra.catalog import runtimes
from astra.cost.stage import Gathered, parts_of, stage_costs
from astra.cost.step import states
from astra.evidence.bars import sentence
from astra.evidence.kinds import Kind, shape_of
from astra.provenance import Source
from astra.rules.can import unable
from astra.rules.table import Rule
from astra.search import detail
from astra.search.fleet.pools import Fleet, part_of
from astra.search.fleet.records import BRIDGE, RUN_BY, GroupEstimate, MixedEstimate, MixedStage, warning
from astra.search.ranked import Lone
from astra.spec.job import Job
from astra.spec.mixed import Group, MixedStrategy, OnePool, Segment
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload
from astra.units import GIB

# Executors whose framework is a runtime of the catalog: what it can train and do is in that file.
_PROFILES: Final = {
    "Megatron-LM": "megatron", "FlagScale": "flagscale", "PyTorch trainer": "pytorch", BRIDGE: "pytorch",
}  # fmt: skip
# The executor that starts what is written for a target.
STARTED_BY: Final = {
    "megatron": "Megatron-LM", "megatron-bridge": "Megatron-LM", "flagscale": "FlagScale", "pytorch": "PyTorch trainer",
}  # fmt: skip
STARTED: Final = frozenset({*STARTED_BY.values(), BRIDGE})  # by what astra export writes
RUNTIMES: Final = (
    "Megatron-LM", "torch.distributed.pipelining", "FlagScale", "PyTorch trainer", BRIDGE, "HexiScale", "Sailor",
)  # fmt: skip
_FORKS: Final = ("HexiScale", "Sailor")  # of older code, with ZeRO 1 at most


def targets_of(runs_on: Collection[str]) -> list[str]:
    """Targets of astra export that start a plan, by who runs it."""
    return [target for target, executor in STARTED_BY.items() if executor in runs_on
            or (target == "pytorch" and BRIDGE in runs_on)]  # fmt: skip


class Fitted(NamedTuple):
    """What a plan asks of a runtime beside its shape."""

    model: ModelSpec
    workload: Workload
    vendors: int = 1  # several share no collective library; FlagScale joins them (FlagCX, or gloo), and jobs do (gloo)
    precisions: int = 1
    zero: int = 1  # plans on one pool may go further than pipelines over several
    offload: bool = False


def runtimes_for(strategy: MixedStrategy, asks: Fitted) -> tuple[list[str], dict[str, str]]:
    """Who can execute a strategy as it is, and what the others lack (their documentation and code of 2026)."""
    segments = [segment for group in strategy.groups for segment in group.segments]
    one_shape = len({(segment.tp, segment.ep) for segment in segments}) == 1
    one_recompute = len({segment.recompute for segment in segments}) == 1
    one_group, one_mbs = len(strategy.shapes) == 1, len({group.mbs for group in strategy.groups}) == 1
    inside = [{(one.tp, one.ep, one.recompute) for one in group.segments} for group in strategy.groups]
    apart = all(len({one.pool for one in group.segments}) == 1 for group in strategy.groups)
    chunks = any(group.vp > 1 for group in strategy.groups)
    shapes = [group.segments for group in strategy.groups]
    ends_differ = any(inside[0].tp != inside[-1].tp for inside in shapes)
    trainer = {
        "one tp and recompute setting inside a group": any(len(one) > 1 for one in inside),
        "tp, pipelines and replicas alone": max(s.ep for s in segments) > 1 or max(g.cp for g in strategy.groups) > 1,
    }
    lacks = {
        "Megatron-LM": {
            "one tp for all stages": not one_shape,
            "one recompute setting": not one_recompute,
            "equal pipelines with equal micro-batches": not one_group,
        },
        "torch.distributed.pipelining": {
            "one device mesh, so one tp": not one_shape,
            "equal pipelines with equal micro-batches": not one_group,
        },
        "FlagScale": {
            "stages of every replica on each pool": len(strategy.groups) > 1,
            "one cp": len({group.cp for group in strategy.groups}) > 1,
            "the first stage's tp on the last one too (tied embeddings)": asks.model.tied_embeddings and ends_differ,
        },
        "PyTorch trainer": trainer
        | {
            "one GPU for each replica where groups share a state": bool(strategy.shares) and segments[0].tp > 1,
        },
        BRIDGE: trainer | {"several groups, each on a pool of its own": len(strategy.groups) == 1 or not apart},
        "HexiScale": {
            "a Llama-2 model": not asks.model.name.startswith("llama-2"),
            "one chunk per stage (no vp)": chunks,
            "tp alone inside a stage": max(s.ep for s in segments) > 1 or max(g.cp for g in strategy.groups) > 1,
        },
        "Sailor": {
            "one chunk per stage (no vp)": chunks,
            "pipelines that cut the layers alike": not one_group,
            "one micro-batch size": not one_mbs,
        },
    }
    for name, wants in lacks.items():
        wants["zero 1 at most"] = name in _FORKS and asks.zero > 1
        wants["the optimizer on the GPU"] = asks.offload and name not in _PROFILES
        wants["GPUs of one vendor"] = asks.vendors > 1 and name not in ("FlagScale", BRIDGE)
        wants["one precision on all GPUs"] = asks.precisions > 1
        local = strategy.local > 1 and name not in ("PyTorch trainer", BRIDGE)
        wants[f"gradients that meet at every step (local steps are for the PyTorch trainer, {RUN_BY})"] = local
        wants["a copy of the state in every group"] = bool(strategy.shares) and name != "PyTorch trainer"
        wants.update(_profile_lacks(name, asks, chunks=chunks))
    missing = {name: "; ".join(want for want, broken in wants.items() if broken) for name, wants in lacks.items()}
    return [name for name in RUNTIMES if not missing[name]], {name: text for name, text in missing.items() if text}


def _zero(strategy: MixedStrategy) -> int:
    """The deepest ZeRO stage of any group."""
    return max(strategy.zero if group.plain is None else group.plain.zero for group in strategy.groups)


def _profile_lacks(name: str, asks: Fitted, *, chunks: bool) -> dict[str, bool]:
    """What the runtime behind an executor cannot do, from its file."""
    if name not in _PROFILES:
        return {}
    runtime = runtimes.runtime(_PROFILES[name])
    can = runtime.can
    # Pools differ in precision, which is told apart below; each has one that its GPU knows.
    work = msgspec.structs.replace(asks.workload, precision="bf16")
    return {reason.sentence: True for reason in unable(runtime, asks.model, work)} | {
        "one chunk per stage (no vp)": chunks and "vp" not in can.degrees,
        f"zero {' or '.join(map(str, can.zero))}": asks.zero not in can.zero,
        "the optimizer on the GPU": asks.offload and "optimizer" not in can.offload,
    }


BETWEEN: Final = "between pools"  # a term of the provenance


class KnownOfStrategy(NamedTuple):
    """What is known of a strategy beside its times."""

    provenance: dict[str, Source]  # by term, the worst of any segment
    again: float  # share of the FLOPs that is done again
    violations: list[str]
    kind: Kind  # for the published runs that are like it


def summary(
    fleet: Fleet,
    strategy: MixedStrategy,
    groups: list[GroupEstimate],
    stages: list[MixedStage],
    known: KnownOfStrategy,
    total_s: float,
    causes: Mapping[str, float],
) -> MixedEstimate:
    """The record."""
    job, used = fleet.job, strategy.gpus_by_pool
    jobs = dict(zip(fleet.names, fleet.jobs, strict=True))
    vendors = {jobs[name].pool.device.vendor for name in used}
    precisions: set[str] = {jobs[name].workload.precision for name in used}
    runs_on, needs = runtimes_for(
        strategy,
        Fitted(job.model, job.workload, vendors=len(vendors), precisions=len(precisions), zero=_zero(strategy)),
    )
    return MixedEstimate(
        model=job.model.name,
        gpus=" + ".join(f"{count}x{jobs[name].pool.device.name}" for name, count in used.items()),
        strategy=str(strategy),
        as_usual=_as_usual(fleet, strategy),
        runtime=job.runtime.name,
        legal=not known.violations,
        violations=known.violations,
        fits=all(stage.fits for stage in stages),
        step_s=total_s,
        step_s_range=detail.step_range(total_s, known.kind, *(group.layers for group in strategy.groups)),
        evidence=sentence(known.kind, shape_of(job.model)),
        breakdown=dict(causes),
        bubble_fraction=causes[detail.BUBBLE] / total_s,
        microbatches=max(group.microbatches for group in strategy.groups),
        stages=list(stages),
        provenance={term: source.word for term, source in known.provenance.items()},
        provenance_worst=max(known.provenance.values()).word,
        warnings=_warnings(strategy, vendors, precisions),
        groups=groups,
        used=used,
        idle={
            name: pool.gpus - used.get(name, 0)
            for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)
            if pool.gpus > used.get(name, 0)
        },
        precision={name: jobs[name].workload.precision for name in used},
        runs_on=runs_on,
        needs=needs,
        **_rates(fleet, strategy, total_s, known.again),
        **_memory(fleet, stages),
    )


def group_record(
    number: int, group: Group, stages: Sequence[MixedStage], sends: Sequence[float], seconds: float, waits_s: float
) -> GroupEstimate:
    """One group of a strategy; ``waits_s`` for the one that ends last."""
    gpus: dict[str, int] = {}
    for segment in group.segments:
        gpus[segment.pool] = gpus.get(segment.pool, 0) + group.gpus(segment)
    times = [stage.microbatch_s + (0.0 if group.overlaps_transfers else stage.transfer_s) for stage in stages]
    closed = (sum(times) - max(times)) / group.vp + group.microbatches * max(times)
    closed += 2 * sum(sends) if group.overlaps_transfers else 0.0  # hidden but for fill and drain
    return GroupEstimate(
        index=number,
        text=str(group),
        dp=group.dp,
        mbs=group.mbs,
        microbatches=group.microbatches,
        samples=group.samples,
        gpus=gpus,
        pipeline_s=seconds,
        closed_form_s=closed,
        waits_s=waits_s,
    )


def _as_usual(fleet: Fleet, strategy: MixedStrategy) -> tuple[str, ...]:
    """The fields that every strategy on one pool would have so by itself: their short text leaves them out."""
    plain = [(group.segments[0].pool, group.plain) for group in strategy.groups if group.plain is not None]
    jobs = dict(zip(fleet.names, fleet.jobs, strict=True))
    chosen = [jobs[pool].chosen(one) for pool, one in plain]
    return tuple(name for name in (chosen[0] if chosen else ()) if all(name in one for one in chosen))


def _rates(fleet: Fleet, strategy: MixedStrategy, total_s: float, again: float) -> dict[str, Any]:
    """Tokens and FLOPs per second."""
    job, jobs = fleet.job, dict(zip(fleet.names, fleet.jobs, strict=True))
    tokens_per_s = job.workload.tokens_per_step / total_s
    flops_per_s = detail.training_flops_per_token(job) * tokens_per_s
    peak = sum(
        count * jobs[name].pool.device.peak(jobs[name].workload.precision)
        for name, count in strategy.gpus_by_pool.items()
    )
    return {
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": tokens_per_s / strategy.gpus,
        "model_tflops_per_gpu": flops_per_s / strategy.gpus / 1e12,
        "mfu": flops_per_s / peak,
        "hfu": flops_per_s / peak * (1 + again),
    }


def _memory(fleet: Fleet, stages: Sequence[MixedStage]) -> dict[str, Any]:
    """The memory of the stage that is the fullest for its GPU."""
    fullest = max(stages, key=lambda stage: stage.peak_reserved_gib / stage.memory_limit_gib)
    low, high = (fullest.peak_reserved_gib * (1 + error) for error in (-detail.MEMORY_ERROR, detail.MEMORY_ERROR))
    return {
        "peak_allocated_gib": fullest.peak_allocated_gib,
        "peak_reserved_gib": fullest.peak_reserved_gib,
        "peak_gib_range": Range(low=low, high=high),
        "memory_usable_gib": fleet.jobs[fleet.place(fullest.pool)].usable_bytes / GIB,
        "memory_limit_gib": fullest.memory_limit_gib,
    }


def _warnings(strategy: MixedStrategy, vendors: set[str], precisions: set[str]) -> list[str]:
    found = []
    if len(vendors) > 1:
        found.append(f"GPUs of {' and '.join(sorted(vendors))} need a library that joins their collectives")
    if len(precisions) > 1:
        found.append("stages compute in different precisions, so that replicas on different pools differ in rounding")
    if strategy.local > 1:
        found.append(warning(len(strategy.groups), strategy.local))
    return found


def best_alone(fleet: Fleet, place: int, met: Lone) -> tuple[OnePool, MixedEstimate] | None:
    """What ``astra plan`` puts first on a pool by itself; None if nothing fits."""
    if met.plan is None:
        return None
    strategy, result = met.plan
    plan, said = OnePool(pool=fleet.names[place], strategy=strategy), met.job.saying(strategy)
    pipeline_s = _pipeline_s(said, strategy, met.timed if said is met.job else ())
    return plan, _reported(fleet, said, plan, result, pipeline_s)


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
