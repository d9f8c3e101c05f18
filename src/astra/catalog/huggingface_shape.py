"""What most Hugging Face model types spell the same way: sizes, heads, windows and patterns of layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from astra.catalog.keys import Keys

Fields = dict[str, Any]


def dims_of(keys: Keys, *, kv_default: str = "ask", head_dim: int | None = None) -> Fields:
    """Heads and their width. ``head_dim``: the type's own default; without one it is hidden / heads."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if keys.raw("num_key_value_heads") is None and (kv_default == "heads" or keys.has("num_key_value_heads")):
        kv_heads = heads
    else:
        kv_heads = keys.size("num_key_value_heads")
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}")
    if head_dim is None or keys.has("head_dim"):
        head_dim = keys.optional("head_dim") or keys.whole_head(hidden, heads)
    return {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def frame_of(
    keys: Keys,
    *,
    max_seq: int | None = None,
    tied: bool = False,
    layers: tuple[str, ...] = ("num_hidden_layers",),
    ffn: int | None = None,
    positions: tuple[str, ...] = ("max_position_embeddings",),
) -> Fields:
    """What every type has, under the names it gives them; ``max_seq`` and ``tied`` are what silence means."""
    return {
        "layers": keys.layers(*layers),
        "ffn": keys.size("intermediate_size") if ffn is None else ffn,
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size(*positions, default=max_seq),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied),
    }


def every_layer(window: int | None) -> Fields:
    """A window in every layer, or none."""
    return {} if window is None else {"window": window, "full_attention_every": 0}


def pattern_of(keys: Keys, window: int | None, *, every: int, word: str) -> Fields:
    """Windowed layers with a full one at the end of each group: from ``layer_types`` if given, else ``every``."""
    if keys.raw("layer_types") is not None:
        every = listed_of(keys, keys.layers("num_hidden_layers"), word)
    if every == 1:
        return {}
    if window is None:
        raise keys.refuse("sliding_window", None, "the window of the layers that do not see everything")
    return {"window": window, "full_attention_every": every}


def listed_of(keys: Keys, layers: int, word: str) -> int:
    """Of how many layers the last has full attention, by ``layer_types``; ``word`` says what the others have."""
    types = keys.raw("layer_types")
    if not isinstance(types, list) or len(types) != layers:
        raise keys.refuse("layer_types", types, f"a list with one word for each of the {layers} layers")
    return group_of(keys, "layer_types", [_is_full(keys, given, word) for given in types])


def _is_full(keys: Keys, given: object, windowed: str) -> bool:
    if given not in ("full_attention", windowed):
        raise keys.refuse("layer_types", given, f"full_attention or {windowed}")
    return given == "full_attention"


def group_of(keys: Keys, key: str, marked: Sequence[bool]) -> int:
    """The n for which exactly the layers n, 2n, 3n, ... (the first is 1) are marked; 0 if none is."""
    if not any(marked):
        return 0
    every = marked.index(True) + 1
    if any(mark != ((index + 1) % every == 0) for index, mark in enumerate(marked)):
        raise keys.refuse(key, None, "a regular pattern: every n-th layer, counted from the first")
    return every


def topk_of(keys: Keys) -> int:
    """Experts each token visits."""
    return keys.size("num_experts_per_tok", "experts_per_token")


def mtp_of(keys: Keys) -> int:
    """Multi-token-prediction layers."""
    return keys.size("num_nextn_predict_layers", default=0, least=0)
