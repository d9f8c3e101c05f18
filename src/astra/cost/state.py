"""Parameters on a rank, what is stored for each of them, and the optimizer step.

Mixed-precision Adam keeps, per parameter: the 2-byte weight, an accumulated gradient, and 12 bytes of optimizer state
(fp32 weight and two moments; Rajbhandari et al. 2020, arXiv 1910.02054). ZeRO stages shard optimizer state (1),
gradients (2) and weights (3) over the data-parallel group, which includes context parallelism.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.layers.kinds import LayerKind
from astra.layers.weights import Weights
from astra.network import collectives
from astra.operators import timing as operators
from astra.provenance import Floats, Ints, Source, Timed, worst
from astra.spec.job import Job

STATE_BYTES: Final = {"adam": 12.0, "sgd": 8.0}
MASTER_BYTES: Final = 4.0  # of them the fp32 weight, which fp32 training does not keep twice
# Bytes the update reads and writes per parameter it owns: the gradient's norm (4) and clipping (8); gradient, master
# weight and moments read and written; the new weight copied to 2 bytes (6).
UPDATE_BYTES: Final = {"adam": 4 + 8 + (16 + 12) + 6.0, "sgd": 4 + 8 + (12 + 8) + 6.0}
COPY_BYTES: Final = 6.0  # of them the copy
CLEAR_BYTES: Final = 4.0  # clearing the gradient buffer, of every parameter
# One host's share of memory bandwidth for a GPU's optimizer on the CPU: 12 channels of DDR5-4800 for 8 GPUs, half used.
CPU_UPDATE_BYTES_PER_S: Final = 28e9


class Held(NamedTuple):
    """Parameters of a rank: dense ones are replicated over dp*cp, expert ones over fewer ranks."""

    dense: Floats
    expert: Floats
    trained_dense: Floats  # with gradients and optimizer state; adapters only under LoRA
    trained_expert: Floats
    frozen: Floats  # layers' own under LoRA


class Bytes(NamedTuple):
    """Bytes on a rank by kind."""

    weights: Floats
    gradients: Floats
    optimizer: Floats
    gathered: Floats  # weights of the layers being computed, under ZeRO-3


def local(weights: Weights, tp: Ints, ep: Ints, etp: Ints) -> tuple[Floats, Floats]:
    """Dense and expert parameters of one part on a rank."""
    return weights.sharded / tp + weights.replicated, weights.expert / (ep * etp)


def gradient_bytes(job: Job) -> float:
    """Of a parameter's gradient, as accumulated and reduced: the runtime's, at least the parameter's own width."""
    return max(job.runtime.memory.gradient_bytes, float(job.workload.element_bytes))


def _per_parameter(job: Job) -> tuple[float, float]:
    """Bytes of optimizer state, and bytes the update moves."""
    state, update = STATE_BYTES[job.workload.optimizer], UPDATE_BYTES[job.workload.optimizer]
    return (state - MASTER_BYTES, update - COPY_BYTES) if job.workload.element_bytes == 4 else (state, update)


def static_bytes(
    job: Job, held: Held, *, zero: Ints, offload: Ints, ranks: Ints, expert_ranks: Ints, layers: Floats
) -> Bytes:
    """Memory that lives through the step. All arguments broadcast."""

    def sharded(nbytes: float, dense: Floats, expert: Floats, from_stage: int) -> Floats:
        apart = zero >= from_stage
        return nbytes * (dense / np.where(apart, ranks, 1) + expert / np.where(apart, expert_ranks, 1))

    weights = sharded(job.workload.element_bytes, held.dense, held.expert, 3)
    if job.workload.precision == "fp8":
        # Copies of each weight in both layouts; ZeRO-3 makes them with the gathered layer, frozen weights are them.
        instead, frozen = job.runtime.recipe.fp8_weights == "instead", job.workload.task == "lora"
        copied = 0.0 if instead or frozen else 2.0 * (held.dense + held.expert)
        weights = weights + np.where(zero >= 3, 0.0, copied - (held.frozen if instead else 0.0))
    gradients = sharded(gradient_bytes(job), held.trained_dense, held.trained_expert, 2)
    optimizer = sharded(_per_parameter(job)[0], held.trained_dense, held.trained_expert, 1)
    # FSDP holds the layer in use and the one prefetched, as weights and as gradients being reduced.
    both = job.workload.element_bytes + gradient_bytes(job)
    layer_bytes = both * (held.dense + held.expert) / np.maximum(layers, 1)
    gathered = np.where(zero >= 3, 2.0, np.where(zero == 2, 1.0, 0.0)) * layer_bytes
    return Bytes(weights, gradients, np.where(offload > 0, 0.0, optimizer), gathered)


def optimizer_s(job: Job, held: Held, *, zero: Ints, offload: Ints, ranks: Ints, expert_ranks: Ints) -> Timed:
    """Gradient norm, update and, with offload, the trips to host memory and the update there."""
    apart = zero >= 1
    owned = held.trained_dense / np.where(apart, ranks, 1) + held.trained_expert / np.where(apart, expert_ranks, 1)
    every = held.trained_dense + held.trained_expert
    update_bytes = _per_parameter(job)[1]
    moved = CLEAR_BYTES * every + update_bytes * owned
    on_gpu = operators.streaming(job.pool.device, nbytes=moved, kernels=20.0)
    if not np.any(offload):
        return on_gpu
    trips = collectives.host_transfer_s(job.pool.device, (gradient_bytes(job) + job.workload.element_bytes) * owned)
    on_host = trips.seconds + update_bytes * owned / CPU_UPDATE_BYTES_PER_S
    norm = operators.streaming(job.pool.device, nbytes=CLEAR_BYTES * every, kernels=4.0)
    seconds = np.where(offload > 0, on_host + norm.seconds, on_gpu.seconds)
    source = np.where(offload > 0, Source.ASSUMED, on_gpu.source).astype(np.int8)  # the host's rate is not measured
    return Timed(seconds, worst(source, trips.source * (offload > 0)))


__all__ = ["Bytes", "Held", "LayerKind", "gradient_bytes", "local", "optimizer_s", "static_bytes"]
