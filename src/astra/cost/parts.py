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
ATTENTION_GEMMS: Final = frozenset({"qkv", "q", "q_down", "q_up", "kv_down", "kv_up", "attention_out"})
CHEAP: Final = frozenset({"norm", "swiglu", "gelu", "expert_clamp"})
EMBEDDING: Final = "embedding"
HEAD: Final = "head"


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

    @property
    def compute_s(self) -> Floats:
        """Time of the kernels, or of the host where issuing them takes longer.

        A layer's kernels differ in length, so that the GPU waits for the host here and there before it does on the
        whole: the fourth-power mean fits rehearsed ranks better than the maximum (docs/rehearsal.md).
        """
        gpu_s = self.gemm_s + self.attention_s + self.stream_s + self.drained_s
        return np.sqrt(np.sqrt(gpu_s**4 + self.host_s**4))


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
        logits_kept_bytes=job.runtime.logits_kept_bytes,
        logits_peak_bytes=job.runtime.logits_peak_bytes,
    )
    if job.workload.task == "lora":
        layers = {key: _with_adapters(layer, job) for key, layer in layers.items()}
    if job.runtime.recomputes_cheap:
        layers = {key: _with_cheap_again(layer) for key, layer in layers.items()}
    gemm_s = _gemm_seconds(job, layers, len(shard.tp))
    return {
        key: _part(job, shard, layer, [gemm_s[key, gemm.name] for gemm in layer.gemms], _sends(job, key, shard))
        for key, layer in layers.items()
    }


def _with_adapters(layer: Layer, job: Job) -> Layer:
    """Low-rank adapters beside frozen matrices: all, those of attention or its input alone (Hu et al. 2021)."""
    rank, chosen = job.workload.lora_rank, job.runtime.adapted
    adapters = [
        adapter
        for gemm in layer.gemms
        if gemm.name not in BF16_GEMMS
        and (chosen == "all" or gemm.name in ATTENTION_GEMMS)
        and not (chosen == "qkv" and gemm.name == "attention_out")
        for adapter in (
            gemm._replace(name=f"{gemm.name}_lora_a", n=np.full_like(gemm.m, rank)),
            gemm._replace(name=f"{gemm.name}_lora_b", k=np.full_like(gemm.m, rank)),
        )
    ]
    return layer._replace(gemms=(*layer.gemms, *adapters))


def _with_cheap_again(layer: Layer) -> Layer:
    """Norms and activations run again in backward."""
    again = [stream._replace(way="again") for stream in layer.streams if stream.kernel in CHEAP]
    return layer._replace(streams=(*layer.streams, *again))


def _in_bf16(gemm: Gemm) -> bool:
    """Whether fp8 jobs run a product in bf16: adapters too."""
    return gemm.name in BF16_GEMMS or "_lora_" in gemm.name


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
        (False, [e for e in entries if _in_bf16(e[1])]),
        (True, [e for e in entries if not _in_bf16(e[1])]),
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
    """Forward, input-gradient and weight-gradient times; shardings share many shapes, so each is timed once.

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
    more_s = operators.streaming(device, nbytes=0 * groups, kernels=groups - 1).seconds
    return [Timed((way.seconds / clock_gain + more_s)[place], way.source[place]) for way in timed]


def _sends(job: Job, key: LayerKind | str, shard: Shard) -> dict[str, list[Send]]:
    """What each axis sends in a part."""
    if key == EMBEDDING:
        return {axis.name: axis.embedding_sends(job.model, shard) for axis in AXES}
    if key == HEAD:
        return {axis.name: axis.head_sends(job.model, shard) for axis in AXES}
    assert isinstance(key, LayerKind)
    return {axis.name: axis.layer_sends(job.model, key, shard) for axis in AXES}


def _part(job: Job, shard: Shard, layer: Layer, gemms: list[_GemmSeconds], sends: dict[str, list[Send]]) -> Part:
    device, runtime, rows = job.pool.device, job.runtime, len(shard.tp)
    zero = np.zeros(rows)
    attention_s = dict.fromkeys(("fwd", "bwd"), zero)
    attention_source: Codes = np.zeros(rows, np.int8)
    for attention in layer.attentions:
        for way, so_far in attention_s.items():
            seconds, source = _attention(device, runtime, shard, attention, way, job.workload.precision)
            attention_s[way] = so_far + seconds / runtime.attention_gain
            attention_source = worst(attention_source, source)
    layer = layer._replace(streams=(*layer.streams, *_casts(job, layer.gemms), _accumulation(job, layer.gemms, rows)))
    stream_s, stream_source = _streams(device, runtime, layer.streams, rows)
    dgrad_s, weight_s = _sum((g.dgrad for g in gemms), rows), _sum((g.wgrad for g in gemms), rows)
    launches = _launches(layer, runtime, rows)
    sources: dict[str, Codes] = {
        "gemm": worst(np.zeros(rows, np.int8), *(g.source for g in gemms)),
        "attention": attention_source,
        "streaming": stream_source,
    }
    ways = {
        "forward": (_sum((g.forward for g in gemms), rows), attention_s["fwd"], stream_s[0], launches[0]),
        "backward": (dgrad_s + weight_s, attention_s["bwd"], stream_s[1], launches[1]),
    }
    directions = {}
    for way, (gemm_s, core_s, memory_s, launched) in ways.items():
        host_s = launched * (runtime.launch_s if way == "forward" else runtime.launch_backward_s)
        # Where kernels wait for the host, communication hides in the gaps too; else a faster GPU would be slower.
        drained_s = _drained_s(layer, runtime, rows) if way == "forward" else zero
        silent = Direction(gemm_s, core_s, memory_s, host_s, drained_s, {}, {}, {})
        idle_s = silent.compute_s - (gemm_s + core_s + memory_s)
        windows = {"gemm": gemm_s + idle_s, "attention": core_s + idle_s, "layer": silent.compute_s}
        busy, exposed, overlapped = _communication(job, shard, sends, way, windows, sources)
        directions[way] = silent._replace(busy_s=busy, exposed_s=exposed, overlapped_s=overlapped)
    adapters = _sum((g.groups * g.k * g.n for g in layer.gemms if "_lora_" in g.name), rows)
    return Part(directions["forward"], directions["backward"], weight_s, adapters, layer.kept, sources)


def _casts(job: Job, gemms: tuple[Gemm, ...]) -> list[Stream]:
    """Quantising what goes into fp8 GEMMs: inputs in forward, output gradients in backward."""
    if job.workload.precision != "fp8":
        return []
    low = [gemm for gemm in gemms if not _in_bf16(gemm)]
    return [
        *(Stream("fp8_cast", gemm.groups * gemm.m * gemm.k, way="forward", groups=gemm.groups) for gemm in low),
        *(Stream("fp8_cast", gemm.groups * gemm.m * gemm.n, way="backward", groups=gemm.groups) for gemm in low),
    ]


def _accumulation(job: Job, gemms: tuple[Gemm, ...], rows: int) -> Stream:
    """Adding weight gradients to the buffer micro-batches share, where the GEMM does not do it itself."""
    trained = [g for g in gemms if job.workload.task != "lora" or "_lora_" in g.name]
    return Stream("accumulate", _sum((g.groups * g.k * g.n for g in trained), rows), way="backward")


def _sum(columns: Iterable[Floats], rows: int) -> Floats:
    return sum(columns, start=np.zeros(rows))


def _attention(
    device: Device, runtime: Runtime, shard: Shard, attention: Attention, way: str, precision: str
) -> tuple[Floats, Codes]:
    """Seconds of attention: the runtime's kernel, or unfused where flash attention is off."""
    half = "fp16" if precision == "fp16" else "bf16"
    kernel = operators.best_kernel(device) if runtime.attention == "best" else runtime.attention
    fused = _ring(device, shard, attention, kernel=kernel, direction=way, precision=half)
    if shard.flash.all():
        return fused
    unfused = _ring(device, shard, attention, kernel="unfused", direction=way, precision=half)
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


