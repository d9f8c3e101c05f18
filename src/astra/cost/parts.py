"""Seconds and bytes of each part of a model (a kind of layer, the embedding, the head) for one micro-batch on one rank.

Columns run over unique shardings: a layer's time depends on few strategy columns, so it is computed once for each
combination and gathered by the rest of the cost model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from astra.axes import AXES, Send
from astra.efficiency import collectives, operators
from astra.families import transformer
from astra.families.kinds import LayerKind, layer_kinds
from astra.families.operators import Attention, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Codes, Floats, Source, Timed, worst
from astra.spec.cluster import Device
from astra.spec.job import Job
from astra.spec.runtime import Runtime
from astra.table import distinct

BF16_GEMMS: Final = frozenset({"router", "head", "classifier", "patch"})  # kept out of fp8 by TransformerEngine
FP32_KERNELS: Final = frozenset({"cross_entropy", "accumulate"})  # counted with fp32 values whatever the precision
EMBEDDING: Final = "embedding"
HEAD: Final = "head"
ATTENTION_POWER: Final = 0.5  # power of an attention kernel over that of a GEMM: it keeps half of the tensor cores busy
_WIDEST: Final = 1.8  # beyond this ratio any clock is within the power limit


class Direction(NamedTuple):
    """One direction (forward or backward) of a part: what computes and what communicates."""

    gemm_s: Floats
    attention_s: Floats
    stream_s: Floats
    host_s: Floats  # the time the host needs to launch it all
    busy_s: Mapping[str, Floats]  # communication by axis
    exposed_s: Mapping[str, Floats]  # not hidden, with the axis' overlap off
    overlapped_s: Mapping[str, Floats]  # not hidden, with the axis' overlap on
    members: Floats  # ranks of its tensor-parallel collectives, summed over them
    ahead: bool = False  # the host never waits for the GPU: it catches up in long kernels what it loses in short ones

    @property
    def compute_s(self) -> Floats:
        """Time of the kernels, or of the host where issuing them takes longer.

        A layer's kernels differ in length, so that the GPU waits for the host here and there before it does on the
        whole: the fourth-power mean fits rehearsed ranks better than the maximum (docs/rehearsal.md).
        """
        if self.ahead:
            return np.maximum(self.kernels_s, self.host_s)
        return np.sqrt(np.sqrt(self.kernels_s**4 + self.host_s**4))

    @property
    def kernels_s(self) -> Floats:
        """Time of the kernels alone."""
        return self.gemm_s + self.attention_s + self.stream_s


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
    layers: dict[LayerKind | str, Layer] = {
        kind: transformer.layer(job.model, kind, shard) for kind in dict.fromkeys(layer_kinds(job.model))
    }
    layers[EMBEDDING] = transformer.embedding(job.model, shard)
    layers[HEAD] = transformer.head(
        job.model,
        shard,
        logits_kept_bytes=job.runtime.logits_kept_bytes / job.workload.widening,  # fp32 values for the most part
        logits_peak_bytes=job.runtime.logits_peak_bytes / job.workload.widening,
    )
    layers = {key: _widened(layer, job.workload.widening) for key, layer in layers.items()}
    if job.workload.task == "lora":
        layers = {key: _with_adapters(layer, job.workload.lora_rank) for key, layer in layers.items()}
    gemm_s = _gemm_seconds(job, layers, len(shard.tp))
    return {
        key: _part(job, shard, layer, [gemm_s[key, gemm.name] for gemm in layer.gemms], _sends(job, key, shard))
        for key, layer in layers.items()
    }


def _widened(layer: Layer, widening: float) -> Layer:
    """What a layer keeps, in elements of the job's width."""
    kept = layer.kept
    if widening == 1:
        return layer
    return layer._replace(kept=Kept(*(widening * column for column in kept)))


def _with_adapters(layer: Layer, rank: int) -> Layer:
    """Low-rank adapters beside every frozen matrix (Hu et al. 2021)."""
    adapters = [
        adapter
        for gemm in layer.gemms
        if gemm.name not in BF16_GEMMS
        for adapter in (
            gemm._replace(name=f"{gemm.name}_lora_a", n=np.full_like(gemm.m, rank)),
            gemm._replace(name=f"{gemm.name}_lora_b", k=np.full_like(gemm.m, rank)),
        )
    ]
    return layer._replace(gemms=(*layer.gemms, *adapters))


