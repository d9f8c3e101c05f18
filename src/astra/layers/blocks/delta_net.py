"""Gated delta net: linear attention whose state forgets and is corrected (Yang et al. 2024, arXiv 2412.06464).

Letters: T tokens of a micro-batch on a rank, h hidden, G heads of queries and keys of width K, H heads of values of
width V (each key head serves H / G of them), C tokens of a chunk, t tensor parallel, c context parallel.

The rule is run in chunks of C tokens (section 3.3 of the paper; kernels of flash-linear-attention, which every
framework runs). Its products are, in forward FLOPs per token and head of values,

    2 C K      keys with keys inside a chunk
    C^2 / 3    the inverse of that unit triangle
    C (K + V)  the inverse times keys and values, below the diagonal alone
    4 K V      what the state takes away from the values, and what a chunk adds to the state
    2 C K      queries with keys inside a chunk
    C V        those scores times the corrected values, below the diagonal alone
    2 K V      queries with the state before the chunk

Nobody has measured these kernels here, so that their times count as assumed; what they move besides is counted in
the source of flash-linear-attention, and what is kept in that of Megatron-core's GatedDeltaNet.
"""

from __future__ import annotations

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Send, Tensor, column_then_row, matrix, norms_each, vector
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Floats
from astra.spec.model import DeltaNet, ModelSpec
from astra.spec.runtime import Kernel

_FP32 = 4
_KERNELS = {
    # Per element that heads of values copy to themselves: queries and keys repeated, values and gate made contiguous.
    "delta_copy": Kernel(forward_bytes=4, backward_bytes=4),
    # Per channel of a head (the mean of K and V): 13 reads and writes; backward makes some of them again.
    "delta": Kernel(forward_bytes=26, backward_bytes=72, forward_kernels=6, backward_kernels=9),
    # Per entry of a chunk's triangle: fp32 written and read, bf16 written and read; backward reads it twice.
    "delta_scores": Kernel(forward_bytes=12, backward_bytes=4, forward_kernels=0, backward_kernels=0),
    # Per entry of a chunk's state: written and read; backward: again, and so for its gradient.
    "delta_state": Kernel(forward_bytes=4, backward_bytes=8, forward_kernels=0, backward_kernels=0),
}


def _net(model: ModelSpec) -> DeltaNet:
    assert model.delta_net is not None
    return model.delta_net


def _has(model: ModelSpec, place: Place) -> bool:
    return not model.attends(place.number)


def _projected(it: DeltaNet) -> int:
    """Queries, keys, values, gate, and two numbers a head of values: its step and its decay."""
    return it.convolved + it.inner + 2 * it.heads


def _tensors(model: ModelSpec) -> list[Tensor]:
    """All divided by tensor parallelism, by heads, but the output's norm, which all heads share."""
    it, h = _net(model), model.hidden
    return [
        matrix("delta_net.in", h, _projected(it)),
        vector("delta_net.conv", it.convolved * it.conv, "tp"),
        vector("delta_net.dt_a", 2 * it.heads, "tp"),
        vector("delta_net.norm", it.head_dim),
        matrix("delta_net.out", it.inner, h),
    ]


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """Norm, input projection, convolution, delta rule, gated norm, output projection, residual.

    A context-parallel rank convolves and scans whole sequences for a part of its heads: as much work.
    """
    it, tokens, hidden = _net(model), shard.tokens, np.full_like(shard.tokens, model.hidden)
    return Layer(
        gemms=(
            Gemm("delta_in", tokens, _projected(it) / shard.tp, hidden),
            *_products(it, shard),
            Gemm("delta_out", tokens, hidden, it.inner / shard.tp),
        ),
        attentions=(),
        streams=tuple(_streams(model, kind, shard)),
        kept=_kept(model, kind, shard),
    )


def _chunk(it: DeltaNet, seq: int) -> int:
    return min(it.chunk, seq)


