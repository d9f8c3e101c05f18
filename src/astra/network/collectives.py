"""Collective and point-to-point time of a group of ranks, from its size, its stride and the tiers it spans.

Letters: n ranks of a group, m of them in one domain of a tier, k domains, x bytes on the wire.

- One domain (NVSwitch, PCIe box): the curves of ``collective_curves``, fitted to NCCL sweeps.
- GPUs wired in pairs (xGMI, NVLink bridges): a rule, as n of them use only (n-1) links each.
- Several domains: ring (all-gather, reduce-scatter, all-reduce), tree (all-reduce) or direct (all-to-all) over the
  slowest tier, with constants fitted to published runs on several servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import numpy as np

from astra.errors import InputError, UnknownName, fold
from astra.network.curves import CurveRules, Fit, corrected, inside_s, load, ramped, table_of, wire_factor
from astra.provenance import Codes, Floats, Ints, Source, Timed
from astra.spec.cluster import Device, Pool
from astra.units import US

OPS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
OVERLAP_SOURCE: Final = Source.ASSUMED

_SAME_LINK: Final = 0.02  # a link within 2% of the measured one is the measured one
_IN_SERVER: Final = frozenset({"nvswitch", "rack", "nvlink-mesh", "xgmi", "pcie"})
_RDMA: Final = frozenset({"infiniband", "roce", "efa"})
_ONE_CARD: Final = "tcp"  # GPUs of a server send through its one card; of other networks each has a card of its own
_COHERENT_BYTES_PER_S: Final = 200e9  # a host link faster than any PCIe is NVLink-C2C


class Tier(NamedTuple):
    """One tier as one GPU sees it."""

    reach: float
    kind: str
    bytes_per_s: float
    latency_s: float
    oversubscription: float = 1.0


def mesh_s(op: str, nbytes: Floats, ranks: Floats, tier: Tier, rules: CurveRules) -> Floats:
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
    rules: CurveRules,
    card: Floats | float = 1.0,
) -> Floats:
    """Seconds of a group that spans several domains of ``tiers[0]``.

    ``near`` is what a ring and an all-reduce reach inside a domain. A domain with m members leaves through m links:
    sibling groups use the others, so a link's rate is per GPU and a group's rate is m times that; ``card`` times where
    some of them are silent.
    """
    members, domains = spans(tiers, ranks, stride)
    if op == "all_to_all":
        return _direct_s(nbytes, ranks, tiers, members, domains, rules)
    rings_s = rules.ring_step * (ranks - domains[0]) * tiers[0].latency_s
    trees_s = np.zeros_like(ranks)
    ring_rate = np.where(members[0] > 1, near[0], np.inf)
    tree_rate = np.where(members[0] > 1, max(near), np.inf)
    for index in range(1, len(tiers)):
        tier, inner, crossed = tiers[index], members[index - 1], domains[index - 1] > domains[index]
        latency_s = tier.latency_s * rules.step_scale.get(tier.kind, 1.0)
        rings_s = rings_s + rules.ring_step * (domains[index - 1] - domains[index]) * latency_s
        # A ring leaves through the links of one domain; all groups together share what the tier above has.
        doors = np.minimum(members[0], inner / tier.oversubscription)
        exit_rate = rules.link_fraction[tier.kind] * tier.bytes_per_s * doors * card
        ring_rate = np.where(crossed, np.minimum(ring_rate, exit_rate), ring_rate)
        if op != "all_reduce":
            continue
        trees_s = trees_s + 2 * rules.tree_step * np.log2(domains[index - 1] / domains[index]) * latency_s
        # Two domains exchange halves directly: each link carries the buffer once, not twice.
        pair = np.where(domains[index - 1] == 2, wire_factor("all_reduce", ranks), 1.0)
        tree_rate = np.where(crossed, np.minimum(tree_rate, exit_rate * pair), tree_rate)
    wire_bytes, base_s = nbytes * wire_factor(op, ranks), rules.ring_base_us * US
    if op != "all_reduce":
        return ramped(base_s + rings_s, wire_bytes / ring_rate, rules.ring_ramp)
    ring = ramped(base_s + 2 * rings_s, wire_bytes / ring_rate, rules.ring_ramp)
    return np.minimum(ring, ramped(base_s + trees_s, wire_bytes / tree_rate, rules.tree_ramp))


def _direct_s(
    nbytes: Floats,
    ranks: Floats,
    tiers: Sequence[Tier],
    members: list[Floats],
    domains: list[Floats],
    rules: CurveRules,
) -> Floats:
    """An all-to-all of a group that spans several domains: every rank sends to every other."""
    direct_s, leaving_s = np.zeros_like(ranks), np.zeros_like(ranks)
    for index in range(1, len(tiers)):
        tier, inner, crossed = tiers[index], members[index - 1], domains[index - 1] > domains[index]
        latency_s = tier.latency_s * rules.step_scale.get(tier.kind, 1.0)
        levels = np.log2(domains[index - 1] / domains[index])
        direct_s = direct_s + rules.all_to_all_step * levels * latency_s
        out_s = (
            nbytes * (ranks - inner) / ranks * tier.oversubscription / (rules.all_to_all_fraction * tier.bytes_per_s)
        )
        leaving_s = np.where(crossed, np.maximum(leaving_s, out_s), leaving_s)
    return ramped(rules.all_to_all_base_us * US + direct_s, leaving_s, rules.all_to_all_ramp)


def tiers_of(pool: Pool) -> list[Tier]:
    """The tiers of a pool, nearest first; a server whose GPUs only meet on the network is a domain of one."""
    links = pool.node.links
    tiers = [Tier(k.reach, k.kind, k.bytes_per_s, k.latency_s, k.oversubscription) for k in links]
    if tiers and tiers[0].kind not in _IN_SERVER:
        tiers.insert(0, Tier(1, "nvswitch", tiers[0].bytes_per_s, tiers[0].latency_s))
    return tiers


def measured_as(fit: Fit, device: str, relative: str, generation: str, tier: Tier) -> tuple[str, Source]:
    """The measured GPU whose curves serve a device on a link, and how well it is known."""
    kind = "nvswitch" if tier.kind == "rack" else tier.kind
    known = {gpu.name: gpu for gpu in fit.gpus if gpu.kind == kind}
    names = {name: name for name in known} | {a: b for a, b in fit.relatives.items() if b in known}

    def named(text: str) -> str:
        return max((name for name in names if fold(text).startswith(name)), key=len, default="")

    own = named(device)
    if own in known:
        same = abs(tier.bytes_per_s / known[own].link_bytes_per_s - 1) < _SAME_LINK
        return own, Source.MEASURED if same else Source.TRANSFERRED
    if own or (own := named(relative) if relative else ""):
        return names[own], Source.TRANSFERRED
    if kind not in ("nvswitch", "pcie"):
        return "", Source.ASSUMED
    # Never chosen by link rate: a faster link must not fall to a curve with a longer latency.
    kin = [gpu.name for gpu in known.values() if generation == gpu.arch]
    if kin:
        return kin[0], Source.TRANSFERRED
    return next(iter(known)), Source.TRANSFERRED if kind == "pcie" else Source.ASSUMED


@lru_cache(maxsize=1024)
def _measured_as(name: str, relative: str, generation: str, tier: Tier) -> tuple[str, Source]:
    return measured_as(load(), name, relative, generation, tier)


def card_share(tiers: Sequence[Tier], leaving: Floats) -> Floats:
    """What a GPU has of its server's card over an equal part of it, where so many GPUs of a server send at once."""
    whole = tiers[0].reach if len(tiers) > 1 and tiers[1].kind == _ONE_CARD else 1.0
    share: Floats = whole / np.clip(leaving, 1.0, whole)
    return share


