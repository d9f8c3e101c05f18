"""Overrides for Megatron-Bridge: it cannot be imported without a GPU, so its field names are read in its source."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path

import pytest

from astra.export import EXPORTERS
from astra.export.bridge import overrides
from tests.export.launching import given, run_script, write
from tests.frameworks.install import VENVS, ready

# The class behind each section of a recipe's configuration.
SECTIONS = {
    "model": ("TransformerConfig", "ModelParallelConfig", "GPTModelProvider"),
    "train": ("TrainingConfig",),
    "ddp": ("DistributedDataParallelConfig",),
    "optimizer": ("OptimizerConfig",),
    "comm_overlap": ("CommOverlapConfig",),
    "checkpoint": ("CheckpointConfig",),
    "dataset": ("GPTDatasetConfig", "BlendedMegatronDatasetConfig"),
}
PLANS = [
    ("llama-3.1-70b", "64xH100", "tp8 pp4 vp5 dp2 mbs1 sp zero1 recompute=selective overlap=grad,param,tp,p2p", "bf16"),
    ("llama-3.1-8b", "16xB200", "dp16 mbs1 zero3 overlap=grad,param", "fp8"),
    ("mixtral-8x7b", "64xH100", "tp2 pp4 ep8 dp8 mbs1 sp zero1 recompute=full", "fp8"),
    ("llama-2-13b", "8xH100", "dp8 mbs1 zero1 offload=optimizer overlap=grad flash=off", "bf16"),
]


@pytest.fixture(scope="module")
def classes() -> dict[str, set[str]]:
    """Fields of every class in the two packages."""
    if not ready("bridge"):
        pytest.skip(".venvs/bridge could not be made (see make test-frameworks)")
    found: dict[str, set[str]] = {}
    for name in ("bridge", "megatron"):
        site = next((VENVS / name / "lib").glob("python*/site-packages"))
        for path in (site / "megatron").rglob("*.py"):
            _collect(path, found)
    print("\nmegatron-bridge: read 0.6.2")
    return found


def _collect(path: Path, found: dict[str, set[str]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of somebody else's source
        tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            names = {
                item.target.id
                for item in node.body
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
            }
            found.setdefault(node.name, set()).update(names)
        if isinstance(node, ast.FunctionDef) and "mixed_precision" in path.name:
            found.setdefault("mixed_precision", set()).add(node.name)


@pytest.mark.parametrize(("model", "gpus", "strategy", "precision"), PLANS)
def test_every_field_exists(
    classes: dict[str, set[str]], tmp_path: Path, model: str, gpus: str, strategy: str, precision: str
) -> None:
    launch = given(model, gpus, strategy, batch=256, precision=precision)
    for key, value in overrides(launch):
        section, _, field = key.partition(".")
        if section == "mixed_precision":
            assert value in classes["mixed_precision"]
        else:
            assert any(field in classes.get(name, set()) for name in SECTIONS[section]), key
    write(tmp_path, EXPORTERS["megatron-bridge"].files(launch))
    started = run_script(tmp_path, RUN_RECIPE="run_recipe.py")
    assert started.after("run_recipe.py") == [f"{key}={value}" for key, value in overrides(launch)]
