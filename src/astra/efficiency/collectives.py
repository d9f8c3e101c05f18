"""Collective and point-to-point time of a group of ranks, from its size, its stride and the tiers it spans.

Letters: n ranks of a group, m of them in one domain of a tier, k domains, x bytes on the wire (``wire_factor``), A fixed
seconds, W seconds at the wire rate. Everywhere t = A + W + 2 r sqrt(A W): a transfer cut into pieces of the best size
through a chain with latency A takes (sqrt A + sqrt W)^2; the ramp r below 1 says how much of that is seen.

- One domain (NVSwitch, PCIe box): curves fitted to NCCL sweeps, kept as fractions of the link rate, so that a changed
  link changes the time; protocol switches are a correction shared by a GPU generation.
- Several domains: ring (all-gather, reduce-scatter, all-reduce), tree (all-reduce) or direct (all-to-all) over the
  slowest tier, with constants fitted to published multi-node runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from astra.errors import InputError, UnknownName, fold
from astra.provenance import Bools, Codes, Floats, Ints, Source, Timed
from astra.spec.cluster import Device, Pool
from astra.units import US

OPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
OVERLAP_SOURCE: Final = Source.ASSUMED

FIRST_KNOT_BYTES: Final = 512
KNOT_COUNT: Final = 11  # one every two octaves: 512 B .. 512 MiB
_KNOT_OCTAVES: Final = 2
_CELLS_PER_OCTAVE: Final = 4
_LAST_BYTES: Final = FIRST_KNOT_BYTES * 2.0 ** (_KNOT_OCTAVES * (KNOT_COUNT - 1))
_SAME_LINK: Final = 0.02  # a link within 2% of the measured one is the measured one
_IN_SERVER: Final = frozenset({"nvswitch", "rack", "nvlink-mesh", "xgmi", "pcie"})
_RDMA: Final = frozenset({"infiniband", "roce", "efa"})
_COHERENT_BYTES_PER_S: Final = 200e9  # a host link faster than any PCIe is NVLink-C2C


class Curve(msgspec.Struct, frozen=True):
    """One measured (GPU, op, ranks) inside a domain; ``wire`` and ``tail`` are fractions of the link rate."""

    gpu: str
    op: str
    ranks: int
    base_us: float
    wire: float
    ramp: float
    tail: float  # beyond the last knot
    max_bytes: float
    own: bool = True  # False: taken over from a relative
    error: float = 0.0  # mean absolute, on the fitted points


class Shape(msgspec.Struct, frozen=True):
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


class Rules(msgspec.Struct, frozen=True):
    """Constants of everything that has no curve of its own. Steps count latencies of the tier a step crosses."""

    ring_base_us: float
    ring_step: float
    ring_ramp: float
    tree_step: float
    tree_ramp: float
    link_fraction: dict[str, float]  # of a tier's rate that a ring or tree keeps busy, by kind
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
    curves: tuple[Curve, ...]
    shapes: tuple[Shape, ...]
    rules: Rules
    held_out: dict[str, float]


class Table(NamedTuple):
    """The curves of one GPU and op, ready to look up."""

    op: str
    link_bytes_per_s: float
    ranks: Floats
    log2_s: Floats  # [ranks, cell], not falling along a row
    base_s: Floats
    tail_bytes_per_s: Floats
    max_bytes: Floats
    own: Bools


class Tier(NamedTuple):
    """One tier as one GPU sees it, after oversubscription."""

    reach: float
    kind: str
    bytes_per_s: float
    latency_s: float


@lru_cache(maxsize=1)
def load() -> Fit:
    """The coefficients shipped with Astra."""
    raw = files("astra.efficiency").joinpath("data/collectives.json").read_bytes()
    return msgspec.json.decode(raw, type=Fit)


def wire_factor(op: str, ranks: Floats | Ints | float) -> Floats:
    """Bytes on the wire per byte of nccl-tests "size"; seen bandwidth is then comparable across n."""
    if op == "send_recv":
        return np.ones_like(np.asarray(ranks, np.float64))
    share = (np.asarray(ranks, np.float64) - 1) / ranks
    return 2 * share if op == "all_reduce" else share


def ramped(fixed_s: Floats, wire_s: Floats, ramp: Floats | float) -> Floats:
    """t = A + W + 2 r sqrt(A W)."""
    return fixed_s + wire_s + 2 * ramp * np.sqrt(fixed_s * wire_s)


def tabulate(fit: Fit, gpu: str, op: str) -> Table | None:
    """Curves of a GPU on a fine grid of sizes; None if the op was not measured there."""
    meta = next(entry for entry in fit.gpus if entry.name == gpu)
    curves = sorted((c for c in fit.curves if c.gpu == gpu and c.op == op), key=lambda c: c.ranks)
    if not curves:
        return None
    octaves = np.linspace(0, _KNOT_OCTAVES * (KNOT_COUNT - 1), _KNOT_OCTAVES * (KNOT_COUNT - 1) * _CELLS_PER_OCTAVE + 1)
    knots = np.arange(KNOT_COUNT) * _KNOT_OCTAVES
    shapes = {(s.op, s.ranks): s.log_ratio for s in fit.shapes if s.generation == meta.generation}
    rows = []
    for curve in curves:
        wire_s = FIRST_KNOT_BYTES * 2.0**octaves * wire_factor(op, curve.ranks) / (curve.wire * meta.link_bytes_per_s)
        seconds = ramped(np.full_like(wire_s, curve.base_us * US), wire_s, curve.ramp)
        seconds *= np.exp(np.interp(octaves, knots, shapes.get((op, curve.ranks), np.zeros(KNOT_COUNT))))
        rows.append(np.maximum.accumulate(np.log2(seconds)))
    log2_s = np.array(rows)
    return Table(
        op,
        meta.link_bytes_per_s,
        np.array([c.ranks for c in curves], np.float64),
        log2_s,
        np.exp2(log2_s[:, 0]),
        np.array([c.tail for c in curves]) * meta.link_bytes_per_s,
        np.array([c.max_bytes for c in curves]),
        np.array([c.own for c in curves]),
    )


@lru_cache(maxsize=256)
def _table(gpu: str, op: str) -> Table | None:
    return tabulate(load(), gpu, op)


def _at(table: Table, row: Ints, nbytes: Floats) -> Floats:
    """Seconds of one curve per entry: log-log interpolation on the grid, a straight line beyond it."""
    cells = table.log2_s.shape[1] - 1
    place = np.log2(np.maximum(nbytes, FIRST_KNOT_BYTES) / FIRST_KNOT_BYTES) * _CELLS_PER_OCTAVE
    cell = np.minimum(place.astype(np.int64), cells - 1)
    part = np.minimum(place - cell, 1.0)
    flat = table.log2_s.ravel()
    index = row * (cells + 1) + cell
    seconds = np.exp2(flat[index] * (1 - part) + flat[index + 1] * part)
    beyond = np.maximum(nbytes - _LAST_BYTES, 0.0) * wire_factor(table.op, table.ranks)[row]
    return seconds + beyond / table.tail_bytes_per_s[row]


def inside_s(table: Table, nbytes: Floats, ranks: Floats, link_bytes_per_s: float) -> Floats:
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


def mesh_s(op: str, nbytes: Floats, ranks: Floats, tier: Tier, rules: Rules) -> Floats:
    """GPUs wired in pairs: n of them use (n-1) of each one's links (MI300X: 2 reach 48 GB/s, 8 reach 313)."""
    share = np.minimum((ranks - 1) / max(tier.reach - 1, 1), 1.0)
    wire_s = nbytes * wire_factor(op, ranks) / (rules.mesh_fraction * tier.bytes_per_s * np.maximum(share, 1e-9))
    rounds = 2 if op == "all_reduce" else 1
    return ramped((rules.mesh_base_us + rules.mesh_step_us * rounds * (ranks - 1)) * US, wire_s, rules.mesh_ramp)


