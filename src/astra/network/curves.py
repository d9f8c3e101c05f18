"""What is fitted: curves inside one switched domain, and the constants of everything else.

Letters: n ranks, x bytes on the wire, A fixed seconds, W seconds at the wire rate, r the ramp. A curve is
t = A + W + 2 r sqrt(A W): a transfer cut into pieces of the best size through a chain with latency A takes
(sqrt A + sqrt W)^2, and the ramp, at most about 1, says how much of that is seen. Rates are kept as fractions of the
link, so that a changed link changes the time. Where NCCL changes protocol, a correction shared by a GPU generation.
A user's own sweeps go on top: the model's seconds, times what was measured over what it says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from math import log2
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.provenance import Bools, Codes, Floats, Ints, Source, Timed
from astra.spec.cluster import CollectiveSweep, NodeType
from astra.units import US

FIRST_KNOT_BYTES: Final = 512
KNOT_COUNT: Final = 11
KNOT_OCTAVES: Final = 2
LAST_KNOT_BYTES: Final = FIRST_KNOT_BYTES * 2.0 ** (KNOT_OCTAVES * (KNOT_COUNT - 1))
_CELLS_PER_OCTAVE: Final = 4


class CollectiveCurve(msgspec.Struct, frozen=True):
    """One measured (GPU, op, ranks) inside a domain; ``wire`` and ``tail`` are fractions of the link rate."""

    gpu: str
    op: str
    ranks: int
    base_us: float
    wire: float
    ramp: float
    tail: float  # beyond the last knot
    min_bytes: float
    max_bytes: float
    own: bool = True  # False: taken over from a relative
    error: float = 0.0  # mean absolute, on the fitted points


class GroupShape(msgspec.Struct, frozen=True):
    """Correction to the curves of a generation at the knots, in log: where NCCL changes protocol."""

    generation: str
    op: str
    ranks: int
    log_ratio: tuple[float, ...]


class Gpu(msgspec.Struct, frozen=True):
    """A measured GPU and the link its curves were measured on."""

    name: str
    kind: str
    generation: str
    arch: str
    link_bytes_per_s: float


class CurveRules(msgspec.Struct, frozen=True):
    """Constants of everything that has no curve of its own. Steps count latencies of the tier a step crosses."""

    ring_base_us: float
    ring_step: float
    ring_ramp: float
    tree_step: float
    tree_ramp: float
    link_fraction: dict[str, float]  # of a tier's rate that a ring or tree keeps busy, by kind
    step_scale: dict[str, float]  # latencies count so many times on this kind, where not once
    all_to_all_base_us: float
    all_to_all_step: float
    all_to_all_fraction: float  # of the tier's rate, on the bytes that leave the domain
    all_to_all_ramp: float
    mesh_base_us: float
    mesh_step_us: float
    mesh_fraction: float
    mesh_ramp: float
    send_fraction: dict[str, float]
    send_ramp_near: float
    send_ramp_far: float
    busy_sms: dict[str, float]
    host_fraction: float
    coherent_host_fraction: float


class Fit(msgspec.Struct, frozen=True):
    """The data file: fitted coefficients, where they come from and how well they predict what was held out."""

    made: str
    sources: tuple[str, ...]
    gpus: tuple[Gpu, ...]
    relatives: dict[str, str]
    curves: tuple[CollectiveCurve, ...]
    shapes: tuple[GroupShape, ...]
    rules: CurveRules
    held_out: dict[str, float]


class CurveTable(NamedTuple):
    """The curves of one GPU and op, ready to look up."""

    op: str
    link_bytes_per_s: float
    ranks: Floats
    log2_s: Floats  # [ranks, cell], not falling along a row
    base_s: Floats
    tail_bytes_per_s: Floats
    min_bytes: Floats
    max_bytes: Floats
    own: Bools


@lru_cache(maxsize=1)
def load() -> Fit:
    """The coefficients shipped with Astra."""
    raw = (Path(__file__).parent / "data" / "collectives.json").read_bytes()
    return msgspec.json.decode(raw, type=Fit)


def wire_factor(op: str, ranks: Floats | Ints | float) -> Floats:
    """Bytes on the wire per byte of nccl-tests "size"; seen bandwidth is then comparable across n."""
    if op == "send_recv":
        return np.ones_like(np.asarray(ranks, np.float64))
    share = (np.asarray(ranks, np.float64) - 1) / ranks
    return 2 * share if op == "all_reduce" else share


def ramped(fixed_s: Floats, wire_s: Floats, ramp: Floats | float) -> Floats:
    """Seconds by t = A + W + 2 r sqrt(A W)."""
    return fixed_s + wire_s + 2 * ramp * np.sqrt(fixed_s * wire_s)


def tabulate(fit: Fit, gpu: str, op: str) -> CurveTable | None:
    """Curves of a GPU on a fine grid of sizes; None if the op was not measured there."""
    meta = next(entry for entry in fit.gpus if entry.name == gpu)
    curves = sorted((c for c in fit.curves if c.gpu == gpu and c.op == op), key=lambda c: c.ranks)
    if not curves:
        return None
    octaves = np.linspace(0, KNOT_OCTAVES * (KNOT_COUNT - 1), KNOT_OCTAVES * (KNOT_COUNT - 1) * _CELLS_PER_OCTAVE + 1)
    knots = np.arange(KNOT_COUNT) * KNOT_OCTAVES
    shapes = {(s.op, s.ranks): s.log_ratio for s in fit.shapes if s.generation == meta.generation}
    rows = []
    for curve in curves:
        wire_s = FIRST_KNOT_BYTES * 2.0**octaves * wire_factor(op, curve.ranks) / (curve.wire * meta.link_bytes_per_s)
        seconds = ramped(np.full_like(wire_s, curve.base_us * US), wire_s, curve.ramp)
        seconds *= np.exp(np.interp(octaves, knots, shapes.get((op, curve.ranks), np.zeros(KNOT_COUNT))))
        rows.append(np.maximum.accumulate(np.log2(seconds)))
    log2_s = np.array(rows)
    return CurveTable(
        op,
        meta.link_bytes_per_s,
        np.array([c.ranks for c in curves], np.float64),
        log2_s,
        np.exp2(log2_s[:, 0]),
        np.array([c.tail for c in curves]) * meta.link_bytes_per_s,
        np.array([c.min_bytes for c in curves]),
        np.array([c.max_bytes for c in curves]),
        np.array([c.own for c in curves]),
    )


@lru_cache(maxsize=256)
def table_of(gpu: str, op: str) -> CurveTable | None:
    """Shipped curves of a GPU and op."""
    return tabulate(load(), gpu, op)


def _at(table: CurveTable, row: Ints, nbytes: Floats) -> Floats:
    """Seconds of one curve per entry: log-log interpolation on the grid, a straight line beyond it."""
    cells = table.log2_s.shape[1] - 1
    place = np.log2(np.maximum(nbytes, FIRST_KNOT_BYTES) / FIRST_KNOT_BYTES) * _CELLS_PER_OCTAVE
    cell = np.minimum(place.astype(np.int64), cells - 1)
    part = np.minimum(place - cell, 1.0)
    flat = table.log2_s.ravel()
    index = row * (cells + 1) + cell
    seconds: Floats = np.exp2(flat[index] * (1 - part) + flat[index + 1] * part)
    beyond = np.maximum(nbytes - LAST_KNOT_BYTES, 0.0) * wire_factor(table.op, table.ranks)[row]
    seconds += beyond / table.tail_bytes_per_s[row]
    return seconds


def inside_s(table: CurveTable, nbytes: Floats, ranks: Floats, link_bytes_per_s: float) -> Floats:
    """Seconds in one switched domain; between measured n the latency is linear in n and the rest in log n."""
    scaled = nbytes * (table.link_bytes_per_s / link_bytes_per_s)
    last = len(table.ranks) - 1
    low = np.clip(np.searchsorted(table.ranks, ranks, side="right") - 1, 0, last)
    high = np.minimum(low + 1, last)
    n_low, n_high = table.ranks[low], table.ranks[high]
    wider = ranks > table.ranks[last]
    if wider.any():
        grown = wire_factor(table.op, ranks) / wire_factor(table.op, table.ranks[last])
        scaled = np.where(wider, scaled * grown, scaled)
    seconds = _at(table, low, scaled)
    between = (ranks > n_low) & (high > low)
    if between.any():
        gap = np.where(high > low, n_high - n_low, 1.0)
        linear = np.where(between, (ranks - n_low) / gap, 0.0)
        logarithmic = np.where(between, np.log2(ranks / n_low) / np.log2(np.where(high > low, n_high / n_low, 2)), 0.0)
        rise = table.base_s[high] - table.base_s[low]
        seconds = seconds + logarithmic * (_at(table, high, scaled) - seconds) + (linear - logarithmic) * rise
    if wider.any() and last > 0:
        slope = (table.base_s[last] - table.base_s[last - 1]) / (table.ranks[last] - table.ranks[last - 1])
        doubling = (table.base_s[last] - table.base_s[last - 1]) / math.log2(table.ranks[last] / table.ranks[last - 1])
        # All-reduce has tree and in-switch variants, whose latency grows with log n; the others go round a ring.
        steps = np.log2(ranks / table.ranks[last]) * doubling
        steps = steps if table.op == "all_reduce" else (ranks - table.ranks[last]) * slope
        seconds = seconds + np.where(wider, np.maximum(steps, 0.0), 0.0)
    return seconds


Model = Callable[[Floats, Floats, Floats], Floats]  # bytes, ranks, stride -> seconds


def corrected(
    node: NodeType, op: str, size: Floats, ranks: Floats, stride: Floats, timed: Timed, model: Model
) -> Timed:
    """The model's times, drawn to the sweeps of the node where there are some of this kind."""
    seconds, source = timed.seconds.copy(), timed.source.copy()
    sweeps = [sweep for sweep in node.measured if sweep.op == op]
    for n, apart in {(n, apart) for n, apart in zip(ranks.ravel(), stride.ravel(), strict=True) if n > 1}:
        near = _nearest(
            [sweep for sweep in sweeps if _far(node, sweep.ranks, sweep.stride) == _far(node, n, apart)], n, apart
        )
        if near is not None:
            here: Bools = (ranks == n) & (stride == apart)
            seconds[here] *= _ratio(near, size[here], model)
            source[here] = _source(near, size[here], n, apart)
    return Timed(seconds, source)


