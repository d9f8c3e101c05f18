"""Seconds and bytes of each part of a model (a kind of layer, the embedding, the head) for one micro-batch on one rank.

Columns run over unique shardings: a layer's time depends on few strategy columns, so it is computed once for each
combination and gathered by the rest of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from astra.axes import AXES, Send
from astra.cost.host import drained_s, host_seconds
from astra.cost.layers import EMBEDDING, HEAD, in_bf16, layers_of, trained
from astra.efficiency import collectives, operators
from astra.families.kinds import LayerKind
from astra.families.operators import Attention, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Codes, Floats, Ints, Source, Timed, worst
from astra.spec.cluster import Device
from astra.spec.job import Job
from astra.spec.runtime import Runtime
from astra.table import distinct

FP32_KERNELS: Final = frozenset({"cross_entropy", "accumulate"})  # counted with fp32 values whatever the precision
ATTENTION_POWER: Final = 0.5  # power of an attention kernel over that of a GEMM: it keeps half of the tensor cores busy
_WIDEST: Final = 1.8  # beyond this ratio any clock is within the power limit
_FEW: Final = 256  # rows that are timed sooner than they are compared


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


class Part(NamedTuple):
    """A part's cost."""

    forward: Direction
    backward: Direction
    weight_s: Floats  # of backward: weight-gradient GEMMs
    adapters: Floats  # parameters of low-rank adapters
    kept: Kept
    source: Mapping[str, Codes]  # provenance by term: gemm, attention, streaming, and each axis


def parts(job: Job, shard: Shard) -> dict[LayerKind | str, Part]:
    """Every part of the model."""
    layers, alike = layers_of(job, shard), Alike(shard)
    gemm_s = _gemm_seconds(job, layers, alike)
    return {
        key: _part(job, shard, layer, [gemm_s[key, gemm.name] for gemm in layer.gemms], _sends(job, key, shard), alike)
        for key, layer in layers.items()
    }


class Alike:
    """Shardings that are alike to most operators: those ask for tokens and few degrees, whatever made the tokens."""

    def __init__(self, shard: Shard) -> None:
        self.rows = len(shard.tp)
        tokens = (shard.tokens, shard.tp, shard.sp)
        several = self.rows > _FEW
        self._groups = [distinct(*tokens), distinct(*tokens, shard.ep, shard.etp)] if several else []

    def once(self, *columns: Floats | Ints | float) -> tuple[Ints, Ints | slice]:
        """Rows that have every combination of the columns, few if it can be, and where among them each row's is."""
        wide = [np.asarray(column) for column in columns if np.ndim(column)]
        for first, place in self._groups:
            if all(np.array_equal(column[first][place], column) for column in wide):
                return first, place
        return np.arange(self.rows), slice(None)


class _GemmSeconds(NamedTuple):
    forward: Floats
    dgrad: Floats
    wgrad: Floats
    source: Codes


def _gemm_seconds(
    job: Job, layers: Mapping[LayerKind | str, Layer], alike: Alike
) -> dict[tuple[LayerKind | str, str], _GemmSeconds]:
    """All GEMMs of all parts in one stacked call for each layout and precision."""
    entries = [(key, gemm) for key, layer in layers.items() for gemm in layer.gemms]
    out: dict[tuple[LayerKind | str, str], _GemmSeconds] = {}
    for low, chosen in (
        (False, [e for e in entries if in_bf16(e[1])]),
        (True, [e for e in entries if not in_bf16(e[1])]),
    ):
        if not chosen:
            continue
        precision = job.workload.precision if low or job.workload.precision != "fp8" else "bf16"
        shapes = [(gemm.m, gemm.n, gemm.k, gemm.groups) for _, gemm in chosen]
        once = [alike.once(*shape) for shape in shapes]
        ends = np.cumsum([0, *(len(first) for first, _ in once)])
        sizes = [
            np.concatenate(
                [
                    np.broadcast_to(np.asarray(shape[dim], np.float64), alike.rows)[first]
                    for shape, (first, _) in zip(shapes, once, strict=True)
                ]
            )
            for dim in range(4)
        ]
        timed = _three_layouts(job.pool.device, precision, job.runtime, *sizes)
        source = worst(*(way.source for way in timed))
        for number, ((key, gemm), (_, place)) in enumerate(zip(chosen, once, strict=True)):
            at = slice(ends[number], ends[number + 1])
            forward_s, dgrad_s, wgrad_s = (way.seconds[at][place] for way in timed)
            weight_s = wgrad_s if trained(job, gemm) else np.zeros(alike.rows)
            out[key, gemm.name] = _GemmSeconds(forward_s, dgrad_s, weight_s, source[at][place])
    return out


