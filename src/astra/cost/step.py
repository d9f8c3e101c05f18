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
from astra.schedule.interleaved import group_size
from astra.schedule.registry import SPLITTING, in_flight_chunks, legal
from astra.schedule.screen import Ends, Ranks, Terms, interleaved_s, terms
from astra.spec.job import Job
from astra.table import code, each, largest, take

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
    return Activations(kept * (costs.in_flight / vp[:, None])[:, None, :], working)


def recompute_s(all_layers_s: Floats, attention_s: Floats, layers: Floats | Ints, savers: Savers) -> Floats:
    """Time to run layers' forward again, [mesh, saver, sort]; ``layers`` are those of one chunk."""
    return repeated_s(all_layers_s, attention_s, layers, Savers(*(column[None, :, None] for column in savers)))


def repeated_s(all_layers_s: Floats, attention_s: Floats, layers: Floats | Ints, savers: Savers) -> Floats:
    """The same where everything broadcasts."""
    full, selective = savers.recompute == _FULL, savers.recompute == _SELECTIVE
    block = full & (savers.method == _BLOCK)
    fraction = np.where(block, np.minimum(savers.layers / np.maximum(layers, 1), 1.0), 1.0)
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
    return (pipeline_s + after_s + job.runtime.step_host_s) * (1 + job.straggling)


def pipeline_bound_s(meshes: Meshes, costs: StageCosts, savers: Savers, exchanged_s: Floats) -> Floats:
    """A lower bound of the simulated pipeline, [mesh, saver, holder].

    ``exchanged_s`` is what replicas exchange in every micro-batch, [mesh, holder, sort]. Stages before a rank repeat at
    least the share of the deepest chunk, and exchange at least what the quickest rank does.
    """
    vp, m = meshes.columns["vp"], costs.microbatches[:, None]
    deepest = costs.chunk_layers.max(axis=1, initial=0)[:, None, None]
    again_s, again_before_s = (
        recompute_s(all_s[:, None, :], attention_s[:, None, :], layers, savers)
        for all_s, attention_s, layers in (
            (costs.recompute_s, costs.recompute_attention_s, costs.chunk_layers[:, None, :]),
            (costs.before.recompute_s, costs.before.attention_s, deepest),
        )
    )
    least_exchanged_s = exchanged_s.min(axis=2, keepdims=True) / vp[:, None, None]
    exchanged_before_s = costs.until[:, None, :] * least_exchanged_s
    through_s, back_s, returns = bound_terms(meshes, costs)
    more = (m[..., None] * again_s + returns[:, None, :] * again_before_s)[:, :, None, :]
    shared = (m[..., None] * exchanged_s + returns[:, None, :] * exchanged_before_s)[:, None, :, :]
    bound_s = largest(through_s[:, None, None, :] + more + shared)
    over_again_s = recompute_s(costs.over.recompute_s[:, None, None], costs.over.attention_s[:, None, None], deepest, savers)
    over_exchanged_s = meshes.columns["pp"][:, None, None] * exchanged_s.min(axis=2, keepdims=True)
    lone = np.flatnonzero((vp == 1) & (meshes.columns["pp"] > 1))
    if len(lone):
        more = (over_again_s[lone] + (m[lone, None] - 1) * again_s[lone])[:, :, None, :]
        shared = (over_exchanged_s[lone] + (m[lone, None] - 1) * exchanged_s[lone])[:, None, :, :]
        bound_s[lone] = np.maximum(bound_s[lone], largest(back_s[lone][:, None, None, :] + more + shared))
    chunked = np.flatnonzero(vp > 1)
    if len(chunked):
        at, rest = costs.on_last[chunked], (m - group_size(meshes.columns["pp"][:, None], m))[chunked]
        more = over_again_s[chunked, :, 0] + rest * again_s[chunked, :, at]
        shared = over_exchanged_s[chunked, :, 0] + rest * exchanged_s[chunked, :, at]
        ends_s = interleaved_bound_s(meshes.take(chunked), take(costs, chunked))
        bound_s[chunked] = np.maximum(bound_s[chunked], ends_s[:, None, None] + more[:, :, None] + shared[:, None, :])
    return bound_s


def interleaved_bound_s(meshes: Meshes, costs: StageCosts) -> Floats:
    """The bound of an interleaved pipeline by its last rank, without recompute and exchanges, [mesh]."""
    mesh, at = np.arange(len(meshes)), costs.on_last
    ends = Ends(
        p=meshes.columns["pp"],
        v=meshes.columns["vp"],
        m=costs.microbatches,
        over_s=costs.over.forward_s + costs.over.backward_s,
        forward_s=costs.forward_s[mesh, at],
        backward_s=costs.backward_s[mesh, at],
        final_forward_s=costs.final.forward_s,
        final_backward_s=costs.final.backward_s,
        send_s=costs.p2p_s,
    )
    return interleaved_s(ends)


def bound_terms(meshes: Meshes, costs: StageCosts) -> Terms:
    """The terms of the bound without recompute and exchanges, [mesh, sort]."""
    columns, before = meshes.columns, costs.before
    split = np.isin(columns["schedule"], SPLITTING)[:, None]
    p, v, m = columns["pp"][:, None], columns["vp"][:, None], costs.microbatches[:, None]
    returning_s = before.backward_s - np.where(split, before.weight_s, 0.0)
    ranks = Ranks(
        p=p,
        v=v,
        m=m,
        rank=costs.until,
        ahead=in_flight_chunks(columns["schedule"][:, None], p=p, v=v, m=m, rank=costs.until),
        forward_s=costs.forward_s,
        backward_s=costs.backward_s,
        weight_s=np.where(split, costs.weight_s, 0.0),
        before_forward_s=before.forward_s,
        before_backward_s=returning_s,
        send_s=costs.p2p_s[:, None],
        blocking=~columns["overlap_p2p"][:, None],
    )
    over_s = costs.over.forward_s + costs.over.backward_s - np.where(split[:, 0], costs.over.weight_s, 0.0)
    found = terms(ranks, over_s[:, None])
    undefined = ~legal(columns["schedule"], p=p[:, 0], v=v[:, 0], m=m[:, 0])
    return found._replace(through_s=np.where(undefined[:, None], np.inf, found.through_s))


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


def reserved_bytes(job: Job, allocated: Floats) -> Floats:
    """What the caching allocator holds when this much is allocated at the peak."""
    return allocated * job.runtime.reserved_ratio + job.runtime.reserved_bytes
