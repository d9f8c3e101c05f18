"""Which recipe of Megatron-Bridge builds a model, by the names its package exports."""

from __future__ import annotations

from typing import Final, NamedTuple

from astra.catalog import models
from astra.rules.can import of_shape
from astra.spec.model import ModelSpec

_ALL: Final = ("pretrain", "sft", "peft")
_PRETRAIN: Final = ("pretrain",)
_TUNED: Final = ("sft", "peft")
KINDS: Final = {"pretrain": "pretrain", "finetune": "sft", "lora": "peft"}  # by task
PLAIN: Final = "vanilla_gpt_pretrain_config"  # the recipe of no model in particular
# Models of the catalog, as Megatron-Bridge 0.6.2 calls them, and the kinds of recipes it has of each.
_STEMS: Final = {
    "deepseek-v2-lite": ("deepseek_v2_lite", _PRETRAIN),
    "deepseek-v2": ("deepseek_v2", _PRETRAIN),
    "deepseek-v3": ("deepseek_v3", _PRETRAIN),
    "gemma-2-9b": ("gemma2_9b", _ALL),
    "gemma-2-27b": ("gemma2_27b", _ALL),
    "gemma-3-27b": ("gemma3_vl_27b", _TUNED),
    "glm-4.5": ("glm45_355b", _ALL),
    "glm-4.5-air": ("glm45_air_106b", _ALL),
    "gpt-oss-20b": ("gpt_oss_20b", _ALL),
    "gpt-oss-120b": ("gpt_oss_120b", _ALL),
    "kimi-k2": ("kimi_k2", _PRETRAIN),
    "llama-2-7b": ("llama2_7b", _PRETRAIN),
    "llama-3-8b": ("llama3_8b", _ALL),
    "llama-3-70b": ("llama3_70b", _ALL),
    "llama-3.1-8b": ("llama31_8b", _ALL),
    "llama-3.1-70b": ("llama31_70b", _ALL),
    "llama-3.1-405b": ("llama31_405b", _ALL),
    "llama-3.2-1b": ("llama32_1b", _ALL),
    "llama-3.2-3b": ("llama32_3b", _ALL),
    "nemotron-3-nano-30b-a3b": ("nemotron_3_nano", _ALL),
    "nemotron-h-8b": ("nemotronh_8b", _ALL),
    "qwen2.5-0.5b": ("qwen25_500m", _ALL),
    "qwen2.5-1.5b": ("qwen25_1p5b", _ALL),
    "qwen2.5-7b": ("qwen25_7b", _ALL),
    "qwen2.5-14b": ("qwen25_14b", _ALL),
    "qwen2.5-32b": ("qwen25_32b", _ALL),
    "qwen2.5-72b": ("qwen25_72b", _ALL),
    "qwen3-8b": ("qwen3_8b", _ALL),
    "qwen3-14b": ("qwen3_14b", _ALL),
    "qwen3-32b": ("qwen3_32b", _ALL),
    "qwen3-30b-a3b": ("qwen3_30b_a3b", _ALL),
    "qwen3-235b-a22b": ("qwen3_235b_a22b", _ALL),
}


class BridgeRecipe(NamedTuple):
    """What a plan starts from."""

    function: str  # of megatron.bridge.recipes
    kind: str  # pretrain, sft or peft, as the recipe sets itself up
    own: bool  # whether it builds the plan's model


def recipe_for(model: ModelSpec, task: str) -> BridgeRecipe:
    """The recipe of a model's shape and rotary positions, of the task's kind where there is one."""
    name = of_shape(model, _STEMS)
    if name is None or model.rotary not in (None, models.model(name).rotary):
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    stem, kinds = _STEMS[name]
    kind = KINDS[task] if KINDS[task] in kinds else "pretrain"
    if kind not in kinds:
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    return BridgeRecipe(f"{stem}_{kind}_config", kind, own=True)
