"""The start of a job under Megatron-FSDP: whole weights are made before they are sharded, and that may be the peak."""

from __future__ import annotations

import msgspec
import pytest

import astra
from astra.api import make_job
from astra.catalog.models import model, models
from astra.cost.memory import start_bytes
from astra.cost.stage import gather_parts, stage_costs
from astra.search.detail import as_row
from astra.spec.model import ModelSpec
from astra.units import GIB

GATED = [one.name for one in models() if one.moe is not None and one.moe.shared_gate and not one.name.endswith("-vl")]


def estimated(of: str | ModelSpec, words: str, gpus: int = 64, runtime: str = "megatron") -> astra.Estimate:
    return astra.estimate(of, gpus=f"{gpus}xH100", strategy=words, runtime=runtime, batch=256, seq=1024)


def started_bytes(of: ModelSpec) -> float:
    """What the start allocates, whether or not a step allocates more."""
    asked = make_job(of, gpus="64xH100", batch=256, seq=1024, runtime="megatron")
    row = as_row(asked, asked.strategy("dp64 mbs1 zero3 recompute=full"))
    costs = stage_costs(asked, row.meshes, gather_parts(asked, row.meshes.columns))
    return float(start_bytes(asked, costs, row.shardings).max())


def at_start(found: astra.Estimate) -> bool:
    return any("at the start" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", GATED)
def test_a_model_that_cannot_be_built_without_memory_is_whole_on_every_rank(name: str) -> None:
    """Its gate of shared experts cannot fill its own weights: two bytes of every parameter come first."""
    found = estimated(name, "dp64 mbs1 zero3 recompute=full")
    parameters = astra.describe_model(name).parameters["total"]
    assert found.peak_allocated_gib * GIB > 2 * parameters
    assert at_start(found)


def test_a_large_vocabulary_is_whole_for_a_moment() -> None:
    """Embedding and output in one buffer, and the one being made beside it."""
    wide = ModelSpec(
        name="wide", layers=2, hidden=4096, ffn=4096, heads=32, kv_heads=8, head_dim=128, vocab=1_000_000, max_seq=1024
    )
    found = estimated(wide, "dp64 mbs1 zero3 recompute=full")
    table_bytes = 2 * wide.vocab * wide.hidden
    assert found.peak_allocated_gib * GIB > 3 * table_bytes
    tied = msgspec.structs.replace(wide, tied_embeddings=True)
    for each, tables in ((wide, 3), (tied, 2)):
        assert tables * table_bytes < started_bytes(each) < 1.1 * tables * table_bytes
    narrow = estimated(wide, "tp8 dp8 mbs1 sp zero3 recompute=full")
    assert narrow.peak_allocated_gib < found.peak_allocated_gib / 4


def test_kinds_of_memory_still_add_up() -> None:
    found = estimated(GATED[0], "dp64 mbs1 zero3 recompute=full")
    for stage in found.stages:
        assert sum(stage.memory.values()) == pytest.approx(stage.peak_allocated_gib)
        assert stage.memory["gradients"] == stage.memory["activations"] == 0


def test_nothing_is_whole_where_weights_are_not_sharded_or_fill_in_place() -> None:
    assert not at_start(estimated("llama-2-7b", "dp64 mbs1 zero1"))
    assert not at_start(estimated("llama-3.1-8b", "dp64 mbs1 zero3", runtime="torchtitan"))
    assert model("llama-2-7b").moe is None


def test_no_plan_starts_above_the_limit() -> None:
    """The search knows it too: with ZeRO-3 asked for, experts are spread until a rank can hold the start."""
    found = astra.plan(GATED[0], gpus="64xH100", batch=256, seq=1024, fix=["zero=3"], top=3, runtime="megatron")
    assert all(plan.estimate.fits for plan in found.plans)