def _products(it: DeltaNet, shard: Shard) -> list[Gemm]:
    """The rule's, of activations with each other."""
    tokens, heads, chunk = shard.tokens, it.heads / shard.tp, _chunk(it, shard.seq)
    keys, half, sixth = (np.full_like(tokens, size) for size in (it.key_dim, chunk / 2, chunk / 6))
    return [
        Gemm("delta_scores", tokens, 2 * chunk * heads, keys, weight=False),
        Gemm("delta_inverse", tokens, chunk * heads, sixth, weight=False),
        Gemm("delta_within", tokens, heads * (it.key_dim + 2 * it.head_dim), half, weight=False),
        Gemm("delta_states", tokens, 3 * heads * it.head_dim, keys, weight=False),
    ]


def _state_elements(it: DeltaNet, shard: Shard) -> Floats:
    """A state a chunk and head."""
    return shard.tokens * (it.inner / shard.tp) * it.key_dim / _chunk(it, shard.seq)


def _streams(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Stream]:
    it, tokens, stream_elements = _net(model), shard.tokens, shard.stream_tokens * model.hidden
    inner_elements, heads = tokens * it.inner / shard.tp, it.heads / shard.tp
    return [
        Stream("norm", stream_elements, norms_each(model, kind)),
        Stream("residual", stream_elements),
        Stream("boundary", shard.gathered_tokens * model.hidden),
        Stream("conv", tokens * it.convolved / shard.tp),
        Stream("qk_norm", tokens * 2 * it.keys / shard.tp),
        Stream("delta_copy", tokens * heads * 2 * (it.key_dim + it.head_dim)),
        Stream("delta", tokens * heads * (it.key_dim + it.head_dim) / 2),
        Stream("delta_scores", tokens * heads * _chunk(it, shard.seq)),
        Stream("delta_state", _state_elements(it, shard)),
        Stream("swiglu", inner_elements),  # the gate
        Stream("norm", inner_elements),
    ]


def _kept(model: ModelSpec, kind: LayerKind, shard: Shard) -> Kept:
    """Inputs of the norms, the projections, the convolution, the rule and the gate, and the inverse of each triangle.

    Selective recompute is of attention, and leaves this block as it is.
    """
    it, tokens, stream_elements = _net(model), shard.tokens, shard.stream_tokens * model.hidden
    heads, inner = it.heads / shard.tp, tokens * it.inner / shard.tp
    projected, convolved, normed = (tokens * width / shard.tp for width in (_projected(it), it.convolved, 2 * it.keys))
    dealt = tokens * heads * 2 * (it.key_dim + it.head_dim)
    triangle = tokens * heads * _chunk(it, shard.seq)
    streams_kept = BF16 * stream_elements + shard.linear_bytes * stream_elements * norms_each(model, kind)
    rule_bytes = BF16 * (projected + convolved + normed + dealt + triangle + inner) + 2 * _FP32 * tokens * heads
    whole = streams_kept + rule_bytes + shard.linear_bytes * inner
    again = tokens * heads * (it.key_dim + 2 * it.head_dim) + 2 * _state_elements(it, shard)  # made again in backward
    return Kept(
        whole=whole,
        selective=whole,
        checkpoint=BF16 * stream_elements,
        working=BF16 * (projected + convolved + dealt + again) + 2 * BF16 * tokens * model.hidden,
    )


def _cp_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """From a part of the sequence to a part of the heads before the convolution, and back after the gated norm."""
    del kind
    it = _net(model)
    there = BF16 * shard.tokens * _projected(it) / shard.tp
    back = BF16 * shard.tokens * it.inner / shard.tp
    return [Send("all_to_all", nbytes, shard.cp, shard.tp, 1.0, 1.0) for nbytes in (there, back)]


def _flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    del kind
    it = _net(model)
    chunk, keys, values = _chunk(it, seq), it.key_dim, it.head_dim
    return it.heads * (5.0 * chunk * keys + 2.0 * chunk * values + 6.0 * keys * values + chunk**2 / 3)


BLOCK = Block(
    name="delta_net",
    of="delta_net",
    has=_has,
    tensors=_tensors,
    operators=_operators,
    sends={"tp": column_then_row, "cp": _cp_sends},
    kernels=_KERNELS,
    other_flops=_flops,
)
