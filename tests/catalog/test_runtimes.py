"""Runtime profiles as shipped."""

from __future__ import annotations

import inspect
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import astra
from astra.catalog import runtimes
from astra.catalog.runtimes import runtime, runtime_names
from astra.cost import effects
from astra.errors import InputError
from astra.search.world import World
from astra.spec.request import PlanRequest
from astra.spec.runtime import EFFECTS, Effect, changed
from astra.validate.measured import sources


def test_every_profile_times_every_kernel() -> None:
    kernels = {name: set(runtime(name).kernels) for name in runtime_names()}
    assert all(found == kernels["megatron"] for found in kernels.values())


@pytest.mark.parametrize(
    "name",
    [name for name in runtime_names() if "experts" in runtime(name).can.blocks and not runtime(name).can.recipes],
)
def test_every_runtime_with_experts_plans_them(name: str) -> None:
    found = astra.plan("mixtral-8x7b", gpus="64xH100", batch=256, seq=4096, runtime=name)
    assert found.best.estimate.fits


def test_a_runtime_is_like_another_but_for_what_it_says() -> None:
    bridge, megatron = runtime("megatron-bridge"), runtime("megatron")
    assert bridge.can.degrees == megatron.can.degrees
    assert bridge.can.blocks != megatron.can.blocks
    assert bridge.kernels["norm"] == megatron.kernels["norm"]
    assert bridge.kernels["router"] != megatron.kernels["router"]
    assert bridge.framework == megatron.framework == "megatron"


@pytest.mark.parametrize("field", ["blocks", "degrees", "schedules", "recompute", "overlap", "precision", "tasks"])
def test_an_unknown_word_of_what_a_runtime_can_do_is_refused(field: str) -> None:
    can = runtime("megatron").can
    with pytest.raises(InputError, match=rf"can\.{field}: got 'mamab'"):
        replace(can, **{field: (*getattr(can, field), "mamab")})


def test_a_runtime_that_is_like_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text('name = "a"\nlike = "b"\n', encoding="utf-8")
    (tmp_path / "b.toml").write_text('name = "b"\nlike = "a"\n', encoding="utf-8")
    monkeypatch.setattr(runtimes, "_FOLDER", tmp_path)
    runtime_names.cache_clear()
    runtime.cache_clear()
    try:
        with pytest.raises(InputError, match="not like a itself"):
            runtime("a")
    finally:
        runtime_names.cache_clear()
        runtime.cache_clear()


def test_every_effect_has_a_function_and_a_runtime_without_it_gets_nothing_of_it() -> None:
    functions = inspect.getmembers(effects, inspect.isfunction)
    assert {name for name, function in functions if function.__module__ == effects.__name__} == set(EFFECTS)
    plain = replace(runtime("nanotron"), effects={})
    assert {name: plain.amount(name) for name in EFFECTS} == {name: known.off for name, known in EFFECTS.items()}
    assert effects.zero_reduces_whole(plain) == "reduce_scatter"
    assert effects.zero_reduces_whole(runtime("nanotron")) == "all_reduce"


def test_an_unknown_effect_is_refused_with_the_nearest() -> None:
    effects = {"queued_activation": Effect(amount=2.0, fitted_on="somewhere")}
    with pytest.raises(InputError, match=r"queued_activation'.*Did you mean queued_activations"):
        replace(runtime("megatron"), effects=effects)


def test_an_effect_says_where_its_amount_is_from() -> None:
    for both in ({}, {"fitted_on": "a", "counted_in": "b"}):
        with pytest.raises(InputError, match="one of counted_in and fitted_on"):
            Effect(amount=1.0, **both)


def test_fitted_numbers_are_inherited_with_what_they_were_fitted_on() -> None:
    assert runtime("flagscale").fitted == runtime("megatron").fitted
    assert runtime("nanotron").fitted["effects.clock"].startswith("ultrascale")
    assert "effects.bucket_bytes" not in runtime("nanotron").fitted  # counted


def test_changes_go_to_the_group_that_has_the_field() -> None:
    other = changed(runtime("megatron"), step_s=1.0, reserved_ratio=1.2, clock=1.1, attention="sdpa")
    assert (other.host.step_s, other.memory.reserved_ratio, other.amount("clock")) == (1.0, 1.2, 1.1)
    assert other.attention == "sdpa"
    assert other.kernels == runtime("megatron").kernels


@pytest.mark.parametrize("name", runtime_names())
def test_what_is_usual_can_be_done(name: str) -> None:
    one = runtime(name)
    for generation in ("", "ampere", "hopper", "blackwell"):
        for pipelined, precision in product((False, True), ("bf16", "fp16")):
            words = one.usual_words(generation, pipelined=pipelined, precision=precision)
            assert words.pop("overlap_ep") is False or "ep" in one.can.overlap
            assert words.pop("dispatch_fp8") is False or one.can.dispatch_fp8
            assert all(value in getattr(one.can, field) for field, value in words.items()), words


