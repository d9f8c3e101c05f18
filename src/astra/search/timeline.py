"""A step as it is simulated, span by span: what every pipeline rank does when, and the memory it holds meanwhile.

The spans of a stage follow one another without a gap, so that they add up to the step time that is reported. What
follows the pipeline, the host's work and the wait for the slowest node are one span each at its end, because the cost
model has them as sums and not as moments. Communication inside a layer is part of its forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from astra.answer import Estimate, PlanSet, Result, StageEstimate
from astra.cost.pipeline import virtual_stages
from astra.cost.stage import gather_parts, stage_costs
from astra.cost.step import states
from astra.errors import InputError
from astra.provenance import Floats
from astra.schedule.base import BACKWARD, FORWARD, WEIGHT
from astra.schedule.simulator import StageSeconds, Timeline, alive, simulate
from astra.search import detail
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.mixed_text import is_mixed
from astra.spec.request import read_request
from astra.spec.strategy import Strategy
from astra.units import GIB

TIMELINE_SCHEMA: Final = "astra.timeline/1"
KINDS: Final = (
    "forward", "backward", "weight gradient", "p2p", "bubble", "gradient reduction", "optimizer", "host",
    "slowest node",
)  # fmt: skip
_OF_SLOT: Final = {FORWARD: "forward", BACKWARD: "backward", WEIGHT: "weight gradient"}
_LEAST: Final = 1e-12  # of the step: a gap that rounding left
MOST_SLOTS: Final = 2_000_000


class Span(Result, frozen=True, kw_only=True, array_like=True):
    """What a rank does for a while; -1 for a micro-batch and chunk where it is about none."""

    kind: str
    start_s: float
    end_s: float
    microbatch: int = -1
    chunk: int = -1


class Moment(Result, frozen=True, kw_only=True, array_like=True):
    """Memory from a moment on."""

    start_s: float
    allocated_gib: float


class Lane(Result, frozen=True, kw_only=True):
    """One pipeline rank of a group; all GPUs of the stage do the same."""

    group: int
    stage: int
    layers: int
    gpu: str
    gpus: int
    spans: list[Span]  # one after another from 0 to the end of the step
    sends: list[Span]  # transfers to a neighbour that the rank does not wait for, beside the spans
    memory: list[Moment]
    memory_limit_gib: float  # allocated, as the moments are

    @property
    def name(self) -> str:
        """How pictures call it."""
        return f"stage {self.stage}"

    def seconds(self) -> dict[str, float]:
        """By kind; sums to the step."""
        found = dict.fromkeys(KINDS, 0.0)
        for span in self.spans:
            found[span.kind] += span.end_s - span.start_s
        return {kind: seconds for kind, seconds in found.items() if seconds > 0}


class StepTimeline(Result, frozen=True, kw_only=True):
    """One step of a plan on every stage."""

    drawn_by: ClassVar[str] = "report.timeline_text.step_parts"
    schema: str = TIMELINE_SCHEMA
    model: str
    gpus: str
    strategy: str
    schedule: str
    microbatches: int
    chunks: int
    step_s: float
    pipeline_s: float  # until the last backward of all stages
    lanes: list[Lane]
    notes: tuple[str, ...] = ()


class SimulatedPipeline(NamedTuple):
    """Everything that one pipeline's lanes are drawn from. Arrays are [rank] unless they are of virtual stages."""

    schedule: str
    p: int
    v: int
    m: int
    stages: StageSeconds
    blocking_p2p: bool
    reduction_s: Floats  # exposed, after the pipeline
    update_s: Floats
    records: Sequence[StageEstimate]
    limits_gib: Sequence[float]
    group: int = 0

    def run(self) -> Timeline:
        """Simulated, every micro-batch."""
        slots = 2 * self.p * self.v * self.m
        if slots > MOST_SLOTS:
            want = f"a step of at most {MOST_SLOTS:,} pieces of work to draw (stages x chunks x micro-batches)"
            raise InputError("plan", f"{slots:,} pieces", want=want, fix="Plan with a smaller --batch to look at it.")
        return simulate(
            self.schedule, p=self.p, v=self.v, m=self.m, **self.stages._asdict(), blocking_p2p=self.blocking_p2p
        )


def timeline_of(world: World, strategy: str) -> StepTimeline:
    """The step of a strategy, on one pool or on several."""
    if not world.several and not is_mixed(strategy):
        return on_one_pool(world.job, world.job.strategy(strategy))
    from astra.search.fleet.timeline import timeline_of_fleet  # noqa: PLC0415 - one pool does without

    return timeline_of_fleet(world, strategy)


def first_step(planset: PlanSet) -> StepTimeline | None:
    """The step of an answer's first plan; None where there is no plan, or one of millions of pieces."""
    if not planset.plans:
        return None
    try:
        return timeline_of(World.of(read_request("plan", planset.asked)), planset.best.strategy)
    except InputError:
        return None


def on_one_pool(job: Job, strategy: Strategy) -> StepTimeline:
    """The step of a strategy on the GPUs of one pool that it uses."""
    job = replace(job, pool=replace(job.pool, gpus=strategy.gpus)).saying(strategy)
    row = detail.as_row(job, strategy)
    gathered = gather_parts(job, row.meshes.columns)
    result = detail.full_estimate(job, row, gathered, ())
    costs = stage_costs(job, row.meshes, gathered, every_rank=True)
    _, update, between = states(job, row.meshes, costs, row.shardings)
    times = virtual_stages(job, row.meshes, gathered, row.recomputes, between.per_microbatch_s[0]).stages
    pipeline = SimulatedPipeline(
        strategy.schedule,
        strategy.pp,
        strategy.vp,
        result.microbatches,
        StageSeconds(*(column[0] for column in times)),
        not bool(row.meshes.columns["overlap_p2p"][0]),
        between.exposed_s[0, 0],
        update.seconds[0, 0],
        result.stages,
        [job.limit_bytes / GIB] * strategy.pp,
    )
    return timeline_of_pipelines(result, [pipeline], host_s=job.runtime.host.step_s)


