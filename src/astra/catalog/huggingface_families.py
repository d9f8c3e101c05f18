"""Readers of Hugging Face model types with spellings of their own: the older ones, and the encoders of images.

What a file does not say of images, because they come in many sizes, is assumed: the side of an image where it may be
any, and how many of a sample's tokens are of images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from astra.catalog.keys import Fields, Keys, frame_of
from astra.spec.model import Encoder, Tower, Vision

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


ANY_IMAGE: Final = 896  # pixels on a side, where images come as they are: a thousand tokens


def _qwen(vision: Keys, keys: Keys, hidden: int) -> Tower:
    """Qwen2.5-VL: windows in most layers, no positions but rotary ones."""
    del keys
    width, merge = vision.size("hidden_size"), vision.size("spatial_merge_size", default=2)
    patch = vision.size("patch_size", default=14)
    full = vision.numbers("fullatt_block_indexes")
    return Tower(
        **_tiled(vision, width, patch, merge, hidden, layers=32, ffn=3420),
        gated_mlp=True,
        norm="rmsnorm",
        patch_bias=False,
        outer_norms=width,
        window=(vision.size("window_size", default=112) // patch) ** 2,
        full_layers=4 if full is None else len(full),
    )


def _qwen3(vision: Keys, keys: Keys, hidden: int) -> Tower:
    """Qwen3-VL, whose first layers take up the output of some layers of the encoder; Qwen3.5's do not."""
    width, merge = vision.size("hidden_size", default=1152), vision.size("spatial_merge_size", default=2)
    patch, merged = vision.size("patch_size", default=16), width * merge**2
    deep = 0
    if not keys.word("model_type", "").startswith("qwen3_5"):
        said = vision.numbers("deepstack_visual_indexes")
        deep = 3 if said is None else len(said)
    return Tower(
        **_tiled(vision, width, patch, merge, hidden, layers=27, ffn=4304),
        connectors=1 + deep,
        positions=vision.size("num_position_embeddings", default=2304),
        outer_norms=2 * (width + deep * merged),
    )


def _tiled(vision: Keys, width: int, patch: int, merge: int, hidden: int, *, layers: int, ffn: int) -> Fields:
    """Squares of ``merge`` x ``merge`` patches, of an image of nearly the usual side; Qwen's words for the layers."""
    square, merged = patch * merge, width * merge**2
    return {
        "layers": vision.layers("depth", default=layers),
        "hidden": width,
        "ffn": vision.size("intermediate_size", default=ffn),
        "heads": vision.size("num_heads", default=16),
        "patch": patch,
        "image": square * max(round(ANY_IMAGE / square), 1),
        "merge": merge,
        "connector": (merged, merged, hidden),
        "channels": vision.size("in_channels", "in_chans", default=3),
        "frames": vision.size("temporal_patch_size", default=2),
    }


def _plain(vision: Keys, *, merge: int, **own: Any) -> Tower:
    """An encoder of images of one size, in the usual words."""
    return Tower(
        layers=vision.layers("num_hidden_layers"),
        hidden=vision.size("hidden_size"),
        ffn=vision.size("intermediate_size"),
        heads=vision.size("num_attention_heads"),
        patch=vision.size("patch_size"),
        image=vision.size("image_size"),
        merge=merge,
        connector_bias=False,
        channels=vision.size("num_channels", default=3),
        **own,
    )


def _gemma3(vision: Keys, keys: Keys, hidden: int) -> Tower:
    """SigLIP, whose patches are averaged to a fixed number of tokens."""
    vision.only("vision_use_head", False, "patches alone")
    width, image, patch = vision.size("hidden_size"), vision.size("image_size"), vision.size("patch_size")
    side = image // patch
    kept = keys.size("mm_tokens_per_image", default=256)
    merge = side // max(round(kept**0.5), 1)
    if merge < 1 or side % merge or (side // merge) ** 2 != kept:
        raise keys.refuse("mm_tokens_per_image", kept, f"a square that divides the {side} x {side} patches")
    return _plain(vision, merge=merge, connector=(width, hidden), positions=side**2, outer_norms=3 * width)


def _llama4(vision: Keys, keys: Keys, hidden: int) -> Tower:
    """Squares of patches become one by a feed-forward, which the model then projects to its own width."""
    del keys
    vision.only("pixel_shuffle_ratio", 0.5, "squares of two by two patches")
    width, image, patch = vision.size("hidden_size"), vision.size("image_size"), vision.size("patch_size")
    middle, last = vision.size("projector_input_dim", default=4096), vision.size("projector_output_dim", default=4096)
    return _plain(
        vision,
        merge=2,
        connector=(4 * width, middle, last, hidden),
        patch_bias=False,
        positions=(image // patch) ** 2 + 1,
        class_token=True,
        outer_norms=4 * width,
    )


TOWERS: Final[Mapping[str, Callable[[Keys, Keys, int], Tower]]] = {
    "gemma3": _gemma3, "llama4": _llama4, "qwen": _qwen, "qwen3": _qwen3,
}  # fmt: skip
