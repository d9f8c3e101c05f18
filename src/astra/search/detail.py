"""One strategy in full: every stage, the pipeline simulated, the breakdown, the error bars.

Uses the same parts, stages and states as the search, for one mesh with every rank kept apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.answer import Estimate, Range, StageEstimate
from astra.axes import AXES
from astra.columns import Columns, each, from_strategy
from astra.cost import memory, step
from astra.cost.between import Replicas
from astra.cost.gathered import Layout, Layouts, layout
from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.memory import Activations, Sharding, activations, fits, peak, reserved_bytes
from astra.cost.parts import Direction, forward_again, with_slower_host, worst_source
from astra.cost.pipeline import of_one_shape_s, virtual_stages
from astra.cost.recompute import Recomputes, module_bits
from astra.cost.stage import (
    SHARD_COLUMNS,
    Gathered,
    Meshes,
    StageCosts,
    gather_parts,
    over_stages,
    parts_of,
    stage_costs,
    stage_table,
)
from astra.cost.state import Bytes
from astra.cost.step import states
from astra.evidence.bars import UNEQUAL, bar_of, sentence
from astra.evidence.kinds import Kind, kind_of, shape_of
from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.split import StageKinds, even, kinds, split
from astra.provenance import Floats, Source, Timed
from astra.rules.can import may
from astra.rules.names import facts_of
from astra.rules.table import RULES, Rule, violations
from astra.search.cautions import beyond_host, cautions
from astra.search.space import last_layers
from astra.spec.job import Job, Words
from astra.spec.strategy import Strategy
from astra.units import GIB

MEMORY_ERROR: Final = 0.06
GENERAL: Final = tuple(rule for rule in RULES if not rule.frameworks)
BUBBLE: Final = "pipeline bubble and p2p"


class Row(NamedTuple):
    """One strategy as arrays."""

    strategy: Strategy
    meshes: Meshes
    recomputes: Recomputes
    shardings: Sharding
    layout: Layout


class CostedRow(NamedTuple):
    """All that is computed of one strategy, before it is told."""

    costs: StageCosts
    saved: Activations
    again_s: Floats  # [rank] running layers' forward again, of one micro-batch
    static: Bytes
    between: Replicas
    update_s: Floats  # [rank]
    after_s: Floats  # [rank] with what follows the pipeline
    pipeline_s: float
    highest: memory.Highest


def layers_of(job: Job, strategy: Strategy) -> tuple[int, ...]:
    """Layers per virtual stage: as given, or even, or balanced where they do not divide."""
    depth, count = len(layer_kinds(job.model)), strategy.pp * strategy.vp
    if strategy.layers:
        return strategy.layers
    return even(depth, count) or split(depth, count, last_layers(job))


def legality(job: Job, strategy: Strategy, user_rules: Sequence[Rule] = ()) -> list[str]:
    """Every rule the strategy breaks, as sentences."""
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    if strategy.layers:
        facts["layers_per_chunk"] = max(strategy.layers)
    broken = violations(from_strategy(strategy), facts, user_rules=user_rules, rules=GENERAL)
    if strategy.layers and sum(strategy.layers) != (depth := len(layer_kinds(job.model))):
        broken.append(f"layers must add up to the model's layers (given {sum(strategy.layers)}, model {depth})")
    reasons = may(job.runtime, strategy, job.model, job.workload, job.pool, layers=strategy.layers)
    return [*broken, *(reason.sentence for reason in reasons)]


def estimate(
    job: Job,
    strategies: Sequence[Strategy],
    *,
    user_rules: Sequence[Rule] = (),
    timed: Sequence[Gathered] = (),
) -> list[Estimate]:
    """Each strategy in full; the caller has checked that they can be costed at all.

    ``timed`` are the tables of a search of this job that found them: parts are not timed again.
    """
    jobs = [job.saying(strategy) for strategy in strategies]
    by_words: dict[tuple[Words, tuple[str, ...] | None], list[int]] = {}
    for place, said in enumerate(jobs):
        by_words.setdefault((said.words, said.repeats), []).append(place)
    found: dict[int, Estimate] = {}
    for places in by_words.values():
        said = jobs[places[0]]
        rows = [as_row(said, strategies[place]) for place in places]
        estimates = _estimates(said, rows, timed if said is job else (), user_rules)
        found |= dict(zip(places, estimates, strict=True))
    return [found[place] for place in range(len(strategies))]


def _estimates(job: Job, rows: Sequence[Row], timed: Sequence[Gathered], user_rules: Sequence[Rule]) -> list[Estimate]:
    """Rows that say the same words, in full."""
    timed = timed or [gather_parts(job, columns_of(rows))]
    own = [parts_of(job, row.meshes.columns, timed) for row in rows]
    stages: dict[int, StageCosts] = {}
    for parts in {id(one.parts): one for one in own}.values():
        some = [place for place, one in enumerate(own) if one.parts is parts.parts]
        place = np.concatenate([own[at].place for at in some])
        stages |= dict(zip(some, stages_of(job, [rows[at] for at in some], parts._replace(place=place)), strict=True))
    return [_with_stages(job, row, own[place], stages[place], user_rules) for place, row in enumerate(rows)]


def columns_of(rows: Sequence[Row], names: Iterable[str] = SHARD_COLUMNS) -> Columns:
    """Some columns of several rows, unless they are named those that parts depend on."""
    return {name: np.concatenate([row.meshes.columns[name] for row in rows]) for name in names}


def stages_of(job: Job, rows: Sequence[Row], gathered: Gathered) -> list[StageCosts]:
    """The stages of each row, every rank apart."""
    meshes = Meshes(columns_of(rows, rows[0].meshes.columns), np.arange(len(rows)), Layouts(row.layout for row in rows))
    costs = stage_costs(job, meshes, gathered, every_rank=True)

    def own(place: int, ranks: int) -> StageCosts:
        return each(costs, lambda column: column[place : place + 1, :ranks] if column.ndim > 1 else column[[place]])

    return [own(place, row.strategy.pp) for place, row in enumerate(rows)]


def as_row(job: Job, strategy: Strategy) -> Row:
    """A one-row table of each kind."""
    columns = from_strategy(strategy)
    place = layout(strategy.schedule, strategy.pp, strategy.vp, layers_of(job, strategy))
    recompute, method = (columns[name].astype(np.int64) for name in ("recompute", "method"))
    modules = np.array([module_bits(job, strategy.modules)])
    recomputes = Recomputes(recompute, method, columns["recompute_layers"], modules, columns["offload_layers"])
    shardings = Sharding(*(columns[name].astype(np.int64) for name in Sharding._fields))
    return Row(strategy, Meshes(columns, np.zeros(1, np.int64), Layouts((place,))), recomputes, shardings, place)


def full_estimate(job: Job, row: Row, gathered: Gathered, user_rules: Sequence[Rule]) -> Estimate:
    """One row in full, its parts already costed."""
    return _with_stages(job, row, gathered, stage_costs(job, row.meshes, gathered, every_rank=True), user_rules)


def _with_stages(job: Job, row: Row, gathered: Gathered, costs: StageCosts, user_rules: Sequence[Rule]) -> Estimate:
    """One row in full, its parts and stages already costed."""
    saved = activations(costs, row.meshes.columns["vp"], row.recomputes)
    static, update, between = states(job, row.meshes, costs, row.shardings)
    pipeline_s, again_s = simulated(job, row, gathered, between.per_microbatch_s[0, 0], costs.p2p_s)
    highest = memory.highest_of(job, costs, row.shardings, peak(static, saved, costs.buffer_bytes)[0, 0, 0])
    after_s = step.after_s(update, between)[0, 0]
    answer = CostedRow(costs, saved, again_s, static, between, update.seconds[0, 0], after_s, pipeline_s, highest)
    work = Work(job, row, gathered, answer)
    stages = stage_records(job, row, answer, work)
    provenance = worst_source(gathered.parts, int(gathered.place[0])) | sources_between(row, costs, update)
    if between.busy_s.any():
        provenance["dp"] = Source(int(costs.sync.source.max()))
    broken = legality(job, row.strategy, user_rules)
    return _tell(job, row, answer, stages, provenance, broken, work.slower())


def sources_between(row: Row, costs: StageCosts, update: Timed) -> dict[str, Source]:
    """Provenance of what stages send each other, where there are several, and of the optimizer."""
    found = {"optimizer": Source(int(update.source.max()))}
    return found if row.strategy.pp == 1 else {**found, "pp": Source(int(costs.p2p_source.max()))}


def simulated(
    job: Job, row: Row, gathered: Gathered, per_microbatch_s: Floats, send_s: Floats | None = None
) -> tuple[float, Floats]:
    """The pipeline's makespan, and what each rank repeats in it; ``per_microbatch_s`` is what replicas exchange."""
    found = virtual_stages(job, row.meshes, gathered, row.recomputes, per_microbatch_s[None], send_s)
    again_s = found.again_s[0][np.array(row.layout.place)].sum(axis=0)
    return float(of_one_shape_s(job, row.meshes, found.stages, gathered.totals_s)[0]), again_s


