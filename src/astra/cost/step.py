"""Step time of every mesh with every recompute and sharding. Arrays are [mesh, recompute, sharding, stage].

A *recompute* is a way to keep fewer activations (its method and layers); a *sharding* is a way to keep fewer states
(ZeRO stage, optimizer offload). Their effects add up, so each is costed once and combined by broadcasting.

What must be recomputed at least for activations to have room, and the time that takes.

One number of layers holds for every rank, so the rank that is shortest of room decides for all of them. Three ways are
known: keep all, some modules again, or the first layers of each chunk. Where activations may wait in host memory,
nothing need be run again; a recompute of another kind needs its line here.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.columns import Column, each, largest
from astra.cost import effects, memory
from astra.cost.between import Replicas, replicas
from astra.cost.memory import Sharding, start_bytes
from astra.cost.pipeline import paths_of, pipeline_bound_s
from astra.cost.recompute import FULL, Recomputes, module_sets
from astra.cost.stage import Meshes, StageCosts
from astra.cost.state import Bytes, Holding, optimizer_s
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints, Timed
from astra.spec.job import Job

Amount = Floats | float
States = tuple[Bytes, Timed, Replicas]


class Evaluated(NamedTuple):
    """[mesh, recompute, sharding] results."""

    bound_s: Floats  # no more than the simulated step; equal to it where there is one stage
    exchanged_s: Floats  # [mesh, sharding, rank] of the pipeline, between replicas in every micro-batch
    after_s: Floats  # [mesh, sharding] of the step, what follows the pipeline
    peak_bytes: Floats  # allocated, on the worst rank
    known: Bools  # the recompute exists for the mesh (its layers fit a chunk)


def states(job: Job, meshes: Meshes, costs: StageCosts, shardings: Sharding) -> States:
    """Static memory, optimizer time and data-parallel communication, [mesh, sharding, rank]."""
    how = memory.holding(job, costs, shardings)
    static = memory.states(job, costs, shardings)._replace(start=start_bytes(job, costs, shardings))
    return static, updated(job, costs, how), exchanged(job, meshes, costs, how)


def updated(job: Job, costs: StageCosts, how: Holding) -> Timed:
    """The optimizer, [mesh, sharding, rank]."""
    update = optimizer_s(job, each(costs.held, lambda column: column[:, None, :]), how)
    copying_s = effects.gather_host_s(job.runtime, how.zero, how.ranks, costs.layers[:, None, :])
    return update._replace(seconds=update.seconds + copying_s / job.pool.node.host_speed)


def exchanged(job: Job, meshes: Meshes, costs: StageCosts, how: Holding) -> Replicas:
    """What replicas exchange, [mesh, sharding, rank]."""

    def column(values: Ints) -> Ints:
        return values[:, None, None]

    return replicas(
        job,
        each(costs.sync, lambda moved: moved[:, None, :]),
        how=how,
        overlap_grad=column(meshes.columns["overlap_grad"]),
        overlap_param=column(meshes.columns["overlap_param"]),
        layers=costs.layers[:, None, :],
        microbatches=column(costs.microbatches),
        forward_s=costs.forward_s[:, None, :],
        backward_s=costs.backward_s[:, None, :],
    )


def states_at(held: States, rows: Ints) -> States:
    """The same of some meshes; a column of one row stands for all of them."""

    def some(column: Column) -> Column:
        return column if len(column) == 1 else column.take(rows, axis=0)

    static, update, between = held
    return each(static, some), each(update, some), each(between, some)


def evaluate(
    job: Job,
    meshes: Meshes,
    costs: StageCosts,
    recomputes: Recomputes,
    shardings: Sharding,
    waits: Floats | None = None,
    held: States | None = None,
) -> Evaluated:
    """Every mesh with every recompute and sharding; ``waits`` [mesh] as for ``seconds``, ``held`` if it is known."""
    held = held or states(job, meshes, costs, shardings)
    peak_bytes, known = peaks(job, meshes, costs, recomputes, held[0])
    bound_s, exchanged_s, last_s = bounds_s(job, meshes, costs, recomputes, held, waits)
    return Evaluated(bound_s, exchanged_s, last_s, peak_bytes, known)


def peaks(job: Job, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, static: Bytes) -> tuple[Floats, Bools]:
    """[mesh, recompute, sharding]: bytes allocated on the worst rank, and whether there are layers to recompute."""
    kept = memory.activations(costs, meshes.columns["vp"], recomputes)
    peak_bytes = largest(memory.peak(static, kept, costs.buffer_bytes))
    peak_bytes = np.maximum(peak_bytes, largest(static.start)[..., None, :])
    return peak_bytes, np.broadcast_to(exists(job, meshes, recomputes)[:, :, None], peak_bytes.shape)


def bounds_s(
    job: Job, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, held: States, waits: Floats | None = None
) -> tuple[Floats, Floats, Floats]:
    """Lower bounds of the step, what replicas exchange, and what follows the pipeline, as in ``Evaluated``."""
    _, update, between = held
    pipeline_s = pipeline_bound_s(meshes, costs, recomputes, between.per_microbatch_s)
    last_s = largest(after_s(update, between))
    bound_s = seconds(job, pipeline_s, last_s[:, None, :], None if waits is None else waits[:, None, None])
    return bound_s, between.per_microbatch_s, last_s


def after_s(update: Timed, between: Replicas) -> Floats:
    """What follows the pipeline on each rank: what replicas still exchange, and the optimizer."""
    return between.exposed_s + update.seconds


def seconds(job: Job, pipeline_s: Amount, after_s: Amount, waits: Amount | None = None) -> Floats:
    """A step: the pipeline, what follows it on the last rank to end, the host's work, the wait for the slowest node.

    ``waits`` is the time with that wait over the time without, the job's own if it is not given.
    """
    alone_s = pipeline_s + after_s + job.runtime.host.step_s
    return np.asarray(alone_s * (1 + job.straggling if waits is None else waits))


def least_seconds(job: Job, pipeline_s: Amount, waits: Amount | None = None) -> Floats:
    """No step with such a pipeline is shorter: nothing follows it."""
    return seconds(job, pipeline_s, 0.0, waits)


def most_pipeline_s(job: Job, step_s: Floats, waits: Floats) -> Floats:
    """The longest pipeline of which ``least_seconds`` makes no more than a step."""
    return np.asarray(step_s / waits - job.runtime.host.step_s)


def exists(job: Job, meshes: Meshes, recomputes: Recomputes) -> Bools:
    """Whether a recompute's layers fit the mesh's chunks, and those offloaded its stages, [mesh, recompute]."""
    depth = len(layer_kinds(job.model))
    stage = -(-depth // meshes.columns["pp"])
    chunk = -(-depth // (meshes.columns["pp"] * meshes.columns["vp"]))
    fits = (recomputes.recompute != FULL)[None, :] | (recomputes.layers[None, :] <= chunk[:, None])
    return np.asarray(fits & (recomputes.offload_layers[None, :] <= stage[:, None]))


_LOOSE = 1 - 1e-9


def needed_bound_s(
    job: Job, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, held: States, waits: Floats | None = None
) -> Floats:
    """[mesh, sharding] a lower bound of the step with every recompute that fits; ``waits`` as for ``seconds``."""
    static, update, between = held
    again_s, over_s = _least_again_s(job, meshes, costs, recomputes, static)
    through, back, _ = paths_of(meshes, costs)
    added_s = again_s + between.per_microbatch_s
    pipeline_s = largest(through.seconds[:, None, :] + through.times[:, None, :] * added_s)
    turned_s = largest(back.seconds[:, None, :] + back.times[:, None, :] * added_s) + over_s
    pipeline_s = np.maximum(pipeline_s, np.where((meshes.columns["pp"] > 1)[:, None], turned_s, 0.0))
    last_s = largest(after_s(update, between))
    return _LOOSE * seconds(job, pipeline_s, last_s, None if waits is None else waits[:, None])


def _least_again_s(
    job: Job, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, static: Bytes
) -> tuple[Floats, Floats]:
    """The least that must run again of a micro-batch, on each kind of rank [mesh, sharding, stage] and on all."""
    if recomputes.offload_layers.any():
        return np.zeros_like(static.weights), np.zeros(static.weights.shape[:2])
    vp = meshes.columns["vp"][:, None]
    nothing = memory.Activations(np.zeros(1), costs.layer_working[:, None, :], costs.head_bytes[:, None, :])
    room = memory.room_bytes(job) * (1 + 1e-9) - memory.peak(static, nothing, costs.buffer_bytes)[:, 0]
    whole, least = ((kept * costs.alive)[:, None, :] for kept in (costs.kept_whole, costs.kept_checkpoint))
    share = np.clip((whole - room) / np.maximum(whole - least, 1.0), 0.0, 1.0)
    layers = np.ceil(largest(share * (costs.layers / vp)[:, None, :]) * _LOOSE)
    again_s = np.minimum(layers[:, :, None] / np.maximum(costs.chunk_layers, 1)[:, None, :], 1.0)
    again_s = again_s * costs.recompute_s[:, None, :]
    deepest = np.maximum(costs.chunk_layers.max(axis=1, initial=1), 1)[:, None]
    over_s = np.minimum(layers / deepest, 1.0) * costs.over.recompute_s[:, None]
    by_module = (costs.kept_modules, costs.modules_s, costs.over.modules_s)
    for (_, saved), (_, rank_s), (_, all_s) in zip(*(module_sets(recomputes, one) for one in by_module), strict=True):
        does = (whole - (saved * costs.alive)[:, None, :] <= room).all(axis=2)
        again_s = np.minimum(again_s, np.where(does[:, :, None], rank_s[:, None, :], np.inf))
        over_s = np.minimum(over_s, np.where(does, all_s[:, None], np.inf))
    return again_s, over_s
