"""What a model is made of, in words a framework may know or not.

Every trait of a ``ModelSpec`` that some framework cannot train has a word here. A runtime's file lists the words it
knows (``[can] blocks``); a model with any other word is refused, so that a new trait is refused everywhere until
somebody has looked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, get_args

from astra.spec.model import ModelSpec, Quirk


class Trait(NamedTuple):
    """One trait."""

    word: str
    meaning: str  # after "has no"
    has: Callable[[ModelSpec], bool]


def blocks_of(model: ModelSpec) -> tuple[str, ...]:
    """The words of a model, in the order of the table."""
    return tuple(block.word for block in BLOCKS if block.has(model))


def _stretch(model: ModelSpec) -> str:
    """How rotary positions were stretched, with the constants some framework has fixed."""
    rotary, latent = model.rotary, model.mla is not None
    if rotary is None or rotary.scaling == "none":
        return ""
    if rotary.scaling == "llama3":
        constants = (rotary.factor, rotary.original_positions, rotary.low_frequency, rotary.high_frequency)
        kind = "llama-3.1" if constants == (8.0, 8192, 1.0, 4.0) and not latent else "llama-3"
        return f"latent-{kind}" if latent else kind
    if rotary.scaling == "yarn" and latent:
        fixed = (rotary.original_positions, rotary.beta_fast, rotary.beta_slow, rotary.rounded)
        return "latent-yarn" if fixed == (4096, 32.0, 1.0, True) else "latent-yarn-other"
    if rotary.scaling == "linear":
        return "latent-linear" if latent else "linear" if rotary.factor.is_integer() else "linear-fraction"
    return rotary.scaling


def has_dense(model: ModelSpec) -> bool:
    """Whether some layer has a dense feed-forward."""
    moe = model.moe
    if model.state_space is not None:
        return "-" in model.state_space.pattern
    return moe is None or moe.first_dense > 0 or moe.every > 1


def _plain_attention(model: ModelSpec) -> bool:
    """Whether some layer has multi-head or grouped-query attention."""
    hybrid = model.state_space
    return model.mla is None and (hybrid is None or "*" in hybrid.pattern)


def _biases(model: ModelSpec) -> str:
    """Which projections have biases: none, queries, keys and values alone, all of them, or some other choice."""
    moe = model.moe
    inner = model.mlp_bias or bool(moe and (moe.expert_bias or moe.router_bias))
    if not model.out_bias:
        return "other" if inner else "qkv" if model.qkv_bias else ""
    experts = moe is None or (moe.expert_bias and moe.router_bias and not moe.shared_ffn)
    whole = model.qkv_bias and (model.mlp_bias or not has_dense(model)) and experts and model.mla is None
    return "all" if whole else "other"


def _activation(model: ModelSpec) -> str:
    """The word of the feed-forward's activation; empty if it is not known."""
    gated = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu", "relu2": "gated-relu2"}
    plain = model.activation or ""
    return gated.get(plain, plain.replace("_", "-")) if model.gated_mlp else plain.replace("_", "-")


def _equals(part: Callable[[ModelSpec], str], *rows: tuple[str, str, str]) -> Iterator[Trait]:
    """Blocks told apart by one value: (word, value, meaning)."""
    for word, value, meaning in rows:
        yield Trait(word, meaning, lambda model, value=value: part(model) == value)  # type: ignore[misc]


