"""Who runs the layers: which kernels are fused, what is kept for backward, what the host costs."""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from astra.errors import nearest_names
from astra.spec._base import Spec, check, check_not_negative
from astra.spec.blocks import MEANINGS
from astra.spec.names import Line, Name, check_names
from astra.spec.strategy import METHODS, OFFLOADS, OVERLAPS, RECOMPUTES, SCHEDULES
from astra.spec.workload import OPTIMIZERS, PRECISIONS, TASKS

Framework = Literal["megatron", "torchtitan", "deepspeed", "fsdp", "nanotron", "internevo"]
FRAMEWORKS: Final[tuple[str, ...]] = get_args(Framework)
AXES: Final = ("tp", "sp", "pp", "vp", "cp", "ep", "etp", "dp")


class Kernel(Spec, frozen=True, kw_only=True):
    """A memory-bound operator as a runtime runs it, per element of the tensor it is named after."""

    forward_bytes: float  # read and written
    backward_bytes: float
    forward_kernels: float = 1
    backward_kernels: float = 1

    def __post_init__(self) -> None:
        check_not_negative("kernel", forward_bytes=self.forward_bytes, backward_bytes=self.backward_bytes)
        check_not_negative("kernel", forward_kernels=self.forward_kernels, backward_kernels=self.backward_kernels)


class Can(Spec, frozen=True, kw_only=True):
    """What a runtime can do. These are lists of what it has: nothing else is planned for it or written out."""

    blocks: tuple[str, ...]  # words of astra.spec.blocks
    # Catalog models it has code for, with the name there; empty: any of those blocks
    recipes: dict[str, str] = msgspec.field(default_factory=dict)
    degrees: tuple[str, ...]  # axes that may be above 1, and sp
    uneven: bool = True  # stages may have different numbers of layers
    schedules: tuple[str, ...]
    zero: tuple[int, ...]
    recompute: tuple[str, ...]
    methods: tuple[str, ...] = ()  # of full recompute; none: every layer by itself
    offload: tuple[str, ...] = ("none",)
    overlap: tuple[str, ...]  # communication it hides,
    always: tuple[str, ...] = ()  # and of that what cannot be switched off where there is any
    prefetch: tuple[int, ...] = (1, 2, 3)  # ZeRO stages whose gather of weights it hides
    unfused: bool = False  # attention may be unfused
    precision: tuple[str, ...]
    optimizers: tuple[str, ...] = ("adam",)
    tasks: tuple[str, ...]
    empty_stages: bool = True  # a stage may hold no layer

    def __post_init__(self) -> None:
        words: dict[str, tuple[str, ...]] = {
            "blocks": tuple(MEANINGS), "degrees": AXES, "schedules": SCHEDULES, "recompute": RECOMPUTES,
            "methods": METHODS, "offload": OFFLOADS, "overlap": OVERLAPS, "always": self.overlap,
            "precision": PRECISIONS, "optimizers": OPTIMIZERS, "tasks": TASKS,
        }  # fmt: skip
        for field, known in words.items():
            for word in getattr(self, field):
                near = ", ".join(nearest_names(word, known))
                check(word in known, f"can.{field}", word, "a known word", f"Did you mean {near}?" if near else "")
        for field in ("zero", "prefetch"):
            check(set(getattr(self, field)) <= {0, 1, 2, 3}, f"can.{field}", getattr(self, field), "stages from 0 to 3")


class Usual(Spec, frozen=True, kw_only=True):
    """What a runtime does where nobody says otherwise: how published runs that leave it open are read."""

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


class Runtime(Spec, frozen=True, kw_only=True):
    """A training framework, as far as its speed and memory depend on it."""

    name: Name
    title: Line
    framework: Framework  # whose own rules bind it
    exports_to: Name = ""  # the target of astra export that starts it; empty: none does
    can: Can
    usual: Usual = Usual()
    attention: Name  # an attention kernel of efficiency.operators, or "best" for the GPU's usual one
    # Tensor throughput in a step over that in hours of GEMMs alone: slow kernels between GEMMs leave them power.
    clock_gain: float
    clock_follows_power: bool = False  # clock_gain is the most: it falls towards 1 where GEMMs fill the time
    attention_gain: float  # speed of its attention over that of the kernel named, for older or newer versions of it
    async_reduce: bool = True  # backward reduces over tensor-parallel ranks beside GEMMs that do not need the result
    update_bytes: float | None = None  # per parameter, moved by the optimizer; else those of fused Adam with clipping
    launch_s: float  # host time to issue one operator of a forward pass
    launch_backward_s: float  # and of a backward pass, where no Python runs
    collective_launches: float = 0.0  # operators that take the host as long as issuing one collective
    step_host_s: float  # host work per step that no kernel hides: data, logging, clipping
    straggling: float  # share of a step lost, per doubling of nodes, to waiting for the slowest
    gradient_bytes: float  # per parameter, of the buffer micro-batches accumulate into
    fresh_gradient_bytes: float = 0.0  # per parameter, of the gradients of one backward that are then added to it
    bucket_bytes: float = 0.0  # of the gradients reduced at a time without ZeRO; 0: all
    zero_reduces_whole: bool = False  # ZeRO-1 gives every replica all gradients: all-reduce, not reduce-scatter
    gather_host_s: float = 0.0  # host time per layer and replica to cut and copy the weights ZeRO-1 gathers
    launches_ahead: bool = False  # the host issues kernels and collectives without ever waiting inside a micro-batch
    # Host time per tensor-parallel collective and member that a pipeline across nodes adds.
    pipelined_collective_s: float = 0.0
    logits_kept_bytes: float  # per logit, alive from the loss to its backward
    logits_peak_bytes: float  # per logit, at the worst moment of the loss
    keeps_projection: bool  # the QKV projection stays alive beside its rotated queries and keys
    keeps_activation: bool = False  # a gate's activation stays alive beside its input and the product
    # Whole activations per layer that collectives on other streams keep reserved while the host runs ahead of the GPU.
    queued_activations: float = 0.0
    workspace_bytes: float  # allocated by libraries inside the allocator: cuBLAS and the like
    context_bytes: float  # device memory outside the allocator: CUDA context, NCCL, libraries
    reserved_ratio: float  # allocator's reserved over allocated at the peak
    reserved_bytes: float  # and a fixed part
    # Weights of fp8 jobs: bf16 with fp8 copies in both layouts beside, or those copies alone (one of them if frozen)
    fp8_weights: Literal["beside", "instead"] = "beside"
    gathers_fp8: bool = False  # inputs of fp8 products are quantised before tensor-parallel ranks gather them
    adapted: Literal["all", "attention", "qkv"] = "all"  # matrices with low-rank adapters
    dispatch: Literal["copies", "once"] = "copies"  # to experts: all of a token's, or one for each rank or node
    experts_together: bool = False  # one kernel for the products of all of a rank's experts, not one for each
    hides_all_to_all: bool = False  # expert exchanges run beside the compute of another micro-batch
    recomputes_cheap: bool = False  # outputs of norms and activations are made again in backward
    offloaded_layers: int = 0  # of a stage: their activations wait in host memory
    kernels: dict[Name, Kernel]
    source: Line
    date: Name

    def __post_init__(self) -> None:
        check_names("runtime", self)
