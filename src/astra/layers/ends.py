"""What comes before the first layer (tables, positions, patches) and after the last (norm, vocabulary, loss)."""

from __future__ import annotations

import numpy as np

from astra.layers.block import Tensor, matrix, norm, vector
from astra.layers.blocks import tower
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream, join
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec, Vision


def embedding_tensors(model: ModelSpec) -> list[Tensor]:
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


def embedding(model: ModelSpec, shard: Shard) -> Layer:
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


def head_tensors(model: ModelSpec) -> list[Tensor]:
    """Final norms (one per stack) and the vocabulary or class projection; a tied one has no parameters of its own."""
    stacks = 2 if model.encoder is not None else 1
    found = [norm(model, "final_norm", stacks * model.hidden)] if model.final_norm else []
    if model.vision is not None:
        classes = model.vision.classes
        return [*found, matrix("classes", model.hidden, classes, "none"), vector("classes.bias", classes)]
    if model.head_transform:
        transform = matrix("head.transform", model.hidden, model.hidden, "none")
        found += [transform, vector("head.transform.bias", model.hidden), norm(model, "head.norm", model.hidden)]
    if model.embedding_dim is not None:
        found.append(matrix("head.narrow", model.hidden, model.embedding_dim, "none"))
    if not model.tied_embeddings:
        found.append(matrix("head", model.table_dim, model.vocab))
    if model.head_bias:
        found.append(vector("head.bias", model.vocab, "tp"))
    return found


def vocab_rows(model: ModelSpec, tp: Ints, multiple: int) -> Floats:
    """Rows of the vocabulary on one tensor-parallel rank, padded to a multiple (Megatron-LM: 128)."""
    return np.asarray(np.ceil(model.vocab / (multiple * tp)) * float(multiple))


def head(
    model: ModelSpec, shard: Shard, *, logits_kept_bytes: float, logits_peak_bytes: float, vocab_multiple: int
) -> Layer:
    """Final norm, vocabulary projection and cross-entropy (or a classifier) on the last stage."""
    stream_elements = shard.stream_tokens * model.hidden
    kept = (BF16 + shard.linear_bytes + shard.keeps.norm_bytes) * stream_elements
    kept = kept + shard.linear_bytes * shard.kept_tokens * model.hidden
    norm_stream = Stream("norm", stream_elements)
    if model.vision:
        rows = shard.mbs.astype(np.float64)
        gemm = Gemm("classifier", rows, np.full_like(rows, model.vision.classes), np.full_like(rows, model.hidden))
        return Layer((gemm,), (), (norm_stream,), Kept(whole=kept, selective=kept, checkpoint=kept, working=0 * kept))
    columns = vocab_rows(model, shard.tp, vocab_multiple)
    logits = shard.tokens * columns
    whole = kept + logits_kept_bytes * logits
    peak_bytes = logits_peak_bytes + np.where(shard.tp > 1, shard.keeps.spread_logits_bytes, 0.0)
    # The gradient of the projection's input is made when all of the loss but that of the logits has been given back.
    gradient = BF16 * shard.tokens * model.hidden
    buffer = np.where(shard.sp & (not shard.keeps.gathered), gradient, 0.0)
    return Layer(
        gemms=(*_before(model, shard), Gemm("head", shard.tokens, columns, np.full_like(logits, model.table_dim))),
        attentions=(),
        streams=(norm_stream, Stream("cross_entropy", logits)),
        kept=Kept(
            whole=whole,
            selective=whole,
            checkpoint=whole,
            working=np.maximum(peak_bytes * logits, BF16 * logits + gradient) + buffer - logits_kept_bytes * logits,
        ),
    )


def _before(model: ModelSpec, shard: Shard) -> list[Gemm]:
    """Projections between the last layer and that of the vocabulary."""
    hidden = np.full_like(shard.tokens, model.hidden)
    found = [Gemm("head_transform", shard.tokens, hidden, hidden)] if model.head_transform else []
    if model.embedding_dim is not None:
        found.append(Gemm("narrow", shard.tokens, np.full_like(hidden, model.embedding_dim), hidden))
    return found
