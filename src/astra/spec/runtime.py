"""Who runs the layers: which kernels are fused, what is kept for backward, what the host costs, named effects."""

from __future__ import annotations

from typing import Any, Final, Literal, NamedTuple, get_args

import msgspec

from astra.errors import InputError, did_you_mean
from astra.spec.blocks import MEANINGS
from astra.spec.names import Amount, Line, Name, check_fields
from astra.spec.record import Spec, check
from astra.spec.strategy_fields import (
    ACTIVATIONS,
    CHOICES,
    MODULES,
    OVERLAPS,
    RUNTIME_CHOICES,
    RUNTIME_WORDS,
    STRATEGY_FIELDS,
)
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS


class EffectField(NamedTuple):
    """An effect that the cost model has a function for (``cost/effects.py``)."""

    off: float  # the amount at which it does nothing
    does: str


EFFECTS: Final[dict[str, EffectField]] = {
    "clock": EffectField(1, "tensor throughput in a step over that of hours of GEMMs alone"),
    "clock_ampere": EffectField(
        0, "the same on GPUs up to Ampere, which their power limit slows down less; 0: no other"
    ),
    "clock_follows_power": EffectField(0, "the clock is the full one, and falls towards 1 where GEMMs fill the time"),
    "attention_rate": EffectField(1, "speed of its attention over that of the kernel named"),
    "collective_launches": EffectField(0, "operators that take the host as long as issuing one collective"),
    "launches_ahead": EffectField(
        0, "the host issues kernels and collectives without ever waiting inside a micro-batch"
    ),
    "experts_together": EffectField(0, "one kernel for the products of all of a rank's experts, not one for each"),
    "shared_adapters": EffectField(0, "one adapter for a product of all of a rank's experts, not one for each"),
    "stops_recompute": EffectField(0, "layers are run again as far as backward needs: without their last product"),
    "fp32_router": EffectField(0, "experts are chosen by a product in fp32, outside of tensor cores"),
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
        0, "weights are gathered and gradients reduced unit by unit, as FSDP2 does: memory of cost/state.py"
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


Framework = Literal["megatron", "torchtitan", "deepspeed", "fsdp", "pytorch", "nanotron", "internevo"]
FRAMEWORKS: Final[tuple[str, ...]] = get_args(Framework)
_WORDS: Final = {field.name: field for field in STRATEGY_FIELDS if field.name in (*RUNTIME_WORDS, "overlap_ep")}
AXES: Final = ("tp", "sp", "pp", "vp", "cp", "ep", "etp", "dp")


class Kernel(Spec, frozen=True, kw_only=True):
    """A memory-bound operator as a runtime runs it, per element of the tensor it is named after."""

    forward_bytes: Amount  # read and written, as of 2-byte tensors
    backward_bytes: Amount
    forward_fixed: Amount = 0.0  # the same of kernels that take as long for elements of any width
    backward_fixed: Amount = 0.0
    forward_kernels: Amount = 1
    backward_kernels: Amount = 1
    fitted_on: Line = ""  # the runs its bytes were fitted on; empty: they were counted

    def __post_init__(self) -> None:
        check_fields("kernel", self)

    def forward_at(self, widening: float) -> float:
        """Bytes of an element, forward, of tensors so many times as wide as 2 bytes."""
        return widening * self.forward_bytes + self.forward_fixed

    def backward_at(self, widening: float) -> float:
        """The same, backward."""
        return widening * self.backward_bytes + self.backward_fixed


_KERNEL_BYTES: Final = ("forward_bytes", "backward_bytes", "forward_fixed", "backward_fixed")


class Can(Spec, frozen=True, kw_only=True):
    """What a runtime can do. These are lists of what it has: nothing else is planned for it or written out."""

    blocks: tuple[str, ...]  # words of astra.spec.blocks
    # Catalog models it has code for, with the name there; empty: any of those blocks
    recipes: dict[str, str] = msgspec.field(default_factory=dict)
    degrees: tuple[str, ...]  # axes that may be above 1, and sp
    uneven: bool = True  # stages may have different numbers of layers
    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    zero_pipelined: tuple[int, ...] = (0, 1, 2, 3)  # of those, the ones a pipeline may have
    recompute: tuple[str, ...]
    methods: tuple[str, ...] = ()  # of full recompute; none: every layer by itself
    modules: tuple[str, ...] = ("core_attn",)  # of selective recompute
    offload: tuple[str, ...] = ("none",)  # of the optimizer, and activations
    dispatch: tuple[str, ...] = ("alltoall",)  # to experts,
    dispatch_fp8: bool = False  # in fp8 too, by a dispatcher that sends once
    graphs: tuple[str, ...] = ("none",)
    moments: tuple[str, ...] = ("fp32",)
    params: tuple[str, ...] = ("bf16",)
    grads: tuple[str, ...] = ("fp32",)
    attention: tuple[str, ...] = ("bf16",)  # widths of its products
    reshard: tuple[str, ...] = ("always",)
    shard: bool = False  # ZeRO inside groups of replicas (HSDP)
    overlap: tuple[str, ...]  # communication it hides,
    always: tuple[str, ...] = ()  # and of that what cannot be switched off where there is any
    prefetch: tuple[int, ...] = (1, 2, 3)  # ZeRO stages whose gather of weights it hides
    unfused: bool = False  # attention may be unfused
    precision: tuple[str, ...]
    optimizers: tuple[str, ...] = ("adam",)
    tasks: tuple[str, ...]
    mtp: bool = False  # multi-token-prediction layers may be trained
    empty_stages: bool = True  # a stage may hold no layer

    def __post_init__(self) -> None:
        words: dict[str, tuple[str, ...]] = {
            **{name: CHOICES[name] for name in ("recompute", *RUNTIME_CHOICES)}, "schedules": CHOICES["schedule"],
            "methods": CHOICES["method"], "offload": (*CHOICES["offload"], ACTIVATIONS), "modules": MODULES,
            "blocks": tuple(MEANINGS), "degrees": AXES, "overlap": OVERLAPS, "always": self.overlap,
            "precision": PRECISIONS, "optimizers": OPTIMIZERS, "tasks": TASKS,
        }  # fmt: skip
        for field, known in words.items():
            for word in (word for word in getattr(self, field) if word not in known):
                raise InputError(f"can.{field}", word, want="a known word", fix=did_you_mean(word, known))
        for field in ("zero", "zero_pipelined", "prefetch"):
            check(set(getattr(self, field)) <= {0, 1, 2, 3}, f"can.{field}", getattr(self, field), "stages from 0 to 3")


class Captures(Spec, frozen=True, kw_only=True):
    """CUDA graphs of models."""

    dense: Literal["none", "partial", "full"] = "none"
    experts: Literal["none", "partial", "full"] = "none"


class Usual(Spec, frozen=True, kw_only=True):
    """What a runtime does where nobody says otherwise.

    The words, also by generation of GPU, are what its own recipes use: what plans take, and strategies that leave them
    out. The rest is how published runs that leave it open are read.
    """

    words: dict[str, str | bool] = msgspec.field(default_factory=dict)  # fields of RUNTIME_WORDS and overlap_ep
    on: dict[str, dict[str, str | bool]] = msgspec.field(default_factory=dict)  # the same on a generation of GPU
    pipelined: dict[str, str | bool] = msgspec.field(default_factory=dict)  # and in pipelines
    fp16: dict[str, str | bool] = msgspec.field(default_factory=dict)  # and in fp16

    # CUDA graphs that plans may have where recipes have none, of a kind that runs were published with:
    captures: Captures = Captures()

    called: tuple[Line, ...] = ()  # what tables of runs call it, in lower case
    stands_for: tuple[Line, ...] = ()  # other code, for which it is the nearest there is
    eager: Name = ""  # the runtime it is where a run says "no compile",
    compiled: Name = ""  # where it says torch.compile,
    fused: dict[Line, Name] = msgspec.field(default_factory=dict)  # where it says whose kernels run uncompiled,
    unfused: Name = ""  # and where it says that attention is not fused; empty: itself
    before: dict[Line, Name] = msgspec.field(default_factory=dict)  # what it was before a month, such as 2025-04
    precision: Literal["", "bf16", "fp16", "tf32"] = ""  # empty: bf16, or fp16 on a GPU without
    selective: Literal["attention", "half"] = "attention"  # what its selective recompute repeats: half of the layers
    logs: Literal["allocated", "reserved", "device"] = "allocated"  # what is published of it as the peak of memory
    lora_targets: Literal["all", "attention", "qkv"] = "all"  # matrices its recipes adapt
    packed: int = 0  # tokens of the samples that its recipes pack to fine-tune on; 0: they do not
    zero: int = 0
    sp: bool = False  # with tensor parallelism, and hides its communication
    flash: bool = True
    overlap: tuple[str, ...] = ()  # without ZeRO,
    overlap_sharded: tuple[str, ...] = ("grad", "param")  # with it,
    overlap_pipelined: bool = True  # and the same in pipelines
    splits_experts: bool = True  # over the tensor-parallel ranks
    split: Literal["layers", "parameters"] = "layers"  # what stages have an equal share of

    def __post_init__(self) -> None:
        check(self.zero in range(4), "usual.zero", self.zero, "a stage from 0 to 3")
        for field in ("overlap", "overlap_sharded"):
            words = getattr(self, field)
            check(set(words) <= set(OVERLAPS), f"usual.{field}", words, f"among {', '.join(OVERLAPS)}")
        for table in (self.words, self.pipelined, self.fp16, *self.on.values()):
            for name, value in table.items():
                check(name in _WORDS, "usual.words", name, f"among {', '.join(_WORDS)}")
                known = _WORDS[name].choices or (True, False)
                check(value in known, f"usual.words.{name}", value, f"one of {', '.join(map(str, known))}")


class Host(Spec, frozen=True, kw_only=True):
    """What the host costs."""

    launch_s: Amount  # to issue one operator of a forward pass
    backward_s: Amount  # and of a backward pass, where no Python runs
    step_s: Amount  # per step that no kernel hides: data, logging, clipping
    fitted_on: Line = ""  # empty: taken from a like runtime

    def __post_init__(self) -> None:
        check_fields("host", self)


class Memory(Spec, frozen=True, kw_only=True):
    """What is held beside weights, optimizer and activations, and how."""

    logits_kept_bytes: float  # per logit, alive from the loss to its backward
    logits_peak_bytes: float  # per logit, at the worst moment of the loss
    scores_kept_bytes: float = (
        4.0  # per score of unfused attention, as of 2-byte tensors: its softmax, and what it is of
    )
    keeps_projection: bool  # the QKV projection stays alive beside its rotated queries and keys
    context_bytes: float  # device memory outside the allocator: CUDA context, NCCL, libraries
    reserved_ratio: float  # allocator's reserved over allocated at the peak,
    full_ratio: float = 0.0  # and on a full GPU, with all given back that can be; 0: the same
    fitted_on: Line = ""  # the ratio; empty: assumed


class Runtime(Spec, frozen=True, kw_only=True):
    """A training framework, as far as its speed and memory depend on it."""

    name: Name
    aliases: tuple[Name, ...] = ()
    title: Line
    framework: Framework  # whose own rules bind it
    standing_for: Line = ""  # the framework that was asked for, where it is but the nearest there is
    exports_to: Name = ""  # the target of astra export that starts it; empty: none does
    can: Can
    usual: Usual = Usual()
    attention: Name  # an attention kernel of operators.attention, or "best" for the GPU's usual one
    host: Host
    memory: Memory
    effects: dict[Name, Effect] = msgspec.field(default_factory=dict)  # what it has and others do not
    vocab_multiple: int = 1  # rows of the vocabulary on a tensor-parallel rank are padded to a multiple of this
    pads_products: bool = False  # TorchInductor pads products whose rows are not a multiple of 16 bytes
    gathers_fp8: bool = False  # inputs of fp8 products are quantised before tensor-parallel ranks gather them
    kernels: dict[Name, Kernel]
    source: Line
    date: Name

    def __post_init__(self) -> None:
        check_fields("runtime", self)
        check(self.vocab_multiple >= 1, "vocab_multiple", self.vocab_multiple, "a whole number from 1")
        for name in (name for name in self.effects if name not in EFFECTS):
            fix = did_you_mean(name, EFFECTS, f"Known effects: {', '.join(EFFECTS)}.")
            raise InputError("effects", name, want="a known effect", fix=fix)

    def amount(self, effect: str) -> float:
        """How much of an effect it has; without it, the amount that does nothing."""
        found = self.effects.get(effect)
        return EFFECTS[effect].off if found is None else found.amount

    def usual_words(self, generation: str, *, pipelined: bool, precision: str = "") -> dict[str, str | bool]:
        """What its recipes choose on a generation of GPU, of what a strategy may leave out."""
        plain = {name: field.plain for name, field in _WORDS.items()}
        chosen = plain | self.usual.words | self.usual.on.get(generation, {})
        chosen |= self.usual.fp16 if precision == "fp16" else {}
        return chosen | (self.usual.pipelined if pipelined else {})  # type: ignore[return-value]

    def captures(self, *, experts: bool) -> str:
        """CUDA graphs that its plans may have where its recipes have none; none where it has no such."""
        found = self.usual.captures.experts if experts else self.usual.captures.dense
        return found if found in self.can.graphs else "none"

    @property
    def fitted(self) -> dict[str, str]:
        """Every number that was fitted, with what it was fitted on."""
        found = {f"host.{name}": self.host.fitted_on for name in ("launch_s", "backward_s", "step_s")}
        found["memory.reserved_ratio"] = self.memory.fitted_on
        found |= {f"effects.{name}": effect.fitted_on for name, effect in self.effects.items()}
        for name, kernel in self.kernels.items():
            numbers = [field for field in _KERNEL_BYTES if getattr(kernel, field)]  # none where nothing runs
            found |= {f"kernels.{name}.{field}": kernel.fitted_on for field in numbers}
        return {name: on for name, on in found.items() if on}


def changed(runtime: Runtime, **changes: Any) -> Runtime:
    """A runtime with other numbers: of its groups and effects by their names, of anything else by its field."""
    groups: dict[str, Spec] = {"host": runtime.host, "memory": runtime.memory}
    effects = dict(runtime.effects)
    fields: dict[str, Any] = {}
    for name, value in changes.items():
        group = next((key for key, one in groups.items() if name in one.__struct_fields__), None)
        if group is not None:
            groups[group] = msgspec.structs.replace(groups[group], **{name: value})
        elif name in EFFECTS:
            effects[name] = Effect(amount=float(value), counted_in="given")
        else:
            fields[name] = value
    return msgspec.structs.replace(runtime, **{**groups, "effects": effects, **fields})