def _three_layouts(
    device: Device, precision: str, runtime: Runtime, m: Floats, n: Floats, k: Floats, groups: Floats
) -> list[Timed]:
    """Forward, input-gradient and weight-gradient times; GEMMs share many shapes, so each is timed once.

    A group is a kernel of its own in TransformerEngine: 4 to 5 us each beyond one kernel's work on B200 (108 grouped
    products of MooreThreads/SimuMax @4dcaae5).
    """
    first, place = distinct(m, n, k, groups)
    m, n, k, groups = m[first], n[first], k[first], groups[first]
    timed = (
        operators.gemm(device, m=m, n=n, k=k, precision=precision, layout="fwd", groups=groups),
        operators.gemm(device, m=m, n=k, k=n, precision=precision, layout="dgrad", groups=groups),
        operators.gemm(device, m=k, n=n, k=m, precision=precision, layout="wgrad", groups=groups),
    )
    more = 0 * groups if runtime.experts_together else groups - 1
    more_s = operators.streaming(device, nbytes=0 * groups, kernels=more).seconds
    return [Timed((way.seconds / runtime.clock_gain + more_s)[place], way.source[place]) for way in timed]


def _sends(job: Job, key: LayerKind | str, shard: Shard) -> dict[str, list[Send]]:
    """What each axis sends in a part."""
    if key == EMBEDDING:
        return {axis.name: axis.embedding_sends(job.model, shard) for axis in AXES}
    if key == HEAD:
        return {axis.name: axis.head_sends(job.model, shard) for axis in AXES}
    assert isinstance(key, LayerKind)
    return {axis.name: axis.layer_sends(job.model, key, shard) for axis in AXES}


def _part(
    job: Job, shard: Shard, layer: Layer, gemms: list[_GemmSeconds], sends: dict[str, list[Send]], alike: Alike
) -> Part:
    runtime, rows = job.runtime, len(shard.tp)
    attention_s = {"fwd": np.zeros(rows), "bwd": np.zeros(rows)}
    attention_source: Codes = np.zeros(rows, np.int8)
    for attention in layer.attentions:
        for way, so_far in attention_s.items():
            seconds, source = _attention(job, shard, attention, way)
            attention_s[way] = so_far + seconds / runtime.attention_gain
            attention_source = worst(attention_source, source)
    stream_s, stream_source = _streams(job, layer.streams, rows)
    dgrad_s, weight_s = _sum((g.dgrad for g in gemms), rows), _sum((g.wgrad for g in gemms), rows)
    sources: dict[str, Codes] = {
        "gemm": worst(np.zeros(rows, np.int8), *(g.source for g in gemms)),
        "attention": attention_source,
        "streaming": stream_source,
    }
    host_s = host_seconds(runtime, layer, sends, rows)
    products_s = {"forward": _sum((g.forward for g in gemms), rows), "backward": dgrad_s + weight_s}
    directions = {
        way: _silent(
            runtime,
            Direction(
                gemm_s=products_s[way],
                attention_s=attention_s[key],
                stream_s=stream_s[place],
                host_s=host_s[place],
                drained_s=drained_s(layer, runtime, rows) if way == "forward" else np.zeros(rows),
                busy_s={},
                exposed_s={},
                overlapped_s={},
                members=_members(sends["tp"], way, rows),
                compute_s=np.zeros(rows),
            ),
        )
        for place, (way, key) in enumerate((("forward", "fwd"), ("backward", "bwd")))
    }
    if runtime.clock_follows_power:
        slower = clock_loss(runtime, directions.values())
        weight_s = weight_s * slower
        directions = {way: _slowed(runtime, full, slower) for way, full in directions.items()}
    timed = _timed_sends(job, sends, alike)
    for way, silent in directions.items():
        busy, exposed, overlapped = _communication(job, shard, timed, way, _windows(silent), sources)
        if runtime.launches_ahead:
            exposed, overlapped = _in_gaps(silent, exposed), _in_gaps(silent, overlapped)
        directions[way] = silent._replace(busy_s=busy, exposed_s=exposed, overlapped_s=overlapped)
    adapters = _sum((g.groups * g.k * g.n for g in layer.gemms if "_lora_" in g.name), rows)
    kept = layer.kept._replace(working=np.maximum(layer.kept.working, _gradient_bytes(job, layer.gemms, rows)))
    return Part(directions["forward"], directions["backward"], weight_s, adapters, kept, sources)