class Work:
    """Compute and communication of every rank over a whole step, taken apart. Arrays are [rank]."""

    def __init__(self, job: Job, row: Row, gathered: Gathered, answer: CostedRow) -> None:
        self._keys: tuple[LayerKind | str, ...] = (*kinds(job.model), EMBEDDING, HEAD)
        self._gathered, self._columns, self._runtime = gathered, row.meshes.columns, job.runtime
        self._table: StageKinds = stage_table(job, row.meshes, every_rank=True)
        self._times = float(answer.costs.microbatches[0])
        full = row.strategy.recompute == "full"
        layer_s, once_more = answer.costs.recompute_s[0], answer.again_s
        self._again = np.divide(once_more, layer_s, out=np.zeros_like(layer_s), where=(layer_s > 0) & full)
        forward = [self._direction(key, "forward").compute_s for key in self._keys]
        self._no_ends = (np.zeros_like(forward[0]),) * 2  # the embedding and the head are never repeated
        repeated = [forward_again(job.runtime, gathered.parts[key]).compute_s for key in self._keys[:-2]]
        recomputed = self._over([*repeated, *self._no_ends]) * self._again
        attention_again = 0.0 if full else self._times * once_more
        self.forward_s = self._over(forward)
        self.backward_s = self._over([self._direction(key, "backward").compute_s for key in self._keys])
        self.backward_s = self.backward_s + recomputed + attention_again

    def _direction(self, key: LayerKind | str, way: str) -> Direction:
        part = self._gathered.parts[key]
        return part.forward if way == "forward" else part.backward

    def _over(self, columns: list[Floats]) -> Floats:
        seconds = over_stages(self._table, [column[self._gathered.place] for column in columns])[0]
        return np.asarray(self._times * seconds)

    def slower(self) -> float:
        """How many times as long forward and backward take, on the rank where it is most, with a slower host."""
        ways = [self._direction(key, way) for way in ("forward", "backward") for key in self._keys]
        now_s = [way.compute_s for way in ways]
        more_s = [with_slower_host(self._runtime, way) - so_far for way, so_far in zip(ways, now_s, strict=True)]
        kinds = len(self._keys)
        more, now = (self._over(some[:kinds]) + self._over(some[kinds:]) for some in (more_s, now_s))
        return 1 + float((more / np.maximum(now, 1e-30)).max())

    def communication(self, field: str) -> dict[str, Floats]:
        """``busy_s`` or ``exposed_s`` of each axis."""
        found = {}
        for axis in AXES:
            hidden = field == "exposed_s" and axis.overlap and bool(self._columns[axis.overlap][0])
            name = "overlapped_s" if hidden else field
            forward, backward = (
                [getattr(self._direction(key, way), name)[axis.name] for key in self._keys]
                for way in ("forward", "backward")
            )
            again = self._over([*forward[:-2], *self._no_ends]) * self._again
            found[axis.name] = self._over(forward) + again + self._over(backward)
        return found


