"""The record of a strategy over several pools: stages and groups, the runtimes that can execute it, its bill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from astra.answer import PriceTag, Range
from astra.catalog import runtimes
from astra.cost.lines import crossings, egress_usd
from astra.evidence.kinds import Kind, shape_of
from astra.evidence.sentence import sentence
from astra.money import rates
from astra.money.bill import Hired, cost_of, hired
from astra.money.tags import stale_warning, tag_of
from astra.provenance import Source
from astra.rules.can import unable
from astra.search import detail
from astra.search.fleet.local import RUN_BY, warning
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import GroupEstimate, MixedEstimate, MixedStage
from astra.spec.cluster import Pool
from astra.spec.mixed import MixedStrategy, parse_mixed
from astra.spec.model import ModelSpec
from astra.spec.money import Money
from astra.spec.workload import Workload
from astra.units import GIB


def with_run(fleet: Fleet, result: MixedEstimate, options: Money) -> MixedEstimate:
    """Days and dollars of the whole run, when the tokens to train are known."""
    tokens = fleet.job.workload.tokens
    if tokens is None:
        return result
    pools = dict(zip(fleet.names, fleet.cluster.pools, strict=True))
    machines = {
        name: hired(msgspec.structs.replace(pools[name], gpus=_whole(used, pools[name].node.gpus)))._replace(used=used)
        for name, used in result.used.items()
    }
    options = _with_egress(fleet, result, options, tokens)
    tags = {name: tag for name in result.used if (tag := tag_of(options, pools[name])) is not None}
    cost = None
    options = _with_risks(pools, machines, tags, options)
    if len(tags) == len(result.used):
        together = Hired(*(sum(column) for column in zip(*machines.values(), strict=True)))
        cost = cost_of(fleet.job, result, options, _joined(tags, machines), together)
    warnings = [warning for tag in tags.values() if (warning := stale_warning(tag))]
    missing = [f"no price of {name} is known: give --usd-per-gpu-h or --prices" for name in result.used
               if name not in tags]  # fmt: skip
    return msgspec.structs.replace(
        result,
        train_days=tokens / result.tokens_per_s / 86400,
        train_usd=cost.usd if cost is not None else None,
        price_source="; ".join(f"{tag.provider} {tag.date or ''}".strip() for tag in tags.values()) or None,
        cost=cost,
        warnings=[*result.warnings, *dict.fromkeys(warnings), *missing],
    )


def _with_egress(fleet: Fleet, result: MixedEstimate, options: Money, tokens: float) -> Money:
    """What is sent over priced links in the whole run, with what the user says of egress."""
    if "[" not in result.strategy:
        return options
    sent = crossings(fleet.cluster, fleet.names, fleet.job, parse_mixed(result.strategy))
    usd = egress_usd(sent) * tokens / fleet.job.workload.tokens_per_step
    together = {"egress_tb": 1.0, "usd_per_tb_egress": options.egress_usd + usd}  # as one amount
    return msgspec.structs.replace(options, **together) if usd else options


def _with_risks(
    pools: Mapping[str, Pool], machines: Mapping[str, Hired], tags: Mapping[str, PriceTag], options: Money
) -> Money:
    """Failures and pre-emptions of the job where pools have their own: rates add up, so these are means over pools."""
    own = [pools[name] for name in machines]
    if all(pool.mtbf_gpu_h is None and pool.preemptions_per_node_day is None for pool in own):
        return options
    usual_h = options.mtbf_gpu_h or rates.MTBF_GPU_S / rates.HOUR_S
    failures = sum(each.used / (pools[name].mtbf_gpu_h or usual_h) for name, each in machines.items())
    taken = sum(each.nodes * _taken_per_day(pools[name], tags.get(name), options) for name, each in machines.items())
    used, nodes = (sum(column) for column in list(zip(*machines.values(), strict=True))[::2])
    return msgspec.structs.replace(options, mtbf_gpu_h=used / failures, preemptions_per_node_day=taken / nodes)


def _taken_per_day(pool: Pool, tag: PriceTag | None, options: Money) -> float:
    """How often a day a server of a pool is taken away: as the pool says, the user, or its market."""
    said = (
        pool.preemptions_per_node_day if pool.preemptions_per_node_day is not None else options.preemptions_per_node_day
    )
    usual = rates.PREEMPTIONS_PER_NODE_S * rates.DAY_S if tag is not None and tag.market == "spot" else 0.0
    return usual if said is None else said


def _whole(used: int, node: int) -> int:
    return used if used < node else -(-used // node) * node


def _joined(tags: dict[str, PriceTag], machines: dict[str, Hired]) -> PriceTag:
    """The mean price of a GPU-hour, with every pool's own in its source."""
    if len(tags) == 1:
        return next(iter(tags.values()))
    billed = sum(each.billed for each in machines.values())
    usd = sum(tag.usd_per_gpu_h * machines[name].billed for name, tag in tags.items()) / billed
    said = [
        f"{machines[name].billed} {name} at ${tag.usd_per_gpu_h:.4g}, "
        + " ".join(word for word in (tag.provider, tag.instance, tag.market, tag.date or "") if word)
        + f", {tag.source}"
        for name, tag in tags.items()
    ]
    ages = [tag.age_days for tag in tags.values() if tag.age_days is not None]
    dates = [tag.date for tag in tags.values() if tag.date is not None]
    return PriceTag(
        usd_per_gpu_h=usd, provider="mean of the pools", instance="", region="",
        market=next(iter(dict.fromkeys(tag.market for tag in tags.values()))),
        currency=next(iter(tags.values())).currency, date=min(dates, default=None), source="; ".join(said),
        age_days=max(ages, default=None), startup_s=max(tag.startup_s or 0.0 for tag in tags.values()),
        minimum_s=max(tag.minimum_s for tag in tags.values()), step_s=max(tag.step_s for tag in tags.values()),
    )  # fmt: skip


