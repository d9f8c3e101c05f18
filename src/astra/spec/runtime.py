"""Who runs the layers: which kernels are fused, what is kept for backward, what the host costs."""

from __future__ import annotations

from typing import Literal

from astra.spec._base import Spec, check_not_negative
from astra.spec.names import Line, Name, check_names


class Kernel(Spec, frozen=True, kw_only=True):
    """A memory-bound operator as a runtime runs it, per element of the tensor it is named after."""

    forward_bytes: float  # read and written
    backward_bytes: float
    forward_kernels: float = 1
    backward_kernels: float = 1

    def __post_init__(self) -> None:
        check_not_negative("kernel", forward_bytes=self.forward_bytes, backward_bytes=self.backward_bytes)
        check_not_negative("kernel", forward_kernels=self.forward_kernels, backward_kernels=self.backward_kernels)


class Runtime(Spec, frozen=True, kw_only=True):
    """A training framework, as far as its speed and memory depend on it."""

    name: Name
    title: Line
    replay_only: bool = False  # stands for one published table, not for a framework: not offered to plan with
    attention: Name  # an attention kernel of efficiency.operators, or "best" for the GPU's usual one
    schedules: tuple[Name, ...]  # pipeline schedules it can run
    zero_stages: tuple[int, ...]
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