@pytest.mark.parametrize(("precision", "reduced"), [("fp16", "bf16"), ("bf16", "fp32")])
def test_megatron_before_transformer_engine_widens_gradients_in_bf16_alone(precision: str, reduced: str) -> None:
    for pipelined in (False, True):
        words = runtime("megatron-apex").usual_words("ampere", pipelined=pipelined, precision=precision)
        assert words["grads"] == reduced
    assert runtime("nanotron").usual_words("hopper", pipelined=True, precision=precision)["grads"] == "fp32"


def test_recipes_of_each_generation() -> None:
    """NVIDIA's perf_recipes 0.4 to 0.6: HybridEP on Hopper and Blackwell; graphs of whole steps there, none here."""
    bridge = runtime("megatron-bridge")
    found = {gpu: bridge.usual_words(gpu, pipelined=True) for gpu in ("ampere", "hopper", "blackwell")}
    assert [words["dispatch"] for words in found.values()] == ["alltoall", "hybridep", "hybridep"]
    assert [words["graphs"] for words in found.values()] == ["partial", "none", "full"]
    assert {(words["grads"], words["params"]) for words in found.values()} == {("bf16", "fp8")}
    assert runtime("torchtitan").usual_words("hopper", pipelined=True)["reshard"] == "never"
    assert runtime("torchtitan").usual_words("hopper", pipelined=False)["reshard"] == "always"


@pytest.mark.parametrize(
    ("model", "gpus", "precision", "attention"),
    [
        ("qwen3-30b-a3b", "8xGB200", "mxfp8", "fp8"),
        ("qwen3-30b-a3b", "8xGB200", "nvfp4", "bf16"),
        ("qwen3-30b-a3b", "8xGB200", "fp8-tensorwise", "bf16"),
        ("qwen3-30b-a3b", "8xGB200", "bf16", "bf16"),
        ("qwen3-30b-a3b", "8xH100", "fp8", "bf16"),
        ("qwen3-30b-a3b", "8xRTXPRO6000-Blackwell", "mxfp8", "bf16"),
        ("gpt-oss-120b", "64xB200", "mxfp8", "fp8"),
        ("deepseek-v3", "256xGB200", "mxfp8", "bf16"),
        ("deepseek-v3", "256xGB300", "mxfp8", "fp8"),
        ("nemotron-3-nano-30b-a3b", "8xGB200", "mxfp8", "bf16"),
        ("llama-3-8b", "8xGB200", "mxfp8", "bf16"),
    ],
)
def test_attention_in_fp8_is_for_experts_in_whole_graphs(model: str, gpus: str, precision: Any, attention: str) -> None:
    """As in perf_recipes 0.5 and 0.6: fp8_dot_product_attention with fp8_mx and full_iteration."""
    asked = PlanRequest(model=model, gpus=(gpus,), precision=precision, runtime="megatron-bridge")
    job = World.of(asked).job
    assert job.words.attention == attention
    assert job.strategy("tp1").attention == attention


@pytest.mark.parametrize(
    ("model", "precision", "gpus", "graphs", "hides"),
    [
        ("qwen3-30b-a3b", "mxfp8", "8xGB200", "full", True),
        ("qwen3-30b-a3b", "nvfp4", "8xGB300", "full", True),
        ("qwen3-30b-a3b", "nvfp4", "8xVR200", "full", True),
        ("qwen3-30b-a3b", "nvfp4", "8xGB200", "partial", False),
        ("gpt-oss-20b", "nvfp4", "8xGB300", "partial", False),
        ("gpt-oss-20b", "mxfp8", "8xGB300", "full", True),
        ("qwen3-30b-a3b", "fp8-tensorwise", "8xGB200", "partial", False),
        ("qwen3-30b-a3b", "bf16", "8xGB200", "partial", False),
        ("nemotron-3-nano-30b-a3b", "mxfp8", "8xGB200", "partial", False),
        ("llama-3-8b", "mxfp8", "8xGB200", "partial", False),
    ],
)
def test_whole_graphs_are_for_experts_in_one_kernel(
    model: str, precision: Any, gpus: str, graphs: str, hides: bool
) -> None:
    """As in perf_recipes 0.5 and 0.6: full_iteration and overlap_moe_expert_parallel_comm with fp8_mx and nvfp4."""
    asked = PlanRequest(model=model, gpus=(gpus,), precision=precision, runtime="megatron-bridge")
    found = World.of(asked).job.recipe()
    assert (found["graphs"], found["overlap_ep"]) == (graphs, hides)


@pytest.mark.parametrize("name", runtime_names())
def test_nothing_is_fitted_on_what_reads_like_a_simulators(name: str) -> None:
    simulated = [source.name for source in sources() if source.simulated]
    assert simulated
    assert not [on for on in runtime(name).fitted.values() if any(source in on for source in simulated)]
