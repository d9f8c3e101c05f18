"""Parameters on a rank, what is stored for each of them, and the optimizer step.

Mixed-precision Adam keeps, per parameter: the 2-byte weight, an accumulated gradient, and 12 bytes of optimizer state
(fp32 weight and two moments; Rajbhandari et al. 2020, arXiv 1910.02054). ZeRO stages shard optimizer state (1),
gradients (2) and weights (3) over the data-parallel group, which includes context parallelism.

FSDP2 gathers weights and reduces gradients unit by unit: each layer, the embedding, the last norm with the output.

What is alive beside kept activations was counted in torch's ``_fsdp_param_group.py`` and ``_fsdp_collectives.py``. In
backward a unit has its weights and, gathered ahead, those of the next one; the gradients of the last unit are on their
way, copied to the width they are reduced in, until the next unit's are there. Those of the output are there twice when
its backward ends, as they were made and as they are reduced. The output's weights stay from forward to backward. What
ranks shard is the fp32 weight of the optimizer: there is no other; what they keep of its gradient is as wide, whatever
width it is reduced in.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.columns import code
from astra.cost import effects
from astra.cost.low import scaling
from astra.layers import weights as weights_of
from astra.layers.operators import Shard
from astra.layers.split import StageKinds, kinds
from astra.layers.weights import Weights
from astra.network import collectives
from astra.operators.streaming import streaming
from astra.provenance import Bools, Floats, Ints, Source, Timed, worst
from astra.spec.job import Job

STATE_BYTES: Final = {"adam": 12.0, "sgd": 8.0}
MOMENTS: Final = {"adam": 2, "sgd": 1}
HALF_MOMENTS: Final = code("moments", "bf16")
NEVER: Final = code("reshard", "never")
MASTER_BYTES: Final = 4.0  # of them the fp32 weight, which fp32 training does not keep twice
# Bytes the update reads and writes per parameter it owns: the gradient's norm (4) and clipping (8); gradient, master
# weight and moments read and written; the new weight copied to 2 bytes (6).
UPDATE_BYTES: Final = {"adam": 4 + 8 + (16 + 12) + 6.0, "sgd": 4 + 8 + (12 + 8) + 6.0}
COPY_BYTES: Final = 6.0  # of them the copy
CLEAR_BYTES: Final = 4.0  # clearing the gradient buffer, of every parameter
# One host's share of memory bandwidth for a GPU's optimizer on the CPU: 12 channels of DDR5-4800 for 8 GPUs, half used.
CPU_UPDATE_BYTES_PER_S: Final = 28e9
# Of cuBLAS and other libraries inside the allocator. Assumed: a few of the 32 MiB that cuBLAS takes on Hopper.
WORKSPACE_BYTES: Final = 1.5e8
# What the caching allocator reserves beyond a share of what is allocated. Chosen with the runtimes' reserved ratios.
RESERVED_BYTES: Final = 5e8


class Held(NamedTuple):
    """Parameters of a rank: dense ones are replicated over dp*cp, expert ones over fewer ranks."""

    dense: Floats
    expert: Floats
    trained_dense: Floats  # with gradients and optimizer state; adapters only under LoRA
    trained_expert: Floats
    layers: Floats  # layers' own, without adapters: all that fp8 quantises


class Bytes(NamedTuple):
    """Bytes on a rank by kind."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    gathered: Floats  # weights of the layers being computed, under ZeRO-3, and gradients on their way
    at_loss: Floats  # the same, while the loss is computed
    start: Floats = np.zeros((1, 1, 1))  # everything, while sharded weights are made before the first step


def local(weights: Weights, tp: Ints, ep: Ints, etp: Ints) -> tuple[Floats, Floats]:
    """Dense and expert parameters of one part on a rank."""
    return weights.sharded / tp + weights.replicated, weights.expert / (ep * etp)


def gradient_bytes(job: Job) -> float:
    """Of a parameter's gradient, as accumulated and reduced: at least the parameter's own width."""
    return max(job.words.gradient_bytes, float(job.workload.element_bytes))