# Executors whose framework is a runtime of the catalog: what it can train and do is in that file.
_PROFILES: Final = {
    "Megatron-LM": "megatron", "FlagScale": "flagscale", "PyTorch trainer": "pytorch",
    "jobs with a gradient bridge": "megatron",
}  # fmt: skip
# The executor that starts what is written for a target.
STARTED_BY: Final = {
    "megatron": "Megatron-LM", "megatron-bridge": "Megatron-LM", "flagscale": "FlagScale", "pytorch": "PyTorch trainer",
}  # fmt: skip
RUNTIMES: Final = (
    "Megatron-LM", "torch.distributed.pipelining", "FlagScale", "PyTorch trainer", "jobs with a gradient bridge",
    "HexiScale", "Sailor",
)  # fmt: skip
_FORKS: Final = ("HexiScale", "Sailor")  # of older code, with ZeRO 1 at most


class Fitted(NamedTuple):
    """What a plan asks of a runtime beside its shape."""

    model: ModelSpec
    workload: Workload
    vendors: int = 1  # GPUs of several vendors share no collective library; FlagScale joins them (FlagCX, or gloo)
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
        "PyTorch trainer": {
            "one tp and recompute setting inside a group": any(len(one) > 1 for one in inside),
            "one GPU for each replica where groups share a state": bool(strategy.shares) and segments[0].tp > 1,
            "tp, pipelines and replicas alone": max(s.ep for s in segments) > 1
            or max(g.cp for g in strategy.groups) > 1,
        },
        "jobs with a gradient bridge": {
            "several groups, each on a pool of its own": len(strategy.groups) == 1 or not apart,
        },
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
        wants["GPUs of one vendor"] = asks.vendors > 1 and name != "FlagScale"
        wants["one precision on all GPUs"] = asks.precisions > 1
        wants[f"gradients that meet at every step (local steps are for {RUN_BY})"] = strategy.local > 1
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
        step_s_range=detail.step_range(total_s, known.kind),
        evidence=sentence(known.kind, shape_of(job.model)),
        breakdown=dict(causes),
        bubble_fraction=causes[detail.BUBBLE] / total_s,
        microbatches=max(group.microbatches for group in strategy.groups),
        stages=list(stages),
        provenance={term: source.word for term, source in known.provenance.items()},
        provenance_worst=max(known.provenance.values()).word,
        warnings=[*_warnings(vendors, precisions), *[warning(len(groups), strategy.local)] * (strategy.local > 1)],
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


def _warnings(vendors: set[str], precisions: set[str]) -> list[str]:
    found = []
    if len(vendors) > 1:
        found.append(f"GPUs of {' and '.join(sorted(vendors))} need a library that joins their collectives")
    if len(precisions) > 1:
        found.append("stages compute in different precisions, so that replicas on different pools differ in rounding")
    return found