def spans(tiers: Sequence[Tier], ranks: Floats, stride: Floats) -> tuple[list[Floats], list[Floats]]:
    """Members of a group in one domain of each tier, and the domains it touches; the last tier joins everything."""
    members = [np.clip(tier.reach // stride, 1, ranks) for tier in tiers[:-1]] + [ranks]
    return members, [np.ceil(ranks / inside) for inside in members]


def across_s(
    op: str,
    nbytes: Floats,
    ranks: Floats,
    stride: Floats,
    tiers: Sequence[Tier],
    near: tuple[float, float],
    rules: Rules,
) -> Floats:
    """Seconds of a group that spans several domains of ``tiers[0]``.

    ``near`` is what a ring and an all-reduce reach inside a domain. A domain with m members leaves through m links:
    sibling groups use the others, so a link's rate is per GPU and a group's rate is m times that.
    """
    members, domains = spans(tiers, ranks, stride)
    rings_s = rules.ring_step * (ranks - domains[0]) * tiers[0].latency_s
    trees_s = np.zeros_like(ranks)
    direct_s = np.zeros_like(ranks)
    leaving_s = np.zeros_like(ranks)
    ring_rate = np.where(members[0] > 1, near[0], np.inf)
    tree_rate = np.where(members[0] > 1, np.where(domains[0] == 2, max(near), near[0]), np.inf)
    for index in range(1, len(tiers)):
        tier, inner, crossed = tiers[index], members[index - 1], domains[index - 1] > domains[index]
        rings_s = rings_s + rules.ring_step * (domains[index - 1] - domains[index]) * tier.latency_s
        levels = np.log2(domains[index - 1] / domains[index])
        trees_s = trees_s + 2 * rules.tree_step * levels * tier.latency_s
        direct_s = direct_s + rules.all_to_all_step * levels * tier.latency_s
        exit_rate = rules.link_fraction[tier.kind] * tier.bytes_per_s * inner
        ring_rate = np.where(crossed, np.minimum(ring_rate, exit_rate), ring_rate)
        # Two domains exchange halves directly: each link carries the buffer once, not twice.
        pair = np.where(domains[index - 1] == 2, wire_factor("all_reduce", ranks), 1.0)
        tree_rate = np.where(crossed, np.minimum(tree_rate, exit_rate * pair), tree_rate)
        out = nbytes * (ranks - inner) / ranks / (rules.all_to_all_fraction * tier.bytes_per_s)
        leaving_s = np.where(crossed, np.maximum(leaving_s, out), leaving_s)
    if op == "all_to_all":
        return ramped(rules.all_to_all_base_us * US + direct_s, leaving_s, rules.all_to_all_ramp)
    wire_bytes, base_s = nbytes * wire_factor(op, ranks), rules.ring_base_us * US
    if op != "all_reduce":
        return ramped(base_s + rings_s, wire_bytes / ring_rate, rules.ring_ramp)
    ring = ramped(base_s + 2 * rings_s, wire_bytes / ring_rate, rules.ring_ramp)
    return np.minimum(ring, ramped(base_s + trees_s, wire_bytes / tree_rate, rules.tree_ramp))


def tiers_of(pool: Pool) -> list[Tier]:
    """The tiers of a pool, nearest first; a server whose GPUs only meet on the network is a domain of one."""
    links = pool.node.links
    tiers = [Tier(k.reach, k.kind, k.bytes_per_s / k.oversubscription, k.latency_s) for k in links]
    if tiers and tiers[0].kind not in _IN_SERVER:
        tiers.insert(0, Tier(1, "nvswitch", tiers[0].bytes_per_s, tiers[0].latency_s))
    return tiers


def measured_as(fit: Fit, device: Device, tier: Tier) -> tuple[str, Source]:
    """The measured GPU whose curves serve this device on this link, and how well it is known."""
    kind = "nvswitch" if tier.kind == "rack" else tier.kind
    known = {gpu.name: gpu for gpu in fit.gpus if gpu.kind == kind}
    names = {name: name for name in known} | {a: b for a, b in fit.relatives.items() if b in known}

    def named(text: str) -> str:
        return max((name for name in names if fold(text).startswith(name)), key=len, default="")

    own = named(device.name)
    if own in known:
        same = abs(tier.bytes_per_s / known[own].link_bytes_per_s - 1) < _SAME_LINK
        return own, Source.MEASURED if same else Source.TRANSFERRED
    if own or (own := named(device.relative) if device.relative else ""):
        return names[own], Source.TRANSFERRED
    if kind not in ("nvswitch", "pcie"):
        return "", Source.ASSUMED
    nearest = sorted(known.values(), key=lambda gpu: abs(math.log(gpu.link_bytes_per_s / tier.bytes_per_s)))
    kin = [gpu for gpu in nearest if fold(device.arch).startswith(gpu.arch)]
    if kin:
        return kin[0].name, Source.TRANSFERRED
    return nearest[0].name, Source.TRANSFERRED if kind == "pcie" else Source.ASSUMED


def collective(pool: Pool, op: str, *, nbytes: Floats, ranks: Ints, stride: Ints) -> Timed:
    """Seconds of one collective per row, with provenance. Columns broadcast.

    ``nbytes`` is nccl-tests' size: the buffer of an all-reduce, the whole gathered or scattered buffer, the buffer per
    rank of an all-to-all, the message of a send. Members of a group are ``stride`` apart in global rank order. A
    send_recv takes the farthest hop between neighbours of the group.
    """
    if op not in OPS:
        raise UnknownName("collective", op, OPS)
    size, n, apart = np.broadcast_arrays(
        np.asarray(nbytes, np.float64), np.asarray(ranks, np.float64), np.asarray(stride, np.float64)
    )
    _check(size, n, apart)
    tiers = tiers_of(pool)
    if not tiers:
        if (n > 1).any():
            raise InputError(f"node {pool.node.name}.links", 0, want="a tier that joins the GPUs of a group")
        return Timed(np.zeros(n.shape), np.zeros(n.shape, np.int8))
    members, domains = spans(tiers, n, apart)
    if op == "send_recv":
        seconds, source = _send(pool, tiers, size, apart, domains)
    else:
        seconds, source, near = _within(pool, op, tiers[0], size, members[0])
        far = domains[0] > 1
        if far.any():
            outside = across_s(op, size, n, apart, tiers, near, load().rules)
            # Whatever the network does, the members of one domain still exchange as much among themselves.
            seconds = np.where(far, np.maximum(outside, seconds), seconds)
            source = np.where(far, _across_source(tiers, domains), source)
    alone = n <= 1
    return Timed(np.where(alone, 0.0, seconds), np.where(alone, Source.MEASURED, source).astype(np.int8))


def _check(size: Floats, ranks: Floats, stride: Floats) -> None:
    if not (size.min(initial=0) >= 0 and size.max(initial=0) < np.inf):
        raise InputError("nbytes", None, want="finite bytes at or above zero")
    if ranks.min(initial=1) < 1 or stride.min(initial=1) < 1:
        raise InputError("ranks, stride", None, want="1 or more")


def _within(pool: Pool, op: str, tier: Tier, size: Floats, ranks: Floats) -> tuple[Floats, Codes, tuple[float, float]]:
    """Seconds, provenance and ring and all-reduce asymptotes inside one domain."""
    rules, (gpu, basis) = load().rules, measured_as(load(), pool.device, tier)
    table, ring = (_table(gpu, op), _table(gpu, "all_gather")) if gpu else (None, None)
    if table is None or ring is None:
        basis = Source.TRANSFERRED if tier.kind == "xgmi" and op == "all_reduce" else Source.ASSUMED
        rate = rules.mesh_fraction * tier.bytes_per_s
        seconds = mesh_s(op, size, np.maximum(ranks, 2), tier, rules)
        return seconds, np.full(size.shape, basis, np.int8), (rate, rate)
    scale = tier.bytes_per_s / table.link_bytes_per_s
    reduce = _table(gpu, "all_reduce") or ring
    near = (float(ring.tail_bytes_per_s[-1] * scale), float(reduce.tail_bytes_per_s[-1] * scale))
    row = np.clip(np.searchsorted(table.ranks, ranks), 0, len(table.ranks) - 1)
    exact = table.ranks[row] == ranks
    source = np.where(exact, Source.MEASURED, Source.INTERPOLATED)
    unseen = (size > table.max_bytes[row]) | (ranks > table.ranks[-1]) | ~table.own[row]
    source = np.maximum(np.where(unseen, Source.TRANSFERRED, source), basis).astype(np.int8)
    return inside_s(table, size, np.maximum(ranks, 2), tier.bytes_per_s), source, near


def _across_source(tiers: Sequence[Tier], domains: Sequence[Floats]) -> Codes:
    """Rules measured on RDMA fabrics; anything else, and a third tier, is assumed."""
    known = tiers[1].kind in _RDMA
    beyond = domains[1] > 1
    return np.where(beyond, Source.ASSUMED, Source.TRANSFERRED if known else Source.ASSUMED).astype(np.int8)


def _send(
    pool: Pool, tiers: Sequence[Tier], size: Floats, stride: Floats, domains: Sequence[Floats]
) -> tuple[Floats, Codes]:
    """A message to the next rank over the outermost tier that the group spans."""
    rules, first = load().rules, tiers[0]
    paired = first.kind == "xgmi" or (first.kind == "nvlink-mesh" and first.reach > 2)
    rate = first.bytes_per_s / (max(first.reach - 1, 1) if paired else 1)
    seconds = ramped(
        np.full(size.shape, first.latency_s), size / (rules.send_fraction[first.kind] * rate), rules.send_ramp_near
    )
    basis = Source.TRANSFERRED if first.kind in ("nvswitch", "rack") else Source.ASSUMED
    source = np.full(size.shape, basis, np.int8)
    reach: Floats = np.ones_like(size)
    rates: Floats = np.full(size.shape, np.inf)
    for index in range(1, len(tiers)):
        tier, crossed = tiers[index], domains[index - 1] > 1
        # Only the stages next to a pod's edge send over it, and share what it has; a GPU's own NIC is not shared.
        reach = np.maximum(tiers[index - 1].reach // stride, 1) if index > 1 else reach
        rates = np.minimum(rates, tier.bytes_per_s * reach)
        wire_s = size / (rules.send_fraction[tier.kind] * rates)
        hop_s = ramped(np.full(size.shape, tier.latency_s), wire_s, rules.send_ramp_far)
        seconds = np.where(crossed, np.maximum(hop_s, seconds), seconds)
        known = tier.kind in _RDMA and index == 1
        source = np.where(crossed, Source.TRANSFERRED if known else Source.ASSUMED, source).astype(np.int8)
    return seconds, source


def overlap_slowdown(pool: Pool, scope: Literal["node", "cluster"]) -> float:
    """Fraction by which compute slows beside a collective: the SMs NCCL takes. Known as ``OVERLAP_SOURCE`` says.

    calculon assumes 15% of the GPU for NVLink traffic and 2% for the network; on an H100 that is 20 and 3 SMs, and
    DeepEP, which is published, took 24 and takes 4 to 6. The count, not the share, carries over to other GPUs.
    """
    busy = load().rules.busy_sms
    if scope not in busy:
        raise UnknownName("overlap scope", scope, busy)
    return min(busy[scope] / pool.device.sms, 0.5)


def host_transfer_s(device: Device, nbytes: Floats, *, both_ways: bool = False) -> Timed:
    """Seconds to move bytes to or from host memory; ``both_ways`` when as much travels back at the same time."""
    rules = load().rules
    coherent = device.host_bytes_per_s > _COHERENT_BYTES_PER_S
    fraction = rules.coherent_host_fraction if coherent else rules.host_fraction
    # C2C was measured at 173 GB/s each way when both run, half of one way; PCIe is full duplex.
    rate = device.host_bytes_per_s * fraction * (0.5 if both_ways and coherent else 1.0)
    seconds = np.asarray(nbytes, np.float64) / rate
    return Timed(seconds, np.full(seconds.shape, Source.TRANSFERRED, np.int8))
