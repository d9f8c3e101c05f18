"""What comes after the last layer: the final norm, the vocabulary projection and its loss, or a classifier."""

from __future__ import annotations

import numpy as np

from astra.layers.block import Tensor, matrix, norm, vector
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec


def tensors(model: ModelSpec) -> list[Tensor]:
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


def operators(
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
