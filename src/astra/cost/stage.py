"""Costs of pipeline stages: parts gathered over the layers each kind of rank holds. Arrays are [mesh, stage].

A mesh is a strategy without its recompute and sharding (ZeRO stage, offload); those are applied by ``cost.step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from astra.columns import Columns, distinct, each, take
from astra.cost import effects
from astra.cost.between import Sync, p2p, sync, tied_s, with_other_groups
from astra.cost.gathered import (
    Gathered,
    Layouts,
    Passes,
    StageMemory,
    StageTimes,
    graph_bytes,
    least_s,
    over_all,
    over_model,
    over_stages,
    temporary_bytes,
)
from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.low import fuses_experts, qkv_bytes, scaling
from astra.cost.parts import parts
from astra.cost.state import WORKSPACE_BYTES, Held, Units, local, unit_parameters
from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Retention, Shard
from astra.layers.split import StageKinds, kinds
from astra.network.collectives import host_transfer_s
from astra.provenance import Bools, Codes, Floats, Ints
from astra.schedule.registry import in_flight_chunks, legal
from astra.schedule.simulator import enough_microbatches
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy_fields import SCHEDULES

__all__ = [
    "SHARD_COLUMNS", "Gathered", "Meshes", "Passes", "StageCosts", "StageMemory", "StageTimes", "StageWork",
    "expert_groups", "gather_parts", "host_s_per_byte", "join_meshes", "least_s", "over_all", "over_model",
    "over_stages", "retention", "shard_of", "stage_costs", "stage_table", "stage_work",
    "trained_parameters",
]  # fmt: skip

SHARD_COLUMNS = ("tp", "cp", "ep", "etp", "mbs", "sp", "flash")


class Meshes(NamedTuple):
    """Meshes as columns, and for each the index of its layout."""

    columns: Columns
    layout: Ints
    layouts: Layouts

    def __len__(self) -> int:
        return len(self.layout)

    @property
    def with_unequal(self) -> Columns:
        """The columns, and whether chunks have unequal layers."""
        return {**self.columns, "unequal": self.layouts.unequal[self.layout]}

    def take(self, rows: Ints | Bools) -> Meshes:
        """Some of the rows."""
        return Meshes({name: column[rows] for name, column in self.columns.items()}, self.layout[rows], self.layouts)


class StageWork(NamedTuple):
    """What each kind of rank does for one micro-batch, with all its chunks. [mesh, rank] unless said."""

    forward_s: Floats  # with exposed communication
    backward_s: Floats
    weight_s: Floats  # of backward_s
    recompute_s: Floats  # running all layers' forward again
    modules_s: Floats  # [mesh, rank, module] running single modules again
    until: Ints  # the last rank of that kind
    before: Passes  # the virtual stages that come before that rank
    final: Passes  # [mesh] the last virtual stage
    over: Passes  # [mesh] all of them
    on_last: Ints  # [mesh] which kind holds the last virtual stage
    sends: Ints  # of a micro-batch to other ranks, there and back
    p2p_s: Floats  # [mesh] one activation to the next stage
    p2p_source: Codes  # [mesh]
    ahead: Ints  # (micro-batch, chunk) pairs alive on the last rank of that kind: forwards up to its first backward
    microbatches: Ints  # [mesh]


class StageCosts(NamedTuple):
    """The same, and what each kind of rank holds. [mesh, rank] unless said."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    recompute_s: Floats
    modules_s: Floats
    until: Ints
    before: Passes
    final: Passes
    over: Passes
    on_last: Ints
    sends: Ints
    p2p_s: Floats
    p2p_source: Codes
    ahead: Ints
    microbatches: Ints
    in_flight: Ints  # (micro-batch, chunk) pairs alive on the fullest rank of that kind
    alive: Floats  # micro-batches through all of a rank's layers that weigh as much as its pairs in flight
    kept_whole: Floats
    kept_modules: Floats  # [mesh, rank, module] of it: what selective recompute of each module does not keep
    kept_checkpoint: Floats
    layer_whole: Floats  # the largest layer's
    layer_working: Floats  # with the gradients that live through a backward only
    head_bytes: Floats  # at the loss, zero but where the last virtual stage is
    buffer_bytes: Floats  # received activations and gradients
    held: Held
    units: Units
    sync: Sync
    layers: Floats
    chunk_layers: Ints
    shards: Ints  # [mesh] ranks that ZeRO shards a dense parameter over
    expert_shards: Ints  # [mesh]
    pipelined: Bools  # [mesh]
    host_s_per_byte: Floats  # [mesh] of activations that go to host memory while others come back


