"""The host's side of a part: what it launches, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from astra.cost import effects
from astra.cost.layers import kernel_of
from astra.layers.block import Send
from astra.layers.operators import Layer
from astra.provenance import Floats
from astra.spec.job import Job
from astra.spec.runtime import Runtime

# The host's time for a kernel inside a CUDA graph: a launch of the graph, spread over its kernels.
GRAPHED_S: Final = 2e-6
# Hosts of one type of machine are so many times as fast or as slow as the median, six of seven measured ones at most.
APART: Final = 1.25
QUEUED_LAUNCHES: Final = 1024  # that the driver takes before a launch waits for the GPU


def launches(job: Job, forward_s: Floats, backward_s: Floats) -> Floats:
    """Operators a part launches in both passes, from the host's time for each."""
    forward, backward = (max(price_s, 1e-9) for price_s in launch_s(job))
    return forward_s / forward + backward_s / backward


def launch_s(job: Job) -> tuple[float, float]:
    """The host's time for one operator, forward and backward.

    A graph of the whole step takes all operators. Graphs of parts leave experts to the host, whose kernels depend on
    the routing, and with them the host's pace: it runs no further ahead than the last of them.
    """
    graphed = job.words.graphs == "full" or (job.words.graphs == "partial" and job.model.moe is None)
    host, speed = job.runtime.host, job.pool.node.host_speed
    return (GRAPHED_S, GRAPHED_S) if graphed else (host.launch_s / speed, host.backward_s / speed)


def host_seconds(job: Job, layer: Layer, sends: Mapping[str, list[Send]], rows: int) -> tuple[Floats, Floats]:
    """The host's time to launch a part's kernels and collectives, forward and backward.

    Rings of context parallelism are issued beside attention.
    """
    runtime, (forward_s, backward_s) = job.runtime, launch_s(job)
    kernels = _launches(layer, runtime, rows)
    calls = [
        sum(
            (np.where(send.ranks > 1, getattr(send, way), 0.0) for axis in ("tp", "ep") for send in sends[axis]),
            start=np.zeros(rows),
        )
        for way in ("forward", "backward")
    ]
    forward, backward = (
        effects.collective_launches(runtime, own, sent) for own, sent in zip(kernels, calls, strict=True)
    )
    unit, speed = (effects.unit_forward_s(runtime), effects.unit_backward_s(runtime)), job.pool.node.host_speed
    return forward * forward_s + unit[0] / speed, backward * backward_s + unit[1] / speed


def _launches(layer: Layer, runtime: Runtime, rows: int) -> tuple[Floats, Floats]:
    """Kernels the host launches, forward and backward: one (two) a GEMM and group, one and three for attention.

    TransformerEngine's grouped products are a product for each expert, and so are their casts.
    """
    products = sum(effects.experts_together(runtime, gemm.groups) for gemm in layer.gemms)
    forward = np.zeros(rows) + products + len(layer.attentions)
    backward = np.zeros(rows) + 2 * products + 3 * len(layer.attentions)
    for stream in layer.streams:
        kernel, times = kernel_of(runtime, stream.kernel), stream.launches * stream.groups
        if stream.way in ("both", "forward"):
            forward = forward + kernel.forward_kernels * times
        if stream.way in ("both", "backward"):
            backward = backward + kernel.backward_kernels * times
    return forward, backward


def drained_s(job: Job, layer: Layer, rows: int) -> Floats:
    """What the host issues after the routing is known and before the first expert's product can start.

    Half of the permutation's kernels, and in fp8 the casts of that product's input, one for each expert.
    """
    if all(stream.kernel != "permute" for stream in layer.streams):
        return np.zeros(rows)
    casts = [np.broadcast_to(s.groups, rows) for s in layer.streams if s.kernel == "fp8_cast"]
    issued = job.runtime.kernels["permute"].forward_kernels / 2 + (np.max(casts, axis=0) if casts else np.zeros(rows))
    return np.asarray(issued * launch_s(job)[0], np.float64)