def _silent(runtime: Runtime, way: Direction) -> Direction:
    """A direction without its communication, its time of computing worked out."""
    gpu_s = way.gemm_s + way.attention_s + way.stream_s + way.drained_s
    return way._replace(compute_s=compute_s(gpu_s, way.host_s, ahead=runtime.launches_ahead))


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
    the pauses pay for. The step's clock is the smaller of that and the runtime's ``clock_gain``.
    """
    tensor_s, other_s = np.zeros(1), np.zeros(1)
    for way in ways:
        drawn_s = runtime.clock_gain * way.gemm_s + ATTENTION_POWER * way.attention_s
        tensor_s = tensor_s + drawn_s
        other_s = other_s + way.compute_s - way.gemm_s - ATTENTION_POWER * way.attention_s
    x = np.minimum(other_s / np.maximum(tensor_s, 1e-30), _WIDEST)
    root = np.sqrt(0.25 - x**3 / 27.0)  # the real root of g^3 - x g - 1 (Cardano)
    clock = np.cbrt(0.5 + root) + np.cbrt(0.5 - root)
    slower: Floats = runtime.clock_gain / np.minimum(clock, runtime.clock_gain)
    return slower


def _sum(columns: Iterable[Floats], rows: int) -> Floats:
    return sum(columns, start=np.zeros(rows))


def _attention(job: Job, shard: Shard, attention: Attention, way: str) -> tuple[Floats, Codes]:
    """Seconds of attention: the runtime's kernel, or unfused where flash attention is off."""
    device, runtime = job.pool.device, job.runtime
    half = "bf16" if job.workload.precision == "fp8" else job.workload.precision
    kernel = operators.best_kernel(device) if runtime.attention == "best" else runtime.attention
    fused = _ring(device, shard, attention, kernel=kernel, direction=way, precision=half)
    if shard.flash.all():
        return fused
    softmax = runtime.kernels["softmax"]
    per_score = job.workload.widening * (softmax.forward_bytes if way == "fwd" else softmax.backward_bytes)
    unfused = _ring(device, shard, attention, kernel="unfused", direction=way, precision=half, softmax_bytes=per_score)
    return np.where(shard.flash, fused[0], unfused[0]), np.where(shard.flash, fused[1], unfused[1]).astype(np.int8)


def _ring(device: Device, shard: Shard, attention: Attention, **how: Any) -> tuple[Floats, Codes]:
    """Attention of this rank's queries with every rank's keys, one at a time.

    With c ranks and a causal mask the sequence is dealt so that each rank does equal work: one square block with the
    mask, and c - 1 blocks of half its area without (the load balancing of Megatron's ring attention).
    """
    shape: dict[str, Any] = attention._asdict()
    del shape["name"]
    mine = operators.attention(device, **(shape | {"seq_kv": attention.seq_q}), **how)
    if (shard.cp == 1).all():
        return mine.seconds, mine.source
    if attention.window is not None:  # a short span leaves little for other ranks
        whole = operators.attention(device, **shape, **how)
        return np.where(shard.cp > 1, whole.seconds, mine.seconds), worst(mine.source, whole.source)
    keys = attention.seq_q / 2 if attention.causal else attention.seq_q
    theirs = operators.attention(device, **(shape | {"seq_kv": keys, "causal": False}), **how)
    seconds = mine.seconds + (shard.cp - 1) * theirs.seconds
    return seconds, worst(mine.source, theirs.source * (shard.cp > 1))


def _streams(job: Job, streams: tuple[Stream, ...], rows: int) -> tuple[tuple[Floats, Floats], Codes]:
    """Seconds of the memory-bound operators, forward and backward."""
    runtime, zero = job.runtime, np.zeros(rows)
    nbytes, kernels = {"forward": zero, "backward": zero}, {"forward": zero, "backward": zero}

    def run(way: str, elements: Floats, times: Floats | float, bytes_each: float, kernels_each: float) -> None:
        if bytes_each:
            nbytes[way] = nbytes[way] + elements * bytes_each
        if kernels_each:
            kernels[way] = kernels[way] + kernels_each * times

    for stream in streams:
        kernel = runtime.kernels[stream.kernel]
        widening = 1.0 if stream.kernel in FP32_KERNELS else job.workload.widening
        elements, times = stream.elements * (stream.launches * widening), stream.launches * stream.groups
        if stream.way != "backward":
            way = "backward" if stream.way == "again" else "forward"
            run(way, elements, times, kernel.forward_bytes, kernel.forward_kernels)
        if stream.way in ("both", "backward"):
            run("backward", elements, times, kernel.backward_bytes, kernel.backward_kernels)
    forward, backward = (
        operators.streaming(job.pool.device, nbytes=nbytes[way], kernels=kernels[way]) for way in nbytes
    )
    return (forward.seconds, backward.seconds), worst(forward.source, backward.source)


