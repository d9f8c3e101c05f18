"""One strategy in full: every stage, the pipeline simulated, the breakdown, the error bars.

Uses the same parts, stages and states as the search, for one mesh with every rank kept apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.axes import AXES
from astra.cost.parts import EMBEDDING, HEAD, Direction, worst_source
from astra.cost.stage import SHARD_COLUMNS, Gathered, Layout, Meshes, StageCosts, gather_parts, over_stages, stage_costs
from astra.cost.state import Bytes
from astra.cost.step import Activations, Holders, Savers, activations, reserved_bytes, states
from astra.families import weights as weights_of
from astra.families.kinds import layer_kinds
from astra.families.split import Stages, even, kinds, split, stages
from astra.provenance import Floats, Source
from astra.result import Estimate, Range, StageEstimate
from astra.schedule.simulator import simulate
from astra.space.enumerate import head_layers
from astra.space.names import facts_of
from astra.space.rules import Rule, advice, violations
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.table import from_strategy
from astra.units import GIB

# Relative error of a time by how it is known. Set before any validation: transferred and assumed follow the spread
# between GPUs of one generation in published GEMM sweeps (aiconfigurator) and data-sheet estimates.
TIME_ERROR: Final = {Source.MEASURED: 0.04, Source.INTERPOLATED: 0.06, Source.TRANSFERRED: 0.12, Source.ASSUMED: 0.25}
MEMORY_ERROR: Final = 0.06
PLAUSIBLE_MFU: Final = 0.65  # above the best published large runs (about 0.60 in bf16, MLPerf and vendor tables)


class _Row(NamedTuple):
    """One strategy as arrays."""

    meshes: Meshes
    savers: Savers
    holders: Holders
    layout: Layout


def layers_of(job: Job, strategy: Strategy) -> tuple[int, ...]:
    """Layers per virtual stage: as given, or even, or balanced where they do not divide."""
    depth, count = len(layer_kinds(job.model)), strategy.pp * strategy.vp
    if strategy.layers:
        return strategy.layers
    return even(depth, count) or split(depth, count, head_layers(job.model, job.workload.seq))


def legality(job: Job, strategy: Strategy, user_rules: Sequence[Rule] = ()) -> list[str]:
    """Every rule the strategy breaks, as sentences."""
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
    broken = violations(from_strategy(strategy), facts, user_rules=user_rules)
    depth = len(layer_kinds(job.model))
    if strategy.layers and sum(strategy.layers) != depth:
        broken.append(f"layers must add up to the model's layers (given {sum(strategy.layers)}, model {depth})")
    return broken


def estimate(job: Job, strategies: Sequence[Strategy], *, user_rules: Sequence[Rule] = ()) -> list[Estimate]:
    """Each strategy in full; the caller has checked that they can be costed at all."""
    rows = [_row(job, strategy) for strategy in strategies]
    shared = {name: np.concatenate([row.meshes.columns[name] for row in rows]) for name in SHARD_COLUMNS}
    gathered = gather_parts(job, shared)
    places = range(len(rows))
    return [_estimate(job, strategies[k], rows[k], gathered.take(np.array([k])), user_rules) for k in places]


def _estimate(
    job: Job, strategy: Strategy, row: _Row, gathered: Gathered, user_rules: Sequence[Rule]
) -> Estimate:
    """Time, memory, provenance and warnings of one strategy."""
    costs = stage_costs(job, row.meshes, gathered, every_rank=True)
    saved = activations(costs, row.meshes.columns["vp"], row.savers)
    static, update_s, between = states(job, row.meshes, costs, row.holders)
    pipeline_s = _simulate(job, strategy, row, gathered, between.per_microbatch_s[0, 0])
    after_s = float((between.exposed_s + update_s)[0, 0].max())
    step_s = pipeline_s + after_s + job.runtime.step_host_s
    work = _Work(job, gathered, row, costs, saved)
    stage_list = _stages(job, strategy, row, costs, saved, static, work, update_s[0, 0], between)
    breakdown = _breakdown(stage_list, step_s, job.runtime.step_host_s)
    broken = legality(job, strategy, user_rules)
    provenance = worst_source(gathered.parts, int(gathered.index[0]))
    provenance["data parallel"] = Source(int(between.source.max()))
    return _assemble(job, strategy, row, stage_list, step_s, breakdown, broken, provenance)


def _row(job: Job, strategy: Strategy) -> _Row:
    columns = from_strategy(strategy)
    layout = Layout(strategy.pp, strategy.vp, layers_of(job, strategy))
    savers = Savers(
        columns["recompute"].astype(np.int64), columns["method"].astype(np.int64), columns["recompute_layers"]
    )
    holders = Holders(columns["zero"], columns["offload"].astype(np.int64))
    return _Row(Meshes(columns, np.zeros(1, np.int64), [layout]), savers, holders, layout)


def _simulate(job: Job, strategy: Strategy, row: _Row, gathered: Gathered, per_microbatch_s: Floats) -> float:
    """The pipeline's makespan, chunk by chunk."""
    pp, vp = row.layout.pp, row.layout.vp
    flat = Meshes(
        row.meshes.columns | {"pp": np.array([pp * vp]), "vp": np.array([1])},
        np.zeros(1, np.int64),
        [Layout(pp * vp, 1, row.layout.layers)],
    )
    costs = stage_costs(job, flat, gathered, every_rank=True)
    saved = activations(costs, np.ones(1, np.int64), row.savers)
    extra = np.resize(per_microbatch_s, pp * vp) / vp
    return simulate(
        strategy.schedule,
        p=pp,
        v=vp,
        m=int(costs.microbatches[0]),
        forward_s=costs.forward_s[0],
        backward_s=costs.backward_s[0] - costs.weight_s[0] + saved.recompute_s[0, 0] + extra,
        weight_s=costs.weight_s[0],
        send_s=np.full(pp * vp, costs.p2p_s[0]),
        blocking_p2p="p2p" not in strategy.overlap,
    ).total_s


