"""What the kernels of a layer take: on the GPU by what bounds them, and of the host that issues them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from astra.cost import effects
from astra.cost.layers import in_bf16, kernel_of, trained
from astra.cost.low import scaling
from astra.layers.block import LayerKind, Send
from astra.layers.operators import Attention, Gemm, Layer, SameShardings, Shard, Stream, once
from astra.operators import attention as cores
from astra.operators import gemm as products
from astra.operators.streaming import streaming
from astra.provenance import Bools, Codes, Floats, Ints, Source, Timed, worst
from astra.spec.cluster import Device
from astra.spec.job import Job
from astra.spec.runtime import Runtime

FP32_KERNELS: Final = frozenset({"cross_entropy", "accumulate"})  # counted with fp32 values whatever the precision
# The host's time for a kernel inside a CUDA graph: a launch of the graph, spread over its kernels.
GRAPHED_S: Final = 2e-6
# Hosts of one type of machine are so many times as fast or as slow as the median, six of seven measured ones at most.
APART: Final = 1.25
HALF: Final = "bf16"  # of what jobs in fp8 do not quantise
QUEUED_LAUNCHES: Final = 1024  # that the driver takes before a launch waits for the GPU


class _Directions(NamedTuple):
    forward: Timed
    dgrad: Timed
    wgrad: Timed


class GemmSeconds(NamedTuple):
    """A product and those of its gradients; zero where a weight is frozen."""

    forward: Floats
    dgrad: Floats
    wgrad: Floats
    source: Codes


def gemm_seconds(
    job: Job, layers: Mapping[LayerKind | str, Layer], repeated: SameShardings
) -> dict[tuple[LayerKind | str, str], GemmSeconds]:
    """All GEMMs of all parts in one stacked call for each layout and precision."""
    entries: dict[str, list[tuple[LayerKind | str, Gemm]]] = {}
    for key, layer in layers.items():
        for gemm in layer.gemms:
            entries.setdefault(_precision(job, gemm), []).append((key, gemm))
    out: dict[tuple[LayerKind | str, str], GemmSeconds] = {}
    for precision, chosen in entries.items():
        shapes = [(gemm.m, gemm.n, gemm.k, gemm.groups) for _, gemm in chosen]
        rows = [repeated.distinct(*shape) for shape in shapes]
        ends = np.cumsum([0, *(len(first) for first, _ in rows)])
        sizes = [
            np.concatenate(
                [
                    np.broadcast_to(size, len(first)) if np.ndim(size := shape[dim]) == 0 else np.asarray(size)[first]
                    for shape, (first, _) in zip(shapes, rows, strict=True)
                ]
            )
            for dim in range(4)
        ]
        timed = once(partial(_three_layouts, job, precision) if precision else partial(_quantised, job), *sizes)
        source = worst(*(way.source for way in timed))
        for number, ((key, gemm), (_, place)) in enumerate(zip(chosen, rows, strict=True)):
            at = slice(ends[number], ends[number + 1])
            forward_s, dgrad_s, wgrad_s = (way.seconds[at][place] for way in timed)
            weight_s = wgrad_s if trained(job, gemm) else np.zeros(repeated.rows)
            known = source[at][place]
            if not gemm.weight:  # backward passes through both sides, in kernels that nobody has measured
                dgrad_s, known = dgrad_s + wgrad_s, np.full_like(known, Source.ASSUMED)
            out[key, gemm.name] = GemmSeconds(forward_s, dgrad_s, weight_s, known)
    return out


def _precision(job: Job, gemm: Gemm) -> str:
    """The precision a product runs in; none: its operands are quantised."""
    if gemm.name.rpartition(".")[2] == "router" and effects.fp32_router(job.runtime):
        return "fp32"
    if job.workload.low:
        return HALF if in_bf16(gemm) else ""
    return job.workload.precision


def _quantised(job: Job, m: Floats, n: Floats, k: Floats, groups: Floats) -> _Directions:
    """Products whose operands are quantised, but for a share that stays in bf16."""
    own = scaling(job)
    narrow = _three_layouts(job, own.product, m, n, k, groups)
    wide = narrow if own.share == 1 else _three_layouts(job, HALF, m, n, k, groups)

    def mixed(low: Timed, full: Timed) -> Timed:
        seconds = own.share * own.slower * low.seconds + (1 - own.share) * full.seconds
        source = low.source if own.slower == own.share == 1 else np.maximum(low.source, Source.TRANSFERRED)
        return Timed(seconds, source.astype(np.int8))

    return _Directions(*(mixed(low, full) for low, full in zip(narrow, wide, strict=True)))


def _three_layouts(job: Job, precision: str, m: Floats, n: Floats, k: Floats, groups: Floats) -> _Directions:
    """Forward, input-gradient and weight-gradient times.

    A group is a kernel of its own in TransformerEngine: 4 to 5 us each beyond one kernel's work on B200 (108 grouped
    products of MooreThreads/SimuMax @4dcaae5).
    """
    device, runtime = job.pool.device, job.runtime
    copies_s: tuple[Floats | float, ...] = (0.0, 0.0, 0.0)
    if runtime.pads_products:
        n, k, copies_s = padded(device, precision, m, n, k, groups)
    product = partial(products.gemm, device, precision=precision, groups=groups)
    timed = (
        product(m=m, n=n, k=k, layout="fwd", routed=True),
        product(m=m, n=k, k=n, layout="dgrad", routed=True),
        product(m=k, n=n, k=m, layout="wgrad"),
    )
    more = np.asarray(effects.experts_together(runtime, groups)) - 1
    more_s = streaming(device, nbytes=0 * groups, kernels=more).seconds
    rate, ways = effects.clock(runtime, device.generation), zip(timed, copies_s, strict=True)
    return _Directions(*(Timed(way.seconds / rate + more_s + extra_s, way.source) for way, extra_s in ways))


def padded(
    device: Device, precision: str, m: Floats, n: Floats, k: Floats, groups: Floats
) -> tuple[Floats, Floats, tuple[Floats | float, ...]]:
    """Sizes as a compiler pads them to rows of 16 bytes, and the time of the copies for each of its three products.

    Each operand is copied once, for all products it is in. A projection of 8,192 tokens to 50,257 rows takes 0.5 to 0.8
    ms longer than one to 50,304 on an H200, to 50,258 0.4 to 0.6 (benchmarks/aligned_heads.py); this says 0.4 to 0.6.
    """
    element = products.OPERAND_BYTES[precision]
    multiple = max(1.0, products.ROW_BYTES / element)
    wide_n, wide_k = (np.ceil(size / multiple) * multiple for size in (n, k))
    padded_n, padded_k = wide_n > n, wide_k > k
    if not (np.any(padded_n) or np.any(padded_k)):
        return n, k, (0.0, 0.0, 0.0)
    either = padded_n | padded_k
    forward, backward = np.where(either, n * k, 0.0) + padded_k * m * k, padded_n * m * n
    forward_s, backward_s = (
        streaming(device, nbytes=2 * element * groups * each, kernels=np.where(either, groups, 0)).seconds
        for each in (forward, backward)
    )
    return wide_n, wide_k, (forward_s, backward_s, 0.0)


def attention_seconds(job: Job, shard: Shard, layer: Layer, repeated: SameShardings) -> tuple[dict[str, Floats], Codes]:
    """Seconds of a layer's attention by direction, and how they are known."""
    rows = len(shard.tp)
    attention_s = {"fwd": np.zeros(rows), "bwd": np.zeros(rows)}
    source: Codes = np.zeros(rows, np.int8)
    for attention in layer.attentions:
        for way, so_far in attention_s.items():
            timed = _attention_seconds(job, shard, attention, way, repeated)
            attention_s[way] = so_far + effects.attention_rate(job.runtime, timed.seconds)
            source = worst(source, timed.source)
    return attention_s, source