def collective(pool: Pool, op: str, *, nbytes: Floats, ranks: Ints, stride: Ints, leaving: Ints | None = None) -> Timed:
    """Seconds of one collective per row, with provenance. Columns broadcast.

    ``nbytes`` is nccl-tests' size: the buffer of an all-reduce, the whole gathered or scattered buffer, the buffer per
    rank of an all-to-all, the message of a send. Members of a group are ``stride`` apart in global rank order. A
    send_recv takes the farthest hop between neighbours of the group. ``leaving`` are the ranks next to each other whose
    groups are at work at once: in a send those of a stage, else all.
    """
    if op not in OPS:
        raise UnknownName("collective", op, OPS)
    together = stride if op == "send_recv" else np.inf
    size, n, apart, at_once = (
        np.asarray(column, np.float64)
        for column in np.broadcast_arrays(nbytes, ranks, stride, together if leaving is None else leaving)
    )
    _check(size, n, apart)
    timed = _modelled(pool, op, size, n, apart, at_once)
    if not pool.node.measured:
        return timed
    return corrected(pool.node, op, size, n, apart, timed, lambda *group: _modelled(pool, op, *group).seconds)


def _modelled(pool: Pool, op: str, size: Floats, n: Floats, apart: Floats, leaving: Floats | None = None) -> Timed:
    """From the tiers a group spans alone."""
    tiers = tiers_of(pool)
    if not tiers:
        if (n > 1).any():
            raise InputError(f"node {pool.node.name}.links", 0, want="a tier that joins the GPUs of a group")
        return Timed(np.zeros(n.shape), np.zeros(n.shape, np.int8))
    members, domains = spans(tiers, n, apart)
    card = card_share(tiers, np.full(n.shape, np.inf) if leaving is None else leaving)
    if op == "send_recv":
        seconds, source = _send(tiers, size, apart, domains, card)
    else:
        seconds, source, near = _within(pool, op, tiers[0], size, members[0])
        far = domains[0] > 1
        if far.any():
            outside = across_s(op, size, n, apart, tiers, near, load().rules, card)
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
    device = pool.device
    rules, (gpu, basis) = load().rules, _measured_as(device.name, device.relative, device.generation, tier)
    table, ring = (table_of(gpu, op), table_of(gpu, "all_gather")) if gpu else (None, None)
    if table is None or ring is None:
        basis = Source.TRANSFERRED if tier.kind == "xgmi" and op == "all_reduce" else Source.ASSUMED
        rate = rules.mesh_fraction * tier.bytes_per_s
        seconds = mesh_s(op, size, np.maximum(ranks, 2), tier, rules)
        return seconds, np.full(size.shape, basis, np.int8), (rate, rate)
    scale = tier.bytes_per_s / table.link_bytes_per_s
    reduce = table_of(gpu, "all_reduce") or ring
    near = (float(ring.tail_bytes_per_s[-1] * scale), float(reduce.tail_bytes_per_s[-1] * scale))
    row = np.clip(np.searchsorted(table.ranks, ranks), 0, len(table.ranks) - 1)
    exact = table.ranks[row] == ranks
    source = np.where(exact, Source.MEASURED, Source.INTERPOLATED)
    outside = (size > table.max_bytes[row]) | (size < table.min_bytes[row])
    unseen = outside | (ranks > table.ranks[-1]) | ~table.own[row]
    source = np.maximum(np.where(unseen, Source.TRANSFERRED, source), basis).astype(np.int8)
    return inside_s(table, size, np.maximum(ranks, 2), tier.bytes_per_s), source, near


def _across_source(tiers: Sequence[Tier], domains: Sequence[Floats]) -> Codes:
    """Rules measured on RDMA fabrics; anything else, and a third tier, is assumed."""
    known = tiers[1].kind in _RDMA
    beyond = domains[1] > 1
    return np.where(beyond, Source.ASSUMED, Source.TRANSFERRED if known else Source.ASSUMED).astype(np.int8)


def _send(
    tiers: Sequence[Tier], size: Floats, stride: Floats, domains: Sequence[Floats], card: Floats
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
    rates: Floats = np.full(size.shape, np.inf)
    for index in range(1, len(tiers)):
        tier, crossed = tiers[index], domains[index - 1] > 1
        # A GPU has its own card, or its share of the server's; above an oversubscribed tier it shares with those of the
        # pod that send over it too.
        sharing = np.clip(tiers[index - 1].reach // stride, 1, tier.oversubscription) / tier.oversubscription
        rates = np.minimum(rates, tier.bytes_per_s * sharing * card)
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
