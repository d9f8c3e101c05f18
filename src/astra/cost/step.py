"""Step time of every mesh with every recompute and sharding. Arrays are [mesh, recompute, sharding, stage].

A *recompute* is a way to keep fewer activations (its method and layers); a *sharding* is a way to keep fewer states
(ZeRO stage, optimizer offload). Their effects add up, so each is costed once and combined by broadcasting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.columns import each, largest
from astra.cost import effects, memory
from astra.cost.between import Replicas, replicas
from astra.cost.bound import pipeline_bound_s
from astra.cost.memory import Sharding
from astra.cost.recompute import FULL, Recomputes
from astra.cost.stage import Meshes, StageCosts
from astra.cost.start import start_bytes
from astra.cost.state import Bytes, optimizer_s
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints, Timed
from astra.spec.job import Job

Amount = Floats | float


class Evaluated(NamedTuple):
    """[mesh, recompute, sharding] results."""

    bound_s: Floats  # no more than the simulated step; equal to it where there is one stage
    exchanged_s: Floats  # [mesh, sharding, sort] of the pipeline, between replicas in every micro-batch
    after_s: Floats  # [mesh, sharding] of the step, what follows the pipeline
    peak_bytes: Floats  # allocated, on the worst rank
    known: Bools  # the recompute exists for the mesh (its layers fit a chunk)


def states(job: Job, meshes: Meshes, costs: StageCosts, shardings: Sharding) -> tuple[Bytes, Timed, Replicas]:
    """Static memory, optimizer time and data-parallel communication, [mesh, sharding, sort]."""
    how = memory.holding(job, costs, shardings)
    held = each(costs.held, lambda column: column[:, None, :])

    def column(values: Ints) -> Ints:
        return values[:, None, None]

    layers = costs.layers[:, None, :]
    update = optimizer_s(job, held, how)
    copying_s = effects.gather_host_s(job.runtime, how.zero, how.ranks, layers)
    update = update._replace(seconds=update.seconds + copying_s)
    between = replicas(
        job,
        each(costs.sync, lambda moved: moved[:, None, :]),
        how=how,
        overlap_grad=column(meshes.columns["overlap_grad"]),
        overlap_param=column(meshes.columns["overlap_param"]),
        layers=layers,
        microbatches=column(costs.microbatches),
        forward_s=costs.forward_s[:, None, :],
        backward_s=costs.backward_s[:, None, :],
    )
    return memory.states(job, costs, shardings), update, between


def evaluate(
    job: Job,
    meshes: Meshes,
    costs: StageCosts,
    recomputes: Recomputes,
    shardings: Sharding,
    waits: Floats | None = None,
) -> Evaluated:
    """Every mesh with every recompute and sharding; ``waits`` [mesh] as for ``seconds``."""
    kept = memory.activations(costs, meshes.columns["vp"], recomputes)
    static, update, between = states(job, meshes, costs, shardings)
    pipeline_s = pipeline_bound_s(meshes, costs, recomputes, between.per_microbatch_s)
    last_s = largest(after_s(update, between))
    return Evaluated(
        bound_s=seconds(job, pipeline_s, last_s[:, None, :], None if waits is None else waits[:, None, None]),
        exchanged_s=between.per_microbatch_s,
        after_s=last_s,
        peak_bytes=np.maximum(
            largest(memory.peak(static, kept, costs.buffer_bytes)),
            largest(start_bytes(job, costs, shardings))[..., None, :],
        ),
        known=exists(job, meshes, recomputes)[:, :, None] & np.ones(len(shardings), bool),
    )


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


def exists(job: Job, meshes: Meshes, recomputes: Recomputes) -> Bools:
    """Whether a recompute's layers fit the mesh's chunks, and those offloaded its stages, [mesh, recompute]."""
    depth = len(layer_kinds(job.model))
    stage = -(-depth // meshes.columns["pp"])
    chunk = -(-depth // (meshes.columns["pp"] * meshes.columns["vp"]))
    fits = (recomputes.recompute != FULL)[None, :] | (recomputes.layers[None, :] <= chunk[:, None])
    return np.asarray(fits & (recomputes.offload_layers[None, :] <= stage[:, None]))
