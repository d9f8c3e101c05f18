"""Seconds and bytes of each part of a model (a kind of layer, the embedding, the head) for one micro-batch on one rank.

Columns run over unique shardings: a layer's time depends on few strategy columns, so it is computed once for each
combination and gathered by the rest of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import numpy as np

from astra.cost import effects
from astra.cost.exchanges import communication, members_of, sends_of, timed_sends
from astra.cost.kernels import (
    APART,
    GemmSeconds,
    attention_seconds,
    drained_s,
    gemm_seconds,
    host_seconds,
    stream_seconds,
)
from astra.cost.layers import casts, layers_of, modules_in, trained
from astra.layers.block import LayerKind, Send
from astra.layers.operators import Gemm, Kept, Layer, SameShardings, Shard
from astra.provenance import Codes, Floats, Source, worst
from astra.spec.job import Job
from astra.spec.runtime import Runtime

ATTENTION_POWER: Final = 0.5  # power of an attention kernel over that of a GEMM: it keeps half of the tensor cores busy
_WIDEST: Final = 1.8  # beyond this ratio any clock is within the power limit


class Direction(NamedTuple):
    """One direction (forward or backward) of a part: what computes and what communicates."""

    gemm_s: Floats
    attention_s: Floats
    stream_s: Floats
    host_s: Floats  # the time the host needs to launch it all
    drained_s: Floats  # the GPU has nothing to do: the host waited for it to say how many tokens each expert has
    busy_s: Mapping[str, Floats]  # communication by axis
    exposed_s: Mapping[str, Floats]  # not hidden, with the axis' overlap off
    overlapped_s: Mapping[str, Floats]  # not hidden, with the axis' overlap on
    members: Floats  # ranks of its tensor-parallel collectives, summed over them
    compute_s: Floats  # the kernels, or the host where issuing them takes longer


def compute_s(gpu_s: Floats, host_s: Floats, *, ahead: bool) -> Floats:
    """Time of the kernels, or of the host where issuing them takes longer.

    A layer's kernels differ in length, so that the GPU waits for the host here and there before it does on the whole:
    the fourth-power mean fits rehearsed ranks better than the maximum (docs/rehearsal.md). A host that runs ``ahead``
    never waits for the GPU: it catches up in long kernels what it loses in short ones.
    """
    if ahead:
        return np.maximum(gpu_s, host_s)
    mean_s: Floats = np.sqrt(np.sqrt(np.square(np.square(gpu_s)) + np.square(np.square(host_s))))
    return mean_s


class Repeated(NamedTuple):
    """A module of a layer run again in backward instead of being kept."""

    saved: Floats  # bytes of one micro-batch
    compute_s: Floats
    sends: Mapping[str, float]  # axis: share of what the layer sends over it in forward


class Part(NamedTuple):
    """A part's cost."""

    forward: Direction
    backward: Direction
    unrepeated_s: Floats  # of forward: the product that is not run again with the layer
    weight_s: Floats  # of backward: weight-gradient GEMMs
    experts_s: Floats  # of both: products of routed experts
    adapters: Floats  # parameters of low-rank adapters
    kept: Kept
    modules: Mapping[str, Repeated]  # what selective recompute may run again
    source: Mapping[str, Codes]  # provenance by term: gemm, attention, streaming, and each axis


def parts(job: Job, shard: Shard) -> dict[LayerKind | str, Part]:
    """Every part of the model."""
    layers, repeated = layers_of(job, shard), SameShardings(shard)
    gemm_s = gemm_seconds(job, layers, repeated)
    return {
        key: _part(
            job, shard, layer, [gemm_s[key, gemm.name] for gemm in layer.gemms], sends_of(job, key, shard), repeated
        )
        for key, layer in layers.items()
    }


class Pieces(NamedTuple):
    """What a part does with the pieces of a sequence, forward and backward."""

    attention_s: Floats
    sent_s: Floats  # to the ranks that hold the others


def pieces(job: Job, shard: Shard) -> dict[LayerKind | str, Pieces]:
    """Every part of the model, as ``parts`` has them, without all that does not ask how a sequence is cut."""
    rows, repeated, found = len(shard.tp), SameShardings(shard), {}
    nothing = dict.fromkeys(("gemm", "attention", "layer"), np.zeros(rows))
    for key, layer in layers_of(job, shard).items():
        sends = {name: some if name == "cp" else [] for name, some in sends_of(job, key, shard).items()}
        sent = timed_sends(job, sends, repeated)
        attention_s, _ = attention_seconds(job, shard, layer, repeated)
        sent_s = [communication(job, shard, sent, way, nothing, {})[0]["cp"] for way in ("forward", "backward")]
        found[key] = Pieces(attention_s["fwd"] + attention_s["bwd"], sent_s[0] + sent_s[1])
    return found


