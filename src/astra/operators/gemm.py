"""Time of matrix products: a roofline of effective FLOPs and bytes.

t = a + ((F'/(P s))^4 + (B/(0.92 W))^4)^(1/4), with F' effective FLOPs (surface.py), P the peak and s the sustained
clock (basis.py), B bytes read and written once, W the memory rate, a the fixed time of a kernel. Every term can only
fall when P or W rise and only rise when m, n, k or groups do; and F' >= 2mnk, so the roofline is never beaten.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from astra.errors import InputError, UnknownName
from astra.operators.basis import basis, read_json, sustained
from astra.operators.surface import Shapes, Surface, effective_flops, in_range, surfaces
from astra.provenance import Codes, Floats, Source, Timed
from astra.spec.cluster import Device
from astra.units import US

Layout = Literal["fwd", "dgrad", "wgrad"]

OPERAND_BYTES: Final = {
    "fp4": 0.5 + 1 / 16,  # with a byte of scale for each 16
    "fp8": 1.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "tf32": 4.0,
    "fp32": 4.0,
}
RESULT_BYTES: Final = {"fp4": 2.0, "fp8": 2.0, "bf16": 2.0, "fp16": 2.0, "tf32": 4.0, "fp32": 4.0}
# The weight gradient is added to an fp32 buffer inside the kernel: four bytes read, four written.
ACCUMULATED_BYTES: Final = 8.0
MEMORY_FRACTION: Final = 0.92  # of the data-sheet rate, reached by the best memory-bound products of every GPU measured
# Precisions without measurements of their own take the fraction of their own peak that this one reaches.
STANDS_FOR: Final = {"fp4": "fp8", "fp8": "fp8", "bf16": "bf16", "fp16": "bf16", "tf32": "bf16", "fp32": "bf16"}
# Several products in one kernel against one tall product with as many tiles: 1.02 on A100 and 1.4 on B200 through
# TransformerEngine (MooreThreads/SimuMax @4dcaae5), 1.2 on H200 in TensorRT-LLM (ai-dynamo/aiconfigurator @095f58a).
GROUPED_FACTOR: Final = 1.15
UNMEASURED_FRACTION: Final = 0.6  # of peak; a rule of thumb for GPUs without a relative
UNMEASURED_OVERHEAD_S: Final = 5 * US


class _Choice(NamedTuple):
    """The surface that serves a device, and what to do with it."""

    surface: Surface | None
    factor: float  # on effective FLOPs: level of the device and of the layout
    clock: float
    source: Source


def gemm(
    device: Device,
    *,
    m: npt.ArrayLike,
    n: npt.ArrayLike,
    k: npt.ArrayLike,
    precision: str,
    layout: str,
    groups: npt.ArrayLike = 1,
) -> Timed:
    """Seconds of C[m,n] = A[m,k] B[k,n] in sustained training, done ``groups`` times by one kernel.

    Shapes are those of the product itself: a caller permutes them for dgrad and wgrad. fp8 is the product alone: the
    caller counts the casts of its operands.
    """
    if precision not in OPERAND_BYTES:
        raise UnknownName("precision", precision, OPERAND_BYTES)
    columns = np.broadcast_arrays(*(np.asarray(column, np.float64) for column in (m, n, k, groups)))
    shape = columns[0].shape
    shapes = Shapes(*(column.ravel() for column in columns))
    if not all(np.all(column > 0) and np.all(np.isfinite(column)) for column in shapes):
        raise InputError("gemm", None, want="m, n, k and groups above zero")
    peak = device.peak(precision)
    choice = _choose(device, precision, layout)
    work, overhead_s, source = _work(choice, shapes, device.sms)
    work = work * np.where(shapes.groups > 1, GROUPED_FACTOR * choice.factor, choice.factor)
    busy = np.maximum(work, shapes.flops) / (peak * choice.clock)
    moved = product_bytes(shapes, precision, accumulated=layout == "wgrad")
    seconds = overhead_s + either(busy, moved / (MEMORY_FRACTION * device.memory_bytes_per_s))
    return Timed(seconds.reshape(shape), source.reshape(shape))


def product_bytes(shapes: Shapes, precision: str, *, accumulated: bool) -> Floats:
    """Bytes of the operands and the result, each moved once."""
    m, n, k, groups = shapes
    result = ACCUMULATED_BYTES if accumulated else RESULT_BYTES[precision]
    return groups * (OPERAND_BYTES[precision] * (m * k + k * n) + result * m * n)


def either(first: Floats, second: Floats) -> Floats:
    """The larger of two times that overlap, a little more where they are alike: their 4-norm."""
    first, second = first * first, second * second
    return np.sqrt(np.sqrt(first * first + second * second))


def _work(choice: _Choice, shapes: Shapes, sms: int) -> tuple[Floats, float, Codes]:
    """Effective FLOPs, the fixed time and the provenance."""
    if choice.surface is None:
        assumed = np.full(len(shapes.m), choice.source, np.int8)
        return shapes.flops / UNMEASURED_FRACTION, UNMEASURED_OVERHEAD_S, assumed
    known = in_range(choice.surface.card, shapes)
    source = np.where(known, choice.source, max(choice.source, Source.TRANSFERRED)).astype(np.int8)
    return effective_flops(choice.surface, shapes, sms), choice.surface.card.overhead_s, source


def _choose(device: Device, precision: str, layout: str) -> _Choice:
    fitted, table = surfaces(), read_json("gemm.json")
    if layout not in table["layouts"]:
        raise UnknownName("layout", layout, table["layouts"])
    wanted = STANDS_FOR[precision]
    found = basis(device, {gpu for gpu, _ in fitted})
    if found is None:
        return _Choice(None, table["layouts"][layout], sustained(device), Source.ASSUMED)
    surface = fitted.get((found.gpu, wanted)) or fitted[found.gpu, "bf16"]
    card, source = surface.card, found.source
    if precision not in (card.precision, "fp16") or not card.peaks.match(device, precision):
        source = max(source, Source.TRANSFERRED)
    factor, clock = card.layouts.get(layout, table["layouts"][layout]), card.clock
    level = table["levels"].get(device.name)
    if level is not None and found.gpu != device.name:
        factor, clock = factor * level["factor"], level["clock"]
    return _Choice(surface, factor, 1.0 if clock == "sustained" else sustained(device), source)
