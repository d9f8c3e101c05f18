"""Effects of single frameworks: one small function each, named as in ``astra.spec.runtime`` and in runtime files.

A runtime without an effect gets what the function makes of the amount at which it does nothing.
"""

from __future__ import annotations

import numpy as np

from astra.operators.basis import FULL_CLOCK
from astra.provenance import Bools, Floats, Ints
from astra.spec.model import ModelSpec
from astra.spec.runtime import Runtime


def clock(runtime: Runtime, generation: str = "") -> float:
    """Tensor throughput in a step over that of hours of GEMMs alone: slow kernels between them leave them power."""
    if clock_follows_power(runtime):
        return FULL_CLOCK
    return clock_ampere(runtime) * (generation in ("volta", "turing", "ampere")) or runtime.amount("clock")


def clock_ampere(runtime: Runtime) -> float:
    """The same on GPUs up to Ampere, which do not run into their power limit; 0: no other."""
    return runtime.amount("clock_ampere")


def clock_follows_power(runtime: Runtime) -> bool:
    """Whether the clock is the full one, and falls towards 1 where GEMMs fill the time."""
    return runtime.amount("clock_follows_power") > 0


def attention_rate(runtime: Runtime, seconds: Floats) -> Floats:
    """Time of its attention from that of the kernel named: older and newer versions of it differ."""
    return seconds / runtime.amount("attention_rate")


def collective_launches(runtime: Runtime, kernels: Floats, calls: Floats) -> Floats:
    """Operators the host issues: kernels, and collectives at their worth of kernels."""
    return kernels + runtime.amount("collective_launches") * calls


def launches_ahead(runtime: Runtime) -> bool:
    """Whether the host never waits inside a micro-batch."""
    return runtime.amount("launches_ahead") > 0


def experts_together(runtime: Runtime, groups: Floats | Ints | int) -> Floats | Ints | int:
    """Kernels of a product of so many groups: one for each, or one."""
    return 0 * groups + 1 if runtime.amount("experts_together") else groups


def shared_adapters(runtime: Runtime) -> bool:
    """Whether a product of a rank's experts has one adapter."""
    return runtime.amount("shared_adapters") > 0


def stops_recompute(runtime: Runtime) -> bool:
    """Whether layers are run again only as far as backward needs: without their last product."""
    return runtime.amount("stops_recompute") > 0


def fp32_router(runtime: Runtime) -> bool:
    """Whether experts are chosen by a product in fp32, outside of tensor cores."""
    return runtime.amount("fp32_router") > 0


def separate_products(runtime: Runtime) -> bool:
    """Whether queries, keys and values, and both halves of a gate, are products of their own."""
    return runtime.amount("separate_products") > 0


def fresh_gradient_bytes(runtime: Runtime, parameters: Floats) -> Floats:
    """Gradients of one backward that are not made in the buffer micro-batches accumulate into."""
    return runtime.amount("fresh_gradient_bytes") * parameters


def accumulator_bytes(runtime: Runtime, precision: str, as_made: float, as_reduced: float) -> float:
    """Of a parameter whose gradients ranks hold whole: one buffer, or what backward makes and wider sums beside it."""
    wider = runtime.amount("accumulator_bytes")
    if not wider:
        return as_reduced
    return as_made + (wider if precision == "bf16" and as_reduced > as_made else 0.0)


def keeps_outputs(runtime: Runtime, in_flight: Ints) -> Floats:
    """Outputs of stages that stay alive, of so many micro-batches in flight."""
    return np.asarray(runtime.amount("keeps_outputs") * in_flight, np.float64)


def bucket_bytes(runtime: Runtime) -> float:
    """Gradients reduced at a time without ZeRO; 0: all."""
    return runtime.amount("bucket_bytes")


def zero_reduces_whole(runtime: Runtime) -> str:
    """The collective that takes gradients to those who own their parameters."""
    return "all_reduce" if runtime.amount("zero_reduces_whole") else "reduce_scatter"


def gather_host_s(runtime: Runtime, zero: Ints, ranks: Ints, layers: Floats | Ints) -> Floats:
    """Host time to cut and copy the weights that ZeRO-1 gathers."""
    return np.where((zero == 1) & (ranks > 1), runtime.amount("gather_host_s") * layers * ranks, 0.0)


def pipelined_collective_s(runtime: Runtime, across: Bools) -> Floats:
    """Host time that a pipeline across nodes adds to a tensor-parallel collective, per member."""
    return np.where(across, runtime.amount("pipelined_collective_s"), 0.0)


def tied_as_made(runtime: Runtime, made: float, reduced: float) -> float:
    """Of a gradient that the copies of a tied table exchange: as backward makes it, or as replicas reduce it."""
    return made if runtime.amount("tied_as_made") else reduced


def repeats_keys(runtime: Runtime, model: ModelSpec) -> float:
    """Heads of keys and values that a ring passes on, over those of the model; of a latent's there are all."""
    return model.heads / model.kv_heads if runtime.amount("repeats_keys") and model.mla is None else 1.0


def ring_gradient_bytes(runtime: Runtime) -> float:
    """Per element of the gradients of keys and values that a ring passes on."""
    return runtime.amount("ring_gradient_bytes")


def dispatched_bytes(runtime: Runtime) -> float:
    """Bytes kept per element sent to experts, beside the element, for the gradients of the weights it is sent with."""
    return runtime.amount("dispatched_bytes")


def keeps_gathered(runtime: Runtime) -> bool:
    """Whether what sequence-parallel ranks gather for a product is kept for its backward."""
    return runtime.amount("keeps_gathered") > 0


def norm_kept_bytes(runtime: Runtime, norm: str) -> float:
    """Bytes kept per element of a norm beside its input; of layer norms, which torch fuses, none."""
    return runtime.amount("norm_kept_bytes") if norm == "rmsnorm" else 0.0


def spread_logits_bytes(runtime: Runtime) -> float:
    """Bytes per logit that the loss holds beyond its usual peak where tensor-parallel ranks share the vocabulary."""
    return runtime.amount("spread_logits_bytes")


def pads_experts(runtime: Runtime, experts: int, ranks: Ints) -> Floats:
    """Parameters of experts as they are gathered over those there are: all shards are as large as the largest."""
    if not runtime.amount("pads_experts"):
        return np.ones(np.shape(ranks))
    return np.ceil(experts / ranks) * ranks / experts


def keeps_activation(runtime: Runtime) -> bool:
    """Whether a gate's activation stays alive beside its input and the product."""
    return runtime.amount("keeps_activation") > 0


def queued_activations(runtime: Runtime, tp: Ints, tokens: Floats | Ints, hidden: int) -> Floats:
    """Bytes a layer's collectives keep reserved, where the GPU lags behind the host."""
    return np.where(tp > 1, runtime.amount("queued_activations") * 2 * tokens * hidden, 0.0)


def starts_by_unit(runtime: Runtime) -> bool:
    """Whether weights that ZeRO-2 and 3 shard are made unit by unit at the start, as Megatron-FSDP does."""
    return runtime.amount("starts_by_unit") > 0


def units(runtime: Runtime) -> bool:
    """Whether weights are gathered and gradients reduced layer by layer, as FSDP2 does."""
    return runtime.amount("units") > 0


def unit_forward_s(runtime: Runtime) -> float:
    """Host time to gather one unit's weights and give them back, in forward."""
    return runtime.amount("unit_forward_s")


def unit_backward_s(runtime: Runtime) -> float:
    """The same in backward, with what reduces its gradients."""
    return runtime.amount("unit_backward_s")
