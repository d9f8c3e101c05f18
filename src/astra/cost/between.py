"""Communication between pipeline stages and between data-parallel replicas.

Rank order is tp-cp-ep-dp-pp, tp innermost: a data-parallel group of dense parameters has dp*cp members t apart, one of
expert parameters (dp*cp*t)/(etp*ep) members etp*ep apart, and neighbouring stages are t*c*dp ranks apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from astra.cost import effects
from astra.cost.state import Held, Holding, gradient_bytes
from astra.layers.operators import once
from astra.network import collectives
from astra.provenance import Bools, Codes, Floats, Ints, Source, Timed, worst
from astra.spec.job import Job, OtherGroups


class Replicas(NamedTuple):
    """Data-parallel communication of a rank and step."""

    busy_s: Floats
    exposed_s: Floats  # once per step
    per_microbatch_s: Floats  # exposed in every micro-batch (ZeRO-2 and -3 reduce and gather as they go)
    source: Codes


def p2p(job: Job, stream_tokens: Floats, ranks_apart: Ints, pp: Ints) -> tuple[Floats, Codes]:
    """One activation (or its gradient) to the neighbouring stage."""
    nbytes = job.workload.element_bytes * stream_tokens * job.model.hidden
    timed = collectives.collective(job.pool, "send_recv", nbytes=nbytes, ranks=pp, stride=ranks_apart)
    return timed.seconds, timed.source


class Sync(NamedTuple):
    """Seconds to exchange a rank's gradients or weights with its replicas, dense and expert ones in turn."""

    all_reduce_s: Floats  # without ZeRO: in buckets, where the runtime has them
    reduce_scatter_s: Floats  # with it
    all_gather_s: Floats
    source: Codes
    tied_s: Floats  # of a table whose copies stand on the first and on the last stage
    across_s: Floats  # what a rank owns, with its like in groups of other pipelines: once a step, whatever ZeRO does
    frozen_gather_s: Floats = np.zeros(1)  # of weights without gradients, which are gathered where weights are sharded


def tied_s(job: Job, ends: Bools, tp: Ints, ranks_apart: Ints, stage_ranks: Ints) -> Floats:
    """The two copies of a tied embedding table add their gradients after the last backward, once a step.

    ``ends`` are the ranks with one copy of two, in stages of ``stage_ranks``. Megatron, nanotron and DeepSpeed all do
    so, beside the replicas' reduction and with the whole table, whoever owns its states.
    """
    if not (job.model.tied_embeddings or job.workload.mtp) or job.workload.task == "lora":
        return np.zeros(ends.shape)
    each = effects.tied_as_made(job.runtime, job.workload.element_bytes, gradient_bytes(job))
    nbytes = each * job.model.vocab * job.model.table_dim / tp
    two = np.full_like(tp, 2)
    timed = collectives.collective(
        job.pool, "all_reduce", nbytes=nbytes, ranks=two, stride=ranks_apart, leaving=stage_ranks
    )
    return np.where(ends, timed.seconds, 0.0)


def sync(
    job: Job, held: Held, *, ranks: Ints, stride: Ints, expert_ranks: Ints, expert_stride: Ints,
    shards: Ints | None = None, expert_shards: Ints | None = None,
) -> Sync:  # fmt: skip
    """The collectives data parallelism is made of; ``shards`` are the ranks ZeRO shards over, all unless it is given.

    Outside their groups, what a rank owns of the gradients is summed with its like in the other groups (HSDP).
    """
    shape = np.broadcast_shapes(held.dense.shape, ranks.shape)
    grad_bytes, bucket_bytes = gradient_bytes(job), effects.bucket_bytes(job.runtime)
    operations = (
        ("all_reduce", grad_bytes, bucket_bytes),
        (effects.zero_reduces_whole(job.runtime), grad_bytes, 0.0),
        ("all_gather", _gathered_bytes(job), 0.0),
    )
    expert_shards = expert_ranks if expert_shards is None else expert_shards
    groups = (ranks, ranks if shards is None else shards, stride), (expert_ranks, expert_shards, expert_stride)
    experts = job.model.moe.experts if job.model.moe else 1
    padded = effects.pads_experts(job.runtime, experts, expert_shards)
    trained = held.trained_dense, padded * held.trained_expert
    moved, nothing = _moved(job, operations, trained, groups, shape), np.zeros(shape)
    frozen_s, source = nothing, worst(*(way.source for way in moved))
    if job.workload.task == "lora":
        frozen = _moved(
            job, operations, (held.dense - trained[0], padded * held.expert - trained[1]), groups, shape
        ).gather
        frozen_s, source = frozen.seconds, worst(source, frozen.source)
    reduced, scattered, gathered = (way.seconds for way in moved)
    return Sync(reduced, scattered, gathered, source, nothing, nothing, frozen_s)


def with_other_groups(
    job: Job, moved: Sync, held: Held, ranks: Ints, expert_ranks: Ints, others: OtherGroups | None
) -> Sync:
    """Gradients also summed with groups of other pipelines.

    A rank first sums its gradients inside its group, which leaves it 1/ranks of its shard; that part meets its like in
    the other groups in a ring over the slowest wire. Groups with fewer GPUs own larger parts, so unequal shards make
    the small group the slow one. Each group updates its own copy of the weights.
    """
    if others is None:
        return moved._replace(across_s=np.zeros_like(moved.across_s))
    owned = gradient_bytes(job) * (held.trained_dense / ranks + held.trained_expert / expert_ranks)
    times, moved_s = 2 * (others.groups - 1), np.maximum(owned / others.bytes_per_s, others.line_s)
    ring_s = times * others.latency_s + times / others.groups * moved_s
    source = worst(moved.source, np.full(moved.source.shape, Source.ASSUMED, np.int8))
    return moved._replace(across_s=ring_s, source=source)


