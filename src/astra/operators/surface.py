"""The learned part of the GEMM model: effective FLOPs of a product as a monotone function of its shape.

Letters: m, n, k the product C[m,n] = A[m,k] B[k,n]; g groups (experts) of that shape in one kernel.

A small network with weights at or above zero and increasing activations, on features that never fall as m, n, k or g
grow: its output can therefore never fall either, for any data it was fitted to. Units come in thirds, convex, concave
and saturating, which together can follow any monotone function (Runje and Shankaranarayana 2023).
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.operators.basis import Peaks, read_json
from astra.provenance import Bools, Floats

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


def features(shapes: Shapes, sms: int) -> Floats:
    """Rows [feature, product], each non-decreasing in m, n, k and groups."""
    m, n, k, groups = shapes
    out = np.empty((FEATURES, len(m)))
    rows = groups * m
    out[0], out[1], out[2] = rows, n, k
    np.minimum(rows, n, out=out[3])
    np.maximum(rows, n, out=out[4])
    np.minimum(k, out[3], out=out[5])
    out[6] = rows * k + k * n + rows * n  # as one tall product: `gemm` counts every group's weights
    down = {size: groups * np.ceil(m / size) for size in (64, 128, 192, 256)}
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


def effective_flops(surface: Surface, shapes: Shapes, sms: int) -> Floats:
    """FLOPs the GPU could have done at its peak in the time the product takes; never fewer than it has.

    Below the measured range the smallest measured size is used; above it, work grows in proportion.
    """
    low, high = surface.card.low, surface.card.high
    sizes = (shapes.m, shapes.n, shapes.k)
    inside = [np.clip(size, lo, hi) for size, lo, hi in zip(sizes, low, high, strict=True)]
    beyond = np.ones_like(shapes.m)
    for size, hi in zip(sizes, high, strict=True):
        beyond = beyond * np.maximum(size / hi, 1.0)
    x = features(Shapes(inside[0], inside[1], inside[2], shapes.groups), sms)
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
    with (Path(__file__).parent / "data" / "gemm.npz").open("rb") as stream, np.load(stream) as stored:
        stacked = {name: stored[name].astype(np.float64) for name in WEIGHTS}
    return {
        (card.gpu, card.precision): Surface(card, {name: stacked[name][index] for name in WEIGHTS})
        for index, card in enumerate(cards)
    }
