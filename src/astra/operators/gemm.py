"""Time of matrix products: a roofline of effective FLOPs and bytes.

t = a + ((F'/(P s))^4 + (B/(0.92 W))^4)^(1/4), with F' effective FLOPs (``Surface``), P the peak and s the sustained
clock (basis.py), B bytes read and written once, W the memory rate, a the fixed time of a kernel. Every term can only
fall when P or W rise and only rise when m, n, k or groups do; and F' >= 2mnk, so the roofline is never beaten.

The learned part of the GEMM model: effective FLOPs of a product as a monotone function of its shape.

Letters: m, n, k the product C[m,n] = A[m,k] B[k,n]; g groups (experts) of that shape in one kernel.

A small network with weights at or above zero and increasing activations, on features that never fall as m, n, k or g
grow: its output can therefore never fall either, for any data it was fitted to. Units come in thirds, convex, concave
and saturating, which together can follow any monotone function (Runje and Shankaranarayana 2023).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from astra.errors import InputError, UnknownName
from astra.operators.basis import Peaks, basis, read_json, sustained
from astra.provenance import Bools, Codes, Floats, Source, Timed
from astra.spec.cluster import Device
from astra.units import US

TILES: Final = ((128, 128), (128, 256), (256, 128), (256, 256), (64, 128), (128, 64), (64, 256), (128, 192), (192, 128))
FEATURES: Final = 7 + len(TILES)
_BLOCK: Final = 192  # columns that stay in the cache, and that BLAS does not spread over threads
WEIGHTS: Final = ("mean", "scale", "w1", "b1", "w2", "b2", "w3", "skip", "bias")


class Card(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one surface was fitted to and how well it does on what it has not seen."""

    gpu: str
    precision: str
    clock: str  # "burst": short kernels on a cool GPU; "sustained": clocks of training
    peaks: Peaks
    low: tuple[float, float, float]  # smallest m, n, k measured
    high: tuple[float, float, float]
    overhead_s: float  # of one kernel
    layouts: dict[str, float]  # time of dgrad and wgrad over that of fwd, where this GPU's own were measured
    rows: int
    sources: tuple[str, ...]
    errors: dict[str, float]  # mean absolute relative errors by hold-out


class Surface(NamedTuple):
    """One GPU at one precision."""

    card: Card
    weights: dict[str, Floats]


class Shapes(NamedTuple):
    """Products as flat columns."""

    m: Floats
    n: Floats
    k: Floats
    groups: Floats

    @property
    def flops(self) -> Floats:
        """Multiplications and additions."""
        return 2.0 * self.groups * self.m * self.n * self.k


def features(shapes: Shapes, sms: int, *, routed: bool = False) -> Floats:
    """Rows [feature, product], each non-decreasing in m, n, k and groups.

    Groups of ``routed`` tokens have m rows in the mean only, and end anywhere in their last tile.
    """
    m, n, k, groups = shapes
    out = np.empty((FEATURES, len(m)))
    rows = groups * m
    out[0], out[1], out[2] = rows, n, k
    np.minimum(rows, n, out=out[3])
    np.maximum(rows, n, out=out[4])
    np.minimum(k, out[3], out=out[5])
    out[6] = rows * k + k * n + rows * n  # as one tall product: `gemm` counts every group's weights
    down = {size: groups * np.ceil(m / size) for size in (64, 128, 192, 256)}
    if routed:
        down = {size: np.where(groups > 1, groups * np.maximum(m / size + 0.5, 1.0), own) for size, own in down.items()}
    across = {size: np.ceil(n / size) for size in (64, 128, 192, 256)}
    for index, (tall, wide) in enumerate(TILES, start=7):
        # Whole waves of tiles over the multiprocessors: the last wave takes as long as a full one. In units of results,
        # so that a GPU with fewer multiprocessors differs only by its waves.
        out[index] = np.ceil(down[tall] * across[wide] / sms) * (tall * wide * sms)
    return np.log2(out, out=out)


def activate(z: Floats) -> Floats:
    """Convex, concave and saturating thirds of the units [unit, product]; all increasing."""
    third, two = len(z) // 3, 2 * len(z) // 3
    out = z * z
    out += 1.0
    np.sqrt(out, out=out)
    np.add(z[:third], out[:third], out=out[:third])
    np.subtract(z[third:two], out[third:two], out=out[third:two])
    out[:two] *= 0.5
    np.divide(z[two:], out[two:], out=out[two:])
    return out