class _Work:
    """Compute and communication of every rank for a whole step, taken apart."""

    def __init__(self, job: Job, gathered: Gathered, row: _Row, costs: StageCosts, saved: Activations) -> None:
        self._order = (*kinds(job.model), EMBEDDING, HEAD)
        self._gathered = gathered
        table = stages(job.model, *row.layout, True)
        self._table = Stages(*(column[None] for column in table))
        self._times = float(costs.microbatches[0])
        self._columns = row.meshes.columns
        self._redo = np.divide(
            saved.recompute_s[0, 0], costs.recompute_s[0], out=np.zeros_like(costs.layers[0]), where=costs.layers[0] > 0
        )
        self._full = bool((row.savers.recompute == 2).any())
        self.forward_s = self._compute("forward")
        recompute = self.forward_s_layers() * self._redo if self._full else self._times * saved.recompute_s[0, 0]
        self.recompute_s = recompute
        self.backward_s = self._compute("backward") + recompute

    def _over(self, columns: list[Floats]) -> Floats:
        return self._times * over_stages(self._table, [column[self._gathered.index] for column in columns])[0]

    def _direction(self, key: object, way: str) -> Direction:
        direction: Direction = getattr(self._gathered.parts[key], way)  # type: ignore[index]
        return direction

    def _compute(self, way: str) -> Floats:
        return self._over([self._direction(key, way).compute_s for key in self._order])

    def forward_s_layers(self) -> Floats:
        """Forward compute of the layers alone: what full recompute runs again."""
        nothing = np.zeros_like(self._gathered.shard.tokens)
        columns = [self._direction(key, "forward").compute_s for key in self._order[:-2]]
        return self._over([*columns, nothing, nothing])

    def axis(self, name: str, overlap: str, *, busy: bool) -> Floats:
        """Busy or exposed seconds of an axis on each rank."""
        on = bool(overlap) and bool(self._columns[overlap][0])
        field = "busy_s" if busy else ("overlapped_s" if on else "exposed_s")
        total: Floats = np.zeros(len(self._table.rank[0]))
        for way in ("forward", "backward"):
            seconds = self._over([getattr(self._direction(key, way), field)[name] for key in self._order])
            again = seconds * self._redo if way == "forward" and self._full else 0.0
            total = total + seconds + again
        return total