def stage_records(job: Job, row: Row, answer: CostedRow, work: Work) -> list[StageEstimate]:
    """One record per pipeline stage."""
    strategy, costs = row.strategy, answer.costs
    ranks, times = range(strategy.pp), float(costs.microbatches[0])
    busy, exposed = work.communication("busy_s"), work.communication("exposed_s")
    exposed_dp = answer.between.exposed_s[0, 0] + times * answer.between.per_microbatch_s[0, 0]
    exchanged_s = 2.0 * times * strategy.vp * float(costs.p2p_s[0])
    allocated_bytes = answer.highest.nbytes
    out = []
    for rank in ranks:
        held, allocated = _memory(answer, rank), allocated_bytes[rank]
        out.append(
            StageEstimate(
                index=rank,
                layers=int(costs.layers[0, rank]),
                gpus=strategy.tp * strategy.cp * strategy.dp,
                gpu=job.pool.device.name,
                compute_s=float(work.forward_s[rank] + work.backward_s[rank]),
                forward_s=float(work.forward_s[rank]),
                backward_s=float(work.backward_s[rank]),
                optimizer_s=float(answer.update_s[rank]),
                communication_s={name: float(column[rank]) for name, column in busy.items()}
                | {"pp": exchanged_s, "dp": float(answer.between.busy_s[0, 0, rank])},
                exposed_s={name: float(column[rank]) for name, column in exposed.items()}
                | {"dp": float(exposed_dp[rank])},
                in_flight=int(np.ceil(costs.alive[0, rank])),
                memory={name: nbytes / GIB for name, nbytes in held.items()},
                peak_allocated_gib=float(allocated) / GIB,
                peak_reserved_gib=float(reserved_bytes(job, allocated)) / GIB,
                fits=bool(fits(job, allocated)),
            )
        )
    return out