def log_effective_flops(weights: dict[str, Floats], x: Floats) -> Floats:
    """The network: natural logarithm of effective FLOPs from features.

    In double precision: how BLAS orders its sums differs by processor and by what is timed together, and must not show.
    """
    y = (x - weights["mean"][:, None]) / weights["scale"][:, None]
    out = np.empty(y.shape[1])
    for begin in range(0, len(out), _BLOCK):
        part = y[:, begin : begin + _BLOCK]
        hidden = activate(weights["w1"].T @ part + weights["b1"][:, None])
        hidden = activate(weights["w2"].T @ hidden + weights["b2"][:, None])
        out[begin : begin + _BLOCK] = weights["w3"] @ hidden + weights["skip"] @ part
    return out + weights["bias"]


def effective_flops(surface: Surface, shapes: Shapes, sms: int, *, routed: bool = False) -> Floats:
    """FLOPs the GPU could have done at its peak in the time the product takes; never fewer than it has.

    Below the measured range the smallest measured size is used; above it, work grows in proportion.
    """
    low, high = surface.card.low, surface.card.high
    sizes = (shapes.m, shapes.n, shapes.k)
    inside = [np.clip(size, lo, hi) for size, lo, hi in zip(sizes, low, high, strict=True)]
    beyond = np.ones_like(shapes.m)
    for size, hi in zip(sizes, high, strict=True):
        beyond = beyond * np.maximum(size / hi, 1.0)
    x = features(Shapes(inside[0], inside[1], inside[2], shapes.groups), sms, routed=routed)
    return np.maximum(np.exp(log_effective_flops(surface.weights, x)) * beyond, shapes.flops)


def in_range(card: Card, shapes: Shapes) -> Bools:
    """Whether each shape lies between measured ones."""
    out: Bools = shapes.groups == 1
    for size, lo, hi in zip((shapes.m, shapes.n, shapes.k), card.low, card.high, strict=True):
        out = out & (size >= lo) & (size <= hi)
    return out


@cache
def surfaces() -> dict[tuple[str, str], Surface]:
    """Every fitted surface by (GPU, precision)."""
    cards = [msgspec.convert(card, Card) for card in read_json("gemm.json")["surfaces"]]
    with (Path(__file__).parent / "data" / "gemm.npy").open("rb") as stream:
        stored = np.load(stream)  # a record for each surface: an archive of arrays takes longer to open than to use
    stacked = {name: stored[name].astype(np.float64) for name in WEIGHTS}
    return {
        (card.gpu, card.precision): Surface(card, {name: stacked[name][index] for name in WEIGHTS})
        for index, card in enumerate(cards)
    }


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
# Several products in one kernel against one tall product with as many tiles: through TransformerEngine in bf16 on A100
# and B200 (MooreThreads/SimuMax @4dcaae5). TensorRT-LLM on H200 has 1.2 (ai-dynamo/aiconfigurator @095f58a), between.
GROUPED_FACTORS: Final = {"ampere": {"bf16": 1.02}, "blackwell": {"bf16": 1.4}}
GROUPED_FACTOR: Final = 1.15  # where none was measured
# Time of a product over that of one whose rows in memory are a multiple of 16 bytes, where they are so many bytes at
# best: tensor memory loads need 16. H200, cuBLAS of CUDA 13, 7 shapes, all three layouts (benchmarks/alignment.py):
# 4.0 to 9.8 at 2 bytes, 2.0 to 4.3 at 4 and 8. The number of tokens does not matter.
UNALIGNED: Final = {2: 5.8, 4: 3.0, 8: 3.0}
# Earlier GPUs have no such loads. nanoGPT took 1.25 times as long with 50,257 as with 50,304 rows on A100 (its author,
# 2023): about 2 for a third of its products; the rest is a guess.
UNALIGNED_BEFORE: Final = {2: 2.0, 4: 1.5, 8: 1.5}
TENSOR_MEMORY_LOADS: Final = ("hopper", "blackwell")
ROW_BYTES: Final = 16
UNMEASURED_FRACTION: Final = 0.6  # of peak; a rule of thumb for GPUs without a relative
UNMEASURED_OVERHEAD_S: Final = 5 * US