def timeline_of_pipelines(result: Estimate, pipelines: Sequence[SimulatedPipeline], *, host_s: float) -> StepTimeline:
    """The record of pipelines that run side by side and end a step together."""
    runs = [one.run() for one in pipelines]
    ends_s = max(run.total_s for run in runs)
    afters_s = [float(np.max(one.reduction_s + one.update_s)) for one in pipelines]
    done_s = max(run.total_s + after_s for run, after_s in zip(runs, afters_s, strict=True))
    lanes = [
        _lane(one, run, rank, (run.total_s, done_s, done_s + host_s, result.step_s))
        for one, run in zip(pipelines, runs, strict=True)
        for rank in range(one.p)
    ]
    return StepTimeline(
        model=result.model,
        gpus=result.gpus,
        strategy=result.strategy,
        schedule=" and ".join(dict.fromkeys(one.schedule for one in pipelines)),
        microbatches=max(one.m for one in pipelines),
        chunks=max(one.v for one in pipelines),
        step_s=result.step_s,
        pipeline_s=ends_s,
        lanes=lanes,
    )


def _lane(one: SimulatedPipeline, run: Timeline, rank: int, tail: tuple[float, float, float, float]) -> Lane:
    record = one.records[rank]
    least_s = _LEAST * tail[-1]
    spans = list(_spans(run, rank, tail[0], least_s))
    reduced_s = tail[0] + float(one.reduction_s[rank])
    ends = ((reduced_s, "gradient reduction"), (reduced_s + float(one.update_s[rank]), "optimizer"),
            (tail[1], "bubble"), (tail[2], "host"), (tail[3], "slowest node"))  # fmt: skip
    for end_s, kind in ends:
        if end_s - spans[-1].end_s > least_s:
            spans.append(Span(kind=kind, start_s=spans[-1].end_s, end_s=end_s))
    spans[-1] = replace(spans[-1], end_s=tail[-1])
    return Lane(
        group=one.group,
        stage=rank,
        layers=record.layers,
        gpu=record.gpu,
        gpus=record.gpus,
        spans=spans,
        sends=[] if one.blocking_p2p else list(_sends(one, run, rank)),
        memory=list(_memory(run, rank, record)),
        memory_limit_gib=one.limits_gib[rank] * record.peak_allocated_gib / record.peak_reserved_gib,
    )


def _spans(run: Timeline, rank: int, until_s: float, least_s: float) -> Iterator[Span]:
    """The slots of a rank with their blocking sends and the gaps between them; a gap of nothing is closed."""
    now_s = 0.0
    columns = (run.kind, run.microbatch, run.chunk, run.start_s, run.end_s, run.freed_s)
    for kind, microbatch, chunk, start_s, end_s, freed_s in zip(*(c[rank].tolist() for c in columns), strict=True):
        if start_s - now_s > least_s:
            yield Span(kind="bubble", start_s=now_s, end_s=start_s)
            now_s = start_s
        yield Span(kind=_OF_SLOT[kind], start_s=now_s, end_s=end_s, microbatch=microbatch, chunk=chunk)
        now_s = end_s
        if freed_s - end_s > least_s:
            yield Span(kind="p2p", start_s=end_s, end_s=freed_s, microbatch=microbatch, chunk=chunk)
            now_s = freed_s
    if until_s - now_s > least_s:
        yield Span(kind="bubble", start_s=now_s, end_s=until_s)


def _sends(one: SimulatedPipeline, run: Timeline, rank: int) -> Iterator[Span]:
    """What leaves a rank while it goes on: activations to the next virtual stage, gradients to the one before."""
    last, send_s = one.p * one.v - 1, one.stages.send_s
    columns = (run.kind, run.microbatch, run.chunk, run.stage, run.end_s)
    for kind, microbatch, chunk, stage, end_s in zip(*(column[rank].tolist() for column in columns), strict=True):
        hop = {FORWARD: stage if stage < last else -1, BACKWARD: stage - 1}.get(kind, -1)
        if hop >= 0 and send_s[hop] > 0:
            taken_s = float(send_s[hop])
            yield Span(kind="p2p", start_s=end_s, end_s=end_s + taken_s, microbatch=microbatch, chunk=chunk)


def _memory(run: Timeline, rank: int, record: StageEstimate) -> Iterator[Moment]:
    """Allocated memory whenever it changes: activations come with a forward and go with the backward that needs them.

    The most of it is the peak that the plan reports: chunks of a stage count alike there too.
    """
    kept_gib = record.memory["activations"]
    order = np.stack((run.kind[rank], run.microbatch[rank], run.chunk[rank]), axis=1)
    during = alive(order, np.ones(run.v))
    share_gib = kept_gib / float(during.max())
    still_gib = record.peak_allocated_gib - kept_gib
    ends = WEIGHT if (run.kind[rank] == WEIGHT).any() else BACKWARD
    last_s, last_gib = 0.0, -1.0
    columns = (run.kind[rank], run.start_s[rank], run.end_s[rank], during)
    for kind, start_s, end_s, held in zip(*(column.tolist() for column in columns), strict=True):
        for at_s, count in ((start_s, held), (end_s, held - 1 if kind == ends else held)):
            now_gib = still_gib + share_gib * count
            if now_gib != last_gib:
                last_s, last_gib = max(last_s, at_s), now_gib
                yield Moment(start_s=last_s, allocated_gib=now_gib)