def _far(node: NodeType, ranks: float, stride: float) -> bool:
    """Whether a group leaves the server."""
    return ranks * stride > node.gpus


def _nearest(sweeps: list[CollectiveSweep], ranks: float, stride: float) -> CollectiveSweep | None:
    def distance(sweep: CollectiveSweep) -> tuple[float, float]:
        return abs(log2(sweep.stride / stride)), abs(log2(sweep.ranks / ranks))

    return min(sweeps, key=distance, default=None)


def _ratio(sweep: CollectiveSweep, size: Floats, model: Model) -> Floats:
    """Measured over modelled, between sizes by their logarithms; beyond them as at the last."""
    sizes = np.array(sweep.nbytes)
    modelled = model(sizes, np.full(len(sizes), float(sweep.ranks)), np.full(len(sizes), float(sweep.stride)))
    ratios = np.log(np.array(sweep.seconds) / modelled)
    return np.exp(np.interp(np.log(np.maximum(size, 1.0)), np.log(sizes), ratios))


def _source(sweep: CollectiveSweep, size: Floats, ranks: float, stride: float) -> Codes:
    if (sweep.ranks, sweep.stride) != (ranks, stride):
        beyond = ranks * stride > sweep.ranks * sweep.stride
        return np.full(size.shape, Source.TRANSFERRED if beyond else Source.INTERPOLATED, np.int8)
    inside = (size >= sweep.nbytes[0]) & (size <= sweep.nbytes[-1])
    return np.where(inside, Source.MEASURED, Source.INTERPOLATED).astype(np.int8)