def replicas(
    job: Job,
    moved: Sync,
    *,
    how: Holding,
    overlap_grad: Ints,
    overlap_param: Ints,
    layers: Floats,
    microbatches: Ints,
    forward_s: Floats,
    backward_s: Floats,
) -> Replicas:
    """Gradients to the owners and weights back, hidden behind backward and forward where overlap is on.

    ``forward_s`` and ``backward_s`` are of one micro-batch on the rank: the last backward hides the gradients of all
    layers but the first, the first forward hides the weights of all layers but the first.
    """
    zero, kept, once_reduced = how.zero, how.kept, how.whole_gradients
    reduce_s = np.where(zero >= 1, moved.reduce_scatter_s, moved.all_reduce_s)
    reduce_s = reduce_s + np.where(once_reduced, moved.across_s, 0.0)
    across_s = np.where(once_reduced, 0.0, moved.across_s)
    in_shards = (zero >= 3) | kept
    gather_s = np.where(zero >= 1, moved.all_gather_s, 0.0) + np.where(in_shards, moved.frozen_gather_s, 0.0)
    slowdown = collectives.overlap_slowdown(job.pool, "cluster")

    def exposed(busy: Floats, window: Floats, on: Ints) -> Floats:
        first = busy / np.maximum(layers, 1)
        room = np.maximum(window, 0.0)
        hidden = np.maximum(busy - room, first) + slowdown * np.minimum(busy, room)
        return np.where(on, np.minimum(hidden, busy), busy)

    gradient_exposed = exposed(reduce_s, backward_s, overlap_grad)
    weight_exposed = exposed(gather_s, forward_s, overlap_param)
    regather_exposed = exposed(gather_s, backward_s - reduce_s, overlap_param)
    again = (zero >= 3) & ~kept  # gathered for forward and for backward of every micro-batch
    held_on = kept & ~how.pipelined  # for both together, and freed behind them
    each = np.where(once_reduced, 0.0, gradient_exposed)
    each = each + np.where(again, weight_exposed + regather_exposed, np.where(held_on, weight_exposed, 0.0))
    once = np.where(once_reduced, gradient_exposed, 0.0) + np.where(again | held_on, 0.0, weight_exposed)
    reductions = np.where(once_reduced, 1, microbatches)
    gathers = np.where(again, 2 * microbatches, np.where(held_on, microbatches, 1))
    after_s = moved.tied_s + across_s
    busy = reduce_s * reductions + gather_s * gathers + after_s
    return Replicas(busy, once + after_s, each, moved.source)


def _gathered_bytes(job: Job) -> float:
    """Of a weight, as replicas gather it: fp8 weights are gathered as they are."""
    return 1.0 if job.workload.low and job.words.params == "fp8" else float(job.workload.element_bytes)


class _Moves(NamedTuple):
    reduce: Timed
    scatter: Timed
    gather: Timed


def _moved(
    job: Job, operations: Sequence[tuple[str, float, float]], parameters: Sequence[Floats],
    groups: Sequence[tuple[Ints, Ints, Ints]], shape: tuple[int, ...],
) -> _Moves:  # fmt: skip
    """Dense and expert parameters in turn, each with its replicas, those who shard them, and how far apart they are."""
    several = [(own, *group) for own, group in zip(parameters, groups, strict=True) if np.any(own)]
    if not several:
        nothing = Timed(np.zeros(shape), np.zeros(shape, np.int8))
        return _Moves(nothing, nothing, nothing)
    params, members, within, apart = (
        np.stack([np.broadcast_to(column, shape) for column in columns]) for columns in zip(*several, strict=True)
    )
    found = once(partial(_moves, job, operations), params, members, apart)
    if np.any(within < members):
        found = _in_groups(job, found, operations, params, members, within, apart)
    return _Moves(*(Timed(way.seconds.sum(axis=0), way.source.max(axis=0)) for way in found))


def _moves(
    job: Job, operations: Sequence[tuple[str, float, float]], params: Floats, ranks: Ints, stride: Ints
) -> _Moves:
    """Collectives, each with its bytes per parameter and of a bucket; without parameters a rank does not take part."""

    def timed(op: str, nbytes: Floats, bucket_bytes: float) -> Timed:
        pieces = np.maximum(nbytes / bucket_bytes, 1.0) if bucket_bytes else np.ones_like(nbytes)
        each = collectives.collective(job.pool, op, nbytes=nbytes / pieces, ranks=ranks, stride=stride)
        return Timed(pieces * each.seconds * (params > 0), each.source)

    return _Moves(*(timed(op, each * params, bucket_bytes) for op, each, bucket_bytes in operations))


def _in_groups(
    job: Job, whole: _Moves, operations: Sequence[tuple[str, float, float]], params: Floats, ranks: Ints, shards: Ints,
    stride: Ints,
) -> _Moves:  # fmt: skip
    """The same with ZeRO inside groups of ranks; without ZeRO all of them still reduce together."""
    inside = once(partial(_moves, job, operations), params, shards, stride)
    groups = np.maximum(ranks // shards, 1)
    owned = np.where(groups > 1, params / shards, 0.0)
    between = once(partial(_moves, job, operations), owned, groups, stride * shards).reduce
    seconds = inside.scatter.seconds + np.where(groups > 1, between.seconds, 0.0)
    scatter = Timed(seconds, worst(inside.scatter.source, between.source))
    return _Moves(whole.reduce, scatter, inside.gather)
