"""What a ``config.json`` says of the forward pass beyond the shape: it costs nothing, and makes another model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, Literal

from msgspec import field

from astra.catalog.hardware import DATA
from astra.catalog.keys import Fields, Keys
from astra.files import load_toml
from astra.spec.model import Rotary
from astra.spec.record import Spec, decode


class ModelType(Spec, frozen=True, kw_only=True):
    """What transformers takes a model type to mean where its file is silent (``data/huggingface.toml``)."""

    reader: str = ""  # of what its shape has besides the usual keys
    max_seq: int = 0  # 0: the reader reads the shape alone
    tied: bool = False
    head_dim: int | None = None
    kv_heads: Literal["ask", "heads"] = "ask"
    defaults: Mapping[str, Any] = field(default_factory=dict)  # of keys that its published files leave out
    flags: Mapping[str, tuple[str, bool]] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    tower: str = ""
    epsilon: float
    epsilon_key: str = "rms_norm_eps"
    activation: str = "silu"
    activation_key: str = "hidden_act"
    base: float = 10_000.0  # 0: no rotary positions
    fraction: float = 1.0
    quirks: tuple[str, ...] = ()
    quirk_flags: Mapping[str, tuple[str, bool, bool]] = field(default_factory=dict)


@cache
def model_types() -> dict[str, ModelType]:
    """Every type by name."""
    rows = load_toml((DATA / "huggingface.toml").read_bytes())
    whole: dict[str, dict[str, Any]] = {}
    for name in rows:
        chain = [rows[name]]
        while "like" in chain[-1]:
            chain.append(rows[chain[-1]["like"]])
        whole[name] = {key: value for row in reversed(chain) for key, value in row.items() if key != "like"}
    return {name: decode(ModelType, row, where=f"huggingface.toml: {name}") for name, row in sorted(whole.items())}


_ACTIVATIONS: Final = {
    "clamped_swiglu": "clamped_swiglu", "gelu": "gelu", "gelu_fast": "gelu", "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu", "relu": "relu", "relu2": "relu2", "silu": "silu", "swish": "silu",
}  # fmt: skip


def forward_fields(model_type: str, keys: Keys) -> Fields:
    """Activation, norms' epsilon, rotary positions and whatever else the type does."""
    kind = model_types()[model_type]
    said = keys.word(kind.activation_key, kind.activation) if kind.activation_key else kind.activation
    fields: Fields = {
        "activation": _ACTIVATIONS.get(said),
        "norm_epsilon": keys.number(kind.epsilon_key, kind.epsilon) if kind.epsilon_key else kind.epsilon,
        "quirks": _quirks(keys, kind),
    }
    if kind.base and "alibi" not in fields["quirks"]:
        fields["rotary"] = _rotary(keys, kind.base, kind.fraction)
    return fields


def _quirks(keys: Keys, kind: ModelType) -> tuple[str, ...]:
    decided = (quirk for quirk, (key, usual, has) in kind.quirk_flags.items() if keys.flag(key, usual) is has)
    return tuple(sorted({*kind.quirks, *decided}))


def _rotary(keys: Keys, base: float, fraction: float) -> Rotary | None:
    """From ``rope_parameters`` (transformers 5), or ``rope_theta`` and ``rope_scaling``."""
    rope = keys.maybe_inside("rope_parameters")
    if rope.has("full_attention"):
        rope = rope.inside("full_attention")
    scaling = keys.maybe_inside("rope_scaling") if keys.raw("rope_scaling") is not None else rope
    theta = rope.raw("rope_theta") is not None
    base = rope.number("rope_theta", base) if theta else keys.number("rope_theta", keys.number("rotary_emb_base", base))
    turned = keys.optional("rotary_dim")
    if turned is not None and keys.raw("head_dim") is not None:
        fraction = min(turned / keys.size("head_dim"), 1.0)
    part = keys.number("partial_rotary_factor", keys.number("rotary_pct", fraction))
    return Rotary(base=base, fraction=rope.number("partial_rotary_factor", part), **_scaling(keys, scaling))


def _scaling(keys: Keys, rope: Keys) -> Fields:
    kind = rope.word("rope_type", rope.word("type", "default"))
    if kind == "default":
        return {}
    if kind not in ("linear", "llama3", "yarn"):
        return {"scaling": "other"}  # nothing to plan by, and no export can say it
    fields: Fields = {"scaling": kind, "factor": rope.number("factor", 1.0)}
    if kind != "linear":
        default = keys.size("max_position_embeddings", default=4096)
        fields["original_positions"] = rope.size("original_max_position_embeddings", default=default)
    if kind == "llama3":
        fields["low_frequency"] = rope.number("low_freq_factor", 1.0)
        fields["high_frequency"] = rope.number("high_freq_factor", 4.0)
    if kind == "yarn":
        fields |= {"beta_fast": rope.number("beta_fast", 32.0), "beta_slow": rope.number("beta_slow", 1.0)}
        fields |= {"mscale": rope.number("mscale", 1.0), "mscale_all_dim": rope.number("mscale_all_dim", 0.0)}
        fields["rounded"] = rope.flag("truncate", True)
    return fields


def routing(keys: Keys, *, score: str = "softmax", normalized: bool) -> Fields:
    """How a router weighs the experts it chose (the keys of DeepSeek, GLM and Qwen)."""
    groups, said = keys.size("n_group", default=1), keys.word("scoring_func", score)
    return {
        "score": said if said in ("softmax", "sigmoid") else "other",
        "normalized": keys.flag("norm_topk_prob", normalized),
        "weight_scale": keys.number("routed_scaling_factor", 1.0),
        "groups": groups,
        "groups_kept": min(keys.size("topk_group", default=1), groups),
        "balance_bias": keys.word("topk_method", "noaux_tc" if score == "sigmoid" else "greedy") == "noaux_tc",
    }