def gather_parts(job: Job, columns: Columns) -> Gathered:
    """Cost each distinct sharding once."""
    first, place = distinct(*(columns[name] for name in SHARD_COLUMNS))
    shard = shard_of(job, {name: columns[name][first] for name in SHARD_COLUMNS})
    return Gathered(shard, parts(job, shard), place, {})


def shard_of(job: Job, columns: Columns) -> Shard:
    """Shardings as the job splits them."""
    tp, cp, ep, etp, mbs, sp, flash = (columns[name] for name in SHARD_COLUMNS)
    gathered_bytes = scaling(job).gathered_bytes if job.workload.low and job.runtime.gathers_fp8 else 2.0
    work = job.workload
    return Shard(
        work.seq, mbs, tp, cp, ep, etp, sp, flash, retention(job), gathered_bytes, job.words, work.imbalance,
        work.packed, fuses_experts(job),
    )  # fmt: skip


def parts_of(job: Job, columns: Columns, timed: Sequence[Gathered] = ()) -> Gathered:
    """The parts of one strategy, looked up among tables of the same job where they were timed before."""
    for table in timed:
        same = [getattr(table.shard, name) == columns[name][0] for name in SHARD_COLUMNS]
        found = np.flatnonzero(np.logical_and.reduce(same))
        if len(found):
            return table._replace(place=found)
    return gather_parts(job, columns)


def retention(job: Job) -> Retention:
    """What the job's runtime keeps: GEMM inputs for weight gradients, of frozen matrices for their adapters alone."""
    runtime, linear_bytes = job.runtime, 1.0 if job.workload.low else 2.0
    mlp_bytes = linear_bytes
    if job.workload.task == "lora":  # adapters compute in bf16
        linear_bytes, mlp_bytes = 2.0, 2.0 if job.workload.lora_targets == "all" else 0.0
    return Retention(
        linear_bytes=linear_bytes,
        mlp_bytes=mlp_bytes,
        scores_bytes=job.runtime.memory.scores_kept_bytes,
        fp8_qkv_bytes=qkv_bytes(job) if job.words.attention == "fp8" else 0.0,
        projection=runtime.memory.keeps_projection,
        activation=effects.keeps_activation(runtime),
        dispatched_bytes=effects.dispatched_bytes(runtime),
        norm_bytes=effects.norm_kept_bytes(runtime, job.model.norm),
        gathered=effects.keeps_gathered(runtime),
        spread_logits_bytes=effects.spread_logits_bytes(runtime),
    )


def stage_work(job: Job, meshes: Meshes, gathered: Gathered) -> StageWork:
    """What the stages of every mesh do, which is all that the bound of a mesh asks for: nothing is run again."""
    most = meshes.layouts.kinds_of_rank(job.model)[meshes.layout].max(initial=1)
    every = meshes.layouts.stages(job.model, every_rank=False)
    table = take(each(every, lambda column: column[:, :most]), meshes.layout)
    return _work(job, meshes, gathered, table, StageTimes(job, gathered, table, meshes.columns, again=False))


def _work(job: Job, meshes: Meshes, gathered: Gathered, table: StageKinds, times: StageTimes) -> StageWork:
    columns = meshes.columns
    tp, cp, dp, pp = (columns[name] for name in ("tp", "cp", "dp", "pp"))
    microbatches = job.workload.global_batch // (dp * columns["mbs"])
    p2p_s, p2p_source = p2p(job, gathered.shard.stream_tokens[gathered.place], tp * cp * dp, pp)
    return StageWork(
        forward_s=times.forward,
        backward_s=times.backward,
        weight_s=times.weight,
        recompute_s=times.recompute,
        modules_s=times.modules,
        until=table.until,
        before=times.before(),
        final=times.final(),
        over=times.over(job),
        on_last=np.argmax(table.last, axis=1),
        sends=table.sends,
        p2p_s=np.where(pp > 1, p2p_s, 0.0),
        p2p_source=np.broadcast_to(p2p_source, pp.shape),
        ahead=_in_flight(table.until, columns, microbatches),
        microbatches=microbatches,
    )


