"""The record of a strategy over several pools, from its stages and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from astra.answer import Range
from astra.evidence.kinds import Kind, shape_of
from astra.evidence.sentence import sentence
from astra.provenance import Source
from astra.search import detail
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import GroupEstimate, MixedEstimate, MixedStage
from astra.search.fleet.runtimes import Fitted, runtimes_for
from astra.spec.mixed import MixedStrategy
from astra.units import GIB

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
        strategy, Fitted(job.model, job.workload, vendors=len(vendors), precisions=len(precisions))
    )
    return MixedEstimate(
        model=job.model.name,
        gpus=" + ".join(f"{count}x{jobs[name].pool.device.name}" for name, count in used.items()),
        strategy=str(strategy),
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
        warnings=_warnings(vendors, precisions),
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