def _stages(
    job: Job,
    strategy: Strategy,
    row: _Row,
    costs: StageCosts,
    saved: Activations,
    static: Bytes,
    work: _Work,
    update_s: Floats,
    between: object,
) -> list[StageEstimate]:
    """One record per pipeline stage."""
    vp, pp = row.layout.vp, row.layout.pp
    busy = {axis.name: work.axis(axis.name, axis.overlap, busy=True) for axis in AXES}
    exposed = {axis.name: work.axis(axis.name, axis.overlap, busy=False) for axis in AXES}
    dp_busy = np.broadcast_to(between.busy_s[0, 0], (pp,))  # type: ignore[attr-defined]
    dp_once = np.broadcast_to(between.exposed_s[0, 0], (pp,))  # type: ignore[attr-defined]
    dp_each = np.broadcast_to(between.per_microbatch_s[0, 0], (pp,))  # type: ignore[attr-defined]
    exchanges = 2.0 * float(costs.microbatches[0]) * vp * float(costs.p2p_s[0])
    out = []
    for rank in range(pp):
        kinds_of_memory = {
            "weights": static.weights[0, 0, rank],
            "gradients": static.gradients[0, 0, rank],
            "optimizer": static.optimizer[0, 0, rank],
            "activations": saved.kept_bytes[0, 0, rank],
            "buffers": saved.working_bytes[0, 0, rank] + static.gathered[0, 0, rank] + costs.buffer_bytes[0, rank],
        }
        allocated = sum(kinds_of_memory.values())
        reserved = float(reserved_bytes(job, np.float64(allocated)))  # type: ignore[arg-type]
        out.append(
            StageEstimate(
                index=rank,
                layers=int(costs.layers[0, rank]),
                gpus=strategy.tp * strategy.cp * strategy.dp,
                gpu=job.pool.device.name,
                compute_s=float(work.forward_s[rank] + work.backward_s[rank]),
                forward_s=float(work.forward_s[rank]),
                backward_s=float(work.backward_s[rank]),
                optimizer_s=float(update_s[rank]),
                communication_s={name: float(column[rank]) for name, column in busy.items()}
                | {"pp": exchanges, "dp": float(dp_busy[rank])},
                exposed_s={name: float(column[rank]) for name, column in exposed.items()}
                | {"dp": float(dp_once[rank] + dp_each[rank] * costs.microbatches[0])},
                in_flight=int(-(-costs.in_flight[0, rank] // vp)),
                memory={name: float(nbytes) / GIB for name, nbytes in kinds_of_memory.items()},
                peak_allocated_gib=float(allocated) / GIB,
                peak_reserved_gib=reserved / GIB,
                fits=reserved <= job.limit_bytes,
            )
        )
    return out


def _breakdown(stage_list: list[StageEstimate], step_s: float, host_s: float) -> dict[str, float]:
    """Seconds by cause on the busiest stage; what is left of the step is pipeline bubble and exposed p2p."""
    busiest = max(stage_list, key=lambda stage: stage.compute_s + sum(stage.exposed_s.values()))
    parts = {"forward": busiest.forward_s, "backward": busiest.backward_s}
    parts |= {f"{name} communication": seconds for name, seconds in busiest.exposed_s.items()}
    parts |= {"optimizer": busiest.optimizer_s, "host": host_s}
    parts["pipeline bubble and p2p"] = step_s - sum(parts.values())
    return parts


def _assemble(
    job: Job,
    strategy: Strategy,
    row: _Row,
    stage_list: list[StageEstimate],
    step_s: float,
    breakdown: dict[str, float],
    broken: list[str],
    provenance: dict[str, Source],
) -> Estimate:
    tokens_per_s = job.workload.tokens_per_step / step_s
    flops_per_token = training_flops_per_token(job)
    per_gpu = flops_per_token * tokens_per_s / job.pool.gpus
    peak = job.pool.device.peak(job.workload.precision)
    again = sum(stage.compute_s for stage in stage_list)
    mfu = per_gpu / peak
    worst = max(provenance.values())
    error = TIME_ERROR[worst]
    allocated = max(stage.peak_allocated_gib for stage in stage_list)
    reserved = max(stage.peak_reserved_gib for stage in stage_list)
    fits = all(stage.fits for stage in stage_list)
    del again
    return Estimate(
        model=job.model.name,
        gpus=f"{job.pool.gpus}x{job.pool.device.name}",
        strategy=str(strategy),
        runtime=job.runtime.name,
        legal=not broken,
        violations=broken,
        fits=fits,
        step_s=step_s,
        step_s_range=Range(low=step_s * (1 - error), high=step_s * (1 + error)),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / job.pool.gpus,
        model_tflops_per_gpu=per_gpu / 1e12,
        mfu=mfu,
        hfu=mfu * (1 + _recompute_share(job, strategy, row)),
        breakdown=breakdown,
        bubble_fraction=breakdown["pipeline bubble and p2p"] / step_s,
        microbatches=int(job.workload.global_batch // (strategy.dp * strategy.mbs)),
        stages=stage_list,
        peak_allocated_gib=allocated,
        peak_reserved_gib=reserved,
        peak_gib_range=Range(low=reserved * (1 - MEMORY_ERROR), high=reserved * (1 + MEMORY_ERROR)),
        memory_usable_gib=job.usable_bytes / GIB,
        memory_limit_gib=job.limit_bytes / GIB,
        provenance={term: source.word for term, source in provenance.items()},
        provenance_worst=worst.word,
        warnings=_warnings(job, strategy, mfu, reserved, fits),
    )


def training_flops_per_token(job: Job) -> float:
    """Model FLOPs: three times the forward pass, twice where base weights are frozen (LoRA)."""
    times = 2.0 if job.workload.task == "lora" else 3.0
    return times * weights_of.forward_flops_per_token(job.model, job.workload.seq)


def _recompute_share(job: Job, strategy: Strategy, row: _Row) -> float:
    """Recomputed FLOPs over model FLOPs."""
    forward = weights_of.forward_flops_per_token(job.model, job.workload.seq)
    if strategy.recompute == "selective":
        return weights_of.attention_flops_per_token(job.model, job.workload.seq) / (3 * forward)
    if strategy.recompute == "full":
        again = [min(strategy.recompute_layers, n) if strategy.method == "block" else n for n in row.layout.layers]
        return sum(again) / max(sum(row.layout.layers), 1) / 3
    return 0.0


def _warnings(job: Job, strategy: Strategy, mfu: float, reserved_gib: float, fits: bool) -> list[str]:
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
    found = list(advice(from_strategy(strategy), facts))
    if mfu > PLAUSIBLE_MFU:
        found.append(f"MFU {mfu:.0%} is above what large runs have published ({PLAUSIBLE_MFU:.0%}); treat the speed as optimistic")
    if not fits:
        found.append(
            f"needs {reserved_gib:.1f} GiB, above the {job.limit_bytes / GIB:.1f} GiB limit "
            f"({job.usable_bytes / GIB:.1f} GiB usable, {job.headroom:.0%} kept free)"
        )
    return found