def stage_costs(job: Job, meshes: Meshes, gathered: Gathered, *, every_rank: bool = False) -> StageCosts:
    """Gather parts into stages for every mesh."""
    columns, pp = meshes.columns, meshes.columns["pp"]
    table = stage_table(job, meshes, every_rank=every_rank)
    times = StageTimes(job, gathered, table, columns)
    work = _work(job, meshes, gathered, table, times)
    memory, held = StageMemory(job, gathered, table), _held(job, gathered, table)
    shards, expert_shards = shard_groups(job, columns, expert_groups(columns)[0])
    whole, checkpoint, largest = memory.layers("whole"), memory.layers("checkpoint"), memory.largest("whole")
    in_flight = np.maximum(_in_flight(table.rank, columns, work.microbatches), work.ahead)
    alive = _alive(job, meshes, table, in_flight, work.microbatches, every_rank=every_rank)
    graphed = graph_bytes(job, checkpoint, alive)
    end_bytes = job.workload.element_bytes * gathered.shard.stream_tokens[gathered.place] * job.model.hidden
    ends = np.where(pp > 1, end_bytes, 0.0)[:, None] * (2.0 + effects.keeps_outputs(job.runtime, in_flight))
    return StageCosts(
        *work,
        in_flight=in_flight,
        alive=alive,
        kept_whole=whole + times.queued_bytes(job, gathered.shard, work.microbatches, alive),
        kept_modules=memory.modules(job),
        kept_checkpoint=checkpoint,
        layer_whole=largest,
        layer_working=memory.largest("working") + _fresh_bytes(job, held) + temporary_bytes(columns, largest),
        head_bytes=memory.head(),
        buffer_bytes=ends + WORKSPACE_BYTES + graphed,
        held=held,
        units=unit_parameters(job, gathered.shard, gathered.place, table, expert_shards),
        sync=_sync(job, meshes, held, table),
        layers=table.counts.sum(axis=-1),
        chunk_layers=table.chunk_layers,
        shards=shards,
        expert_shards=expert_shards,
        pipelined=pp > 1,
        host_s_per_byte=np.full(pp.shape, host_s_per_byte(job)),
    )


def _sync(job: Job, meshes: Meshes, held: Held, table: StageKinds) -> Sync:
    """What replicas exchange, worked out once for meshes that hold the same on ranks as far apart."""
    degrees = {name: meshes.columns[name] for name in ("tp", "cp", "dp", "pp", "ep", "etp")}
    first, place = distinct(meshes.layout, *(column for name, column in degrees.items() if name != "pp"))
    some = {name: column[first] for name, column in degrees.items()}
    expert_ranks, expert_stride = expert_groups(some)
    shards, expert_shards = shard_groups(job, some, expert_ranks)
    moved = sync(
        job,
        take(held, first),
        ranks=(some["dp"] * some["cp"])[:, None],
        stride=some["tp"][:, None],
        expert_ranks=expert_ranks[:, None],
        expert_stride=expert_stride[:, None],
        shards=shards[:, None],
        expert_shards=expert_shards[:, None],
    )
    if job.other_groups is not None:
        ranks = (some["dp"] * some["cp"])[:, None]
        moved = with_other_groups(job, moved, take(held, first), ranks, expert_ranks[:, None], job.other_groups)
    one_end = (table.first ^ table.last)[first]
    stage_ranks = some["tp"] * some["cp"] * some["dp"]
    apart = np.maximum(some["pp"] - 1, 1) * stage_ranks
    exchanged_s = tied_s(job, one_end, some["tp"][:, None], apart[:, None], stage_ranks[:, None])
    return take(moved._replace(tied_s=exchanged_s), place)


def host_s_per_byte(job: Job) -> float:
    """Seconds for a byte to host memory while as much comes back."""
    return float(host_transfer_s(job.pool.device, np.ones(1), both_ways=True).seconds[0])


def _in_flight(ranks: Ints, columns: Columns, microbatches: Ints) -> Ints:
    """(Micro-batch, chunk) pairs alive on some ranks."""
    shape = {"p": columns["pp"][:, None], "v": columns["vp"][:, None], "m": microbatches[:, None]}
    return in_flight_chunks(columns["schedule"][:, None], **shape, rank=ranks)


def _alive(
    job: Job, meshes: Meshes, table: StageKinds, in_flight: Ints, microbatches: Ints, *, every_rank: bool
) -> Floats:
    """What is in flight as micro-batches through all of a rank's layers: its chunks do not all hold as many."""
    columns, vp = meshes.columns, meshes.columns["vp"][:, None]
    alive = np.asarray(in_flight / vp, np.float64)
    uneven = (table.chunk_layers * vp != table.counts.sum(axis=-1)).any(axis=1)
    rows = np.flatnonzero(uneven & legal(columns["schedule"], p=columns["pp"], v=columns["vp"], m=microbatches))
    if not len(rows):
        return alive
    sizes = [column[rows] for column in (columns["schedule"], columns["pp"], microbatches)]
    first, place = distinct(*sizes)
    few = zip(*(column[first].tolist() for column in sizes), strict=True)
    count = np.array([enough_microbatches(SCHEDULES[code], pp, m) for code, pp, m in few])[place]
    sizes = [meshes.layout[rows], sizes[0], count]
    first, place = distinct(*sizes)
    few = zip(*(column[first].tolist() for column in sizes), strict=True)
    layouts = meshes.layouts
    found = [layouts.alive(job.model, at, SCHEDULES[code], m, every_rank=every_rank) for at, code, m in few]
    alive[rows] = np.stack(found)[place]
    return alive