class _GemmSeconds(NamedTuple):
    forward: Floats
    dgrad: Floats
    wgrad: Floats
    source: Codes


def _gemm_seconds(
    job: Job, layers: Mapping[LayerKind | str, Layer], rows: int
) -> dict[tuple[LayerKind | str, str], _GemmSeconds]:
    """All GEMMs of all parts in one stacked call for each layout and precision."""
    entries = [(key, gemm) for key, layer in layers.items() for gemm in layer.gemms]
    out: dict[tuple[LayerKind | str, str], _GemmSeconds] = {}
    frozen = job.workload.task == "lora"
    for low, chosen in (
        (False, [e for e in entries if e[1].name in BF16_GEMMS]),
        (True, [e for e in entries if e[1].name not in BF16_GEMMS]),
    ):
        if not chosen:
            continue
        precision = job.workload.precision if low or job.workload.precision != "fp8" else "bf16"
        sizes = (
            np.concatenate([np.broadcast_to(np.asarray(getattr(gemm, dim), np.float64), rows) for _, gemm in chosen])
            for dim in ("m", "n", "k", "groups")
        )
        forward, dgrad, wgrad = _three_layouts(job.pool.device, precision, job.runtime.clock_gain, *sizes)
        for number, (key, gemm) in enumerate(chosen):
            at = slice(number * rows, (number + 1) * rows)
            trained = not frozen or "_lora_" in gemm.name
            source = worst(forward.source[at], dgrad.source[at], wgrad.source[at])
            weight_s = wgrad.seconds[at] if trained else np.zeros(rows)
            out[key, gemm.name] = _GemmSeconds(forward.seconds[at], dgrad.seconds[at], weight_s, source)
    return out


def _three_layouts(
    device: Device, precision: str, clock_gain: float, m: Floats, n: Floats, k: Floats, groups: Floats
) -> list[Timed]:
    """Forward, input-gradient and weight-gradient times; shardings share many shapes, so each is timed once."""
    first, place = distinct(m, n, k, groups)
    m, n, k, groups = m[first], n[first], k[first], groups[first]
    timed = (
        operators.gemm(device, m=m, n=n, k=k, precision=precision, layout="fwd", groups=groups),
        operators.gemm(device, m=m, n=k, k=n, precision=precision, layout="dgrad", groups=groups),
        operators.gemm(device, m=k, n=n, k=m, precision=precision, layout="wgrad", groups=groups),
    )
    return [Timed(way.seconds[place] / clock_gain, way.source[place]) for way in timed]


def _sends(job: Job, key: LayerKind | str, shard: Shard) -> dict[str, list[Send]]:
    """What each axis sends in a part."""
    if key == EMBEDDING:
        return {axis.name: axis.embedding_sends(job.model, shard) for axis in AXES}
    if key == HEAD:
        return {axis.name: axis.head_sends(job.model, shard) for axis in AXES}
    assert isinstance(key, LayerKind)
    return {axis.name: axis.layer_sends(job.model, key, shard) for axis in AXES}


