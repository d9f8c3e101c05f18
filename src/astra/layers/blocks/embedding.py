"""What comes before the first layer: tables, positions, patches."""

from __future__ import annotations

import numpy as np

from astra.layers.block import Tensor, matrix, norm, vector
from astra.layers.blocks import tower
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream, join
from astra.spec.model import ModelSpec, Vision


def tensors(model: ModelSpec) -> list[Tensor]:
    """Tables, segments, positions (also T5's relative ones, one per stack), patches."""
    found = []
    if model.vocab:
        found.append(vector("embedding", model.vocab * model.table_dim, "tp"))
    if model.embedding_dim is not None:
        found.append(matrix("embedding.widen", model.embedding_dim, model.hidden, "none"))
    if model.segments:
        found.append(vector("segments", model.segments * model.hidden))
    if model.vision is not None:
        found += _patches(model, model.vision)
    if model.learned_positions:
        found.append(vector("positions", model.learned_positions * model.hidden))
    if model.relative_buckets:
        stacks = 2 if model.encoder is not None else 1
        found.append(vector("relative_positions", stacks * model.relative_buckets * model.heads))
    if model.embedding_norm:
        found.append(norm(model, "embedding_norm", model.hidden))
    return found


def _patches(model: ModelSpec, vision: Vision) -> list[Tensor]:
    pixels = vision.channels * vision.patch**2
    return [
        matrix("patches", pixels, model.hidden, "none"),
        vector("patches.bias", model.hidden),
        vector("class_token", model.hidden),
    ]


def operators(model: ModelSpec, shard: Shard) -> Layer:
    """Token (or patch) embedding on the first stage, and the image encoder beside it."""
    elements = shard.tokens * model.hidden
    out = BF16 * shard.stream_tokens * model.hidden
    gemms: tuple[Gemm, ...] = ()
    if model.vision:
        pixels = model.vision.channels * model.vision.patch**2
        gemms = (Gemm("patch", shard.tokens, np.full_like(elements, model.hidden), np.full_like(elements, pixels)),)
    if model.embedding_dim is not None:
        table, width = (np.full_like(elements, size) for size in (model.embedding_dim, model.hidden))
        gemms = (*gemms, Gemm("widen", shard.tokens, width, table))
    kept = Kept(whole=0 * out, selective=0 * out, checkpoint=0 * out, working=out)
    tables = Layer(gemms, (), (Stream("embedding", elements),), kept)
    images = tower.operators(model, shard) if model.tower else None
    return tables if images is None else join(tables, images)
