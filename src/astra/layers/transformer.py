"""A model's layers, and what comes before the first and after the last, as operators on one rank."""

from __future__ import annotations

import numpy as np

from astra.layers.block import LayerKind
from astra.layers.blocks import blocks_of
from astra.layers.operators import BF16, Gemm, Kept, Layer, Shard, Stream, Tensor, join, matrix, norm, vector
from astra.provenance import Floats, Ints
from astra.spec.model import ModelSpec, Vision


def layer(model: ModelSpec, kind: LayerKind, shard: Shard) -> Layer:
    """One layer of a kind on one rank: its blocks, one after another."""
    return join(*(block.operators(model, kind, shard) for block in blocks_of(kind)))


def embedding_tensors(model: ModelSpec) -> list[Tensor]:
    """Tables, positions (also T5's relative ones, one per stack), patches."""
    found = []
    if model.vocab:
        found.append(vector("embedding", model.vocab * model.hidden, "tp"))
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
    """Token (or patch) embedding on the first stage."""
    elements = shard.tokens * model.hidden
    out = BF16 * shard.stream_tokens * model.hidden
    gemms: tuple[Gemm, ...] = ()
    if model.vision:
        pixels = model.vision.channels * model.vision.patch**2
        gemms = (Gemm("patch", shard.tokens, np.full_like(elements, model.hidden), np.full_like(elements, pixels)),)
    kept = Kept(whole=0 * out, selective=0 * out, checkpoint=0 * out, working=out)
    return Layer(gemms, (), (Stream("embedding", elements),), kept)


def head_tensors(model: ModelSpec) -> list[Tensor]:
    """Final norms (one per stack) and the vocabulary or class projection; a tied one has no parameters of its own."""
    stacks = 2 if model.encoder is not None else 1
    found = [norm(model, "final_norm", stacks * model.hidden)] if model.final_norm else []
    if model.vision is not None:
        classes = model.vision.classes
        return [*found, matrix("classes", model.hidden, classes, "none"), vector("classes.bias", classes)]
    if not model.tied_embeddings:
        found.append(matrix("head", model.hidden, model.vocab))
    if model.head_bias:
        found.append(vector("head.bias", model.vocab, "tp"))
    return found


def padded_vocab(model: ModelSpec, tp: Ints) -> Floats:
    """Vocabulary rows after Megatron's padding to a multiple of 128 t."""
    return np.asarray(np.ceil(model.vocab / (128 * tp)) * (128.0 * tp))


def head(model: ModelSpec, shard: Shard, *, logits_kept_bytes: float, logits_peak_bytes: float) -> Layer:
    """Final norm, vocabulary projection and cross-entropy (or a classifier) on the last stage."""
    stream_elements = shard.stream_tokens * model.hidden
    kept = (BF16 + shard.linear_bytes) * stream_elements
    norm_stream = Stream("norm", stream_elements)
    if model.vision:
        rows = shard.mbs.astype(np.float64)
        gemm = Gemm("classifier", rows, np.full_like(rows, model.vision.classes), np.full_like(rows, model.hidden))
        return Layer((gemm,), (), (norm_stream,), Kept(whole=kept, selective=kept, checkpoint=kept, working=0 * kept))
    columns = padded_vocab(model, shard.tp) / shard.tp
    logits = shard.tokens * columns
    whole = kept + logits_kept_bytes * logits
    return Layer(
        gemms=(Gemm("head", shard.tokens, columns, np.full_like(logits, model.hidden)),),
        attentions=(),
        streams=(norm_stream, Stream("cross_entropy", logits)),
        kept=Kept(
            whole=whole,
            selective=whole,
            checkpoint=whole,
            working=(logits_peak_bytes - logits_kept_bytes) * logits + 2 * BF16 * shard.tokens * model.hidden,
        ),
    )
