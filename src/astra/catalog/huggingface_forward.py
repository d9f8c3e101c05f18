"""What a ``config.json`` says of the forward pass beyond the shape: it costs nothing, and makes another model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from astra.catalog.keys import Keys
from astra.spec.model import Rotary

Fields = dict[str, Any]


class Habits(NamedTuple):
    """What transformers takes a model type to mean where its file is silent."""

    epsilon: float
    epsilon_key: str = "rms_norm_eps"
    activation: str = "silu"
    activation_key: str = "hidden_act"
    base: float | None = 10_000.0  # None: no rotary positions
    fraction: float = 1.0
    quirks: tuple[str, ...] = ()


_GEMMA: Final = ("query_scale", "scaled_embedding", "zero_centered_norm")
_HABITS: Final[Mapping[str, Habits]] = {
    "bert": Habits(1e-12, "layer_norm_eps", "gelu", base=None, quirks=("post_norm",)),
    "bloom": Habits(1e-5, "layer_norm_epsilon", "gelu", "", None, quirks=("alibi",)),
    "deepseek_v2": Habits(1e-6),
    "deepseek_v3": Habits(1e-6),
    "falcon": Habits(1e-5, "layer_norm_epsilon", "gelu", "activation"),
    "gemma": Habits(1e-6, activation="gelu", quirks=("scaled_embedding", "zero_centered_norm")),
    "gemma2": Habits(1e-6, activation="gelu", quirks=("attention_softcap", "logit_softcap", *_GEMMA)),
    "gemma3": Habits(1e-6, activation="gelu", base=1_000_000.0, quirks=("per_kind_rotary", *_GEMMA)),
    "glm": Habits(1.5625e-7, fraction=0.5),
    "glm4": Habits(1.5625e-7, fraction=0.5),
    "glm4_moe": Habits(1e-5, fraction=0.5),
    "gpt2": Habits(1e-5, "layer_norm_epsilon", "gelu_new", "activation_function", None),
    "gpt_neox": Habits(1e-5, "layer_norm_eps", "gelu", fraction=0.25),
    "gpt_oss": Habits(1e-5, activation="clamped_swiglu", activation_key="", base=150_000.0),
    "granite": Habits(1e-6, quirks=("query_scale", "residual_scale", "scaled_embedding", "scaled_logits")),
    "internlm": Habits(1e-6),
    "kimi_k2": Habits(1e-6),
    "llama": Habits(1e-6),
    "llama4": Habits(1e-5, base=500_000.0, quirks=("unrotated_layers",)),
    "minimax_m2": Habits(1e-6, base=5_000_000.0),
    "mistral": Habits(1e-6),
    "mixtral": Habits(1e-5, base=1_000_000.0),
    "mpt": Habits(1e-5, "layer_norm_epsilon", "gelu", "", None, quirks=("alibi",)),
    "olmo2": Habits(1e-5, quirks=("post_norm",)),
    "opt": Habits(1e-5, "", "relu", "activation_function", None),
    "phi3": Habits(1e-5),
    "qwen2": Habits(1e-6),
    "qwen2_5_vl": Habits(1e-5, base=1_000_000.0),
    "qwen2_moe": Habits(1e-6),
    "qwen3": Habits(1e-6),
    "qwen3_moe": Habits(1e-6),
    "qwen3_next": Habits(1e-6, fraction=0.25, quirks=("zero_centered_norm",)),
    "qwen3_vl": Habits(1e-6, base=5_000_000.0),
    "t5": Habits(1e-6, "layer_norm_epsilon", "", "", None),
    "vit": Habits(1e-12, "layer_norm_eps", "gelu", base=None),
}
_ALIKE: Final = {
    "gemma3_text": "gemma3",
    "llama4_text": "llama4",
    "qwen3_5": "qwen3_next",
    "qwen3_5_moe": "qwen3_next",
    "qwen3_5_moe_text": "qwen3_next",
    "qwen3_5_text": "qwen3_next",
    "qwen3_vl_moe": "qwen3_vl",
}
_ACTIVATIONS: Final = {
    "clamped_swiglu": "clamped_swiglu",
    "gelu": "gelu",
    "gelu_fast": "gelu",
    "gelu_new": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
}


def forward_fields(model_type: str, keys: Keys) -> Fields:
    """Activation, norms' epsilon, rotary positions and whatever else the type does."""
    habits = _HABITS[_ALIKE.get(model_type, model_type)]
    said = keys.word(habits.activation_key, habits.activation) if habits.activation_key else habits.activation
    fields: Fields = {
        "activation": _ACTIVATIONS.get(said),
        "norm_epsilon": keys.number(habits.epsilon_key, habits.epsilon) if habits.epsilon_key else habits.epsilon,
        "quirks": _quirks(model_type, keys, habits),
    }
    if habits.base is not None and "alibi" not in fields["quirks"]:
        fields["rotary"] = _rotary(keys, habits.base, habits.fraction)
    return fields


def _quirks(model_type: str, keys: Keys, habits: Habits) -> tuple[str, ...]:
    parallel = {"falcon": ("parallel_attn", True), "gpt_neox": ("use_parallel_residual", True)}.get(model_type)
    found = {*habits.quirks}
    if parallel is not None and keys.flag(*parallel):
        found.add("parallel_block")
    if model_type == "opt" and not keys.flag("do_layer_norm_before", True):
        found.add("post_norm")
    if model_type == "falcon" and keys.flag("alibi", False):
        found.add("alibi")
    return tuple(sorted(found))


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