def _memory(answer: CostedRow, rank: int) -> dict[str, float]:
    """The peak of a rank by kind."""
    static = answer.static
    named = {
        "weights": float(static.weights[0, 0, rank]),
        "gradients": float(static.gradients[0, 0, rank]),
        "optimizer": float(static.optimizer[0, 0, rank]),
        "activations": float(answer.saved.kept_bytes[0, 0, rank]),
    }
    if answer.highest.at_start[rank]:  # before the first step there are weights alone
        named |= {"gradients": 0.0, "optimizer": 0.0, "activations": 0.0}
    buffers = float(answer.highest.nbytes[rank]) - sum(named.values())
    named["gradients"] += min(buffers, 0.0)  # there are none yet where a single micro-batch's activations are all there
    return {**named, "buffers": max(buffers, 0.0)}


def breakdown(stages: list[StageEstimate], total_s: float, around: dict[str, float]) -> dict[str, float]:
    """Seconds by cause on the busiest stage and around it; the rest of the step is bubble and traffic of stages."""
    busiest = max(stages, key=lambda stage: stage.compute_s + sum(stage.exposed_s.values()))
    causes = {"forward": busiest.forward_s, "backward": busiest.backward_s}
    causes |= {f"{name} communication": seconds for name, seconds in busiest.exposed_s.items()}
    causes |= {"optimizer": busiest.optimizer_s} | around
    causes[BUBBLE] = total_s - sum(causes.values())
    return causes


