"""Peak memory of a GPU: states, activations alive, what is being worked on, buffers. The only formula, and its bounds.

Arrays are [mesh, recompute, sharding, stage]; see ``cost.step`` for recomputes and shardings.

The start of a job is what a rank holds while weights that ZeRO shards are made, before the first step. Counted in
Megatron-FSDP's ``_init_distributed_params`` (megatron-core 0.19.2). The model is built without memory; then, unit by
unit, the unit's weights are made whole, module by module, beside a buffer of the whole unit, and cut into the rank's
shards and their fp32 copies. Units are the layers, and all the rest (embedding and output) is one. There are no
gradients and no moments yet. A model that cannot be built so is first held whole by every rank.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.columns import each, largest, unique
from astra.cost import effects
from astra.cost.recompute import BLOCK, FULL, Recomputes, module_sets, offloaded_share
from astra.cost.stage import StageCosts
from astra.cost.state import MASTER_BYTES, RESERVED_BYTES, Bytes, Holding, in_units, static_bytes, weight_bytes
from astra.provenance import Bools, Floats, Ints
from astra.spec.job import Job
from astra.spec.model import ModelSpec


class Sharding(NamedTuple):
    """Ways to keep fewer states, as columns."""

    zero: Ints
    offload: Ints
    moments: Ints
    reshard: Ints

    def __len__(self) -> int:
        return len(self.zero)


class Activations(NamedTuple):
    """Activation memory, [mesh, recompute, stage]."""

    kept_bytes: Floats  # alive at the worst moment
    layer_bytes: Floats  # of the layer or recomputed stretch in progress
    loss_bytes: Floats  # of the loss in progress


def activations(costs: StageCosts, vp: Ints, recomputes: Recomputes) -> Activations:
    """Memory of each recompute.

    Uniform recompute keeps one input for every n layers and recomputes n layers at a time; block recompute treats the
    first n layers of each chunk that way, one at a time, and keeps the rest whole.
    """
    full = (recomputes.recompute == FULL)[None, :, None]
    block = full & (recomputes.method == BLOCK)[None, :, None]
    n = recomputes.layers[None, :, None]
    chunk, layers, chunks = costs.chunk_layers[:, None, :], costs.layers[:, None, :], vp[:, None, None]
    whole, checkpoint = costs.kept_whole[:, None, :], costs.kept_checkpoint[:, None, :]
    fraction = np.where(block, np.minimum(n * chunks / np.maximum(layers, 1), 1.0), 1.0)
    inputs = np.ceil(chunk / n) * chunks / np.maximum(layers, 1)
    kept_full = np.where(block, fraction * checkpoint + (1 - fraction) * whole, np.minimum(inputs, 1.0) * checkpoint)
    kept = np.where(full, kept_full, whole)
    for chosen, saved in module_sets(recomputes.along(3, 1), costs.kept_modules[:, None]):
        kept = np.where(chosen, whole - saved, kept)
    if recomputes.offload_layers.any():
        kept = kept * (1 - offloaded_share(layers, recomputes.along(3, 1)))
    # By the time backward comes to the first layers, those of the chunk that were kept whole have been given back.
    at_once = np.where(block, np.floor(layers / chunks) <= n, np.minimum(n, chunk))
    stretch = np.where(full, at_once, 0) * costs.layer_whole[:, None, :]
    working = costs.layer_working[:, None, :] + stretch
    return Activations(kept * costs.alive[:, None, :], working, costs.head_bytes[:, None, :])


def least_activations(costs: StageCosts, vp: Ints, *, offload: bool = False) -> Activations:
    """What no recompute goes below: one input kept for each chunk, one layer or the loss at work.

    With ``offload`` all inputs may wait in host memory.
    """
    inputs = vp[:, None] / np.maximum(costs.layers, vp[:, None]) * costs.kept_checkpoint * costs.alive
    inputs = 0 * inputs if offload else inputs
    return Activations(inputs[:, None, :], costs.layer_working[:, None, :], costs.head_bytes[:, None, :])


def states(job: Job, costs: StageCosts, shardings: Sharding) -> Bytes:
    """Weights, gradients, optimizer and gathered layers, [mesh, sharding, rank]."""
    held, how = each(costs.held, lambda column: column[:, None, :]), holding(job, costs, shardings)
    static = static_bytes(job, held, how, costs.layers[:, None, :])
    if not effects.units(job.runtime):
        return static
    layer, head = (column[:, None, :] for column in costs.units)
    microbatches = costs.microbatches[:, None, None]
    return in_units(job, static, held, how, layer=layer, head=head, microbatches=microbatches)


def holding(job: Job, costs: StageCosts, shardings: Sharding) -> Holding:
    """Ways to hold states on every mesh, [mesh, sharding, rank]."""
    return Holding(
        zero=shardings.zero[None, :, None],
        offload=shardings.offload[None, :, None],
        ranks=costs.shards[:, None, None],
        expert_ranks=costs.expert_shards[:, None, None],
        moments=shardings.moments[None, :, None],
        reshard=shardings.reshard[None, :, None],
        pipelined=costs.pipelined[:, None, None],
        in_units=np.full(1, effects.units(job.runtime)),
    )


def peak(static: Bytes, kept: Activations, buffer_bytes: Floats) -> Floats:
    """Bytes allocated at the worst moment: ``static`` [mesh, sharding, rank], ``kept`` [mesh, recompute, stage]."""
    resident = (static.weights + static.gradients + static.optimizer)[:, None, :, :]
    passing = (kept.kept_bytes + buffer_bytes[:, None, :])[:, :, None, :]
    at_layer = kept.layer_bytes[:, :, None, :] + static.gathered[:, None, :, :]
    at_loss = kept.loss_bytes[:, :, None, :] + static.at_loss[:, None, :, :]
    return np.asarray(resident + passing + np.maximum(at_layer, at_loss))


def least_peak(static: Bytes, costs: StageCosts, vp: Ints, *, offload: bool = False) -> Floats:
    """No recompute brings the worst rank below this, [mesh, sharding]; ``offload``: activations may move off it."""
    kept = least_activations(costs, vp, offload=offload)
    return largest(peak(static, kept, costs.buffer_bytes)[:, 0])


def least_peak_of_any(job: Job, costs: StageCosts, vp: Ints, shardings: Sharding, *, offload: bool = False) -> Floats:
    """Neither does any sharding, [mesh]: states sharded and offloaded as far as may be, and no layer gathered.

    Frozen weights in fp8 are half of those in bf16 that ZeRO-3 shards, which may leave less.
    """
    frozen = job.workload.task == "lora" and job.words.params == "fp8"
    zero = unique(shardings.zero) if frozen else shardings.zero.max(keepdims=True)
    most = (
        np.full_like(zero, best) for best in (shardings.offload.max(), shardings.moments.max(), shardings.reshard.min())
    )
    static = states(job, costs, Sharding(zero, *most))
    static = static._replace(gathered=np.minimum(static.gathered, 0.0), at_loss=np.minimum(static.at_loss, 0.0))
    kept = least_activations(costs, vp, offload=offload)
    least = peak(static, kept, np.zeros_like(costs.buffer_bytes))
    return np.asarray(largest(least[:, 0]).min(axis=1))


def reserved_bytes(job: Job, allocated: Floats) -> Floats:
    """What the caching allocator holds when this much is allocated at the peak.

    Before it fails on a full GPU it gives back what it only keeps, such as the pools of other streams.
    """
    of = job.runtime.memory
    usual = allocated * of.reserved_ratio + RESERVED_BYTES
    if not of.full_ratio:
        return usual
    return np.maximum(np.minimum(usual, job.usable_bytes), allocated * of.full_ratio + RESERVED_BYTES)


def room_bytes(job: Job) -> float:
    """The most that may be allocated at the peak of a plan that fits."""
    of = job.runtime.memory
    ratio = of.full_ratio if of.full_ratio and job.limit_bytes >= job.usable_bytes else of.reserved_ratio
    return (job.limit_bytes - RESERVED_BYTES) / ratio


def fits(job: Job, allocated: Floats) -> Bools:
    """Whether a peak stays within the limit."""
    return np.asarray(reserved_bytes(job, allocated) <= job.limit_bytes)


AT_START: Final = (
    "memory is at its peak at the start, before the first step: the weights of a whole unit are made on every rank, "
    "then sharded"
)


class Highest(NamedTuple):
    """The most a rank holds, [rank], and whether that is at the start and not in a step."""

    nbytes: Floats
    at_start: Bools


def built_without_memory(model: ModelSpec) -> bool:
    """Whether every module can fill its own weights: a gate of shared experts has no ``reset_parameters``."""
    return model.moe is None or not model.moe.shared_gate


def start_bytes(job: Job, costs: StageCosts, shardings: Sharding) -> Floats:
    """Bytes allocated at the worst moment of the start, [mesh, sharding, rank]; 0 where no weights are sharded."""
    if not effects.starts_by_unit(job.runtime) or shardings.zero.max() < 2:
        return np.zeros((1, 1, 1))
    held, how = each(costs.held, lambda column: column[:, None, :]), holding(job, costs, shardings)
    width = float(job.workload.element_bytes)
    copies = MASTER_BYTES * (held.trained_dense / how.ranks + held.trained_expert / how.expert_ranks)
    if built_without_memory(job.model):
        layer, head = (column[:, None, :] for column in costs.units)
        rest = head if job.model.tied_embeddings else 2 * head
        made = width * np.maximum(rest + head, 2 * layer)
    else:
        made = width * (held.dense + held.expert)
    return np.where(how.zero >= 2, weight_bytes(job, held, how) + copies + made, 0.0)


def host_bytes(job: Job, costs: StageCosts, vp: Ints, recomputes: Recomputes, shardings: Sharding) -> Floats:
    """What offload moves to host memory, [mesh, recompute, sharding, rank]: states, and activations kept."""
    if not (shardings.offload.any() or recomputes.offload_layers.any()):
        return np.zeros((1, 1, 1, 1))
    here = Sharding(shardings.zero, np.zeros_like(shardings.offload), shardings.moments, shardings.reshard)
    every = Recomputes(*recomputes[:-1], np.zeros_like(recomputes.offload_layers))
    moved = states(job, costs, here).optimizer - states(job, costs, shardings).optimizer
    kept = activations(costs, vp, every).kept_bytes - activations(costs, vp, recomputes).kept_bytes
    return np.asarray(moved[:, None] + kept[:, :, None])


def highest_of(job: Job, costs: StageCosts, shardings: Sharding, in_step: Floats) -> Highest:
    """The peak of each rank of one strategy, whose steps hold so much."""
    start = np.broadcast_to(start_bytes(job, costs, shardings), (1, 1, len(in_step)))[0, 0]
    return Highest(np.maximum(in_step, start), start > in_step)
