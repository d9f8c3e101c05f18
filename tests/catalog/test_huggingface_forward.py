"""What makes a model itself beyond its shape: positions, norms, activation, routing."""

from __future__ import annotations

from typing import Any

import pytest

from astra.catalog.huggingface import from_config
from astra.catalog.huggingface_forward import model_types
from astra.catalog.models import model, models
from astra.errors import InputError
from astra.spec.model import Rotary
from tests.catalog.test_huggingface import DEEPSEEK, GLM4_MOE, llama

LLAMA_31 = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
STRETCHED = Rotary(base=500_000.0, scaling="llama3", factor=8.0, original_positions=8192)


def test_a_type_takes_what_it_does_not_say_from_the_one_it_is_like() -> None:
    plain, like = model_types()["qwen3"], model_types()["qwen3_vl"]
    assert (like.reader, like.epsilon, like.flags) == (plain.reader, plain.epsilon, plain.flags)
    assert (plain.base, plain.tower, like.base, like.tower) == (10_000.0, "", 5_000_000.0, "qwen3")


def test_silence_means_what_transformers_takes_it_to_mean() -> None:
    plain = from_config(llama(), where="config.json")
    assert plain.rotary == Rotary(base=10_000.0)
    assert (plain.norm_epsilon, plain.activation, plain.quirks) == (1e-6, "silu", ())
    assert from_config(llama(model_type="granite"), where="config.json").quirks == (
        "query_scale", "residual_scale", "scaled_embedding", "scaled_logits",
    )  # fmt: skip


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 500000.0, "rope_scaling": LLAMA_31},
        {"rope_theta": 500000, "rope_scaling": {**LLAMA_31, "type": "llama3"}},
        {"rope_parameters": {"rope_theta": 500000.0, **LLAMA_31}},
    ],
)
def test_both_spellings_of_rotary_positions(keys: dict[str, Any]) -> None:
    assert from_config(llama(**keys), where="config.json").rotary == STRETCHED


def test_deepseek_is_read_whole() -> None:
    scaling = {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}
    keys: dict[str, Any] = {
        "rope_theta": 10000, "rope_scaling": {**scaling, "original_max_position_embeddings": 4096},
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "n_group": 8, "topk_group": 4, "rms_norm_eps": 1e-6,
    }  # fmt: skip
    found, known = from_config(DEEPSEEK | keys, where="config.json"), model("deepseek-v3")
    assert (found.rotary, found.moe, found.norm_epsilon) == (known.rotary, known.moe, known.norm_epsilon)


def test_partial_rotary_and_sigmoid_routing() -> None:
    found = from_config(GLM4_MOE | {"rope_theta": 1000000, "partial_rotary_factor": 0.5}, where="config.json")
    assert found.rotary == Rotary(base=1_000_000.0, fraction=0.5)
    assert found.moe is not None
    assert (found.moe.score, found.moe.normalized, found.moe.balance_bias) == ("sigmoid", True, True)


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (llama(rope_theta="big"), "rope_theta"),
        (llama(rope_theta=0), "rotary.base"),
        (llama(rope_scaling=8), "rope_scaling"),
        (llama(rms_norm_eps=True), "rms_norm_eps"),
        (llama(partial_rotary_factor=1.5), "rotary.fraction"),
        (DEEPSEEK | {"scoring_func": 3}, "scoring_func"),
    ],
)
def test_bad_values_are_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(InputError, match=key):
        from_config(config, where="config.json")


def test_what_no_export_can_say_can_still_be_planned() -> None:
    stretched = from_config(llama(rope_scaling={"rope_type": "longrope", "factor": 4}), where="config.json")
    assert stretched.rotary == Rotary(scaling="other")
    routed = from_config(DEEPSEEK | {"scoring_func": "sqrtsoftplus"}, where="config.json")
    assert routed.moe is not None
    assert routed.moe.score == "other"


# From the models' public config.json: base, share of the head, stretching, its factor, and the norms' epsilon.
PUBLISHED = [
    ("llama-2-7b", 10_000, 1.0, "none", 1, 1e-5),
    ("llama-3-8b", 500_000, 1.0, "none", 1, 1e-5),
    ("llama-3.1-405b", 500_000, 1.0, "llama3", 8, 1e-5),
    ("llama-3.2-1b", 500_000, 1.0, "llama3", 32, 1e-5),
    ("mistral-7b-v0.1", 10_000, 1.0, "none", 1, 1e-5),
    ("mistral-7b-v0.3", 1_000_000, 1.0, "none", 1, 1e-5),
    ("mixtral-8x7b", 1_000_000, 1.0, "none", 1, 1e-5),
    ("qwen2.5-7b", 1_000_000, 1.0, "none", 1, 1e-6),
    ("qwen2.5-72b", 1_000_000, 1.0, "none", 1, 1e-5),
    ("qwen3-235b-a22b", 1_000_000, 1.0, "none", 1, 1e-6),
    ("phi-4", 250_000, 1.0, "none", 1, 1e-5),
    ("yi-34b", 5_000_000, 1.0, "none", 1, 1e-5),
    ("glm-4.5", 1_000_000, 0.5, "none", 1, 1e-5),
    ("gpt-oss-120b", 150_000, 1.0, "yarn", 32, 1e-5),
    ("deepseek-v2", 10_000, 1.0, "yarn", 40, 1e-6),
    ("kimi-k2", 50_000, 1.0, "yarn", 32, 1e-6),
]


@pytest.mark.parametrize(("name", "base", "fraction", "scaling", "factor", "epsilon"), PUBLISHED)
def test_the_catalog_has_the_published_values(
    name: str, base: float, fraction: float, scaling: str, factor: float, epsilon: float
) -> None:
    found = model(name)
    assert found.rotary is not None
    assert (found.rotary.base, found.rotary.fraction) == (base, fraction)
    assert (found.rotary.scaling, found.rotary.factor) == (scaling, factor)
    assert found.norm_epsilon == epsilon


def test_every_language_model_of_the_catalog_says_how_it_tells_positions() -> None:
    for known in models():
        if known.encoder is None and known.vision is None:
            told = (known.rotary is not None, known.learned_positions > 0, "alibi" in known.quirks)
            # State-space layers tell positions by themselves, so that attention beside them may have none.
            assert sum(told) == 1 or (known.state_space is not None and not any(told)), known.name
            assert known.norm_epsilon is not None, known.name
            assert known.activation is not None, known.name