def _part(job: Job, shard: Shard, layer: Layer, gemms: list[_GemmSeconds], sends: dict[str, list[Send]]) -> Part:
    runtime, rows = job.runtime, len(shard.tp)
    zero = np.zeros(rows)
    attention_s = dict.fromkeys(("fwd", "bwd"), zero)
    attention_source: Codes = np.zeros(rows, np.int8)
    for attention in layer.attentions:
        for way, so_far in attention_s.items():
            seconds, source = _attention(job, shard, attention, way)
            attention_s[way] = so_far + seconds / runtime.attention_gain
            attention_source = worst(attention_source, source)
    layer = layer._replace(streams=(*layer.streams, *_casts(job, layer.gemms), _accumulation(job, layer.gemms, rows)))
    stream_s, stream_source = _streams(job, layer.streams, rows)
    dgrad_s, weight_s = _sum((g.dgrad for g in gemms), rows), _sum((g.wgrad for g in gemms), rows)
    sources: dict[str, Codes] = {
        "gemm": worst(np.zeros(rows, np.int8), *(g.source for g in gemms)),
        "attention": attention_source,
        "streaming": stream_source,
    }
    host_s = _host_seconds(runtime, layer, sends, rows)
    products_s = {"forward": _sum((g.forward for g in gemms), rows), "backward": dgrad_s + weight_s}
    directions = {
        way: Direction(
            gemm_s=products_s[way],
            attention_s=attention_s[key],
            stream_s=stream_s[place],
            host_s=host_s[place],
            busy_s={},
            exposed_s={},
            overlapped_s={},
            members=_members(sends["tp"], way, rows),
            ahead=runtime.launches_ahead,
        )
        for place, (way, key) in enumerate((("forward", "fwd"), ("backward", "bwd")))
    }
    slower = clock_loss(runtime, directions.values()) if runtime.clock_follows_power else np.ones(rows)
    for way, full in directions.items():
        silent = full._replace(gemm_s=full.gemm_s * slower, attention_s=full.attention_s * slower)
        # Where kernels wait for the host, communication hides in the gaps too; else a faster GPU would be slower.
        idle_s = silent.compute_s - silent.kernels_s
        windows = {"gemm": silent.gemm_s + idle_s, "attention": silent.attention_s + idle_s}
        busy, exposed, overlapped = _communication(job, shard, sends, way, windows, sources)
        if runtime.launches_ahead:
            exposed, overlapped = _in_gaps(silent, exposed), _in_gaps(silent, overlapped)
        directions[way] = silent._replace(busy_s=busy, exposed_s=exposed, overlapped_s=overlapped)
    adapters = _sum((g.groups * g.k * g.n for g in layer.gemms if "_lora_" in g.name), rows)
    kept = layer.kept._replace(working=np.maximum(layer.kept.working, _gradient_bytes(job, layer.gemms, rows)))
    return Part(directions["forward"], directions["backward"], weight_s * slower, adapters, kept, sources)


def _gradient_bytes(job: Job, gemms: tuple[Gemm, ...], rows: int) -> Floats:
    """The largest weight gradient, which lives in bf16 until it is added to the buffer that micro-batches share."""
    if not job.runtime.kernels["accumulate"].backward_bytes:
        return np.zeros(rows)
    sizes = [np.broadcast_to(g.groups * g.k * g.n, rows) for g in gemms if _trained(job, g)]
    largest: Floats = job.workload.element_bytes * np.max(sizes, axis=0) if sizes else np.zeros(rows)
    return largest


def _trained(job: Job, gemm: Gemm) -> bool:
    return job.workload.task != "lora" or "_lora_" in gemm.name


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


def _host_seconds(runtime: Runtime, layer: Layer, sends: Mapping[str, list[Send]], rows: int) -> tuple[Floats, Floats]:
    """The host's time to launch a part's kernels and collectives, forward and backward."""
    kernels = _launches(layer, runtime)
    calls = [
        _sum((np.where(send.ranks > 1, getattr(send, way), 0.0) for each in sends.values() for send in each), rows)
        for way in ("forward", "backward")
    ]
    forward, backward = (own + runtime.collective_launches * sent for own, sent in zip(kernels, calls, strict=True))
    return forward * runtime.launch_s, backward * runtime.launch_backward_s


def _casts(job: Job, gemms: tuple[Gemm, ...]) -> list[Stream]:
    """Quantising what goes into fp8 GEMMs: inputs in forward, output gradients in backward."""
    if job.workload.precision != "fp8":
        return []
    low = [gemm for gemm in gemms if gemm.name not in BF16_GEMMS]
    return [
        *(Stream("fp8_cast", gemm.groups * gemm.m * gemm.k, way="forward") for gemm in low),
        *(Stream("fp8_cast", gemm.groups * gemm.m * gemm.n, way="backward") for gemm in low),
    ]


