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
from astra.cost.alike import once
from astra.cost.state import Held, gradient_bytes
from astra.network import collectives
from astra.provenance import Codes, Floats, Ints, Timed, worst
from astra.spec.job import Job


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


def sync(job: Job, held: Held, *, ranks: Ints, stride: Ints, expert_ranks: Ints, expert_stride: Ints) -> Sync:
    """The collectives data parallelism is made of."""
    grad_bytes, bucket_bytes = gradient_bytes(job), effects.bucket_bytes(job.runtime)
    operations = (
        ("all_reduce", grad_bytes, bucket_bytes),
        (effects.zero_reduces_whole(job.runtime), grad_bytes, 0.0),
        ("all_gather", job.workload.element_bytes, 0.0),
    )
    every = ((held.trained_dense, ranks, stride), (held.trained_expert, expert_ranks, expert_stride))
    kinds = [kind for kind in every if np.any(kind[0])] or every[:1]
    shape = np.broadcast_shapes(held.dense.shape, ranks.shape)
    columns = (np.stack([np.broadcast_to(column, shape) for column in some]) for some in zip(*kinds, strict=True))
    found = once(partial(_moves, job, operations), *columns)
    reduced_s, scattered_s, gathered_s = (way.seconds.sum(axis=0) for way in found)
    source = worst(*(way.source[kind] for way in found for kind in range(len(kinds))))
    return Sync(reduced_s, scattered_s, gathered_s, source)


def replicas(
    job: Job,
    moved: Sync,
    *,
    zero: Ints,
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
    reduce_s = np.where(zero >= 1, moved.reduce_scatter_s, moved.all_reduce_s)
    gather_s = np.where(zero >= 1, moved.all_gather_s, 0.0)
    slowdown = collectives.overlap_slowdown(job.pool, "cluster")

    def exposed(busy: Floats, window: Floats, on: Ints) -> Floats:
        first = busy / np.maximum(layers, 1)
        room = np.maximum(window, 0.0)
        hidden = np.maximum(busy - room, first) + slowdown * np.minimum(busy, room)
        return np.where(on, np.minimum(hidden, busy), busy)

    gradient_exposed = exposed(reduce_s, backward_s, overlap_grad)
    weight_exposed = exposed(gather_s, forward_s, overlap_param)
    regather_exposed = exposed(gather_s, backward_s - reduce_s, overlap_param)
    each = np.where(zero >= 2, gradient_exposed, 0.0)
    each = each + np.where(zero >= 3, weight_exposed + regather_exposed, 0.0)
    once = np.where(zero >= 2, 0.0, gradient_exposed) + np.where(zero >= 3, 0.0, weight_exposed)
    times = np.where(zero >= 2, microbatches, 1)
    busy = reduce_s * times + gather_s * np.where(zero >= 3, 2 * microbatches, 1)
    return Replicas(busy, once, each, moved.source)


class _Moves(NamedTuple):
    reduce: Timed
    scatter: Timed
    gather: Timed


def _moves(
    job: Job, operations: Sequence[tuple[str, float, float]], params: Floats, ranks: Ints, stride: Ints
) -> _Moves:
    """Collectives, each with its bytes per parameter and of a bucket; without parameters a rank does not take part."""

    def timed(op: str, nbytes: Floats, bucket_bytes: float) -> Timed:
        pieces = np.maximum(nbytes / bucket_bytes, 1.0) if bucket_bytes else np.ones_like(nbytes)
        each = collectives.collective(job.pool, op, nbytes=nbytes / pieces, ranks=ranks, stride=stride)
        return Timed(pieces * each.seconds * (params > 0), each.source)

    return _Moves(*(timed(op, each * params, bucket_bytes) for op, each, bucket_bytes in operations))
