"""Rehearsed ranks beside the predictions for them: of the runtime that was rehearsed, and of the plan itself."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, ClassVar, Final

from msgspec.structs import replace

from astra.answer import Estimate, Result, StageEstimate
from astra.catalog import hardware, runtimes
from astra.errors import AstraError
from astra.lab.rehearse import pace, plan
from astra.search.detail import estimate
from astra.spec.cluster import Device, Pool
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.units import GIB

REHEARSAL_SCHEMA: Final = "astra.rehearsal/1"
# What cuBLAS takes from torch's allocator on an H200: the constant difference between ranks counted without a GPU and
# the same ranks run on it (docs/rehearsal.md).
LIBRARY_BYTES: Final = 64 << 20
WITHOUT_GPU: Final = (
    "compute time: a GPU is needed",
    "the allocator's reserve and the memory outside torch (CUDA context): a GPU is needed",
    f"what libraries allocate: {LIBRARY_BYTES >> 20} MiB are added, as seen on an H200",
)


class Figures(Result, frozen=True, kw_only=True):
    """Memory and time of one rank over the plan's whole step; None where it is not known."""

    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    compute_s: float | None = None  # forward and backward of all micro-batches
    optimizer_s: float | None = None


class RehearsedStage(Result, frozen=True, kw_only=True):
    """One stage: measured, and predicted twice."""

    stage: int
    layers: list[int]  # of each chunk
    parameters: int | None
    microbatches: int  # that were run; times are for all of the plan's
    out_of_memory: bool
    measured: Figures
    rehearsed_runtime: Figures | None  # predicted for compared_with on the GPU used; None where that is not modelled
    plan: Figures  # predicted for the plan's runtime and GPU
    differences: dict[str, float]  # predicted for the rehearsed runtime over measured, less one
    error: str | None = None
    row: dict[str, Any]  # all that was measured, as docs/rehearsal.md says


class Rehearsal(Result, frozen=True, kw_only=True):
    """What ``astra rehearse`` found."""

    drawn_by: ClassVar[str] = "cli.rehearse.parts"
    schema: str = REHEARSAL_SCHEMA
    version: str
    model: str
    strategy: str
    gpus: str  # of the plan
    runtime: str  # of the plan
    framework: str  # that was rehearsed
    compared_with: str  # the runtime whose predictions are set beside it
    how: str  # gpu: run on one; fake: counted without one
    gpu: str | None  # that was used
    host_speed: float | None  # of the host here, told by ranks that waited for it; None where none did
    memory_limit_gib: float  # what a rank of the plan may reserve
    stages: list[RehearsedStage]
    not_checked: list[str]
    notes: list[str]


def compare(
    job: Job,
    strategy: Strategy,
    rows: Sequence[Mapping[str, Any]],
    *,
    how: str,
    gpu: str | None,
    notes: list[str],
    framework: str = "megatron",
) -> Rehearsal:
    """The record of a rehearsal of some stages of a plan."""
    import astra

    planned = estimate(job, [strategy])[0]
    device, notes = _present(job, gpu, notes)
    compared_with = plan.compared_with(framework, job.runtime)
    same = rehearsed_job(job, device, compared_with) if device is not None else None
    predicted = estimate(same, [strategy])[0] if same is not None else None
    stages = [_stage(row, planned, predicted, how) for row in rows]
    return Rehearsal(
        version=astra.__version__,
        model=job.model.name,
        strategy=str(strategy),
        gpus=planned.gpus,
        runtime=job.runtime.name,
        framework=framework,
        compared_with=compared_with,
        how=how,
        gpu=gpu,
        memory_limit_gib=job.limit_bytes / GIB,
        host_speed=_host_speed(same, strategy, stages) if same is not None and how == "gpu" else None,
        stages=stages,
        not_checked=["communication and pipeline waits: a rehearsed rank has no network"]
        + (list(WITHOUT_GPU) if how == "fake" else []),
        notes=notes,
    )


def _present(job: Job, gpu: str | None, notes: list[str]) -> tuple[Device | None, list[str]]:
    """The GPU that was used, as the catalog knows it."""
    if gpu is None:
        return job.pool.device, notes
    try:
        device = hardware.device(gpu)
        hardware.default_node(device)
    except AstraError:
        return None, [*notes, f"{gpu} is not in the catalog, so that only the plan is compared."]
    if device.name != job.pool.device.name:
        notes = [*notes, f"The plan is for {job.pool.device.name}; it was rehearsed on {device.name}."]
    return device, notes


def rehearsed_job(job: Job, device: Device, runtime: str = plan.RUNTIME) -> Job:
    """The plan's job, as the rehearsed runtime would run it on some GPU: with sequences that are one sample."""
    pool, workload = job.pool, replace(job.workload, packed=0)
    if device.name != pool.device.name:
        node = hardware.default_node(device)
        node = replace(node, gpus=math.gcd(pool.gpus, node.gpus))  # any count of GPUs: no network is compared
        pool = Pool(device=device, node=node, gpus=pool.gpus)
    return replace(job, pool=pool, workload=workload, runtime=runtimes.runtime(runtime))


def _host_speed(job: Job, strategy: Strategy, stages: Sequence[RehearsedStage]) -> float | None:
    """What ranks that waited for the host tell of it, in the median."""
    waiting = [stage for stage in stages if stage.measured.compute_s and pace.waited(stage.row)]
    ranks = [pace.Rank(job, strategy, stage.stage, stage.measured.compute_s or 0.0) for stage in waiting]
    return median(map(pace.host_speed, ranks)) if ranks else None


def _stage(row: Mapping[str, Any], planned: Estimate, same: Estimate | None, how: str) -> RehearsedStage:
    stage = row["stage"]
    measured = _measured(row, planned.microbatches, how)
    rehearsed = _predicted(same.stages[stage]) if same is not None else None
    return RehearsedStage(
        stage=stage,
        layers=list(row["chunk_layers"]),
        parameters=row.get("params"),
        microbatches=row["microbatches"],
        out_of_memory=bool(row.get("oom")),
        measured=measured,
        rehearsed_runtime=rehearsed,
        plan=_predicted(planned.stages[stage]),
        differences=_differences(measured, rehearsed) if rehearsed is not None else {},
        error=row.get("error"),
        row=dict(row),
    )


def _measured(row: Mapping[str, Any], microbatches: int, how: str) -> Figures:
    """A row's figures, its times stretched to all micro-batches of the plan."""
    if "error" in row or row.get("oom"):
        return Figures()
    peak = row["peak_allocated_bytes"]
    if how == "fake":
        return Figures(peak_allocated_gib=(peak + LIBRARY_BYTES) / GIB)
    each_s = (row["compute_s"] - row["optimizer_s"] - row["zero_grad_s"]) / row["microbatches"]
    return Figures(
        peak_allocated_gib=peak / GIB,
        peak_reserved_gib=row["peak_reserved_bytes"] / GIB,
        compute_s=each_s * microbatches,
        optimizer_s=row["optimizer_s"],
    )


def _predicted(stage: StageEstimate) -> Figures:
    return Figures(**{name: getattr(stage, name) for name in Figures.__struct_fields__})


def _differences(measured: Figures, predicted: Figures) -> dict[str, float]:
    """Predicted over measured, less one, of everything measured."""
    pairs = {name: (getattr(predicted, name), getattr(measured, name)) for name in Figures.__struct_fields__}
    return {name: guess / truth - 1 for name, (guess, truth) in pairs.items() if guess is not None and truth}
