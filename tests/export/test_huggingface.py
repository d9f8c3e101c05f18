"""What Accelerate's and DeepSpeed's files say of precision and tensor parallelism is what they then do."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.imports import import_file
from tests.export.launching import given, write

ACCELERATE = EXPORTERS["accelerate"]


def test_fp8_is_accelerates_to_say(tmp_path: Path) -> None:
    """A precision among the Trainer's arguments takes the place of the file's: it would train in bf16."""
    launch = given("llama-2-7b", "8xH100", "dp8 zero3", batch=16, runtime="fsdp-eager", precision="fp8-tensorwise")
    assert refusals(ACCELERATE, launch) == []
    files = ACCELERATE.files(launch)
    assert "bf16=True" not in files["train.py"]
    assert "mixed_precision: fp8\nfp8_config:\n  backend: AO\n" in files["accelerate.yaml"]
    assert "fsdp_cpu_ram_efficient_loading: false" in files["accelerate.yaml"]
    assert import_file(write(tmp_path, files) / "accelerate.yaml").precision == "fp8-tensorwise"


@pytest.mark.parametrize(
    ("model", "strategy", "request_", "reason"),
    [
        (
            "llama-2-7b",
            "dp8 zero3",
            {"precision": "fp8-blockwise"},
            "does not train in fp8-blockwise here (it has bf16",
        ),
        ("mixtral-8x7b", "dp8 zero3", {"precision": "fp8-tensorwise"}, "experts are none"),
        ("llama-2-7b", "dp8 zero3", {"precision": "fp8-tensorwise", "task": "lora"}, "not those with adapters"),
        ("llama-2-7b", "tp2 dp4 zero3", {}, "tensor parallelism"),
    ],
)
def test_what_accelerate_would_not_do_is_refused(
    model: str, strategy: str, request_: dict[str, str], reason: str
) -> None:
    launch = given(model, "8xH100", strategy, batch=16, runtime="fsdp-eager", **request_)
    (found,) = refusals(ACCELERATE, launch)
    assert reason in found


@pytest.mark.parametrize("precision", ["fp8", "fp8-tensorwise", "fp8-blockwise"])
def test_deepspeed_has_no_fp8(precision: str) -> None:
    launch = given("llama-2-7b", "8xH100", "dp8 zero3", batch=16, runtime="deepspeed", precision=precision)
    (found,) = refusals(EXPORTERS["deepspeed"], launch)
    assert f"deepspeed does not train in {precision} here (it has bf16, fp16)" in found


@pytest.mark.parametrize("runtime", ["fsdp-eager", "composer", "transformers-local"])
def test_whoever_planned_it_recompute_is_asked_for_once(runtime: str) -> None:
    """Accelerate's file asks for it; the Trainer stops where its own arguments do too."""
    launch = given("llama-2-7b", "8xH100", "dp8 zero3 recompute=full", batch=16, runtime=runtime)
    files = ACCELERATE.files(launch)
    assert "fsdp_activation_checkpointing: true" in files["accelerate.yaml"]
    assert "gradient_checkpointing=False" in files["train.py"]
    assert "gradient_checkpointing=True" in EXPORTERS["deepspeed"].files(launch)["train.py"]


def test_deepspeed_has_no_wide_gradients_without_zero() -> None:
    """Its engine of 0.19.8 raises NotImplementedError there."""
    for zero, refused in ((0, 1), (1, 0)):
        launch = given("llama-2-7b", "8xH100", f"dp8 zero{zero} grads=fp32", batch=16, runtime="deepspeed")
        assert len(refusals(EXPORTERS["deepspeed"], launch)) == refused


def test_deepspeed_does_not_split_what_has_adapters() -> None:
    """Tensor-parallel ranks of DeepSpeed 0.19.8 run and train none of a PEFT model's: its layers take their place."""
    for task, tp, refused in (("lora", 2, 1), ("lora", 1, 0), ("finetune", 2, 0)):
        launch = given("llama-2-7b", "8xH100", f"tp{tp} dp{8 // tp} zero0", batch=16, runtime="deepspeed", task=task)
        assert len(refusals(EXPORTERS["deepspeed"], launch)) == refused


# What transformers calls projections: GPT-2, Phi-3, DeepSeek-V3, Falcon, Llama beside an encoder of images.
NAMES = {
    "h.0.attn": ("c_attn", "c_proj"),
    "layers.0.self_attn": ("qkv_proj", "o_proj"),
    "model.layers.0.self_attn": ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"),
    "h.0.self_attention": ("query_key_value", "dense"),
    "language_model.layers.0.self_attn": ("q_proj", "k_proj", "v_proj", "o_proj"),
}


@pytest.mark.parametrize(("targets", "kept"), [("attention", slice(None)), ("qkv", slice(-1))])
def test_adapters_are_where_the_plan_has_them(targets: str, kept: slice) -> None:
    """A list of Llama's names leaves a Phi-3 with those of one product, and stops on a GPT-2."""
    launch = given(
        "llama-2-7b", "8xH100", "dp8 zero3", batch=16, runtime="fsdp-eager", task="lora", lora_targets=targets
    )
    text = ACCELERATE.files(launch)["train.py"]
    (called,) = re.findall(r"target_modules=(attention\(.*?\)),", text)
    linear = type("Linear", (), {})
    scope: dict[str, Any] = {"torch": SimpleNamespace(nn=SimpleNamespace(Linear=linear)), "Conv1D": linear}
    body = text[text.index("RESULTS =") : text.index("def data")]
    exec(body.replace("from transformers.pytorch_utils import Conv1D", ""), scope)
    for place, names in NAMES.items():
        wanted = [f"{place}.{name}" for name in names]
        others = [f"{place.rpartition('.')[0]}.mlp.up_proj", "visual.blocks.0.attn.qkv", "lm_head"]
        modules = [(name, linear()) for name in (*wanted, *others)]
        scope["base"] = SimpleNamespace(named_modules=modules.copy)
        assert eval(called, scope) == wanted[kept]
