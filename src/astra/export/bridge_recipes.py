"""Which recipe of Megatron-Bridge builds a model, by the names its package exports."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, NamedTuple

from astra.catalog import models
from astra.export.base import template
from astra.files import load_toml
from astra.rules.can import of_shape
from astra.spec.model import ModelSpec

KINDS: Final = {"pretrain": "pretrain", "finetune": "sft", "lora": "peft"}  # by task
PLAIN: Final = "vanilla_gpt_pretrain_config"  # the recipe of no model in particular


@cache
def _recipes() -> dict[str, Any]:
    return load_toml(template("bridge_recipes.toml").encode())


class BridgeRecipe(NamedTuple):
    """What a plan starts from."""

    function: str  # of megatron.bridge.recipes
    kind: str  # pretrain, sft or peft, as the recipe sets itself up
    own: bool  # whether it builds the plan's model


def recipe_for(model: ModelSpec, task: str) -> BridgeRecipe:
    """The recipe of a model's shape and rotary positions, of the task's kind where there is one."""
    name = of_shape(model, _recipes())
    if name is None or model.rotary not in (None, models.model(name).rotary):
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    stem, kinds = _recipes()[name]["stem"], _recipes()[name]["kinds"]
    kind = KINDS[task] if KINDS[task] in kinds else "pretrain"
    if kind not in kinds:
        return BridgeRecipe(PLAIN, "pretrain", own=False)
    return BridgeRecipe(f"{stem}_{kind}_config", kind, own=True)