def _attention_seconds(job: Job, shard: Shard, attention: Attention, way: str, repeated: SameShardings) -> Timed:
    """Seconds of attention, worked out once for shardings with the same micro-batch, pieces and heads."""

    def timed(
        cp: Ints, flash: Bools, batch: Floats, seq_q: Floats, seq_kv: Floats, heads: Floats, kv_heads: Floats
    ) -> Timed:
        own = attention._replace(batch=batch, seq_q=seq_q, seq_kv=seq_kv, heads=heads, kv_heads=kv_heads)
        return _with_its_kernel(job, cp, flash, own, way)

    _, batch, seq_q, seq_kv, heads, kv_heads, *_ = attention
    return once(timed, shard.cp, shard.flash, batch, seq_q, seq_kv, heads, kv_heads, repeated=repeated)


def _with_its_kernel(job: Job, cp: Ints, flash: Bools, attention: Attention, way: str) -> Timed:
    """Seconds of attention: the runtime's kernel, or unfused where flash attention is off.

    Unfused attention does the same products and moves the scores as well, so it is never the faster of the two (Dao et
    al. 2022 measure it from 128 tokens on); below the lengths that were measured its sum of small kernels says so.
    """
    device, runtime = job.pool.device, job.runtime
    half = "bf16" if job.workload.low else job.workload.precision
    kernel = cores.best_kernel(device) if runtime.attention == "best" else runtime.attention
    if job.words.attention == "fp8" and device.fp8_attention:  # without it a strategy is refused, and costed in bf16
        kernel = cores.FP8_KERNELS["mxfp8" if job.scales_groups else "tensorwise"]
    full = effects.clock_follows_power(runtime)
    fused = _ring(device, cp, attention, kernel=kernel, direction=way, precision=half, full_clock=full)
    if flash.all():
        return fused
    softmax = runtime.kernels["softmax"]
    bytes_at = softmax.forward_at if way == "fwd" else softmax.backward_at
    per_score = bytes_at(job.workload.widening)
    unfused = _ring(device, cp, attention, kernel="unfused", direction=way, precision=half, softmax_bytes=per_score)
    seconds = np.where(flash, fused.seconds, np.maximum(fused.seconds, unfused.seconds))
    return Timed(seconds, np.where(flash, fused.source, unfused.source).astype(np.int8))