class _Served(NamedTuple):
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
    routed: bool = False,
) -> Timed:
    """Seconds of C[m,n] = A[m,k] B[k,n] in sustained training, done ``groups`` times by one kernel.

    ``routed``: m is the mean of groups whose sizes chance decides, as of the tokens of experts. Shapes are those of the
    product itself: a caller permutes them for dgrad and wgrad. fp8 is the product alone: the caller counts the casts of
    its operands.
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
    work, overhead_s, source = _work(choice, shapes, device.sms, routed)
    work = work * choice.factor * np.where(shapes.groups > 1, _grouped(device, precision), 1.0)
    rows = (shapes.m, shapes.n) if layout == "wgrad" else (shapes.n, shapes.k)
    slower = _unaligned(device, precision, *rows)
    if slower is not None:
        work = work * slower
        source = np.where(slower > 1, np.maximum(source, _known_unaligned(device)), source).astype(np.int8)
    busy = np.maximum(work, shapes.flops) / (peak * choice.clock)
    moved = product_bytes(shapes, precision, accumulated=layout == "wgrad")
    seconds = overhead_s + either(busy, moved / (MEMORY_FRACTION * device.memory_bytes_per_s))
    return Timed(seconds.reshape(shape), source.reshape(shape))


def most_flops_per_s(device: Device, precision: str) -> float:
    """No product runs faster in sustained training, whatever its shape."""
    choices = [_choose(device, precision, layout) for layout in read_json("gemm.json")["layouts"]]
    fractions = [UNMEASURED_FRACTION if choice.surface is None else 1.0 for choice in choices]
    rates = [some * one.clock / max(one.factor, some) for some, one in zip(fractions, choices, strict=True)]
    return device.peak(precision) * max(rates)


def _unaligned(device: Device, precision: str, *rows: Floats) -> Floats | None:
    """How much longer a product takes for rows of its operands that are no multiple of 16 bytes; None: none are.

    Narrower operands than two bytes are not computed at all with such rows.
    """
    element = int(OPERAND_BYTES[precision])
    if element < 2 or all(not np.any(row % (ROW_BYTES // element)) for row in rows):
        return None
    table = UNALIGNED if device.generation in TENSOR_MEMORY_LOADS else UNALIGNED_BEFORE
    slower = np.ones(len(rows[0]))
    for row in rows:
        for each, times in sorted(table.items(), reverse=True):  # the least aligned is the slowest
            if each >= element:
                slower = np.where(row * element % (2 * each) != 0, times, slower)
    return slower


def _known_unaligned(device: Device) -> Source:
    if device.generation not in TENSOR_MEMORY_LOADS:
        return Source.ASSUMED
    return Source.INTERPOLATED if device.generation == "hopper" else Source.TRANSFERRED


def _grouped(device: Device, precision: str) -> float:
    """Time of a product over that of its share of one tall product."""
    return GROUPED_FACTORS.get(device.generation, {}).get(STANDS_FOR[precision], GROUPED_FACTOR)


def product_bytes(shapes: Shapes, precision: str, *, accumulated: bool) -> Floats:
    """Bytes of the operands and the result, each moved once."""
    m, n, k, groups = shapes
    result = ACCUMULATED_BYTES if accumulated else RESULT_BYTES[precision]
    return groups * (OPERAND_BYTES[precision] * (m * k + k * n) + result * m * n)


def either(first: Floats, second: Floats) -> Floats:
    """The larger of two times that overlap, a little more where they are alike: their 4-norm."""
    first, second = first * first, second * second
    return np.sqrt(np.sqrt(first * first + second * second))


def _work(choice: _Served, shapes: Shapes, sms: int, routed: bool) -> tuple[Floats, float, Codes]:
    """Effective FLOPs, the fixed time and the provenance."""
    if choice.surface is None:
        assumed = np.full(len(shapes.m), choice.source, np.int8)
        return shapes.flops / UNMEASURED_FRACTION, UNMEASURED_OVERHEAD_S, assumed
    known = in_range(choice.surface.card, shapes)
    source = np.where(known, choice.source, max(choice.source, Source.TRANSFERRED)).astype(np.int8)
    return effective_flops(choice.surface, shapes, sms, routed=routed), choice.surface.card.overhead_s, source


def _choose(device: Device, precision: str, layout: str) -> _Served:
    fitted, table = surfaces(), read_json("gemm.json")
    if layout not in table["layouts"]:
        raise UnknownName("layout", layout, table["layouts"])
    wanted = STANDS_FOR[precision]
    found = basis(device, {gpu for gpu, _ in fitted})
    if found is None:
        return _Served(None, table["layouts"][layout], sustained(device, wanted), Source.ASSUMED)
    surface = fitted.get((found.gpu, wanted)) or fitted[found.gpu, "bf16"]
    card, source = surface.card, found.source
    if precision not in (card.precision, "fp16") or not card.peaks.match(device, precision):
        source = max(source, Source.TRANSFERRED)
    factor, clock = card.layouts.get(layout, table["layouts"][layout]), card.clock
    level = table["levels"].get(device.name)
    if level is not None and found.gpu != device.name:
        factor, clock = factor * level["factor"], level["clock"]
    return _Served(surface, factor, 1.0 if clock == "sustained" else sustained(device, wanted), source)
