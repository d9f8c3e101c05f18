"""The kinds of layer a model is made of, and which layer is of which kind.

Two layers of one kind cost the same, so time and memory are worked out once per kind.
"""

from __future__ import annotations

from functools import lru_cache

from astra.layers.block import LayerKind, Place, Role, Span
from astra.layers.blocks import BLOCKS
from astra.spec.model import ModelSpec
from astra.spec.strategy_fields import MODULES


@lru_cache(maxsize=1024)
def layer_kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """The kind of every layer in pipeline order; an encoder's layers come before the decoder's.

    Positions within a pattern are those of the published models: of each group of ``full_attention_every`` layers
    the last one sees everything (Gemma 2 and 3, GPT-OSS, Llama 4), and of each group of ``moe.every`` layers
    after the first dense ones the last one has experts (Llama 4 Maverick, Qwen).
    """
    of_encoder = model.encoder.layers if model.encoder else 0
    encoder = tuple(_kind(model, Place("encoder", index, of_encoder=True), "full") for index in range(of_encoder))
    role: Role = "cross" if model.encoder is not None else "decoder" if model.causal else "encoder"
    letters = model.state_space.pattern if model.state_space else ("",) * model.layers
    places = (Place(role, index, letter=letter) for index, letter in enumerate(letters))
    return encoder + tuple(_kind(model, place, _span(model, place.number)) for place in places)


@lru_cache(maxsize=1024)
def modules_of(model: ModelSpec) -> tuple[str, ...]:
    """What selective recompute may repeat in a model; core attention, which is first, also where there is none."""
    blocks = {name for kind in layer_kinds(model) for name in kind.blocks}
    shared = model.moe is not None and model.moe.shared_ffn > 0
    has = {
        "core_attn": True,
        "mlp": "dense" in blocks,
        "moe": "experts" in blocks,
        "moe_act": "experts" in blocks,
        "layernorm": bool(blocks - {"state_space"}),
        "mla_up_proj": "latent" in blocks,
        "shared_experts": "experts" in blocks and shared,
    }
    return tuple(name for name in MODULES if has[name])


def _kind(model: ModelSpec, place: Place, span: Span) -> LayerKind:
    possible = (block for block in BLOCKS if not block.of or getattr(model, block.of) is not None)
    return LayerKind(tuple(block.name for block in possible if block.has(model, place)), place.role, span)


def _span(model: ModelSpec, index: int) -> Span:
    every = model.full_attention_every
    full = model.window is None or (every > 0 and (index + 1) % every == 0)
    return "full" if full else "window"
