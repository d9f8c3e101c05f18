"""Seconds of attention in a layer: the runtime's kernel, on one rank or on several that hold pieces of a sequence."""

from __future__ import annotations

from typing import Any

import numpy as np

from astra.layers.operators import Attention, SameShardings, Shard, once
from astra.operators import timing as operators
from astra.provenance import Bools, Floats, Ints, Timed, worst
from astra.spec.cluster import Device
from astra.spec.job import Job


def attention_seconds(job: Job, shard: Shard, attention: Attention, way: str, repeated: SameShardings) -> Timed:
    """Seconds of attention, worked out once for shardings with the same micro-batch, pieces and heads."""

    def timed(
        cp: Ints, flash: Bools, batch: Floats, seq_q: Floats, seq_kv: Floats, heads: Floats, kv_heads: Floats
    ) -> Timed:
        own = attention._replace(batch=batch, seq_q=seq_q, seq_kv=seq_kv, heads=heads, kv_heads=kv_heads)
        return _attention(job, cp, flash, own, way)

    _, batch, seq_q, seq_kv, heads, kv_heads, *_ = attention
    return once(timed, shard.cp, shard.flash, batch, seq_q, seq_kv, heads, kv_heads, repeated=repeated)


def _attention(job: Job, cp: Ints, flash: Bools, attention: Attention, way: str) -> Timed:
    """Seconds of attention: the runtime's kernel, or unfused where flash attention is off.

    Unfused attention does the same products and moves the scores as well, so it is never the faster of the two (Dao et
    al. 2022 measure it from 128 tokens on); below the lengths that were measured its sum of small kernels says so.
    """
    device, runtime = job.pool.device, job.runtime
    half = "bf16" if job.workload.low else job.workload.precision
    kernel = operators.best_kernel(device) if runtime.attention == "best" else runtime.attention
    if job.words.attention == "fp8" and device.fp8_attention:  # without it a strategy is refused, and costed in bf16
        kernel = operators.FP8_KERNELS["mxfp8" if job.scales_groups else "tensorwise"]
    fused = _ring(device, cp, attention, kernel=kernel, direction=way, precision=half)
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
    mine = operators.attention(device, **(shape | {"seq_kv": attention.seq_q}), **how)
    if (cp == 1).all():
        return mine
    if attention.window is not None:  # a short span leaves little for other ranks
        whole = operators.attention(device, **shape, **how)
        return Timed(np.where(cp > 1, whole.seconds, mine.seconds), worst(mine.source, whole.source))
    keys = attention.seq_q / 2 if attention.causal else attention.seq_q
    theirs = operators.attention(device, **(shape | {"seq_kv": keys, "causal": False}), **how)
    seconds = mine.seconds + (cp - 1) * theirs.seconds
    return Timed(seconds, worst(mine.source, theirs.source * (cp > 1)))
