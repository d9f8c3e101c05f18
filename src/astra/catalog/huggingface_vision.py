"""Readers of the image encoders of vision-language models, which their files describe under ``vision_config``.

What a file does not say, because images come in many sizes, is assumed: the side of an image where it may be any, and
how many of a sample's tokens are of images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from astra.catalog.keys import Fields, Keys
from astra.spec.tower import Tower

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