def expert_groups(columns: Columns) -> tuple[Ints, Ints]:
    """How many ranks an expert's parameters are replicated on, and how far apart; [mesh].

    Without expert parallelism Megatron treats experts as dense parameters: one group with those.
    """
    tp, cp, dp = columns["tp"], columns["cp"], columns["dp"]
    apart = columns["ep"] * columns["etp"]
    alone = columns["ep"] == 1
    return np.where(alone, dp * cp, tp * cp * dp // apart), np.where(alone, tp, apart)


def shard_groups(job: Job, columns: Columns, expert_replicas: Ints) -> tuple[Ints, Ints]:
    """Ranks that ZeRO shards dense and expert parameters over, [mesh]: all replicas, or those of a group of them."""
    replicas = columns["dp"] * columns["cp"]
    within = np.minimum(job.words.shard, columns["dp"]) if job.words.shard else columns["dp"]
    shards = within * columns["cp"]
    return shards, np.maximum(expert_replicas * shards // replicas, 1)


def stage_table(job: Job, meshes: Meshes, *, every_rank: bool = False) -> StageKinds:
    """The kinds of rank of every mesh."""
    return take(meshes.layouts.stages(job.model, every_rank=every_rank), meshes.layout)


def _held(job: Job, gathered: Gathered, table: StageKinds) -> Held:
    """Parameters of each kind of rank; a tied head is a second copy when the pipeline separates it."""
    shard, model = gathered.shard, job.model
    by_part = [weights_of.layer_weights(model, kind) for kind in kinds(model)]
    predictors = weights_of.predictor_weights(model).times(job.workload.mtp)
    by_part += [weights_of.embedding_weights(model), weights_of.head_weights(model).plus(predictors)]
    degrees = tuple(column[gathered.place] for column in (shard.tp, shard.ep, shard.etp))
    pairs = [local(weights, *degrees) for weights in by_part]
    dense = over_stages(table, [own for own, _ in pairs])
    expert = over_stages(table, [own for _, own in pairs])
    if model.tied_embeddings or job.workload.mtp:  # such layers look tokens up once more
        table_again = weights_of.Weights(sharded=model.vocab * model.table_dim)
        copy, _ = local(table_again, *degrees)
        dense = dense + (table.last & ~table.first) * copy[:, None]
    nothing = np.zeros(len(gathered.place))
    layers = over_stages(table, [*(own + own_expert for own, own_expert in pairs[:-2]), nothing, nothing])
    if job.workload.task != "lora":
        return Held(dense, expert, dense, expert, layers)
    keys: list[LayerKind | str] = [*kinds(model), EMBEDDING, HEAD]
    trained = over_stages(table, [gathered.parts[key].adapters[gathered.place] for key in keys])
    return Held(dense + trained, expert, trained, np.zeros_like(expert), layers)


def _fresh_bytes(job: Job, held: Held) -> Floats:
    """Gradients of one micro-batch before they are added to the buffer: none of them is there yet at the loss."""
    return effects.fresh_gradient_bytes(job.runtime, held.trained_dense + held.trained_expert)


def join_meshes(several: Sequence[Meshes]) -> Meshes:
    """Meshes of several tables with the same layouts."""
    columns = {name: np.concatenate([meshes.columns[name] for meshes in several]) for name in several[0].columns}
    return Meshes(columns, np.concatenate([meshes.layout for meshes in several]), several[0].layouts)


def trained_parameters(job: Job) -> float:
    """How many parameters a job trains on whatever GPUs: all of them, or those of the adapters."""
    return _adapters(job) if job.workload.task == "lora" else _all(job.model)


@lru_cache(maxsize=64)
def _all(model: ModelSpec) -> float:
    return float(weights_of.count(model).total)


_ADAPTERS: dict[tuple[ModelSpec, int, str], float] = {}  # by model, rank and which matrices have them


def _adapters(job: Job) -> float:
    """Parameters of the low-rank adapters."""
    key = (job.model, job.workload.lora_rank, job.workload.lora_targets)
    if key not in _ADAPTERS:
        one = {name: np.ones(1, np.int64) for name in ("tp", "cp", "ep", "etp", "mbs")}
        parts = gather_parts(job, one | {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}).parts
        keys: list[LayerKind | str] = [*layer_kinds(job.model), EMBEDDING, HEAD]
        _ADAPTERS[key] = float(sum(parts[each].adapters[0] for each in keys))
    return _ADAPTERS[key]
