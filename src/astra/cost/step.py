"""Step time and peak memory of every combination of mesh and memory savers. Arrays are [mesh, saver, holder, sort].

A *saver* is a way to keep fewer activations (recompute, its method and layers); a *holder* a way to keep fewer states
(ZeRO stage, optimizer offload). Their effects add up, so each is costed once and combined by broadcasting.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.cost.between import Replicas, replicas
from astra.cost.stage import Meshes, StageCosts
from astra.cost.state import Bytes, optimizer_s, static_bytes
from astra.families.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints, Timed
from astra.schedule.registry import makespan_s
from astra.spec.job import Job
from astra.table import Column, code, each, largest

_FULL, _SELECTIVE = code("recompute", "full"), code("recompute", "selective")
_BLOCK = code("method", "block")


class Savers(NamedTuple):
    """Ways to keep fewer activations, as columns."""

    recompute: Ints
    method: Ints
    layers: Ints

    def __len__(self) -> int:
        return len(self.recompute)

    def take(self, rows: slice | Bools) -> Savers:
        """Some of them."""
        return Savers(self.recompute[rows], self.method[rows], self.layers[rows])

    def up_to(self, layers: int) -> Savers:
        """Those that ask for at most so many layers; the first one always."""
        return self.take((self.layers <= layers) | (np.arange(len(self.layers)) == 0))


class Holders(NamedTuple):
    """Ways to keep fewer states, as columns."""

    zero: Ints
    offload: Ints

    def __len__(self) -> int:
        return len(self.zero)


class Activations(NamedTuple):
    """Activation memory and recompute time, [mesh, saver, sort]."""

    kept_bytes: Floats  # alive at the worst moment
    working_bytes: Floats  # of the layer, recomputed stretch or loss in progress
    recompute_s: Floats  # per micro-batch


class Evaluated(NamedTuple):
    """[mesh, saver, holder] results."""

    step_s: Floats
    peak_bytes: Floats  # allocated, on the worst rank
    known: Bools  # the saver exists for the mesh (its layers fit a chunk)


def activations(costs: StageCosts, vp: Ints, savers: Savers) -> Activations:
    """Memory and time of each saver.

    Uniform recompute keeps one input for every n layers and recomputes n layers at a time; block recompute treats the
    first n layers of each chunk that way, one at a time, and keeps the rest whole.
    """
    full = (savers.recompute == _FULL)[None, :, None]
    block = full & (savers.method == _BLOCK)[None, :, None]
    n = savers.layers[None, :, None]
    chunk, layers, chunks = costs.chunk_layers[:, None, :], costs.layers[:, None, :], vp[:, None, None]
    whole, checkpoint = costs.kept_whole[:, None, :], costs.kept_checkpoint[:, None, :]
    fraction = np.where(block, np.minimum(n * chunks / np.maximum(layers, 1), 1.0), 1.0)
    inputs = np.ceil(chunk / n) * chunks / np.maximum(layers, 1)
    kept_full = np.where(block, fraction * checkpoint + (1 - fraction) * whole, np.minimum(inputs, 1.0) * checkpoint)
    selective = (savers.recompute == _SELECTIVE)[None, :, None]
    kept = np.where(full, kept_full, np.where(selective, costs.kept_selective[:, None, :], whole))
    # By the time backward comes to the first layers, those of the chunk that were kept whole have been given back.
    at_once = np.where(block, np.floor(layers / chunks) <= n, np.minimum(n, chunk))
    stretch = np.where(full, at_once, 0) * costs.layer_whole[:, None, :]
    working = np.maximum(costs.layer_working[:, None, :] + stretch, costs.head_bytes[:, None, :])
    again = recompute_s(costs.recompute_s[:, None, :], costs.recompute_attention_s[:, None, :], layers / chunks, savers)
    return Activations(kept * (costs.in_flight / vp[:, None])[:, None, :], working, again)


def recompute_s(all_layers_s: Floats, attention_s: Floats, layers: Floats | Ints, savers: Savers) -> Floats:
    """Time to run layers' forward again, [mesh, saver, sort]; ``layers`` are those of one chunk."""
    full = (savers.recompute == _FULL)[None, :, None]
    block = full & (savers.method == _BLOCK)[None, :, None]
    n = savers.layers[None, :, None]
    fraction = np.where(block, np.minimum(n / np.maximum(layers, 1), 1.0), 1.0)
    selective = (savers.recompute == _SELECTIVE)[None, :, None]
    return np.where(full, fraction * all_layers_s, 0.0) + np.where(selective, attention_s, 0.0)


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
    copying_s = np.where((zero == 1) & (ranks > 1), job.runtime.gather_host_s * layers * ranks, 0.0)
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
    each_s = (costs.forward_s + costs.backward_s)[:, None, None, :] + kept.recompute_s[:, :, None, :]
    each_s = each_s + between.per_microbatch_s[:, None, :, :]
    total_again_s = recompute_s(
        costs.total_recompute_s[:, None, None],
        costs.total_attention_s[:, None, None],
        largest(costs.layers / vp[:, None])[:, None, None],
        savers,
    )
    # The first micro-batch exchanges on every rank it passes; ranks differ little, so the slowest stands for all.
    exchanged_s = meshes.columns["pp"][:, None, None] * largest(between.per_microbatch_s)[:, None, :]
    pipeline_s = makespan(meshes, costs, largest(each_s), total_again_s + exchanged_s)
    after_s = largest(between.exposed_s + update.seconds)
    resident = sum(static[1:], start=static[0])[:, None, :, :]
    peak = resident + (kept.kept_bytes + kept.working_bytes + costs.buffer_bytes[:, None, :])[:, :, None, :]
    return Evaluated(
        step_s=(pipeline_s + after_s[:, None, :] + job.runtime.step_host_s) * (1 + job.straggling),
        peak_bytes=largest(peak),
        known=exists(job, meshes, savers)[:, :, None] & np.ones(len(holders), bool),
    )


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
    return np.asarray((savers.recompute != _FULL)[None, :] | (savers.layers[None, :] <= chunk[:, None]))


def makespan(meshes: Meshes, costs: StageCosts, slowest_s: Floats, recompute_s: Floats) -> Floats:
    """Pipeline time from the slowest rank's micro-batch and all that is recomputed, [mesh, saver, holder]."""

    def column(values: Column) -> Column:
        return values[:, None, None]

    columns = meshes.columns
    return makespan_s(
        column(columns["schedule"]),
        p=column(columns["pp"]),
        v=column(columns["vp"]),
        m=column(costs.microbatches),
        forward_s=column(costs.total_forward_s),
        backward_s=column(costs.total_backward_s - costs.total_weight_s) + recompute_s,
        weight_s=column(costs.total_weight_s),
        slowest_s=slowest_s,
        send_s=column(costs.p2p_s),
        blocking=~column(columns["overlap_p2p"]),
    )


def reserved_bytes(job: Job, allocated: Floats) -> Floats:
    """What the caching allocator holds when this much is allocated at the peak."""
    return allocated * job.runtime.reserved_ratio + job.runtime.reserved_bytes