def _ring(device: Device, cp: Ints, attention: Attention, **how: Any) -> Timed:
    """Attention of this rank's queries with every rank's keys, one at a time.

    With c ranks and a causal mask the sequence is dealt so that each rank does equal work: one square block with the
    mask, and c - 1 blocks of half its area without (the load balancing of Megatron's ring attention).
    """
    shape: dict[str, Any] = attention._asdict()
    del shape["name"]
    mine = cores.attention(device, **(shape | {"seq_kv": attention.seq_q}), **how)
    if (cp == 1).all():
        return mine
    if attention.window is not None:  # a short span leaves little for other ranks
        whole = cores.attention(device, **shape, **how)
        return Timed(np.where(cp > 1, whole.seconds, mine.seconds), worst(mine.source, whole.source))
    keys = attention.seq_q / 2 if attention.causal else attention.seq_q
    theirs = cores.attention(device, **(shape | {"seq_kv": keys, "causal": False}), **how)
    seconds = mine.seconds + (cp - 1) * theirs.seconds
    return Timed(seconds, worst(mine.source, theirs.source * (cp > 1)))


def stream_seconds(job: Job, streams: tuple[Stream, ...], rows: int) -> tuple[tuple[Floats, Floats], Codes]:
    """Seconds of the memory-bound operators, forward and backward."""
    runtime, zero = job.runtime, np.zeros(rows)
    nbytes, kernels = {"forward": zero, "backward": zero}, {"forward": zero, "backward": zero}

    def run(way: str, elements: Floats, times: Floats | float, bytes_each: float, kernels_each: float) -> None:
        if bytes_each:
            nbytes[way] = nbytes[way] + elements * bytes_each
        if kernels_each:
            kernels[way] = kernels[way] + kernels_each * times

    for stream in streams:
        kernel = kernel_of(runtime, stream.kernel)
        widening = 1.0 if stream.kernel in FP32_KERNELS else job.workload.widening
        elements, times = stream.elements * stream.launches, stream.launches * stream.groups
        if stream.way != "backward":
            run("forward", elements, times, kernel.forward_at(widening), kernel.forward_kernels)
        if stream.way in ("both", "backward"):
            run("backward", elements, times, kernel.backward_at(widening), kernel.backward_kernels)
    forward, backward = (streaming(job.pool.device, nbytes=nbytes[way], kernels=kernels[way]) for way in nbytes)
    return (forward.seconds, backward.seconds), worst(forward.source, backward.source)