def _in_gaps(silent: Direction, exposed_s: Mapping[str, Floats]) -> dict[str, Floats]:
    """What shows of communication that runs in the gaps in which kernels wait for a host that runs ahead."""
    rows = len(silent.host_s)
    total_s = _sum(exposed_s.values(), rows)
    gpu_s = silent.gemm_s + silent.attention_s + (silent.stream_s + total_s) + silent.drained_s
    shown_s = compute_s(gpu_s, silent.host_s, ahead=True) - silent.compute_s
    share = np.divide(shown_s, total_s, out=np.ones(rows), where=total_s > 0)
    return {axis: share * seconds for axis, seconds in exposed_s.items()}


def _members(sends: list[Send], way: str, rows: int) -> Floats:
    """Ranks of each collective with more than one, summed over the collectives."""
    return _sum((np.where(send.ranks > 1, getattr(send, way) * send.ranks, 0.0) for send in sends), rows)


def _timed_sends(job: Job, sends: Mapping[str, list[Send]], alike: Alike) -> dict[str, list[tuple[Send, Timed]]]:
    """Every collective that has something to send, with the time of one; both directions share many."""
    known: dict[tuple[str, int, int, int], Timed] = {}

    def timed(send: Send) -> Timed:
        name = (send.op, id(send.nbytes), id(send.ranks), id(send.stride))
        if name not in known:
            first, place = alike.once(send.nbytes, send.ranks, send.stride)
            few = send._replace(nbytes=send.nbytes[first], ranks=send.ranks[first], stride=send.stride[first])
            nbytes = job.workload.widening * few.nbytes * _sent_once(job, few)
            found = collectives.collective(job.pool, few.op, nbytes=nbytes, ranks=few.ranks, stride=few.stride)
            known[name] = Timed(found.seconds[place], found.source[place])
        return known[name]

    return {
        axis: [(send, timed(send)) for send in some if np.any(send.ranks > 1) and _ever(send)]
        for axis, some in sends.items()
    }


def _ever(send: Send) -> bool:
    return bool(np.any(np.asarray(send.forward) > 0) or np.any(np.asarray(send.backward) > 0))


def _communication(
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
    busy_by, exposed_by, overlapped_by = {}, {}, {}
    for axis in AXES:
        bare, beside = np.zeros(rows), dict[str, Floats]()
        pieces = getattr(shard, axis.degree or axis.name)
        for send, timed in sends[axis.name]:
            times = np.asarray(getattr(send, way), np.float64)
            if not (times > 0).any():
                continue
            seconds = times * timed.seconds
            used = (seconds > 0).astype(np.int8)
            sources[axis.name] = worst(sources.get(axis.name, np.zeros(rows, np.int8)), timed.source * used)
            hidden_by = "layer" if send.op == "all_to_all" and job.runtime.hides_all_to_all else send.beside
            if hidden_by and (job.runtime.async_reduce or hidden_by != "gemm"):
                beside[hidden_by] = beside.get(hidden_by, 0.0) + seconds
            else:
                bare = bare + seconds
        hidden = {
            name: np.maximum(seconds - windows[name], 0.0) + slowdown * np.minimum(seconds, windows[name])
            for name, seconds in beside.items()
        }
        outlasting = _sum(hidden.values(), rows)
        busy_by[axis.name] = bare + _sum(beside.values(), rows)
        exposed_by[axis.name] = overlapped_by[axis.name] = bare + outlasting
        if axis.overlap:
            first, rest = bare / pieces, bare - bare / pieces
            room = np.maximum(windows["gemm"] - beside.get("gemm", 0.0), 0.0)
            pipelined = first + np.maximum(rest - room, 0.0) + slowdown * np.minimum(rest, room)
            overlapped_by[axis.name] = np.minimum(pipelined, bare) + outlasting
    return busy_by, exposed_by, overlapped_by


def _sent_once(job: Job, send: Send) -> Floats:
    """Share of an exchange that remains where a token goes once to each rank, or node if there are several.

    With k experts drawn from D places evenly, D (1 - (1 - 1/D)^k) of the places are met.
    """
    moe = job.model.moe
    if send.op != "all_to_all" or job.runtime.dispatch == "copies" or moe is None:
        return np.ones(np.shape(send.ranks))
    near = job.pool.node.links[0].reach if job.pool.node.links else 1
    nodes = send.ranks * send.stride / near
    places = np.maximum(np.where(nodes > 1, nodes, send.ranks), 1)
    return places * (1 - (1 - 1 / places) ** moe.topk) / moe.topk


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


__all__ = ["EMBEDDING", "HEAD", "Direction", "Gemm", "Part", "parts", "worst_source"]