def _part(
    job: Job,
    shard: Shard,
    layer: Layer,
    gemms: list[GemmSeconds],
    sends: dict[str, list[Send]],
    repeated: SameShardings,
) -> Part:
    runtime, rows = job.runtime, len(shard.tp)
    attention_s, attention_source = attention_seconds(job, shard, layer, repeated)
    stream_s, stream_source = stream_seconds(job, layer.streams, rows)
    dgrad_s, weight_s = _sum((g.dgrad for g in gemms), rows), _sum((g.wgrad for g in gemms), rows)
    sources: dict[str, Codes] = {
        "gemm": worst(np.zeros(rows, np.int8), *(g.source for g in gemms)),
        "attention": attention_source,
        "streaming": stream_source,
    }
    host_s = host_seconds(job, layer, sends, rows)
    products_s = {"forward": _sum((g.forward for g in gemms), rows), "backward": dgrad_s + weight_s}
    directions = {
        way: _silent(
            runtime,
            Direction(
                gemm_s=products_s[way],
                attention_s=attention_s[key],
                stream_s=stream_s[place],
                host_s=host_s[place],
                drained_s=drained_s(job, layer, rows) if way == "forward" else np.zeros(rows),
                busy_s={},
                exposed_s={},
                overlapped_s={},
                members=members_of(sends["tp"], way, rows),
                compute_s=np.zeros(rows),
            ),
        )
        for place, (way, key) in enumerate((("forward", "fwd"), ("backward", "bwd")))
    }
    slower: Floats | float = 1.0
    if effects.clock_follows_power(runtime):
        slower = clock_loss(runtime, directions.values())
        weight_s = weight_s * slower
        directions = {way: _slowed(runtime, full, slower) for way, full in directions.items()}
    sent = timed_sends(job, sends, repeated)
    for way, silent in directions.items():
        busy, exposed, overlapped = communication(job, shard, sent, way, _windows(silent), sources)
        if effects.launches_ahead(runtime):
            exposed, overlapped = _in_gaps(silent, exposed), _in_gaps(silent, overlapped)
        directions[way] = silent._replace(busy_s=busy, exposed_s=exposed, overlapped_s=overlapped)
    routed = (timed for gemm, timed in zip(layer.gemms, gemms, strict=True) if gemm.name.startswith("experts_"))
    experts_s = slower * _sum((timed.forward + timed.dgrad + timed.wgrad for timed in routed), rows)
    adapters = _sum((g.groups * g.k * g.n for g in layer.gemms if "_lora_" in g.name), rows)
    kept = layer.kept._replace(working=np.maximum(layer.kept.working, _gradient_bytes(job, layer.gemms, rows)))
    forward_s = {gemm.name: slower * timed.forward for gemm, timed in zip(layer.gemms, gemms, strict=True)}
    modules = _modules(job, layer, directions["forward"], forward_s, rows)
    unrepeated_s = forward_s[layer.last] if layer.last and effects.stops_recompute(runtime) else np.zeros(rows)
    ways = directions["forward"], directions["backward"]
    return Part(*ways, unrepeated_s, weight_s, experts_s, adapters, kept, modules, sources)


def _modules(
    job: Job, layer: Layer, forward: Direction, product_s: Mapping[str, Floats], rows: int
) -> dict[str, Repeated]:
    """What selective recompute may run again: core attention, and what the layer's blocks name."""
    found = {}
    if layer.attentions:
        found["core_attn"] = Repeated(layer.kept.whole - layer.kept.selective, forward.attention_s, {})
    for name in modules_in(job):
        module = layer.modules.get(name)
        if module is None:
            continue
        products = tuple(gemm for gemm in layer.gemms if gemm.name in module.gemms)
        streams = (*module.streams, *(cast for cast in casts(job, products) if cast.way == "forward"))
        stream_s = stream_seconds(job, streams, rows)[0][0]
        waited_s = forward.drained_s if name == "moe" else np.zeros(rows)
        compute_s = _sum((product_s[gemm.name] for gemm in products), rows) + stream_s + waited_s
        found[name] = Repeated(np.broadcast_to(module.saved, rows), compute_s, module.sends)
    return found


