"""A configuration read from JSON: typed, checked access, and what most Hugging Face model types spell the same way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from astra.errors import InputError

_LARGEST: Final = 2**40
_MOST_LAYERS: Final = 10_000
Value = TypeVar("Value")


class Keys:
    """The keys of one object."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config, self.where = config, where

    def refuse(self, key: str, got: object, want: str, fix: str = "") -> InputError:
        """The error for one key."""
        return InputError(f"{self.where}: {key}", got, want=want, fix=fix)

    def raw(self, *names: str) -> Any:
        """The first of several spellings that is present and not null, else None."""
        for name in names:
            value = self._config.get(name)
            if value is not None:
                return value
        return None

    def has(self, name: str) -> bool:
        """Whether the key is there, if only as null."""
        return name in self._config

    def size(self, *names: str, default: int | None = None, least: int = 1, most: int = _LARGEST) -> int:
        """A whole number; required unless a default is given."""
        value = self.raw(*names)
        if value is None:
            if default is None:
                raise self.refuse(names[0], None, "this key with a whole number; it is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.refuse(names[0], value, "a whole number")
        if not least <= value <= most:
            raise self.refuse(names[0], value, f"a whole number from {least} to {most:,}")
        return value

    def layers(self, *names: str, default: int | None = None) -> int:
        """A number of layers."""
        return self.size(*names, default=default, most=_MOST_LAYERS)

    def size_or_none(self, name: str) -> int:
        """A whole number above zero, or null for none; it must be there."""
        if not self.has(name):
            raise self.refuse(name, None, "this key with a whole number, or null for none; it is missing")
        return self.size(name, default=0, least=0)

    def optional(self, name: str) -> int | None:
        """A whole number above zero, or None where the key is absent or null."""
        return None if self.raw(name) is None else self.size(name)

    def _typed(self, name: str, default: Value, kind: type[Value], want: str) -> Value:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, kind):
            raise self.refuse(name, value, want)
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        return self._typed(name, default, bool, "true or false")

    def number(self, name: str, default: float) -> float:
        """A number above or at zero."""
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LARGEST:
            raise self.refuse(name, value, "a number")
        return float(value)

    def word(self, name: str, default: str) -> str:
        """A word."""
        return self._typed(name, default, str, "a word in quotes")

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers, or None where the key is absent or null."""
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(x, int) and not isinstance(x, bool) for x in value):
            raise self.refuse(name, value, "a list of whole numbers")
        return value

    def inside(self, name: str) -> Keys:
        """The keys of a nested object."""
        value = self.raw(name)
        if not isinstance(value, dict):
            raise self.refuse(name, value, "an object with keys of its own")
        return Keys(value, f"{self.where}: {name}")

    def maybe_inside(self, name: str) -> Keys:
        """The keys of a nested object, or none where it is absent."""
        return Keys({}, self.where) if self.raw(name) is None else self.inside(name)

    def filled(self, **defaults: Any) -> Keys:
        """The same keys, with defaults for those that are absent."""
        return Keys({**defaults, **self._config}, self.where)

    def whole_head(self, hidden: int, heads: int) -> int:
        """Width of a head where no key gives it: hidden / heads."""
        if hidden % heads:
            want = f"a number of heads that divides the hidden size {hidden}, or head_dim given beside it"
            raise self.refuse("num_attention_heads", heads, want)
        return hidden // heads

    def only(self, name: str, allowed: object, why: str) -> None:
        """Refuse any value but one (or absence)."""
        value = self.raw(name)
        if value is not None and value != allowed:
            raise self.refuse(name, value, f"{allowed!r}: {why}")


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