def _accumulation(job: Job, gemms: tuple[Gemm, ...], rows: int) -> Stream:
    """Adding weight gradients to the buffer micro-batches share, where the GEMM does not do it itself."""
    trained = (g.groups * g.k * g.n for g in gemms if _trained(job, g))
    return Stream("accumulate", _sum(trained, rows), way="backward")


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
    device, runtime = job.pool.device, job.runtime
    forward_s, backward_s = np.zeros(rows), np.zeros(rows)
    source: Codes = np.zeros(rows, np.int8)
    for stream in streams:
        kernel = runtime.kernels[stream.kernel]
        widening = 1.0 if stream.kernel in FP32_KERNELS else job.workload.widening
        elements = stream.elements * stream.launches * widening
        if stream.way != "backward":
            forward = operators.streaming(
                device, nbytes=elements * kernel.forward_bytes, kernels=kernel.forward_kernels * stream.launches
            )
            forward_s, source = forward_s + forward.seconds, worst(source, forward.source)
        if stream.way != "forward":
            backward = operators.streaming(
                device, nbytes=elements * kernel.backward_bytes, kernels=kernel.backward_kernels * stream.launches
            )
            backward_s, source = backward_s + backward.seconds, worst(source, backward.source)
    return (forward_s, backward_s), source


def _launches(layer: Layer, runtime: Runtime) -> tuple[float, float]:
    """Kernels the host launches, forward and backward: one a GEMM (two in backward), one and three for attention."""
    ahead = [(runtime.kernels[stream.kernel], stream.launches) for stream in layer.streams if stream.way != "backward"]
    back = [(runtime.kernels[stream.kernel], stream.launches) for stream in layer.streams if stream.way != "forward"]
    forward = len(layer.gemms) + len(layer.attentions) + sum(kernel.forward_kernels * n for kernel, n in ahead)
    backward = 2 * len(layer.gemms) + 3 * len(layer.attentions) + sum(kernel.backward_kernels * n for kernel, n in back)
    return forward, backward


def _in_gaps(silent: Direction, exposed_s: Mapping[str, Floats]) -> dict[str, Floats]:
    """What shows of communication that runs in the gaps in which kernels wait for the host."""
    rows = len(silent.host_s)
    total_s = _sum(exposed_s.values(), rows)
    shown_s = silent._replace(stream_s=silent.stream_s + total_s).compute_s - silent.compute_s
    share = np.divide(shown_s, total_s, out=np.ones(rows), where=total_s > 0)
    return {axis: share * seconds for axis, seconds in exposed_s.items()}


def _members(sends: list[Send], way: str, rows: int) -> Floats:
    """Ranks of each collective with more than one, summed over the collectives."""
    return _sum((np.where(send.ranks > 1, getattr(send, way) * send.ranks, 0.0) for send in sends), rows)


def _communication(
    job: Job,
    shard: Shard,
    sends: Mapping[str, list[Send]],
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
        bare, beside = np.zeros(rows), dict.fromkeys(windows, np.zeros(rows))
        pieces = getattr(shard, axis.degree or axis.name)
        for send in sends[axis.name]:
            times = np.broadcast_to(np.asarray(getattr(send, way), np.float64), rows)
            if not (times > 0).any() or (send.ranks <= 1).all():
                continue
            nbytes = job.workload.widening * send.nbytes
            timed = collectives.collective(job.pool, send.op, nbytes=nbytes, ranks=send.ranks, stride=send.stride)
            seconds = times * timed.seconds
            used = (seconds > 0).astype(np.int8)
            sources[axis.name] = worst(sources.get(axis.name, np.zeros(rows, np.int8)), timed.source * used)
            if send.beside and (job.runtime.async_reduce or send.beside != "gemm"):
                beside[send.beside] = beside[send.beside] + seconds
            else:
                bare = bare + seconds
        hidden = {
            name: np.maximum(seconds - windows[name], 0.0) + slowdown * np.minimum(seconds, windows[name])
            for name, seconds in beside.items()
        }
        outlasting = _sum(hidden.values(), rows)
        first, rest = bare / pieces, bare - bare / pieces
        room = np.maximum(windows["gemm"] - beside["gemm"], 0.0)
        pipelined = first + np.maximum(rest - room, 0.0) + slowdown * np.minimum(rest, room)
        busy_by[axis.name] = bare + _sum(beside.values(), rows)
        exposed_by[axis.name] = bare + outlasting
        overlapped_by[axis.name] = (np.minimum(pipelined, bare) if axis.overlap else bare) + outlasting
    return busy_by, exposed_by, overlapped_by


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