def whole_gradient_bytes(job: Job) -> float:
    """Of a parameter's gradient, as a rank holds it that has all of them."""
    work = job.workload
    return effects.accumulator_bytes(job.runtime, work.precision, float(work.element_bytes), gradient_bytes(job))


def _per_parameter(job: Job, moments: Ints) -> tuple[Floats, Floats]:
    """Bytes of optimizer state, and bytes the update moves; moments in bf16 are half as many, read and written."""
    name = job.workload.optimizer
    state, update = STATE_BYTES[name], UPDATE_BYTES[name]
    if job.workload.element_bytes == 4:
        state, update = state - MASTER_BYTES, update - COPY_BYTES
    spared = np.where(moments == HALF_MOMENTS, 2.0 * MOMENTS[name], 0.0)
    return state - spared, update - 2 * spared


class Holding(NamedTuple):
    """How states are held, as columns that broadcast: those of ``cost.memory.Sharding``, and who shares them."""

    zero: Ints
    offload: Ints
    ranks: Ints  # that ZeRO shards dense parameters over
    expert_ranks: Ints
    moments: Ints = np.zeros(1, np.int64)
    reshard: Ints = np.zeros(1, np.int64)
    pipelined: Bools = np.zeros(1, bool)
    in_units: Bools = np.zeros(1, bool)  # as FSDP2 does, whose ZeRO-2 is ZeRO-3 with weights that stay

    @property
    def kept(self) -> Bools:
        """Whether sharded weights, once gathered, stay until the step's end."""
        return np.asarray((self.zero == 3) & (self.reshard == NEVER) | (self.zero == 2) & self.in_units)

    @property
    def whole_gradients(self) -> Bools:
        """Whether gradients stay whole until the step's end: in pipelines whose weights stay, they do too.

        FSDP2 reduces gradients as it frees the weights, and torchtitan's pipelines do so after the last micro-batch.
        """
        return np.asarray((self.zero < 2) | (self.kept & self.pipelined))


def _sharded(how: Holding, dense: Floats, expert: Floats, apart: Bools) -> Floats:
    """Parameters of a rank that are shared out among replicas where they are ``apart``."""
    own = dense / np.where(apart, how.ranks, 1)
    return own + expert / np.where(apart, how.expert_ranks, 1) if expert.any() else own


def weight_bytes(job: Job, held: Held, how: Holding) -> Floats:
    """Weights as they live through the step. All arguments broadcast."""
    apart = (how.zero >= 3) & ~how.kept
    weights = job.workload.element_bytes * _sharded(how, held.dense, held.expert, apart)
    if job.workload.low:
        # Copies of layers' weights in both layouts; ZeRO-3 makes them with the gathered layer, frozen weights are them.
        instead, frozen = job.words.params == "fp8", job.workload.task == "lora"
        copied_bytes = 0.0 if instead or frozen else scaling(job).copies_bytes
        weights = weights + np.where(apart, 0.0, (copied_bytes - float(instead and frozen)) * held.layers)
    return weights


def static_bytes(job: Job, held: Held, how: Holding, layers: Floats) -> Bytes:
    """Memory that lives through the step. All arguments broadcast."""
    whole_gradients, apart = how.whole_gradients, (how.zero >= 3) & ~how.kept
    each_bytes = np.where(whole_gradients, whole_gradient_bytes(job), gradient_bytes(job))
    gradients = each_bytes * _sharded(how, held.trained_dense, held.trained_expert, ~whole_gradients)
    state_bytes = _per_parameter(job, how.moments)[0]
    optimizer = state_bytes * _sharded(how, held.trained_dense, held.trained_expert, how.zero >= 1)
    # FSDP holds the layer in use and the one prefetched, as weights and as gradients being reduced.
    trained = gradient_bytes(job) * (held.trained_dense + held.trained_expert)
    layer_bytes = (job.workload.element_bytes * (held.dense + held.expert) + trained) / np.maximum(layers, 1)
    passing = np.where(whole_gradients, 0.0, np.where(apart, 2.0, 1.0))
    gathered = passing * layer_bytes
    optimizer = np.where(how.offload > 0, 0.0, optimizer)
    return Bytes(weight_bytes(job, held, how), gradients, optimizer, gathered, gathered)


