"""Costs of pipeline stages: parts gathered over the layers each kind of rank holds. Arrays are [mesh, stage].

A mesh is a strategy without its recompute and sharding (ZeRO stage, offload); those are applied by ``cost.step``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from astra.axes import AXES, Axis
from astra.columns import Columns, distinct, each, take
from astra.cost import effects
from astra.cost.between import Sync, p2p, sync, tied_s
from astra.cost.constants import WORKSPACE_BYTES
from astra.cost.gathered import (
    Gathered,
    Layouts,
    StageMemory,
    graph_bytes,
    least_s,
    over_all,
    over_layers,
    over_model,
    over_stages,
    temporary_bytes,
    whole_model,
)
from astra.cost.layers import EMBEDDING, HEAD, modules_in
from astra.cost.low import fuses_experts, qkv_bytes
from astra.cost.parts import Direction, Part, parts
from astra.cost.state import Held, Units, local, unit_parameters
from astra.layers import weights as weights_of
from astra.layers.kinds import LayerKind
from astra.layers.operators import Retention, Shard
from astra.layers.split import StageKinds, kinds
from astra.network.collectives import host_transfer_s
from astra.provenance import Bools, Codes, Floats, Ints
from astra.schedule.registry import in_flight_chunks
from astra.spec.job import Job

__all__ = [
    "SHARD_COLUMNS", "Gathered", "Meshes", "Passes", "StageCosts", "StageMemory", "StageTimes",
    "expert_groups", "gather_parts", "host_s_per_byte", "join_meshes", "least_s", "over_all", "over_model",
    "over_stages", "retention", "stage_costs", "stage_table",
]  # fmt: skip

SHARD_COLUMNS = ("tp", "cp", "ep", "etp", "mbs", "sp", "flash")


class Meshes(NamedTuple):
    """Meshes as columns, and for each the index of its layout."""

    columns: Columns
    layout: Ints
    layouts: Layouts

    def __len__(self) -> int:
        return len(self.layout)

    def take(self, rows: Ints | Bools) -> Meshes:
        """Some of the rows."""
        return Meshes({name: column[rows] for name, column in self.columns.items()}, self.layout[rows], self.layouts)


class Passes(NamedTuple):
    """What one micro-batch does on some of the virtual stages."""

    forward_s: Floats
    backward_s: Floats
    weight_s: Floats  # of backward_s
    recompute_s: Floats  # running all layers' forward again
    modules_s: Floats  # [..., module] and single modules of the layers


class StageCosts(NamedTuple):
    """What each kind of rank does for one micro-batch (all its chunks) and holds. [mesh, sort] unless said."""

    forward_s: Floats  # with exposed communication
    backward_s: Floats
    weight_s: Floats  # of backward_s
    recompute_s: Floats  # running all layers' forward again
    modules_s: Floats  # [mesh, sort, module] running single modules again
    until: Ints  # the last rank of the sort
    before: Passes  # the virtual stages that come before that rank
    final: Passes  # [mesh] the last virtual stage
    over: Passes  # [mesh] all of them
    on_last: Ints  # [mesh] which sort holds the last virtual stage
    sends: Ints  # of a micro-batch to other ranks, there and back
    p2p_s: Floats  # [mesh] one activation to the next stage
    kept_whole: Floats
    kept_modules: Floats  # [mesh, sort, module] of it: what selective recompute of each module does not keep
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
    in_flight: Ints  # (micro-batch, chunk) pairs alive
    microbatches: Ints  # [mesh]
    shards: Ints  # [mesh] ranks that ZeRO shards a dense parameter over
    expert_shards: Ints  # [mesh]
    pipelined: Bools  # [mesh]
    p2p_source: Codes  # [mesh]
    host_s_per_byte: Floats  # [mesh] of activations that go to host memory while others come back


def gather_parts(job: Job, columns: Columns) -> Gathered:
    """Cost each distinct sharding once."""
    first, place = distinct(*(columns[name] for name in SHARD_COLUMNS))
    tp, cp, ep, etp, mbs, sp, flash = (columns[name][first] for name in SHARD_COLUMNS)
    gathered_bytes = 1.0 if job.workload.low and job.runtime.gathers_fp8 else 2.0
    work = job.workload
    shard = Shard(
        work.seq, mbs, tp, cp, ep, etp, sp, flash, retention(job), gathered_bytes, job.words, work.imbalance,
        fuses_experts(job),
    )  # fmt: skip
    return Gathered(shard, parts(job, shard), place)


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
        fp8_qkv_bytes=qkv_bytes(job) if job.words.attention == "fp8" else 0.0,
        projection=runtime.memory.keeps_projection,
        activation=effects.keeps_activation(runtime),
    )


def stage_costs(job: Job, meshes: Meshes, gathered: Gathered, *, every_rank: bool = False) -> StageCosts:
    """Gather parts into stages for every mesh."""
    columns = meshes.columns
    table = stage_table(job, meshes, every_rank=every_rank)
    times = StageTimes(job, gathered, table, columns)
    memory = StageMemory(job, gathered, table)
    tp, cp, dp, pp = (columns[name] for name in ("tp", "cp", "dp", "pp"))
    microbatches = job.workload.global_batch // (dp * columns["mbs"])
    p2p_s, p2p_source = p2p(job, gathered.shard.stream_tokens[gathered.place], tp * cp * dp, pp)
    held = _held(job, gathered, table)
    queued = times.queued_bytes(job, gathered.shard, microbatches)
    shards, expert_shards = _shard_groups(job, columns, expert_groups(columns)[0])
    layers, in_flight = table.counts.sum(axis=-1), _in_flight(table, columns, microbatches)
    temporary = temporary_bytes(columns, memory.largest("whole"))
    graphed = graph_bytes(job, memory.layers("checkpoint"), in_flight / columns["vp"][:, None])
    ends = 2.0 * job.workload.element_bytes * gathered.shard.stream_tokens[gathered.place] * job.model.hidden
    return StageCosts(
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
        kept_whole=memory.layers("whole") + queued,
        kept_modules=memory.modules(job),
        kept_checkpoint=memory.layers("checkpoint"),
        layer_whole=memory.largest("whole"),
        layer_working=memory.largest("working") + _fresh_bytes(job, held) + temporary,
        head_bytes=memory.head(),
        buffer_bytes=np.where(pp > 1, ends, 0.0)[:, None] * np.ones(table.rank.shape) + WORKSPACE_BYTES + graphed,
        held=held,
        units=unit_parameters(job, gathered.shard, gathered.place, table),
        sync=_sync(job, meshes, held, table),
        layers=layers,
        chunk_layers=table.chunk_layers,
        in_flight=in_flight,
        microbatches=microbatches,
        shards=shards,
        expert_shards=expert_shards,
        pipelined=pp > 1,
        p2p_source=np.broadcast_to(p2p_source, pp.shape),
        host_s_per_byte=np.full(pp.shape, host_s_per_byte(job)),
    )


def _sync(job: Job, meshes: Meshes, held: Held, table: StageKinds) -> Sync:
    """What replicas exchange, worked out once for meshes that hold the same on ranks as far apart."""
    degrees = {name: meshes.columns[name] for name in ("tp", "cp", "dp", "pp", "ep", "etp")}
    first, place = distinct(meshes.layout, *degrees.values())
    some = {name: column[first] for name, column in degrees.items()}
    expert_ranks, expert_stride = expert_groups(some)
    shards, expert_shards = _shard_groups(job, some, expert_ranks)
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
    one_end = (table.first ^ table.last)[first]
    apart = np.maximum(some["pp"] - 1, 1) * some["tp"] * some["cp"] * some["dp"]
    return take(moved._replace(tied_s=tied_s(job, one_end, some["tp"][:, None], apart[:, None])), place)


def host_s_per_byte(job: Job) -> float:
    """Seconds for a byte to host memory while as much comes back."""
    return float(host_transfer_s(job.pool.device, np.ones(1), both_ways=True).seconds[0])


def _in_flight(table: StageKinds, columns: Columns, microbatches: Ints) -> Ints:
    """(Micro-batch, chunk) pairs alive on the fullest rank of a sort: its first or its last."""
    shape = {"p": columns["pp"][:, None], "v": columns["vp"][:, None], "m": microbatches[:, None]}
    first, last = (
        in_flight_chunks(columns["schedule"][:, None], **shape, rank=rank) for rank in (table.rank, table.until)
    )
    return np.maximum(first, last)


def expert_groups(columns: Columns) -> tuple[Ints, Ints]:
    """How many ranks an expert's parameters are replicated on, and how far apart; [mesh].

    Without expert parallelism Megatron treats experts as dense parameters: one group with those.
    """
    tp, cp, dp = columns["tp"], columns["cp"], columns["dp"]
    apart = columns["ep"] * columns["etp"]
    alone = columns["ep"] == 1
    return np.where(alone, dp * cp, tp * cp * dp // apart), np.where(alone, tp, apart)


def _shard_groups(job: Job, columns: Columns, expert_replicas: Ints) -> tuple[Ints, Ints]:
    """Ranks that ZeRO shards dense and expert parameters over, [mesh]: all replicas, or those of a group of them."""
    replicas = columns["dp"] * columns["cp"]
    within = np.minimum(job.words.shard, columns["dp"]) if job.words.shard else columns["dp"]
    shards = within * columns["cp"]
    return shards, np.maximum(expert_replicas * shards // replicas, 1)


def stage_table(job: Job, meshes: Meshes, *, every_rank: bool = False) -> StageKinds:
    """The kinds of rank of every mesh."""
    return take(meshes.layouts.stages(job.model, every_rank=every_rank), meshes.layout)


class StageTimes:
    """Stage times of one micro-batch from part times, [mesh, sort]."""

    def __init__(self, job: Job, gathered: Gathered, table: StageKinds, columns: Columns) -> None:
        self._index, self._table, self._columns = gathered.place, table, columns
        self._collective_s = _collective_s(job, columns)
        order = kinds(job.model)
        by_kind = self._by_kind = [gathered.parts[kind] for kind in order]
        first, last = gathered.parts[EMBEDDING], gathered.parts[HEAD]
        forward = [self._seconds(part.forward) for part in (*by_kind, first, last)]
        backward = [self._seconds(part.backward) for part in (*by_kind, first, last)]
        weight = [part.weight_s[self._index] for part in (*by_kind, first, last)]
        nothing = np.zeros(len(self._index))
        again = [*forward[:-2], nothing, nothing]
        self._by_part = (forward, backward, weight, again)
        self._by_module = np.stack(
            [np.stack([self._again(part, name) for part in by_kind], axis=-1) for name in modules_in(job)], axis=-1
        )
        self.forward, self.backward, self.weight, self.recompute, self.modules = self._passes(table)

    def _passes(self, table: StageKinds) -> Passes:
        forward, backward, weight, again = (over_stages(table, columns) for columns in self._by_part)
        return Passes(forward, backward, weight, again, over_layers(table, self._by_module))

    def before(self) -> Passes:
        """The virtual stages before each kind's last rank."""
        table = self._table
        reached = table._replace(counts=table.before, first=table.until > 0, last=np.zeros_like(table.last))
        return self._passes(reached)

    def final(self) -> Passes:
        """The last virtual stage, [mesh]."""
        one = each(self._table, lambda column: column[:, :1])
        one = one._replace(counts=one.final, first=one.until < 0, last=one.until >= 0)
        return each(self._passes(one), lambda column: column[:, 0])

    def over(self, job: Job) -> Passes:
        """All of the virtual stages, [mesh]."""
        return each(self._passes(whole_model(job)), lambda column: column[:, 0])

    def _seconds(self, direction: Direction) -> Floats:
        """Compute and exposed communication of a part, [mesh]."""
        seconds = direction.compute_s[self._index]
        for axis in AXES:
            seconds = seconds + self._shown_s(direction, axis)
        return np.maximum(seconds, self._host_s(direction))

    def _shown_s(self, direction: Direction, axis: Axis) -> Floats:
        """What shows of an axis' communication, [mesh]."""
        exposed = direction.exposed_s[axis.name][self._index]
        if axis.overlap not in self._columns:
            return exposed
        overlapped = direction.overlapped_s[axis.name][self._index]
        return np.where(self._columns[axis.overlap], overlapped, exposed)

    def _again(self, part: Part, name: str) -> Floats:
        """Running a module of a part again, [mesh]."""
        module = part.modules.get(name)
        if module is None:
            return np.zeros(len(self._index))
        seconds = module.compute_s[self._index]
        for axis in AXES:
            if axis.name in module.sends:
                seconds = seconds + module.sends[axis.name] * self._shown_s(part.forward, axis)
        return seconds

    def queued_bytes(self, job: Job, shard: Shard, microbatches: Ints) -> Floats:
        """Activations a rank's collectives keep reserved per micro-batch, as far as the GPU lags behind the host.

        The activations of later micro-batches are cut from what earlier ones leave behind; one alone leaves it whole.
        """
        each = effects.queued_activations(job.runtime, shard.tp, shard.tokens, job.model.hidden)
        if not each.any():
            return np.zeros(self.forward.shape)
        several = microbatches > 1
        columns = [np.where(several, each[self._index] * self._lag(part), 0.0) for part in self._by_kind]
        return over_stages(self._table, [*columns, np.zeros(len(self._index)), np.zeros(len(self._index))])

    def _lag(self, part: Part) -> Floats:
        """Near 1 where a layer keeps the GPU busy for longer than the host needs to issue it, near 0 where shorter."""
        ways = (part.forward, part.backward)
        gpu_s = sum((way.gemm_s + way.attention_s + way.stream_s + way.busy_s["tp"])[self._index] for way in ways)
        host_s = sum((self._host_s(way) for way in ways), start=np.zeros(len(self._index)))
        return gpu_s**4 / (gpu_s**4 + host_s**4)

    def _host_s(self, direction: Direction) -> Floats:
        return direction.host_s[self._index] + self._collective_s * direction.members[self._index]


