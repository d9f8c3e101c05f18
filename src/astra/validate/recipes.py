"""What NVIDIA's recipes set that its tables leave out: recompute, overlap, and how the runtime is run.

A recipe's settings that a strategy has no words for change the runtime: CUDA graphs (how long launching takes), the
dispatcher of experts, fused experts, norms and activations recomputed, activations in host memory, adapted matrices.
"""

from __future__ import annotations

import csv
import re
from functools import cache
from importlib.resources import files
from typing import Any, Final

from astra.catalog import runtimes
from astra.errors import fold
from astra.spec.model import ModelSpec
from astra.spec.runtime import Kernel, Runtime, changed
from astra.validate.strategies import Degrees

# Full-iteration graphs, with fused experts and hidden exchanges, are in the recipes of Megatron-Bridge 0.5.0 (container
# 26.06) and not of 0.4.2; before, the same recipes captured attention and the router alone.
_WHOLE_GRAPHS_SINCE: Final = (26, 6)
_FUSED: Final = Kernel(forward_bytes=0, backward_bytes=0, forward_kernels=0, backward_kernels=0)
_EXPERT_KERNELS: Final = ("expert_bias", "expert_clamp")  # inside the fused grouped products


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


def runtime_as_run(
    name: str,
    recipe: dict[str, str] | None,
    model: ModelSpec,
    *,
    version: str,
    task: str,
    mlperf: bool,
    filled: list[str],
) -> Runtime:
    """A runtime profile with what the recipe of a run changes."""
    runtime = runtimes.runtime(name)
    changes: dict[str, Any] = {}
    if task == "lora" and name == "megatron-bridge":
        changes["adapted"] = "qkv"  # scripts/performance of Megatron-Bridge 0.5.0: target_modules = ["linear_qkv"]
    elif task == "lora" and mlperf:
        changes["adapted"] = "attention"  # NVIDIA's code of MLPerf v4.0: target_modules: ['attention']
    if name == "megatron-bridge":
        changes |= _settings(runtime, recipe or {}, model, _container(version))
    if changes:
        filled.append(f"runtime as in the vendor's recipe: {', '.join(sorted(changes))}")
    return changed(runtime, **changes)


def _settings(runtime: Runtime, recipe: dict[str, str], model: ModelSpec, container: tuple[int, int]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    graphs = recipe.get("cuda_graph", "")
    whole = graphs == "full_iteration" and container >= _WHOLE_GRAPHS_SINCE
    if graphs == "none" or (model.moe and not whole):  # graphs of parts leave the experts to the host
        eager = runtimes.runtime("nemo")
        changes |= {"launch_s": eager.host.launch_s, "backward_s": eager.host.backward_s}
    fused: tuple[str, ...] = ()
    if whole:
        changes["hides_all_to_all"] = True
        fused += _EXPERT_KERNELS
    if recipe.get("dispatcher") in ("hybridep", "deepep"):
        changes["dispatch"] = "once"
        fused += ("sort",)
    if fused:
        changes["kernels"] = runtime.kernels | dict.fromkeys(fused, _FUSED)
    if recipe.get("cheap_recompute"):
        changes["recomputes_cheap"] = True
    if recipe.get("offloaded_layers"):
        changes["offloaded_layers"] = int(recipe["offloaded_layers"])
    return changes


def _container(version: str) -> tuple[int, int]:
    """Year and month of a NeMo container; the newest where a table does not say."""
    found = re.search(r"(\d\d)\.(\d\d)", version)
    return (int(found.group(1)), int(found.group(2))) if found else (99, 0)
