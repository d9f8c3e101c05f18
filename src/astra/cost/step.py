"""Step time and peak memory of every combination of mesh and memory savers. Arrays are [mesh, saver, holder, sort].

A *saver* is a way to keep fewer activations (recompute, its method and layers); a *holder* a way to keep fewer states
(ZeRO stage, optimizer offload). Their effects add up, so each is costed once and combined by broadcasting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.cost import effects
from astra.cost.between import Replicas, replicas
from astra.cost.bound import pipeline_bound_s
from astra.cost.constants import RESERVED_BYTES
from astra.cost.savers import BLOCK, FULL, SELECTIVE, Savers
from astra.cost.stage import Meshes, StageCosts
from astra.cost.state import Bytes, optimizer_s, static_bytes
from astra.families.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints, Timed
from astra.spec.job import Job
from astra.table import each, largest


class Holders(NamedTuple):
    """Ways to keep fewer states, as columns."""

    zero: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.zero)


class Activations(NamedTuple):
    """Activation memory, [mesh, saver, sort]."""

    kept_bytes: Floats  # alive at the worst moment
    working_bytes: Floats  # of the layer, recomputed stretch or loss in progress


class Evaluated(NamedTuple):
    """[mesh, saver, holder] results."""

    bound_s: Floats  # no more than the simulated step; equal to it where there is one stage
    exchanged_s: Floats  # [mesh, holder, sort] of the pipeline, between replicas in every micro-batch
    after_s: Floats  # [mesh, holder] of the step, what follows the pipeline
    peak_bytes: Floats  # allocated, on the worst rank
    known: Bools  # the saver exists for the mesh (its layers fit a chunk)


def activations(costs: StageCosts, vp: Ints, savers: Savers) -> Activations:
    """Memory of each saver.

    Uniform recompute keeps one input for every n layers and recomputes n layers at a time; block recompute treats the
    first n layers of each chunk that way, one at a time, and keeps the rest whole.
    """
    full = (savers.recompute == FULL)[None, :, None]
    block = full & (savers.method == BLOCK)[None, :, None]
    n = savers.layers[None, :, None]
    chunk, layers, chunks = costs.chunk_layers[:, None, :], costs.layers[:, None, :], vp[:, None, None]
    whole, checkpoint = costs.kept_whole[:, None, :], costs.kept_checkpoint[:, None, :]
    fraction = np.where(block, np.minimum(n * chunks / np.maximum(layers, 1), 1.0), 1.0)
    inputs = np.ceil(chunk / n) * chunks / np.maximum(layers, 1)
    kept_full = np.where(block, fraction * checkpoint + (1 - fraction) * whole, np.minimum(inputs, 1.0) * checkpoint)
    selective = (savers.recompute == SELECTIVE)[None, :, None]
    kept = np.where(full, kept_full, np.where(selective, costs.kept_selective[:, None, :], whole))
    # By the time backward comes to the first layers, those of the chunk that were kept whole have been given back.
    at_once = np.where(block, np.floor(layers / chunks) <= n, np.minimum(n, chunk))
    stretch = np.where(full, at_once, 0) * costs.layer_whole[:, None, :]
    working = np.maximum(costs.layer_working[:, None, :] + stretch, costs.head_bytes[:, None, :])
    return Activations(kept * (costs.in_flight / vp[:, None])[:, None, :], working)


def states(job: Job, meshes: Meshes, costs: StageCosts, holders: Holders) -> tuple[Bytes, Timed, Replicas]:
    """Static memory, optimizer time and data-parallel communication, [mesh, holder, sort]."""
    zero, offload = holders.zero[None, :, None], holders.offload[None, :, None]
    held = each(costs.held, lambda column: column[:, None, :])

    def column(values: Ints) -> Ints:
        return values[:, None, None]

    ranks, expert_ranks = column(costs.replicas), column(costs.expert_replicas)
    layers = costs.layers[:, None, :]
    static = static_bytes(job, held, zero=zero, offload=offload, ranks=ranks, expert_ranks=expert_ranks, layers=layers)
    update = optimizer_s(job, held, zero=zero, offload=offload, ranks=ranks, expert_ranks=expert_ranks)
    copying_s = effects.gather_host_s(job.runtime, zero, ranks, layers)
    update = update._replace(seconds=update.seconds + copying_s)
    between = replicas(
        job,
        each(costs.sync, lambda moved: moved[:, None, :]),
        zero=zero,
        overlap_grad=column(meshes.columns["overlap_grad"]),
        overlap_param=column(meshes.columns["overlap_param"]),
        layers=layers,
        microbatches=column(costs.microbatches),
        forward_s=costs.forward_s[:, None, :],
        backward_s=costs.backward_s[:, None, :],
    )
    return static, update, between


def evaluate(job: Job, meshes: Meshes, costs: StageCosts, savers: Savers, holders: Holders) -> Evaluated:
    """Every mesh with every saver and holder."""
    vp = meshes.columns["vp"]
    kept = activations(costs, vp, savers)
    static, update, between = states(job, meshes, costs, holders)
    pipeline_s = pipeline_bound_s(meshes, costs, savers, between.per_microbatch_s)
    after_s = largest(between.exposed_s + update.seconds)
    resident = sum(static[1:], start=static[0])[:, None, :, :]
    peak = resident + (kept.kept_bytes + kept.working_bytes + costs.buffer_bytes[:, None, :])[:, :, None, :]
    return Evaluated(
        bound_s=whole_step_s(job, pipeline_s, after_s[:, None, :]),
        exchanged_s=between.per_microbatch_s,
        after_s=after_s,
        peak_bytes=largest(peak),
        known=exists(job, meshes, savers)[:, :, None] & np.ones(len(holders), bool),
    )


def whole_step_s(job: Job, pipeline_s: Floats, after_s: Floats) -> Floats:
    """The pipeline, what follows it, the host's work of a step, and the wait for the slowest node."""
    return (pipeline_s + after_s + job.runtime.host.step_s) * (1 + job.straggling)


def least_bytes(job: Job, costs: StageCosts, vp: Ints, holders: Holders) -> Floats:
    """No saver brings the allocated memory below this, [mesh, holder]: one input kept for each chunk."""
    static = static_bytes(
        job,
        each(costs.held, lambda column: column[:, None, :]),
        zero=holders.zero[None, :, None],
        offload=holders.offload[None, :, None],
        ranks=costs.replicas[:, None, None],
        expert_ranks=costs.expert_replicas[:, None, None],
        layers=costs.layers[:, None, :],
    )
    inputs = costs.kept_checkpoint * costs.in_flight / np.maximum(costs.layers, vp[:, None])
    working = np.maximum(costs.layer_working, costs.head_bytes) + costs.buffer_bytes
    return largest(sum(static[1:], start=static[0]) + (inputs + working)[:, None, :])


def exists(job: Job, meshes: Meshes, savers: Savers) -> Bools:
    """Whether a saver's number of layers fits the mesh's chunks, [mesh, saver]."""
    depth = len(layer_kinds(job.model))
    chunk = -(-depth // (meshes.columns["pp"] * meshes.columns["vp"]))
    return np.asarray((savers.recompute != FULL)[None, :] | (savers.layers[None, :] <= chunk[:, None]))


def reserved_bytes(job: Job, allocated: Floats) -> Floats:
    """What the caching allocator holds when this much is allocated at the peak."""
    return allocated * job.runtime.memory.reserved_ratio + RESERVED_BYTES