def _silent(runtime: Runtime, way: Direction) -> Direction:
    """A direction without its communication, its time of computing worked out."""
    gpu_s = way.gemm_s + way.attention_s + way.stream_s + way.drained_s
    return way._replace(compute_s=compute_s(gpu_s, way.host_s, ahead=effects.launches_ahead(runtime)))


def forward_again(runtime: Runtime, part: Part) -> Direction:
    """Forward of a layer as it is run again in backward."""
    if not effects.stops_recompute(runtime):
        return part.forward
    return _silent(runtime, part.forward._replace(gemm_s=part.forward.gemm_s - part.unrepeated_s))


def with_slower_host(runtime: Runtime, way: Direction) -> Floats:
    """Time of computing on a machine whose host is as slow as hosts of its type may be."""
    return _silent(runtime, way._replace(host_s=APART * way.host_s)).compute_s


def _slowed(runtime: Runtime, way: Direction, slower: Floats) -> Direction:
    return _silent(runtime, way._replace(gemm_s=way.gemm_s * slower, attention_s=way.attention_s * slower))


def _windows(silent: Direction) -> dict[str, Floats]:
    """What communication can hide behind.

    Where kernels wait for the host, it hides in the gaps too; else a faster GPU would be slower.
    """
    idle_s = silent.compute_s - (silent.gemm_s + silent.attention_s + silent.stream_s)
    return {"gemm": silent.gemm_s + idle_s, "attention": silent.attention_s + idle_s, "layer": silent.compute_s}


def _gradient_bytes(job: Job, gemms: tuple[Gemm, ...], rows: int) -> Floats:
    """The largest weight gradient, which lives in bf16 until it is added to the buffer that micro-batches share."""
    if not job.runtime.kernels["accumulate"].backward_bytes:
        return np.zeros(rows)
    sizes = [np.broadcast_to(g.groups * g.k * g.n, rows) for g in gemms if trained(job, g)]
    largest: Floats = job.workload.element_bytes * np.max(sizes, axis=0) if sizes else np.zeros(rows)
    return largest


def clock_loss(runtime: Runtime, ways: Iterable[Direction]) -> Floats:
    """How much longer tensor kernels take than at the runtime's full clock, where they fill the time of a part.

    Power grows with the cube of the clock, and its mean over a part cannot exceed the limit that GEMMs alone run into
    at clock 1: with tensor work T and everything else O (in seconds at clock 1), T g^3 = T + O g gives the clock g that
    the pauses pay for. The step's clock is the smaller of that and the runtime's (effect ``clock``).
    """
    most, tensor_s, other_s = effects.clock(runtime), np.zeros(1), np.zeros(1)
    for way in ways:
        drawn_s = most * way.gemm_s + ATTENTION_POWER * way.attention_s
        tensor_s = tensor_s + drawn_s
        other_s = other_s + way.compute_s - way.gemm_s - ATTENTION_POWER * way.attention_s
    x = np.minimum(other_s / np.maximum(tensor_s, 1e-30), _WIDEST)
    root = np.sqrt(0.25 - x**3 / 27.0)  # the real root of g^3 - x g - 1 (Cardano)
    clock = np.cbrt(0.5 + root) + np.cbrt(0.5 - root)
    slower: Floats = most / np.minimum(clock, most)
    return slower


def _sum(columns: Iterable[Floats], rows: int) -> Floats:
    return sum(columns, start=np.zeros(rows))


def _in_gaps(silent: Direction, exposed_s: Mapping[str, Floats]) -> dict[str, Floats]:
    """What shows of communication that runs in the gaps in which kernels wait for a host that runs ahead."""
    rows = len(silent.host_s)
    total_s = _sum(exposed_s.values(), rows)
    gpu_s = silent.gemm_s + silent.attention_s + (silent.stream_s + total_s) + silent.drained_s
    shown_s = compute_s(gpu_s, silent.host_s, ahead=True) - silent.compute_s
    share = np.divide(shown_s, total_s, out=np.ones(rows), where=total_s > 0)
    return {axis: share * seconds for axis, seconds in exposed_s.items()}


def worst_source(parts_by_key: Mapping[LayerKind | str, Part], row: int) -> dict[str, Source]:
    """Provenance by term for one sharding, the worst over the parts; an axis that is silent in it has none."""
    found: dict[str, int] = {}
    for part in parts_by_key.values():
        for term, codes in part.source.items():
            ways = [way.busy_s[term][row] for way in (part.forward, part.backward) if term in way.busy_s]
            if ways and not any(ways):
                continue
            found[term] = max(found.get(term, 0), int(codes[row]))
    return {term: Source(value) for term, value in found.items()}