_QUIRKS: Final = {
    "alibi": "ALiBi positions",
    "attention_softcap": "cap on attention logits",
    "deepnorm": "DeepNorm",
    "logit_softcap": "cap on the output logits",
    "parallel_block": "attention and feed-forward side by side",
    "per_kind_rotary": "second rotary base for windowed layers",
    "post_norm": "norms after each block",
    "query_scale": "scale of attention logits other than the width of a head",
    "residual_scale": "scale of residuals",
    "scaled_embedding": "scale of the embedding",
    "scaled_logits": "scale of the output logits",
    "unrotated_layers": "layers without rotary positions",
    "zero_centered_norm": "norms whose weights are stored less one",
}
BLOCKS: Final[tuple[Trait, ...]] = (
    Trait("attention", "multi-head or grouped-query attention", _plain_attention),
    Trait("latent", "multi-head latent attention", lambda it: it.mla is not None),
    Trait(
        "latent-full-queries",
        "latent attention with full-rank queries (it adds a norm before them)",
        lambda it: it.mla is not None and it.mla.q_lora_rank is None,
    ),
    Trait("state-space", "state-space layers (Mamba-2)", lambda it: it.state_space is not None),
    Trait("delta-net", "gated delta nets", lambda it: it.delta_net is not None),
    Trait("attention-gate", "gate on the output of attention", lambda it: it.attention_gate),
    Trait("window", "sliding-window attention", lambda it: it.window is not None and not it.chunked),
    Trait("chunks", "chunked attention", lambda it: it.chunked),
    Trait("sinks", "attention sinks", lambda it: it.attention_sinks),
    Trait("bidirectional", "attention that is not causal", lambda it: not it.causal and it.encoder is None),
    Trait("encoder", "encoder beside the decoder", lambda it: it.encoder is not None),
    Trait("vision", "patch embedding", lambda it: it.vision is not None),
    Trait("tower", "image encoder beside the language model", lambda it: it.tower is not None),
    Trait("dense", "dense feed-forward", has_dense),
    Trait("experts", "experts", lambda it: it.moe is not None),
    Trait("some-experts", "dense layers among layers with experts", lambda it: it.moe is not None and has_dense(it)),
    Trait("plain-experts", "experts without a gate", lambda it: it.moe is not None and not it.gated_mlp),
    Trait("shared-experts", "shared experts", lambda it: it.moe is not None and it.moe.shared_ffn > 0),
    Trait("shared-gate", "gate on shared experts", lambda it: it.moe is not None and it.moe.shared_gate),
    Trait("expert-groups", "experts chosen by group", lambda it: it.moe is not None and it.moe.groups > 1),
    Trait("sigmoid-router", "router with sigmoid scores", lambda it: it.moe is not None and it.moe.score == "sigmoid"),
    Trait("other-router", "router such as this", lambda it: it.moe is not None and it.moe.score == "other"),
    Trait("rmsnorm", "RMSNorm", lambda it: it.norm == "rmsnorm"),
    Trait("layernorm", "LayerNorm", lambda it: it.norm == "layernorm"),
    Trait("layernorm-without-bias", "LayerNorm without a bias", lambda it: it.norm == "layernorm" and not it.norm_bias),
    Trait("other-norms", "layers with more or fewer than two norms",
          lambda it: it.norms_per_layer != (1 if it.state_space else 2)),
    Trait("no-final-norm", "model without a final norm", lambda it: not it.final_norm),
    Trait("embedding-norm", "norm after the embedding", lambda it: it.embedding_norm),
    Trait("qk-norm", "norms of queries and keys per head", lambda it: it.qk_norm == "per_head"),
    Trait("whole-qk-norm", "norm over the whole query and key projections", lambda it: it.qk_norm == "full"),
    Trait("embedding-width", "vocabulary tables narrower than the layers", lambda it: it.embedding_dim is not None),
    Trait("segments", "segment embeddings", lambda it: it.segments > 0),
    Trait("head-transform", "projection before that of the vocabulary", lambda it: it.head_transform),
    Trait("tied", "tied embeddings", lambda it: it.tied_embeddings),
    Trait("head-bias", "bias of the vocabulary projection", lambda it: it.head_bias),
    *_equals(
        _biases,
        ("qkv-biases", "qkv", "biases of queries, keys and values alone"),
        ("all-biases", "all", "biases of every projection"),
        ("other-biases", "other", "biases of some projections and not of others, as here"),
    ),
    *_equals(
        _activation,
        ("swiglu", "swiglu", "SwiGLU"),
        ("geglu", "geglu", "GeGLU"),
        ("clamped-swiglu", "clamped-swiglu", "clamped SwiGLU"),
        ("gelu", "gelu", "GELU"),
        ("relu", "relu", "ReLU"),
        ("relu2", "relu2", "squared ReLU"),
        ("reglu", "reglu", "ReGLU"),
        ("silu", "silu", "SiLU without a gate"),
        ("gated-relu2", "gated-relu2", "gated squared ReLU"),
    ),
    Trait("learned-positions", "learned positions", lambda it: it.learned_positions > 0),
    Trait("relative-positions", "relative position buckets", lambda it: it.relative_buckets > 0),
    Trait("partial-rotary", "rotary positions of a part of each head",
          lambda it: it.rotary is not None and it.rotary.fraction < 1),
    Trait("fractional-rotary", "rotary base that is not a whole number",
          lambda it: it.rotary is not None and not it.rotary.base.is_integer()),
    *_equals(
        _stretch,
        ("rotary-linear", "linear", "rotary positions stretched evenly"),
        ("rotary-linear-fraction", "linear-fraction", "rotary positions stretched by a fraction"),
        ("rotary-llama-3.1", "llama-3.1", "rotary positions stretched as in Llama 3.1 (by 8 from 8,192)"),
        ("rotary-llama-3", "llama-3", "rotary positions stretched as in Llama 3.1 but by other numbers"),
        ("rotary-yarn", "yarn", "rotary positions stretched by YaRN"),
        ("latent-yarn", "latent-yarn", "latent attention stretched by YaRN (betas of 32 and 1 from 4,096)"),
        ("latent-yarn-other", "latent-yarn-other", "latent attention stretched by YaRN other than by betas of 32 and 1"
         " from 4,096"),
        ("latent-linear", "latent-linear", "latent attention stretched evenly"),
        ("latent-llama-3", "latent-llama-3", "latent attention stretched as in Llama 3.1"),
        ("rotary-other", "other", "rotary positions stretched in this way"),
    ),
    *(
        Trait(quirk.replace("_", "-"), _QUIRKS[quirk], lambda it, quirk=quirk: quirk in it.quirks)  # type: ignore[misc]
        for quirk in get_args(Quirk)
    ),
)  # fmt: skip
MEANINGS: Final = {block.word: block.meaning for block in BLOCKS}
