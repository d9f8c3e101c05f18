"""Readers of the older Hugging Face model types, each with its own spelling of the keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from astra.catalog.keys import Fields, Keys, frame_of
from astra.spec.model import Encoder, Vision

_N_LAYER: Final = ("n_layer", "num_hidden_layers")
_LAYERNORM: Final[Fields] = {"norm": "layernorm", "gated_mlp": False}
_BIASED: Final[Fields] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}


def _square(keys: Keys, hidden: int, heads: int) -> Fields:
    """Classic multi-head attention: as many key heads as heads, hidden / heads wide."""
    return {"hidden": hidden, "heads": heads, "kv_heads": heads, "head_dim": keys.whole_head(hidden, heads)}


def _gpt2(keys: Keys, _: Fields) -> Fields:
    keys.only("add_cross_attention", False, "a decoder alone")
    hidden = keys.size("n_embd", "hidden_size")
    frame = frame_of(
        keys, layers=_N_LAYER, ffn=keys.size("n_inner", default=4 * hidden), tied=True,
        positions=("n_positions", "max_position_embeddings"),
    )  # fmt: skip
    square = _square(keys, hidden, keys.size("n_head", "num_attention_heads"))
    return _LAYERNORM | _BIASED | frame | square | {"learned_positions": frame["max_seq"]}


def _opt(keys: Keys, _: Fields) -> Fields:
    hidden = keys.size("hidden_size")
    table, before = keys.size("word_embed_proj_dim", default=hidden), keys.flag("do_layer_norm_before", True)
    keys.only("layer_norm_elementwise_affine", True, "norms with weights")
    frame = frame_of(keys, ffn=keys.size("ffn_dim"), tied=True)
    bias = dict.fromkeys(_BIASED, keys.flag("enable_bias", True))
    return _LAYERNORM | bias | frame | _square(keys, hidden, keys.size("num_attention_heads")) | {
        "learned_positions": frame["max_seq"] + 2,  # OPT's table starts at position 2
        "embedding_dim": None if table == hidden else table,
        "final_norm": before and not keys.flag("_remove_final_layer_norm", False),
    }  # fmt: skip


def _bert(keys: Keys, _: Fields) -> Fields:
    """With the head that predicts masked words, as it is trained; what tells sentences apart is not."""
    keys.only("is_decoder", False, "an encoder")
    keys.only("position_embedding_type", "absolute", "learned positions")
    frame = frame_of(keys, max_seq=512, tied=True)
    square = _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))
    return _LAYERNORM | _BIASED | frame | square | {
        "family": "encoder", "learned_positions": frame["max_seq"], "embedding_norm": True, "final_norm": False,
        "segments": keys.size("type_vocab_size", default=2, least=0),
        "head_transform": True, "head_bias": True, "causal": False,
    }  # fmt: skip


def _bloom(keys: Keys, _: Fields) -> Fields:
    hidden = keys.size("hidden_size", "n_embed")
    frame = frame_of(keys, layers=_N_LAYER, ffn=4 * hidden, positions=("seq_length",), max_seq=2048, tied=True)
    square = _square(keys, hidden, keys.size("n_head", "num_attention_heads"))
    return _LAYERNORM | _BIASED | frame | square | {"embedding_norm": True}


def _gpt_neox(keys: Keys, _: Fields) -> Fields:
    biased = keys.flag("attention_bias", True)
    square = _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))
    bias = {"qkv_bias": biased, "out_bias": biased, "mlp_bias": True}
    return _LAYERNORM | frame_of(keys, max_seq=2048) | square | bias


def _falcon(keys: Keys, _: Fields) -> Fields:
    hidden, heads = keys.size("hidden_size", "n_embed"), keys.size("num_attention_heads", "n_head")
    grouped = keys.flag("new_decoder_architecture", False)
    kv_heads = 1 if keys.flag("multi_query", True) else heads
    if grouped:
        kv_heads = keys.size("num_kv_heads", "n_head_kv", default=heads)
    norms = 2
    if keys.flag("parallel_attn", True):
        norms = keys.size("num_ln_in_parallel_attn", default=2 if grouped else 1)
    ffn = keys.size("ffn_hidden_size", default=4 * hidden)
    frame = frame_of(keys, layers=("num_hidden_layers", "n_layer"), ffn=ffn, max_seq=2048, tied=True)
    own = {"kv_heads": kv_heads, "norms_per_layer": norms}
    return _LAYERNORM | dict.fromkeys(_BIASED, keys.flag("bias", False)) | frame | _square(keys, hidden, heads) | own


def _mpt(keys: Keys, _: Fields) -> Fields:
    hidden = keys.size("d_model")
    keys.only("no_bias", True, "no biases")
    keys.only("expansion_ratio", 4, "a feed-forward four times as wide as the layers")
    if keys.raw("attn_config") is not None:
        attention = keys.inside("attn_config")
        attention.only("alibi", True, "no learned positions")
        attention.only("qk_ln", False, "no norm on queries and keys")
        attention.only("attn_type", "multihead_attention", "no grouped heads")
    frame = frame_of(keys, layers=("n_layers",), ffn=4 * hidden, positions=("max_seq_len",), max_seq=2048, tied=True)
    return _LAYERNORM | frame | _square(keys, hidden, keys.size("n_heads")) | {"norm_bias": False}


def _t5(keys: Keys, _: Fields) -> Fields:
    encoder, heads = Encoder(layers=keys.layers("num_layers")), keys.size("num_heads")
    layers = ("num_decoder_layers", "num_layers")
    frame = frame_of(keys, layers=layers, ffn=keys.size("d_ff"), positions=("n_positions",), max_seq=512, tied=True)
    return frame | {
        "family": "encoder-decoder", "encoder": encoder, "hidden": keys.size("d_model"),
        "heads": heads, "kv_heads": heads, "head_dim": keys.size("d_kv"),
        "gated_mlp": keys.word("feed_forward_proj", "relu").startswith("gated-"),
        "relative_buckets": keys.size("relative_attention_num_buckets", default=32),
    }  # fmt: skip


def _vit(keys: Keys, _: Fields) -> Fields:
    labels = keys.raw("id2label")
    classes = len(labels) if isinstance(labels, dict) and labels else keys.size("num_labels", default=2)
    image, patch = keys.size("image_size"), keys.size("patch_size")
    vision = Vision(image=image, patch=patch, channels=keys.size("num_channels", default=3), classes=classes)
    square = _square(keys, keys.size("hidden_size"), keys.size("num_attention_heads"))
    return _LAYERNORM | _BIASED | square | {
        "family": "vision", "layers": keys.layers("num_hidden_layers"), "ffn": keys.size("intermediate_size"),
        "vocab": 0, "max_seq": vision.tokens, "learned_positions": vision.tokens, "causal": False, "vision": vision,
        "qkv_bias": keys.flag("qkv_bias", True),
    }  # fmt: skip


CLASSIC: Final[Mapping[str, Callable[[Keys, Fields], Fields]]] = {
    "bert": _bert, "bloom": _bloom, "falcon": _falcon, "gpt2": _gpt2, "gpt_neox": _gpt_neox, "mpt": _mpt, "opt": _opt,
    "t5": _t5, "vit": _vit,
}  # fmt: skip