def launches(job: Job, forward_s: Floats, backward_s: Floats) -> Floats:
    """Operators a part launches in both passes, from the host's time for each."""
    forward, backward = (max(price_s, 1e-9) for price_s in launch_s(job))
    return forward_s / forward + backward_s / backward


def launch_s(job: Job) -> tuple[float, float]:
    """The host's time for one operator, forward and backward.

    A graph of the whole step takes all operators. Graphs of parts leave experts to the host, whose kernels depend on
    the routing, and with them the host's pace: it runs no further ahead than the last of them.
    """
    graphed = job.words.graphs == "full" or (job.words.graphs == "partial" and job.model.moe is None)
    host, speed = job.runtime.host, job.pool.node.host_speed
    return (GRAPHED_S, GRAPHED_S) if graphed else (host.launch_s / speed, host.backward_s / speed)


def host_seconds(job: Job, layer: Layer, sends: Mapping[str, list[Send]], rows: int) -> tuple[Floats, Floats]:
    """The host's time to launch a part's kernels and collectives, forward and backward.

    Rings of context parallelism are issued beside attention.
    """
    runtime, (forward_s, backward_s) = job.runtime, launch_s(job)
    kernels = _launches(layer, runtime, rows)
    calls = [
        sum(
            (np.where(send.ranks > 1, getattr(send, way), 0.0) for axis in ("tp", "ep") for send in sends[axis]),
            start=np.zeros(rows),
        )
        for way in ("forward", "backward")
    ]
    forward, backward = (
        effects.collective_launches(runtime, own, sent) for own, sent in zip(kernels, calls, strict=True)
    )
    unit, speed = (effects.unit_forward_s(runtime), effects.unit_backward_s(runtime)), job.pool.node.host_speed
    return forward * forward_s + unit[0] / speed, backward * backward_s + unit[1] / speed


def _launches(layer: Layer, runtime: Runtime, rows: int) -> tuple[Floats, Floats]:
    """Kernels the host launches, forward and backward: one (two) a GEMM and group, one and three for attention.

    TransformerEngine's grouped products are a product for each expert, and so are their casts.
    """
    products = sum(effects.experts_together(runtime, gemm.groups) for gemm in layer.gemms)
    forward = np.zeros(rows) + products + len(layer.attentions)
    backward = np.zeros(rows) + 2 * products + 3 * len(layer.attentions)
    for stream in layer.streams:
        kernel, times = kernel_of(runtime, stream.kernel), stream.launches * stream.groups
        if stream.way in ("both", "forward"):
            forward = forward + kernel.forward_kernels * times
        if stream.way in ("both", "backward"):
            backward = backward + kernel.backward_kernels * times
    return forward, backward


def drained_s(job: Job, layer: Layer, rows: int) -> Floats:
    """What the host issues after the routing is known and before the first expert's product can start.

    Half of the permutation's kernels, and in fp8 the casts of that product's input, one for each expert.
    """
    if all(stream.kernel != "permute" for stream in layer.streams):
        return np.zeros(rows)
    casts = [np.broadcast_to(s.groups, rows) for s in layer.streams if s.kernel == "fp8_cast"]
    issued = job.runtime.kernels["permute"].forward_kernels / 2 + (np.max(casts, axis=0) if casts else np.zeros(rows))
    return np.asarray(issued * launch_s(job)[0], np.float64)
