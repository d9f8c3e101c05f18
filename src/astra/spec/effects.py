"""What one framework has and others do not: named effects of a runtime, each with its amount and where that is from."""

from typing import Final, NamedTuple

from astra.spec.names import Amount, Line, check_fields
from astra.spec.record import Spec, check


class EffectField(NamedTuple):
    """An effect that the cost model has a function for (``cost/effects.py``)."""

    off: float  # the amount at which it does nothing
    does: str


EFFECTS: Final[dict[str, EffectField]] = {
    "clock": EffectField(1, "tensor throughput in a step over that of hours of GEMMs alone"),
    "clock_follows_power": EffectField(0, "clock is the most: it falls towards 1 where GEMMs fill the time"),
    "attention_rate": EffectField(1, "speed of its attention over that of the kernel named"),
    "collective_launches": EffectField(0, "operators that take the host as long as issuing one collective"),
    "launches_ahead": EffectField(
        0, "the host issues kernels and collectives without ever waiting inside a micro-batch"
    ),
    "experts_together": EffectField(0, "one kernel for the products of all of a rank's experts, not one for each"),
    "shared_adapters": EffectField(0, "one adapter for a product of all of a rank's experts, not one for each"),
    "separate_products": EffectField(
        0, "queries, keys and values, and both halves of a gate, are products of their own"
    ),
    "fresh_gradient_bytes": EffectField(
        0, "per parameter, of the gradients of one backward that are added to the buffer"
    ),
    "accumulator_bytes": EffectField(
        0, "per parameter, of the sums of bf16 gradients beside these, where they are reduced in fp32 and held whole"
    ),
    "keeps_outputs": EffectField(0, "a stage's output stays until its micro-batch comes back"),
    "bucket_bytes": EffectField(0, "of the gradients reduced at a time without ZeRO; 0: all"),
    "zero_reduces_whole": EffectField(0, "ZeRO-1 gives every replica all gradients: all-reduce, not reduce-scatter"),
    "gather_host_s": EffectField(0, "host time per layer and replica to cut and copy the weights ZeRO-1 gathers"),
    "pipelined_collective_s": EffectField(
        0, "host time per tensor-parallel collective and member that a pipeline across nodes adds"
    ),
    "tied_as_made": EffectField(0, "copies of a tied table add their gradients as backward makes them, not as reduced"),
    "repeats_keys": EffectField(0, "keys and values are repeated for every query's head before a ring passes them on"),
    "ring_gradient_bytes": EffectField(2, "per element of the gradients of keys and values that a ring passes on"),
    "keeps_gathered": EffectField(
        0, "what sequence-parallel ranks gather for a product is kept for its backward, not gathered again"
    ),
    "spread_logits_bytes": EffectField(0, "per logit at the loss, where tensor-parallel ranks share the vocabulary"),
    "norm_kept_bytes": EffectField(0, "kept per element of an RMS norm, beside its input: of one made of operators"),
    "pads_experts": EffectField(0, "experts are sharded one by one: of fewer than ranks, padding is gathered too"),
    "keeps_activation": EffectField(0, "a gate's activation stays alive beside its input and the product"),
    "dispatched_bytes": EffectField(0, "kept per element sent to experts, beside it: what the weights' gradients need"),
    "starts_by_unit": EffectField(
        0, "weights that ZeRO-2 and 3 shard are made at the start, unit by unit: memory of cost/memory.py"
    ),
    "units": EffectField(
        0, "weights are gathered and gradients reduced unit by unit, as FSDP2 does: memory of cost/units.py"
    ),
    "unit_forward_s": EffectField(0, "host time per unit and forward to gather its weights and give them back"),
    "unit_backward_s": EffectField(0, "host time per unit and backward to gather its weights and reduce its gradients"),
    "queued_activations": EffectField(
        0, "whole activations per layer that collectives keep reserved while the host runs ahead of the GPU"
    ),
}


class Effect(Spec, frozen=True, kw_only=True):
    """How much of an effect a runtime has, and where that number is from: counted in its code, or fitted on runs."""

    amount: Amount = 1.0  # of one that is there or not: 1
    counted_in: Line = ""
    fitted_on: Line = ""

    def __post_init__(self) -> None:
        check_fields("effect", self)
        check(
            bool(self.counted_in) != bool(self.fitted_on), "effect", self.fitted_on, "one of counted_in and fitted_on"
        )
