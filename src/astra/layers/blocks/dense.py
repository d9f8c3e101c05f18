"""The dense feed-forward: two projections (three with a gate) around an activation."""

from __future__ import annotations

import numpy as np

from astra.layers.block import Block, LayerKind, Place, Tensor, column_then_row, matrix, norms_each, vector
from astra.layers.operators import BF16, Gemm, Kept, Layer, Module, Retention, Shard, Stream, join
from astra.provenance import Floats
from astra.spec.model import ModelSpec


def _has(model: ModelSpec, place: Place) -> bool:
    """Where there are no experts: after the first dense layers the last of each ``every`` has them."""
    moe = model.moe
    if not place.may_have("-"):
        return False
    if moe is None or place.of_encoder or place.letter:
        return True
    return place.number < moe.first_dense or (place.number - moe.first_dense + 1) % moe.every != 0


def mlp_tensors(model: ModelSpec, name: str, ffn: int, *, bias: bool) -> list[Tensor]:
    """The weights of one feed-forward."""
    inputs = ffn * (2 if model.gated_mlp else 1)
    tensors = [matrix(f"{name}.up", model.hidden, inputs), matrix(f"{name}.down", ffn, model.hidden)]
    if bias:
        tensors += [vector(f"{name}.up_bias", inputs, "tp"), vector(f"{name}.down_bias", model.hidden)]
    return tensors


def _tensors(model: ModelSpec) -> list[Tensor]:
    return mlp_tensors(model, "mlp", model.ffn, bias=model.mlp_bias)


def _operators(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """Norm, feed-forward, residual."""
    stream_elements, norms = shard.stream_tokens * model.hidden, norms_each(model, kind)
    streams = [
        Stream("norm", stream_elements, norms),
        Stream("residual", stream_elements),
        Stream("boundary", shard.gathered_tokens * model.hidden),
    ]
    if model.mlp_bias:
        streams += [Stream("bias", shard.tokens * model.ffn / shard.tp), Stream("bias", stream_elements)]
    norm_bytes = shard.keeps.mlp_bytes * stream_elements * norms
    kept = BF16 * stream_elements + norm_bytes + shard.keeps.norm_bytes * stream_elements * norms
    kept = kept + shard.keeps.mlp_bytes * shard.kept_tokens * model.hidden
    feed = feed_forward("mlp", model, shard.tokens, model.ffn / shard.tp, shard.keeps)
    outer = Layer(
        (), (), tuple(streams), Kept(whole=kept, selective=kept, checkpoint=BF16 * stream_elements, working=0 * kept)
    )
    joined = join(outer, feed)
    working = backward_bytes(model, shard, feed)
    modules = {
        "layernorm": Module(norm_bytes, streams=(streams[0],)),
        "mlp": Module(feed.kept.whole, tuple(gemm.name for gemm in feed.gemms), feed.streams, tp_share(kind)),
    }
    last = feed.gemms[-1].name if norms <= 1 and "post_norm" not in model.quirks else ""  # no norm is behind it
    return joined._replace(kept=joined.kept._replace(working=working), modules=modules, last=last)


def backward_bytes(model: ModelSpec, shard: Shard, feed: Layer) -> Floats:
    """The most a feed-forward's backward holds beside what is kept, with the gradient that goes past it to the norm.

    Behind the second projection its output's gradient, gathered, and the activation's; behind the activation what went
    into the second projection has been given back; behind the first projection what that wrote has been, too, and its
    input's gradient is made. Megatron-core's buffer for what is gathered of inputs stays.
    """
    whole, wrote = BF16 * model.hidden * shard.tokens, feed.kept.working
    inner = wrote / (2 if model.gated_mlp else 1)
    second = np.where(shard.sp, whole, 0.0) + inner
    activation = inner + wrote - shard.keeps.mlp_bytes / BF16 * inner
    first = whole + wrote - feed.kept.whole
    most: Floats = np.maximum(np.maximum(second, activation), first)
    buffer = np.where(shard.sp & (not shard.keeps.gathered), whole, 0.0)
    return BF16 * model.hidden * shard.stream_tokens + buffer + most


def tp_share(kind: LayerKind) -> dict[str, float]:
    """The share of one feed-forward in what tensor-parallel ranks of a layer send: blocks send alike."""
    return {"tp": 1 / len(kind.blocks)}


def feed_forward(
    name: str, model: ModelSpec, tokens: Floats, width: Floats, keeps: Retention, groups: Floats | int = 1
) -> Layer:
    """Two (or three) projections around an activation; ``groups`` copies for experts, ``tokens`` for each of them."""
    gates = 2 if model.gated_mlp else 1
    hidden = np.full_like(tokens, model.hidden)
    inner_elements = groups * tokens * width
    activated = 1 if keeps.activation and model.gated_mlp else 0
    kept = (BF16 * (gates + activated) + keeps.mlp_bytes) * inner_elements
    return Layer(
        gemms=(
            Gemm(f"{name}_in", tokens, gates * width, hidden, groups, parts=(0.5, 0.5) if model.gated_mlp else ()),
            Gemm(f"{name}_out", tokens, hidden, width, groups),
        ),
        attentions=(),
        streams=(Stream("swiglu" if model.gated_mlp else "gelu", inner_elements),),
        kept=Kept(whole=kept, selective=kept, checkpoint=0 * kept, working=BF16 * gates * inner_elements),
    )


BLOCK = Block(name="dense", has=_has, tensors=_tensors, operators=_operators, sends={"tp": column_then_row})
