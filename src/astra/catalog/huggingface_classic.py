"""Readers of the older Hugging Face model types, each with its own spelling of the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from astra.catalog.keys import Keys
from astra.spec.model import Encoder, Vision

Fields = dict[str, Any]

_LAYERNORM: Final[Fields] = {"norm": "layernorm", "gated_mlp": False}
_BIASED: Final[Fields] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _square(keys: Keys, hidden: int, heads: int) -> Fields:
    """Classic multi-head attention: as many key heads as heads, hidden / heads wide."""
    return {"hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": keys.whole_head(hidden, heads)}


def _gpt2(keys: Keys) -> Fields:
    keys.only("add_cross_attention", False, "a decoder alone")
    hidden, positions = keys.size("n_embd", "hidden_size"), keys.size("n_positions", "max_position_embeddings")
    sizes = {
        "layers": keys.layers("n_layer", "num_hidden_layers"),
        "ffn": keys.size("n_inner", default=4 * hidden),
        "vocab": keys.size("vocab_size"),
        "max_seq": positions,
        "learned_positions": positions,
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
    }
    return _LAYERNORM | _BIASED | sizes | _square(keys, hidden, keys.size("n_head", "num_attention_heads"))


def _opt(keys: Keys) -> Fields:
    hidden, positions = keys.size("hidden_size"), keys.size("max_position_embeddings")
    table, before = keys.size("word_embed_proj_dim", default=hidden), keys.flag("do_layer_norm_before", True)
    keys.only("layer_norm_elementwise_affine", True, "norms with weights")
    biased = keys.flag("enable_bias", True)
    sizes = {
        "layers": keys.layers("num_hidden_layers"),
        "ffn": keys.size("ffn_dim"),
        "vocab": keys.size("vocab_size"),
        "max_seq": positions,
        "learned_positions": positions + 2,  # OPT's table starts at position 2
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "embedding_dim": None if table == hidden else table,
        "final_norm": before and not keys.flag("_remove_final_layer_norm", False),
    }
    bias = dict.fromkeys(_BIASED, biased)
    return _LAYERNORM | bias | sizes | _square(keys, hidden, keys.size("num_attention_heads"))


def _bert(keys: Keys) -> Fields:
    """With the head that predicts masked words, as it is trained; what tells sentences apart is not."""
    keys.only("is_decoder", False, "an encoder")
    keys.only("position_embedding_type", "absolute", "learned positions")
    positions = keys.size("max_position_embeddings", default=512)
    sizes = {
        "family": "encoder",
        "layers": keys.layers("num_hidden_layers"),
        "ffn": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "max_seq": positions,
        "learned_positions": positions,
        "segments": keys.size("type_vocab_size", default=2, least=0),
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "embedding_norm": True,
        "final_norm": False,
        "head_transform": True,
        "head_bias": True,
        "causal": False,
    }
    return _LAYERNORM | _BIASED | sizes | _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))


def _bloom(keys: Keys) -> Fields:
    hidden = keys.size("hidden_size", "n_embed")
    sizes = {
        "layers": keys.layers("n_layer", "num_hidden_layers"),
        "ffn": 4 * hidden,
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("seq_length", default=2048),
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "embedding_norm": True,
    }
    return _LAYERNORM | _BIASED | sizes | _square(keys, hidden, keys.size("n_head", "num_attention_heads"))


def _gpt_neox(keys: Keys) -> Fields:
    biased = keys.flag("attention_bias", True)
    sizes = {
        "layers": keys.layers("num_hidden_layers"),
        "ffn": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("max_position_embeddings", default=2048),
        "tied_embeddings": keys.flag("tie_word_embeddings", False),
    }
    square = _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))
    return _LAYERNORM | sizes | square | {"qkv_bias": biased, "out_bias": biased, "mlp_bias": True}


def _falcon(keys: Keys) -> Fields:
    hidden, heads = keys.size("hidden_size", "n_embed"), keys.size("num_attention_heads", "n_head")
    grouped = keys.flag("new_decoder_architecture", False)
    kv_heads = 1 if keys.flag("multi_query", True) else heads
    if grouped:
        kv_heads = keys.size("num_kv_heads", "n_head_kv", default=heads)
    parallel = keys.flag("parallel_attn", True)
    sizes = {
        "layers": keys.layers("num_hidden_layers", "n_layer"),
        "ffn": keys.size("ffn_hidden_size", default=4 * hidden),
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("max_position_embeddings", default=2048),
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "norms_per_layer": keys.size("num_ln_in_parallel_attn", default=2 if grouped else 1) if parallel else 2,
    }
    bias = dict.fromkeys(_BIASED, keys.flag("bias", False))
    return _LAYERNORM | bias | sizes | _square(keys, hidden, heads) | {"kv_heads": kv_heads}


def _mpt(keys: Keys) -> Fields:
    hidden = keys.size("d_model")
    keys.only("no_bias", True, "no biases")
    keys.only("expansion_ratio", 4, "a feed-forward four times as wide as the layers")
    if keys.raw("attn_config") is not None:
        attention = keys.inside("attn_config")
        attention.only("alibi", True, "no learned positions")
        attention.only("qk_ln", False, "no norm on queries and keys")
        attention.only("attn_type", "multihead_attention", "no grouped heads")
    sizes = {
        "layers": keys.layers("n_layers"),
        "ffn": 4 * hidden,
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("max_seq_len", default=2048),
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "norm_bias": False,
    }
    return _LAYERNORM | sizes | _square(keys, hidden, keys.size("n_heads"))


def _t5(keys: Keys) -> Fields:
    encoder_layers, heads = keys.layers("num_layers"), keys.size("num_heads")
    return {
        "family": "encoder-decoder",
        "layers": keys.layers("num_decoder_layers", default=encoder_layers),
        "encoder": Encoder(layers=encoder_layers),
        "hidden": keys.size("d_model"),
        "ffn": keys.size("d_ff"),
        "heads": heads,
        "kv_heads": heads,
        "head_dim": keys.size("d_kv"),
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("n_positions", default=512),
        "gated_mlp": keys.word("feed_forward_proj", "relu").startswith("gated-"),
        "tied_embeddings": keys.flag("tie_word_embeddings", True),
        "relative_buckets": keys.size("relative_attention_num_buckets", default=32),
    }


def _vit(keys: Keys) -> Fields:
    labels = keys.raw("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else keys.size("num_labels", default=2)
    image, patch = keys.size("image_size"), keys.size("patch_size")
    vision = Vision(image=image, patch=patch, channels=keys.size("num_channels", default=3), classes=classes)
    sizes = {
        "family": "vision",
        "layers": keys.layers("num_hidden_layers"),
        "ffn": keys.size("intermediate_size"),
        "vocab": 0,
        "max_seq": vision.tokens,
        "learned_positions": vision.tokens,
        "causal": False,
        "vision": vision,
    }
    bias = _BIASED | {"qkv_bias": keys.flag("qkv_bias", True)}
    return _LAYERNORM | bias | sizes | _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))


CLASSIC: Final[Mapping[str, Callable[[Keys], Fields]]] = {
    "bert": _bert,
    "bloom": _bloom,
    "falcon": _falcon,
    "gpt2": _gpt2,
    "gpt_neox": _gpt_neox,
    "mpt": _mpt,
    "opt": _opt,
    "t5": _t5,
    "vit": _vit,
}