def _collective_s(job: Job, columns: Columns) -> Floats | float:
    """Host time that a pipeline across nodes adds to each tensor-parallel collective, per member; [mesh].

    Shardings of one pool among several have no pipeline yet, and no runtime that adds it joins several pools.
    """
    if "pp" not in columns:
        return 0.0
    ranks = columns["tp"] * columns["cp"] * columns["dp"] * columns["pp"]
    across = (columns["pp"] > 1) & (ranks > job.pool.gpus_per_node)
    return effects.pipelined_collective_s(job.runtime, across)


def _held(job: Job, gathered: Gathered, table: StageKinds) -> Held:
    """Parameters of each kind of rank; a tied head is a second copy when the pipeline separates it."""
    shard, model = gathered.shard, job.model
    by_part = [weights_of.layer_weights(model, kind) for kind in kinds(model)]
    predictors = weights_of.predictor_weights(model).times(job.workload.mtp)
    by_part += [weights_of.embedding_weights(model), weights_of.head_weights(model).plus(predictors)]
    pairs = [local(weights, shard.tp, shard.ep, shard.etp) for weights in by_part]
    dense = over_stages(table, [np.broadcast_to(d, len(shard.tp))[gathered.place] for d, _ in pairs])
    expert = over_stages(table, [np.broadcast_to(e, len(shard.tp))[gathered.place] for _, e in pairs])
    if model.tied_embeddings or job.workload.mtp:  # such layers look tokens up once more
        table_again = weights_of.Weights(sharded=model.vocab * model.hidden)
        copy, _ = local(table_again, shard.tp, shard.ep, shard.etp)
        dense = dense + (table.last & ~table.first) * copy[gathered.place][:, None]
    if job.workload.task != "lora":
        return Held(dense, expert, dense, expert, np.zeros_like(dense))
    nothing = np.zeros(len(gathered.place))
    layers = [np.broadcast_to(d + e, len(shard.tp))[gathered.place] for d, e in pairs[:-2]]
    frozen = over_stages(table, [*layers, nothing, nothing])
    keys: list[LayerKind | str] = [*kinds(model), EMBEDDING, HEAD]
    trained = over_stages(table, [gathered.parts[key].adapters[gathered.place] for key in keys])
    return Held(dense + trained, expert, trained, np.zeros_like(expert), frozen)


def _fresh_bytes(job: Job, held: Held) -> Floats:
    """Gradients of one micro-batch before they are added to the buffer: none of them is there yet at the loss."""
    return effects.fresh_gradient_bytes(job.runtime, held.trained_dense + held.trained_expert)


def join_meshes(several: Sequence[Meshes]) -> Meshes:
    """Meshes of several tables with the same layouts."""
    columns = {name: np.concatenate([meshes.columns[name] for meshes in several]) for name in several[0].columns}
    return Meshes(columns, np.concatenate([meshes.layout for meshes in several]), several[0].layouts)