def _streams(
    device: Device, runtime: Runtime, streams: tuple[Stream, ...], rows: int
) -> tuple[tuple[Floats, Floats], Codes]:
    """Seconds of the memory-bound operators, forward and backward."""
    forward_s, backward_s = np.zeros(rows), np.zeros(rows)
    source: Codes = np.zeros(rows, np.int8)
    for stream in streams:
        kernel = runtime.kernels[stream.kernel]
        elements, times = stream.elements * stream.launches, stream.launches * stream.groups
        if stream.way != "backward":
            timed = operators.streaming(
                device, nbytes=elements * kernel.forward_bytes, kernels=kernel.forward_kernels * times
            )
            source = worst(source, timed.source)
            if stream.way == "again":
                backward_s = backward_s + timed.seconds
            else:
                forward_s = forward_s + timed.seconds
        if stream.way in ("both", "backward"):
            timed = operators.streaming(
                device, nbytes=elements * kernel.backward_bytes, kernels=kernel.backward_kernels * times
            )
            backward_s, source = backward_s + timed.seconds, worst(source, timed.source)
    return (forward_s, backward_s), source


def _launches(layer: Layer, runtime: Runtime, rows: int) -> tuple[Floats, Floats]:
    """Kernels the host launches, forward and backward: one (two) a GEMM and group, one and three for attention.

    TransformerEngine's grouped products are a product for each expert, and so are their casts.
    """
    products = sum(gemm.groups for gemm in layer.gemms)
    forward = np.zeros(rows) + products + len(layer.attentions)
    backward = np.zeros(rows) + 2 * products + 3 * len(layer.attentions)
    for stream in layer.streams:
        kernel, times = runtime.kernels[stream.kernel], stream.launches * stream.groups
        if stream.way in ("both", "forward"):
            forward = forward + kernel.forward_kernels * times
        if stream.way in ("both", "backward"):
            backward = backward + kernel.backward_kernels * times
        if stream.way == "again":
            backward = backward + kernel.forward_kernels * times
    return forward, backward


def _drained_s(layer: Layer, runtime: Runtime, rows: int) -> Floats:
    """What the host issues after the routing is known and before the first expert's product can start.

    Half of the permutation's kernels, and in fp8 the casts of that product's input, one for each expert.
    """
    if all(stream.kernel != "permute" for stream in layer.streams):
        return np.zeros(rows)
    first = next(gemm for gemm in layer.gemms if gemm.name == "experts_in")
    casts = [s for s in layer.streams if s.kernel == "fp8_cast"]
    issued = runtime.kernels["permute"].forward_kernels / 2 + (first.groups if casts else 0)
    return np.zeros(rows) + issued * runtime.launch_s


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
            nbytes = send.nbytes * _sent_once(job, send)
            timed = collectives.collective(job.pool, send.op, nbytes=nbytes, ranks=send.ranks, stride=send.stride)
            seconds = times * timed.seconds
            used = (seconds > 0).astype(np.int8)
            sources[axis.name] = worst(sources.get(axis.name, np.zeros(rows, np.int8)), timed.source * used)
            hidden_by = "layer" if send.op == "all_to_all" and job.runtime.hides_all_to_all else send.beside
            if hidden_by:
                beside[hidden_by] = beside[hidden_by] + seconds
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
