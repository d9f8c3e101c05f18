"""What NVIDIA's recipes set that its tables leave out: recompute, overlap, CUDA graphs, dispatcher, offload."""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

from astra.errors import fold
from astra.spec.runtime import Runtime
from astra.spec.strategy_fields import DISPATCHES
from astra.validate.strategies import Degrees

# Full-iteration graphs, with fused experts and hidden exchanges, are in the recipes of Megatron-Bridge 0.5.0 (container
# 26.06) and not of 0.4.2; before, the same recipes captured attention and the router alone.
_WHOLE_GRAPHS_SINCE: Final = (26, 6)


def recipe_for(
    name: str, gpu: str, precision: str, gpus: int, batch: int, degrees: Degrees, fsdp: bool
) -> dict[str, str] | None:
    """The vendor's recipe with these degrees: for this number of GPUs and batch if there is one."""
    wanted = fold(name)
    found = [
        row
        for row in recipes()
        if wanted.startswith(fold(row["model"]))
        and fold(gpu).startswith(row["gpu"])
        and row["precision"] == precision
        and all(int(row[axis]) == getattr(degrees, axis) for axis in ("tp", "pp", "vp", "cp", "ep"))
        and (row["zero"] == "3") == fsdp
    ]
    return min(found, key=lambda row: (int(row["gpus"]) != gpus, int(row["batch"]) != batch), default=None)


@cache
def recipes() -> tuple[dict[str, str], ...]:
    """Every recipe, by column name."""
    text = (files("astra.validate") / "data" / "recipes.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def words_as_run(
    runtime: Runtime, recipe: dict[str, str] | None, generation: str, precision: str, *, version: str
) -> dict[str, Any]:
    """The words of a strategy that tables leave out: as is usual for the framework, and what the recipe says."""
    usual = runtime.usual_words(generation, pipelined=False)
    words: dict[str, Any] = {"grads": usual["grads"], "params": usual["params"] if precision == "fp8" else "bf16"}
    if runtime.name == "megatron-bridge":
        words |= _settings(recipe or {}, _container(version))
    return words


def lora_targets(runtime: str, *, mlperf: bool) -> str:
    """The matrices that runs of a framework adapt."""
    if runtime == "megatron-bridge":
        return "qkv"  # scripts/performance of Megatron-Bridge 0.5.0: target_modules = ["linear_qkv"]
    return "attention" if mlperf else "all"  # NVIDIA's code of MLPerf v4.0: target_modules: ['attention']


def _settings(recipe: dict[str, str], container: tuple[int, int]) -> dict[str, Any]:
    """Graphs, dispatcher, recomputed modules and offloaded layers of a recipe."""
    graphs = recipe.get("cuda_graph", "")
    whole = graphs == "full_iteration" and container >= _WHOLE_GRAPHS_SINCE
    words: dict[str, Any] = {"graphs": "none" if graphs == "none" else "full" if whole else "partial"}
    words["hides_experts"] = whole
    if recipe.get("dispatcher") in DISPATCHES:  # any other sends a copy to each expert
        words["dispatch"] = recipe["dispatcher"]
    if recipe.get("cheap_recompute"):
        words["modules"] = tuple(recipe["cheap_recompute"].split())
    if recipe.get("offloaded_layers"):
        words["offload_layers"] = int(recipe["offloaded_layers"])
    return words


def _container(version: str) -> tuple[int, int]:
    """Year and month of a NeMo container; the newest where a table does not say."""
    found = re.search(r"(\d\d)\.(\d\d)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (99, 0)
