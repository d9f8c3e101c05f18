"""What a part sends over each parallel axis, how long that takes, and how much of it shows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from math import comb

import numpy as np

from astra.axes import AXES, Axis
from astra.columns import unique
from astra.cost import effects
from astra.cost.layers import EMBEDDING, HEAD
from astra.layers.block import LayerKind, Send
from astra.layers.kinds import layer_kinds
from astra.layers.operators import BF16, SameShardings, Shard, once
from astra.network import collectives
from astra.provenance import Codes, Floats, Ints, Timed, worst
from astra.spec.job import Job
from astra.spec.model import MoE


def sends_of(job: Job, key: LayerKind | str, shard: Shard) -> dict[str, list[Send]]:
    """What each axis sends in a part."""
    if key == EMBEDDING:
        return {axis.name: axis.embedding_sends(job.model, shard) for axis in AXES}
    if key == HEAD:
        return {axis.name: _head_sends(job, axis, shard) for axis in AXES}
    assert isinstance(key, LayerKind)
    return {axis.name: _layer_sends(job, axis, key, shard) for axis in AXES}


def _layer_sends(job: Job, axis: Axis, key: LayerKind, shard: Shard) -> list[Send]:
    return [_passed_on(job, _once(job, send)) for send in axis.layer_sends(job.model, key, shard)]


def _head_sends(job: Job, axis: Axis, shard: Shard) -> list[Send]:
    """What the head sends, and each multi-token-prediction layer before a head of its own."""
    head, more = axis.head_sends(job.model, shard), job.workload.mtp
    if not more:
        return head
    layer = _layer_sends(job, axis, layer_kinds(job.model)[-1], shard)
    several = [(send, more) for send in layer] + [(send, 1 + more) for send in head]
    return [send._replace(forward=n * send.forward, backward=n * send.backward) for send, n in several]


def members_of(sends: list[Send], way: str, rows: int) -> Floats:
    """Ranks of each collective with more than one, summed over the collectives."""
    return sum((np.where(send.ranks > 1, getattr(send, way) * send.ranks, 0.0) for send in sends), start=np.zeros(rows))


def timed_sends(
    job: Job, sends: Mapping[str, list[Send]], repeated: SameShardings
) -> dict[str, list[tuple[Send, Timed]]]:
    """Every collective that has something to send, with the time of one; both directions share many."""
    known: dict[tuple[str, int, int, int], Timed] = {}

    def timed(send: Send) -> Timed:
        name = (send.op, id(send.nbytes), id(send.ranks), id(send.stride))
        if name not in known:
            known[name] = once(partial(_sent, job, send), send.nbytes, send.ranks, send.stride, repeated=repeated)
        return known[name]

    return {
        axis: [(send, timed(send)) for send in some if np.any(send.ranks > 1) and _ever(send)]
        for axis, some in sends.items()
    }


def _sent(job: Job, send: Send, nbytes: Floats, ranks: Ints, stride: Ints) -> Timed:
    moved = job.workload.widening * nbytes
    return collectives.collective(job.pool, send.op, nbytes=moved, ranks=ranks, stride=stride)


def _ever(send: Send) -> bool:
    return bool(np.any(np.asarray(send.forward) > 0) or np.any(np.asarray(send.backward) > 0))


def communication(
    job: Job,
    shard: Shard,
    sends: Mapping[str, list[tuple[Send, Timed]]],
    way: str,
    windows: Mapping[str, Floats],
    sources: dict[str, Codes],
) -> tuple[dict[str, Floats], dict[str, Floats], dict[str, Floats]]:
    """Busy and exposed seconds by axis, without and with the axis' own overlap.

    What runs beside compute is exposed only where it outlasts it, and slows that compute meanwhile. An overlapped axis
    cuts each exchange into as many pieces as it has ranks: the first piece cannot be hidden.
    """
    rows = len(shard.tp)
    slowdown = collectives.overlap_slowdown(job.pool, "node")
    busy_by, exposed_by, overlapped_by, nothing = {}, {}, {}, np.zeros(rows)
    for axis in AXES:
        if not sends[axis.name]:
            busy_by[axis.name] = exposed_by[axis.name] = overlapped_by[axis.name] = nothing
            continue
        bare, routed, behind = np.zeros(rows), np.zeros(rows), dict[str, Floats]()
        pieces = getattr(shard, axis.degree or axis.name)
        for send, timed in sends[axis.name]:
            times = np.asarray(getattr(send, way), np.float64)
            if not (times > 0).any():
                continue
            seconds = times * timed.seconds
            used = (seconds > 0).astype(np.int8)
            sources[axis.name] = worst(sources.get(axis.name, np.zeros(rows, np.int8)), timed.source * used)
            if send.behind:
                behind[send.behind] = behind.get(send.behind, 0.0) + seconds
            else:
                bare = bare + seconds
            if send.routed:
                routed = routed + seconds
        hidden = [_outlasting(seconds, windows[name], slowdown) for name, seconds in behind.items()]
        outlasting = sum(hidden, start=np.zeros(rows))
        busy_by[axis.name] = bare + sum(behind.values(), start=np.zeros(rows))
        exposed_by[axis.name] = overlapped_by[axis.name] = bare + outlasting
        if axis.behind_layer:
            overlapped_by[axis.name] = bare - routed + outlasting + _outlasting(routed, windows["layer"], slowdown)
        elif axis.overlap:
            first, rest = bare / pieces, bare - bare / pieces
            room = np.maximum(windows["gemm"] - behind.get("gemm", 0.0), 0.0)
            pipelined = first + np.maximum(rest - room, 0.0) + slowdown * np.minimum(rest, room)
            overlapped_by[axis.name] = np.minimum(pipelined, bare) + outlasting
    return busy_by, exposed_by, overlapped_by


def _outlasting(seconds: Floats, window: Floats, slowdown: float) -> Floats:
    """What shows of an exchange beside compute: what outlasts it, and by how much it slows it."""
    return np.maximum(seconds - window, 0.0) + slowdown * np.minimum(seconds, window)


def _passed_on(job: Job, send: Send) -> Send:
    """What a ring passes on, in the heads and widths of the runtime: keys and values, in backward gradients too."""
    if send.behind != "attention":
        return send
    wider = effects.ring_gradient_bytes(job.runtime) / BF16
    return send._replace(
        nbytes=effects.repeats_keys(job.runtime, job.model) * send.nbytes, backward=(1 + wider) * send.forward
    )


def _once(job: Job, send: Send) -> Send:
    """An exchange in which a token goes once to each rank, or node of several, where the dispatcher does so."""
    moe = job.model.moe
    if not send.routed or not job.words.sends_once or moe is None:
        return send
    near = job.pool.node.links[0].reach if job.pool.node.links else 1
    nodes = send.ranks * send.stride / near
    places = np.maximum(np.where(nodes > 1, nodes, send.ranks), 1)
    return send._replace(nbytes=send.nbytes * (places_met(moe, places) / moe.topk))


def places_met(moe: MoE, places: Floats) -> Floats:
    """Of places that hold the experts in turn, how many hold any of a token's.

    With k experts drawn from D places evenly, D (1 - (1 - 1/D)^k) of the places are met. A token that keeps groups of
    experts has one at least in each, for which it keeps them, and draws the others from all of these.
    """
    groups, kept = moe.groups, min(moe.groups_kept, moe.topk)
    many = np.maximum(places, groups)
    drawn = many * kept / groups
    met = drawn * (1 - (1 - groups / many) * (1 - 1 / drawn) ** (moe.topk - kept))
    for few in unique(places[places < groups]).tolist():  # each holds several groups
        missed = comb(groups - max(round(groups / few), 1), kept) / comb(groups, kept)
        met = np.where(places == few, few * (1 - missed), met)
    return np.asarray(met, np.float64)
