"""The kinds of layer a model is made of, and which layer is of which kind.

Two layers of one kind cost the same, so time and memory are worked out once per kind.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from astra.spec.model import ModelSpec

Role = Literal["decoder", "encoder", "cross"]
Span = Literal["full", "window"]
Mlp = Literal["dense", "moe"]


class LayerKind(NamedTuple):
    """What tells one transformer layer from another within a model."""

    role: Role  # decoder: causal; encoder: sees both ways; cross: causal, and looks at the encoder's output
    span: Span = "full"  # window: sliding or chunked attention
    mlp: Mlp = "dense"


@lru_cache(maxsize=1024)
def layer_kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """The kind of every layer in pipeline order; an encoder's layers come before the decoder's.

    Positions within a pattern are those of the published models: of each group of ``full_attention_every`` layers
    the last one sees everything (Gemma 2 and 3, GPT-OSS, Llama 4), and of each group of ``moe.every`` layers
    after the first dense ones the last one has experts (Llama 4 Maverick, Qwen).
    """
    encoder = (LayerKind("encoder"),) * (model.encoder.layers if model.encoder else 0)
    return encoder + tuple(
        LayerKind(_role(model), _span(model, index), _mlp(model, index)) for index in range(model.layers)
    )


def _role(model: ModelSpec) -> Role:
    if model.encoder is not None:
        return "cross"
    return "decoder" if model.causal else "encoder"


def _span(model: ModelSpec, index: int) -> Span:
    every = model.full_attention_every
    full = model.window is None or (every > 0 and (index + 1) % every == 0)
    return "full" if full else "window"


def _mlp(model: ModelSpec, index: int) -> Mlp:
    moe = model.moe
    if moe is None or index < moe.first_dense:
        return "dense"
    return "moe" if (index - moe.first_dense + 1) % moe.every == 0 else "dense"
