"""The host's side of a part: what it launches, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from astra.axes import Send
from astra.cost import effects
from astra.cost.layers import kernel_of
from astra.layers.operators import Layer
from astra.provenance import Floats
from astra.spec.runtime import Runtime


def host_seconds(runtime: Runtime, layer: Layer, sends: Mapping[str, list[Send]], rows: int) -> tuple[Floats, Floats]:
    """The host's time to launch a part's kernels and collectives, forward and backward."""
    kernels = _launches(layer, runtime, rows)
    calls = [
        sum(
            (np.where(send.ranks > 1, getattr(send, way), 0.0) for each in sends.values() for send in each),
            start=np.zeros(rows),
        )
        for way in ("forward", "backward")
    ]
    forward, backward = (
        effects.collective_launches(runtime, own, sent) for own, sent in zip(kernels, calls, strict=True)
    )
    return forward * runtime.host.launch_s, backward * runtime.host.backward_s


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
        if stream.way == "again":
            backward = backward + kernel.forward_kernels * times
    return forward, backward


def drained_s(layer: Layer, runtime: Runtime, rows: int) -> Floats:
    """What the host issues after the routing is known and before the first expert's product can start.

    Half of the permutation's kernels, and in fp8 the casts of that product's input, one for each expert.
    """
    if all(stream.kernel != "permute" for stream in layer.streams):
        return np.zeros(rows)
    casts = [np.broadcast_to(s.groups, rows) for s in layer.streams if s.kernel == "fp8_cast"]
    issued = runtime.kernels["permute"].forward_kernels / 2 + (np.max(casts, axis=0) if casts else np.zeros(rows))
    return np.asarray(issued * runtime.host.launch_s, np.float64)
