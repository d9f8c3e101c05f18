"""The model of a published run, from the sizes the table gives.

Tables give sizes, not biases, norms or tied embeddings. Those come from the catalog's model of the same sizes, else
from a catalog model of the same family name, else from what is usual: a gated feed-forward goes with RMS norms, rotary
positions and no biases (Llama); an ungated one with layer norms, learned positions, biases and tied embeddings (GPT).
A row without any size is the catalog's model of its name.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

from astra.catalog.models import models
from astra.errors import fold
from astra.spec.model import ModelSpec, MoE
from astra.spec.names import as_name
from astra.validate.cells import Row, count, needed, switch, words_of

_STYLE: Final = (
    "tied_embeddings", "norm", "norm_bias", "norms_per_layer", "embedding_norm", "qk_norm", "qkv_bias", "out_bias",
    "mlp_bias", "head_bias",
)  # fmt: skip
_GPT: Final[dict[str, Any]] = {
    "tied_embeddings": True, "norm": "layernorm", "qkv_bias": True, "out_bias": True, "mlp_bias": True,
}  # fmt: skip


_SIZES: Final = ("layers", "hidden", "heads")


class Sizes(NamedTuple):
    """What a table says of a model."""

    name: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocab: int
    seq: int
    gated: bool
    experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    tied: bool | None = None  # None: not stated


def model_in(row: Row, seq: int, notes: str, filled: list[str]) -> tuple[ModelSpec, str]:
    """The model of a row, and how what the row leaves open was chosen."""
    if not any(words_of(row, size) for size in _SIZES) and (known := _named(words_of(row, "model_name"))):
        filled.append("sizes not stated: those of the catalog's model of this name")
        return msgspec.structs.replace(known, max_seq=max(known.max_seq, seq)), "by name"
    stated, words = switch(words_of(row, "gated_mlp")), notes.lower()
    experts = count(row, "moe_experts") or 0
    given = Sizes(
        name=as_name(words_of(row, "model_name")),
        layers=needed(row, "layers", "layers"),
        hidden=needed(row, "hidden", "hidden size"),
        ffn=count(row, "ffn") or 0,
        heads=needed(row, "heads", "attention heads"),
        kv_heads=count(row, "kv_heads") or 0,
        vocab=count(row, "vocab") or 0,
        seq=seq,
        gated=stated is None or stated,
        experts=experts if experts > 1 else 0,
        topk=count(row, "moe_topk") or 0,
        moe_ffn=count(row, "moe_ffn") or 0,
        tied=False if "untied embeddings" in words else True if "tied embeddings" in words else None,
    )
    found = _completed(given, gated_stated=stated is not None, filled=filled)
    if not found.vocab:
        found = found._replace(vocab=vocabulary_of(found) or needed(row, "vocab", "vocabulary"))
        filled.append("vocabulary not stated: that of the catalog's model of these sizes")
    return model_of(found)


@lru_cache(maxsize=512)
def _named(name: str) -> ModelSpec | None:
    """The catalog's model that is called so."""
    return next((model for model in models() if fold(name) in map(fold, (model.name, *model.aliases))), None)


def _completed(given: Sizes, *, gated_stated: bool, filled: list[str]) -> Sizes:
    """The sizes with those that are not stated: the catalog's for a model of this name and depth, else the usual."""
    known = namesake(given)
    gated = known.gated_mlp if known and not gated_stated else given.gated
    moe = known.moe if known else None
    usual: dict[str, Any] = {
        "kv_heads": known.kv_heads if known else given.heads,
        "ffn": known.ffn if known else round(8 * given.hidden / 3) if gated else 4 * given.hidden,
    }
    if given.experts:
        usual["moe_ffn"] = moe.ffn if moe else given.ffn or usual["ffn"]
        usual["topk"] = moe.topk if moe else 0  # that of a model with these widths, else 1
    silent = [name for name in usual if not getattr(given, name) and not (name == "ffn" and given.moe_ffn)]
    whose = "that of the catalog's model of this name and depth" if known else "as is usual"
    filled += [f"{name} not stated: {whose}" for name in (*silent, *(() if gated_stated else ("gated_mlp",)))]
    return given._replace(gated=gated, **{name: getattr(given, name) or size for name, size in usual.items()})