def _tell(
    job: Job, row: Row, answer: CostedRow, stages: list[StageEstimate], provenance: dict[str, Source],
    broken: list[str], slower: float,
) -> Estimate:  # fmt: skip
    """The record."""
    once_s = float(answer.after_s.max())
    total_s, alone_s = (float(step.seconds(job, answer.pipeline_s, once_s, waits)) for waits in (None, 1.0))
    causes = breakdown(stages, total_s, {"host": job.runtime.host.step_s, "stragglers": total_s - alone_s})
    tokens_per_s = job.workload.tokens_per_step / total_s
    flops_per_s = training_flops_per_token(job) * tokens_per_s / job.pool.gpus
    mfu = flops_per_s / job.pool.device.peak(job.workload.precision)
    reserved = max(stage.peak_reserved_gib for stage in stages)
    fits = all(stage.fits for stage in stages)
    worst, kind = max(provenance.values()), kind_of(job, row.strategy)
    on_host = memory.host_bytes(job, answer.costs, row.meshes.columns["vp"], row.recomputes, row.shardings).max()
    return Estimate(
        model=job.model.name,
        gpus=f"{job.pool.gpus}x{job.pool.device.name}",
        strategy=str(row.strategy),
        as_usual=job.chosen(row.strategy),
        runtime=job.runtime.name,
        legal=not broken,
        violations=broken,
        fits=fits,
        step_s=total_s,
        step_s_range=step_range(total_s, kind, row.layout.layers),
        evidence=sentence(kind, shape_of(job.model)),
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / job.pool.gpus,
        model_tflops_per_gpu=flops_per_s / 1e12,
        mfu=mfu,
        hfu=mfu * (1 + recomputed_share(job, row)),
        breakdown=causes,
        bubble_fraction=causes[BUBBLE] / total_s,
        microbatches=int(answer.costs.microbatches[0]),
        stages=stages,
        peak_allocated_gib=max(stage.peak_allocated_gib for stage in stages),
        peak_reserved_gib=reserved,
        peak_gib_range=Range(low=reserved * (1 - MEMORY_ERROR), high=reserved * (1 + MEMORY_ERROR)),
        memory_usable_gib=job.usable_bytes / GIB,
        memory_limit_gib=job.limit_bytes / GIB,
        provenance={term: source.word for term, source in provenance.items()},
        provenance_worst=worst.word,
        warnings=[
            *[memory.AT_START] * bool(answer.highest.at_start.any()),
            *beyond_host(job.pool, float(on_host)),
            *cautions(job, row.strategy, mfu=mfu, reserved_gib=reserved, fits=fits, slower=slower),
        ],
    )


def step_range(step_s: float, kind: Kind, *chunks: Sequence[int], without: str = "") -> Range:
    """Where four in five measured steps of its kind lie, by published runs predicted without their source.

    ``chunks`` are the layers of each chunk of a pipeline; ``without`` is a source whose runs do not count.
    """
    unequal = any(len(set(layers)) > 1 for layers in chunks)
    times = math.exp(bar_of(kind, without)) * (1 + UNEQUAL * unequal)
    return Range(low=step_s / times, high=step_s * times)


def training_flops_per_token(job: Job) -> float:
    """Model FLOPs: three times the forward pass; of products with frozen weights (LoRA) twice."""
    model, work = job.model, job.workload
    more = work.mtp * weights_of.predictor_flops_per_token(model, work.span) if work.mtp else 0.0
    forward = weights_of.forward_flops_per_token(model, work.span) + more
    if work.task != "lora":
        return 3 * forward
    no_weights = weights_of.attention_flops_per_token, weights_of.other_flops_per_token
    return 2 * forward + sum(flops(model, work.span) for flops in no_weights)


def recomputed_share(job: Job, row: Row) -> float:
    """Recomputed FLOPs over model FLOPs."""
    strategy = row.strategy
    forward = weights_of.forward_flops_per_token(job.model, job.workload.span)
    if strategy.recompute == "selective":
        return weights_of.module_flops_per_token(job.model, strategy.modules, job.workload.span) / (3 * forward)
    if strategy.recompute == "full":
        most = strategy.recompute_layers if strategy.method == "block" else max(row.layout.layers)
        return sum(min(most, count) for count in row.layout.layers) / max(sum(row.layout.layers), 1) / 3
    return 0.0
