"""Mamba-2: a state-space layer (Dao and Gu 2024, arXiv 2405.21060), as Megatron-core runs it.

Letters: T tokens of a micro-batch on a rank, h hidden, H heads of width P (inner width d = H P), G groups that share B
and C, N states per channel, K taps of the convolution, Q tokens of a chunk, t tensor parallel, c context parallel.

The scan is cut in chunks of Q tokens (section 6 of the paper): inside a chunk it is attention without a softmax, and
chunks hand on a state of N P numbers a head. Its products are, in forward FLOPs per token,

    2 G N Q      scores, C B^T of a chunk, once for each group
    2 H P Q / 2  scores times inputs, below the diagonal alone
    2 H N P      the state a chunk leaves
    2 H N P      what the states before a chunk add to its outputs

Each is timed as one product of that size with a row for each token. What the kernels of mamba_ssm, which every
framework runs, take besides was timed on an H200 (benchmarks/scans.py); the convolution's bytes are counted in the
source of causal_conv1d.
"""

from __future__ import annotations

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Send, Tensor, column_then_row, matrix, norms_each, vector
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Floats
from astra.spec.model import ModelSpec, StateSpace
from astra.spec.runtime import Kernel

_FP32 = 4
_KERNELS = {
    # Per convolved element, SiLU inside: read, write; backward: read x and dy, write dx, and sum the taps' gradient.
    "conv": Kernel(forward_bytes=4, backward_bytes=6, backward_kernels=2),
    # Per element of the heads' channels: x read for the states and for the outputs, y written; backward: x for the
    # states again, x and dy for each of dx, dB, dC, the scores and the decays, dx written: 6 and 22 bytes by count.
    # The kernels take longer than their products and these bytes do: what an H200 takes, in bytes.
    "scan": Kernel(
        forward_bytes=10.5,
        backward_bytes=72,
        forward_kernels=2,
        backward_kernels=6,
        fitted_on="mamba_ssm 2.3's scan on an H200",
    ),
    # Per fp32 number between the scan's kernels: written, passed on, read; backward: again, and so for its gradient.
    "scan_state": Kernel(forward_bytes=12, backward_bytes=24, forward_kernels=0, backward_kernels=0),
}


def _space(model: ModelSpec) -> StateSpace:
    assert model.state_space is not None
    return model.state_space


def _has(model: ModelSpec, place: Place) -> bool:
    del model
    return place.letter == "M"


def _tensors(model: ModelSpec) -> list[Tensor]:
    """All divided by tensor parallelism, by heads or by groups (Megatron-core's MambaMixer)."""
    it, h = _space(model), model.hidden
    return [
        matrix("state_space.in", h, it.inner + it.convolved + it.heads),
        vector("state_space.conv", it.convolved * (it.conv + it.conv_bias), "tp"),
        vector("state_space.dt_a_d", 3 * it.heads, "tp"),
        vector("state_space.norm", it.inner, "tp"),
        matrix("state_space.out", it.inner, h),
    ]


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """Norm, input projection, convolution, scan, gated norm, output projection, residual.

    A context-parallel rank convolves and scans whole sequences for a part of its heads: as much work.
    """
    it, tokens, hidden = _space(model), shard.tokens, np.full_like(shard.tokens, model.hidden)
    inner = it.inner / shard.tp
    return Layer(
        gemms=(
            Gemm("state_in", tokens, (it.inner + it.convolved + it.heads) / shard.tp, hidden),
            *_products(it, shard),
            Gemm("state_out", tokens, hidden, inner),
        ),
        attentions=(),
        streams=tuple(_streams(model, kind, shard)),
        kept=_kept(model, kind, shard),
    )


def _products(it: StateSpace, shard: Shard) -> list[Gemm]:
    """The scan's, of activations with each other."""
    tokens, inner = shard.tokens, it.inner / shard.tp
    chunk, states = (np.full_like(tokens, size) for size in (min(it.chunk, shard.seq), it.states))
    return [
        Gemm("scan_scores", tokens, chunk * it.groups / shard.tp, states, weight=False),
        Gemm("scan_within", tokens, inner, chunk / 2, weight=False),
        Gemm("scan_states", tokens, inner, states, weight=False),
        Gemm("scan_between", tokens, inner, states, weight=False),
    ]


def _state_elements(it: StateSpace, shard: Shard) -> Floats:
    """Numbers in fp32 that the scan's kernels hand each other: a state a chunk and head, scores a chunk and group."""
    chunk = min(it.chunk, shard.seq)
    return shard.tokens * (it.inner * it.states / chunk + it.groups * chunk) / shard.tp


def _streams(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Stream]:
    it, tokens, stream_elements = _space(model), shard.tokens, shard.stream_tokens * model.hidden
    inner_elements = tokens * it.inner / shard.tp
    return [
        Stream("norm", stream_elements, norms_each(model, kind)),
        Stream("residual", stream_elements),
        Stream("boundary", shard.gathered_tokens * model.hidden),
        Stream("conv", tokens * it.convolved / shard.tp),
        Stream("scan", inner_elements),
        Stream("scan_state", _state_elements(it, shard)),
        Stream("swiglu", inner_elements),  # the gate
        Stream("norm", inner_elements),
    ]


def _kept(model: ModelSpec, kind: LayerKind, shard: Shard) -> Kept:
    """Inputs of the norm, of both projections, of the convolution, the scan and the gate; the scan makes states again.

    Selective recompute is of attention, and leaves this block as it is.
    """
    it, tokens, stream_elements = _space(model), shard.tokens, shard.stream_tokens * model.hidden
    projected, convolved, inner = (
        tokens * width / shard.tp for width in (it.inner + it.convolved + it.heads, it.convolved, it.inner)
    )
    streams_kept = BF16 * stream_elements + shard.linear_bytes * stream_elements * norms_each(model, kind)
    whole = streams_kept + BF16 * (projected + convolved + inner) + shard.linear_bytes * inner
    gradients = BF16 * (projected + convolved + 2 * inner) + 2 * _FP32 * _state_elements(it, shard)
    return Kept(
        whole=whole,
        selective=whole,
        checkpoint=BF16 * stream_elements,
        working=gradients + 2 * BF16 * tokens * model.hidden,
    )


def _cp_sends(model: ModelSpec, kind: LayerKind, shard: Shard) -> list[Send]:
    """From a part of the sequence to a part of the heads before the convolution, and back after the scan."""
    del kind
    it = _space(model)
    there = BF16 * shard.tokens * (it.inner + it.convolved + it.heads) / shard.tp
    back = BF16 * shard.tokens * it.inner / shard.tp
    return [Send("all_to_all", nbytes, shard.cp, shard.tp, 1.0, 1.0) for nbytes in (there, back)]


def _flops(model: ModelSpec, kind: LayerKind, seq: int) -> float:
    del kind
    it = _space(model)
    chunk = min(it.chunk, seq)
    return 2.0 * it.groups * it.states * chunk + it.inner * chunk + 4.0 * it.inner * it.states


BLOCK = Block(
    name="state_space",
    of="state_space",
    has=_has,
    tensors=_tensors,
    operators=_operators,
    sends={"tp": column_then_row, "cp": _cp_sends},
    kernels=_KERNELS,
    other_flops=_flops,
)