@lru_cache(maxsize=512)
def model_of(sizes: Sizes) -> tuple[ModelSpec, str]:
    """The model, and how what the sizes leave open was chosen."""
    twin = _twin(sizes)
    if twin is not None:
        changes: dict[str, Any] = {"name": sizes.name, "layers": sizes.layers, "vocab": sizes.vocab}
        if sizes.tied is not None:
            changes["tied_embeddings"] = sizes.tied
        if twin.moe is not None:
            changes["moe"] = msgspec.structs.replace(
                twin.moe, topk=sizes.topk or twin.moe.topk, first_dense=min(twin.moe.first_dense, sizes.layers)
            )
        changes |= {"aliases": (), "max_seq": max(twin.max_seq, sizes.seq)}
        return msgspec.structs.replace(twin, **changes), f"as {twin.name} in the catalog"
    style, how = _style(sizes)
    if sizes.tied is not None:
        style["tied_embeddings"] = sizes.tied
    moe = MoE(experts=sizes.experts, topk=sizes.topk or 1, ffn=sizes.moe_ffn or sizes.ffn) if sizes.experts else None
    return (
        ModelSpec(
            name=sizes.name,
            layers=sizes.layers,
            hidden=sizes.hidden,
            ffn=sizes.ffn,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            head_dim=max(sizes.hidden // sizes.heads, 1),
            vocab=sizes.vocab,
            max_seq=sizes.seq,
            gated_mlp=sizes.gated,
            moe=moe,
            source="published run",
            **style,
        ),
        how,
    )


def vocabulary_of(sizes: Sizes) -> int:
    """The vocabulary of the catalog's model with these widths; 0 where it has none."""
    twin = _twin(sizes)
    return twin.vocab if twin else 0


def namesake(sizes: Sizes) -> ModelSpec | None:
    """The catalog's model of this family, depth, widths and experts, for the sizes a table leaves out."""
    given = (sizes.layers, sizes.hidden, sizes.heads, sizes.experts)
    same = [
        model
        for model in models()
        if given == (model.layers, model.hidden, model.heads, model.moe.experts if model.moe else 0)
        and _related(model, sizes)
    ]
    return min(same, key=lambda model: (model.vocab != sizes.vocab, model.ffn != sizes.ffn), default=None)


def _twin(sizes: Sizes) -> ModelSpec | None:
    """The catalog's model with these widths; of several, the one whose depth, vocabulary and name are nearest."""
    same = [model for model in models() if model.vision is None and model.encoder is None and _same(model, sizes)]
    if any(_related(model, sizes) for model in models()):  # a known family: no other family's biases and norms
        same = [model for model in same if _related(model, sizes)]

    def distance(model: ModelSpec) -> tuple[bool, float]:
        return model.vocab != sizes.vocab, abs(model.layers - sizes.layers)

    return min(same, key=distance, default=None)


def _same(model: ModelSpec, sizes: Sizes) -> bool:
    given = (sizes.hidden, sizes.heads, sizes.kv_heads, sizes.gated, sizes.experts)
    own = (model.hidden, model.heads, model.kv_heads, model.gated_mlp, model.moe.experts if model.moe else 0)
    if model.moe is not None:
        return given == own and model.moe.ffn == (sizes.moe_ffn or sizes.ffn)
    return given == own and model.ffn == sizes.ffn


def _style(sizes: Sizes) -> tuple[dict[str, Any], str]:
    for model in models():
        same_blocks = model.gated_mlp == sizes.gated and bool(model.moe) == bool(sizes.experts) and model.mla is None
        if _related(model, sizes) and same_blocks and model.vision is None and model.encoder is None:
            style = {name: getattr(model, name) for name in _STYLE}
            style["learned_positions"] = sizes.seq if model.learned_positions else 0
            return style, f"biases, norms and embeddings as in {model.name}"
    if sizes.gated:
        return {}, "biases, norms and embeddings as in Llama"
    return _GPT | {"learned_positions": sizes.seq}, "biases, norms and embeddings as in GPT"


def _related(model: ModelSpec, sizes: Sizes) -> bool:
    """Whether a name begins with the letters of the model's: of one family."""
    family = re.match(r"[a-z]*", model.name.lower())
    return family is not None and len(family.group(0)) > 1 and sizes.name.lower().startswith(family.group(0))