def optimizer_s(job: Job, held: Held, how: Holding) -> Timed:
    """Gradient norm, update and, with offload, the trips to host memory and the update there."""
    apart, offload = how.zero >= 1, how.offload
    owned = _sharded(how, held.trained_dense, held.trained_expert, apart)
    every = held.trained_dense + held.trained_expert
    update_bytes = _per_parameter(job, how.moments)[1]
    moved = CLEAR_BYTES * every + update_bytes * owned
    on_gpu = streaming(job.pool.device, nbytes=moved, kernels=20.0)
    if not np.any(offload):
        return on_gpu
    trips = collectives.host_transfer_s(job.pool.device, (gradient_bytes(job) + job.workload.element_bytes) * owned)
    on_host = trips.seconds + update_bytes * owned / CPU_UPDATE_BYTES_PER_S
    norm = streaming(job.pool.device, nbytes=CLEAR_BYTES * every, kernels=4.0)
    seconds = np.where(offload > 0, on_host + norm.seconds, on_gpu.seconds)
    source = np.where(offload > 0, Source.ASSUMED, on_gpu.source).astype(np.int8)  # the host's rate is not measured
    return Timed(seconds, worst(source, trips.source * (offload > 0)))


class Units(NamedTuple):
    """Parameters of a rank's largest layer, and of the output's unit where it has one; [mesh, rank]."""

    layer: Floats
    head: Floats


def unit_parameters(job: Job, shard: Shard, place: Ints, table: StageKinds, expert_ranks: Ints) -> Units:
    """Of every kind of rank, as they are gathered."""
    degrees = tuple(column[place] for column in (shard.tp, shard.ep, shard.etp))
    padded = effects.pads_experts(job.runtime, job.model.moe.experts, expert_ranks) if job.model.moe else 1.0

    def on_rank(weights: weights_of.Weights) -> Floats:
        dense, expert = local(weights, *degrees)
        return (dense + padded * expert)[:, None]

    layers = [
        np.where(table.counts[..., number] > 0, on_rank(weights_of.layer_weights(job.model, kind)), 0.0)
        for number, kind in enumerate(kinds(job.model))
    ]
    head = on_rank(weights_of.head_weights(job.model))
    if job.model.tied_embeddings:
        head = head + on_rank(weights_of.tied_head_weights(job.model))
    largest: Floats = np.max(layers, axis=0)
    return Units(largest, table.last * head)


def shard_bytes(job: Job, held: Held, how: Holding) -> Floats:
    """Parameters that FSDP2 keeps sharded, whatever is gathered; fp32 ones are the optimizer's, and counted there."""
    dense, expert = held.dense, held.expert
    if job.workload.element_bytes < MASTER_BYTES:
        dense, expert = dense - held.trained_dense, expert - held.trained_expert
    return job.workload.element_bytes * _sharded(how, dense, expert, np.ones(1, bool))


def in_units(
    job: Job, static: Bytes, held: Held, how: Holding, *, layer: Floats, head: Floats, microbatches: Ints
) -> Bytes:
    """States of a rank, and what units of so many parameters hold beside them at a layer and at the loss.

    Gradients are made in the first backward of a step: with one micro-batch none are there at the fullest moment.
    """
    width, trained = float(job.workload.element_bytes), job.workload.task != "lora"
    reduced = gradient_bytes(job) * trained  # adapters are a thousandth of a unit
    again = (how.zero >= 3) & ~how.kept
    moving = ~how.whole_gradients
    gradients = np.where(moving, MASTER_BYTES / gradient_bytes(job), 1.0) * static.gradients
    early = np.where(moving & (microbatches == 1), gradients, 0.0)
    at_layer = np.where(again, 2 * width * layer, 0.0) + np.where(moving, reduced * np.maximum(layer, head), 0.0)
    at_head = np.where(again, width * layer, 0.0) + np.where(moving, (width * trained + reduced) * head, 0.0)
    return static._replace(
        weights=np.where(again, 0.0, static.weights) + np.where(how.zero >= 2, shard_bytes(job, held, how), 0.0),
        gradients=gradients,
        gathered=np.maximum(at_layer, at_head) - early,
        at_loss=np.where(again, width * head, 0.0) - early,
    )
