"""Published runs replayed by the cost model: what was predicted beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from astra.answer import Estimate, Range, Result
from astra.errors import AstraError
from astra.evidence.kinds import MIXED, Kind, doublings, kind_of
from astra.search.detail import estimate, layers_of, step_range
from astra.search.fleet.plan import estimate_fleet
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.units import GIB
from astra.validate.measured import use_of
from astra.validate.runs import Run, Skipped
from astra.validate.strategies import refused, stood_in

JOINED: Final = " + "  # between the GPU types of a run over several pools
HEADROOM: Final = next(field.default for field in msgspec.structs.fields(Job) if field.name == "headroom")
Change = Callable[[World], World]


class ReplayedRun(Result, frozen=True, kw_only=True):
    """One row: the prediction, the measurement, and all that it is grouped by."""

    id: str
    source: str
    skipped: str | None = None  # why it was not replayed; then nothing below is known
    predicted_step_s: float | None = None
    predicted_step_s_range: Range | None = None  # four in five of such steps lie in it, by runs of other sources
    measured_step_s: float | None = None
    predicted_peak_gib: list[float] | None = None  # allocated, one per pipeline stage
    measured_peak_gib: float | None = None
    compared_peak_gib: float | None = None  # the prediction of what was measured: a stage, the worst, or reserved
    fits: bool | None = None  # in memory, and the runtime does not refuse it
    recommended: bool | None = None  # fits with the usual headroom kept free, as a plan would
    ran_out_of_memory: bool | None = None
    provenance: str | None = None
    not_scored: str | None = None  # why its time is not scored
    use: str = "test"  # or fit, or simulated
    framework: str = ""
    runtime: str = ""
    model: str = ""
    family: str = ""
    gpu: str = ""
    gpus: int = 0
    precision: str = ""
    task: str = ""
    batch: int = 0
    seq: int = 0
    strategy: str = ""
    evidence: str = ""  # the class of its error bar: dense, or moe
    request: dict[str, Any] | None = None  # what a user would ask: ``astra.estimate(**request)`` gives the prediction
    citation: str = ""
    filled: tuple[str, ...] = ()
    breakdown: dict[str, float] | None = None  # seconds by cause, as in an estimate

    @property
    def error(self) -> float | None:
        """Predicted over measured step time, less one; None unless it is scored."""
        if self.predicted_step_s is None or not self.measured_step_s or self.not_scored:
            return None
        return self.predicted_step_s / self.measured_step_s - 1

    @property
    def highest_s(self) -> float:
        """The upper end of the predicted range, by which plans are ranked; the prediction where no range is known."""
        found = self.predicted_step_s_range.high if self.predicted_step_s_range else self.predicted_step_s
        return math.inf if found is None else found

    @property
    def held(self) -> bool | None:
        """Whether the measurement lies in the predicted range; None unless it is scored."""
        if self.error is None or self.predicted_step_s_range is None or self.measured_step_s is None:
            return None
        return self.predicted_step_s_range.low <= self.measured_step_s <= self.predicted_step_s_range.high

    @property
    def memory_error(self) -> float | None:
        """Predicted over measured peak memory, less one."""
        if self.compared_peak_gib is None or not self.measured_peak_gib:
            return None
        return self.compared_peak_gib / self.measured_peak_gib - 1


def replay(
    runs: Sequence[Run | Skipped], *, progress: Callable[[float], None] | None = None, change: Change | None = None
) -> list[ReplayedRun]:
    """Every run, in order. Runs of one request are costed together, equal strategies once.

    ``change`` puts other facts in the place of the request's, such as a runtime with other constants.
    """
    by_request: dict[int, list[Run]] = {}
    for run in runs:
        if isinstance(run, Run):
            by_request.setdefault(id(run.request), []).append(run)
    rows: dict[int, ReplayedRun] = {}
    for members in by_request.values():
        world = World.of(members[0].request)
        asked = world.resolved.plain("estimate")
        world = change(world) if change else world
        answers = _estimates(world, list(dict.fromkeys(run.strategy for run in members)))
        rows |= {id(run): _replayed(run, world, asked, answers[run.strategy]) for run in members}
        if progress is not None:
            progress(len(rows) / len(runs))
    return [_skipped(run) if isinstance(run, Skipped) else rows[id(run)] for run in runs]


def _estimates(world: World, strategies: list[Strategy]) -> dict[Strategy, Estimate | str]:
    """The answer to each strategy, or why there is none. One pool is costed at once, as each would be by itself."""
    try:
        if world.several:
            return {one: estimate_fleet(world, str(one)) for one in strategies}
        return dict(zip(strategies, estimate(world.job, strategies), strict=True))
    except (AstraError, ArithmeticError) as error:
        if len(strategies) == 1:
            return {strategies[0]: f"{'refused' if isinstance(error, AstraError) else 'cannot be costed'}: {error}"}
    found: dict[Strategy, Estimate | str] = {}
    for strategy in strategies:
        found |= _estimates(world, [strategy])
    return found


def _skipped(run: Skipped) -> ReplayedRun:
    return ReplayedRun(id=run.id, source=run.source, skipped=run.reason)


def _replayed(run: Run, world: World, asked: dict[str, Any], answer: Estimate | str) -> ReplayedRun:
    if isinstance(answer, str):
        return ReplayedRun(id=run.id, source=run.source, skipped=answer)
    measured, kind = run.measured, kind_in(world, run.strategy)
    kind = kind._replace(framework=run.framework) if stood_in(run.framework) else kind
    stops = refused(world.runtime, run.strategy, answer.microbatches)
    return ReplayedRun(
        id=run.id,
        source=run.source,
        predicted_step_s=answer.step_s,
        predicted_step_s_range=step_range(answer.step_s, kind, layers_of(world.job, run.strategy), without=run.source),
        measured_step_s=measured.step_s,
        predicted_peak_gib=[stage.peak_allocated_gib for stage in answer.stages],
        measured_peak_gib=measured.peak_gib,
        compared_peak_gib=_compared(world, answer, measured.peak_of) if measured.peak_gib else None,
        fits=answer.fits and not stops,
        recommended=answer.peak_reserved_gib <= answer.memory_usable_gib * (1 - HEADROOM) and answer.fits and not stops,
        ran_out_of_memory=measured.oom,
        provenance=answer.provenance_worst,
        not_scored=run.aside or None,
        use=use_of(run.source, world.model.name),
        framework=run.framework,
        runtime=world.runtime.name,
        model=world.model.name,
        family=family_of(world.model),
        gpu=JOINED.join(pool.device.name for pool in world.cluster.pools),
        gpus=world.cluster.gpus,
        precision=run.precision or world.workload.precision,
        task=world.workload.task,
        batch=world.workload.global_batch,
        seq=world.workload.seq,
        strategy=str(run.strategy),
        evidence=kind.model,
        request=asked | {"strategy": str(run.strategy)},
        citation=run.citation,
        filled=run.filled,
        breakdown=answer.breakdown,
    )


def kind_in(world: World, strategy: Strategy) -> Kind:
    """The kind of a run; over several pools that of the first, over all GPUs."""
    kind = kind_of(world.job, strategy)
    return kind._replace(network=MIXED, gpus=doublings(world.cluster.gpus)) if world.several else kind


def _compared(world: World, answer: Estimate, peak_of: str) -> float:
    """The figure that was measured: of which rank, and who counted it."""
    of = answer.stages[0] if peak_of.startswith("first") else answer
    if peak_of.endswith("device"):
        return of.peak_reserved_gib + world.runtime.memory.context_bytes / GIB
    return of.peak_reserved_gib if peak_of.endswith("reserved") else of.peak_allocated_gib


def family_of(model: ModelSpec) -> str:
    """The kind of model, as runs are grouped."""
    attention = "latent " if model.mla else "windowed " if model.window else ""
    return f"{attention}moe" if model.moe else f"{attention}dense, {'gated' if model.gated_mlp else 'ungated'}"
