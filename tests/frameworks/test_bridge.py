"""Exports on top of every recipe of four families of Megatron-Bridge: the configuration it would build a model of."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astra.catalog.models import model, model_names
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.export.bridge import overrides, recipe_for
from tests.export.launching import given, run_script, write
from tests.frameworks.conftest import Harness
from tests.frameworks.hf_configs import CONFIGS

GPT_OSS = "openai/gpt-oss-120b"
FAMILIES = ("llama", "qwen", "deepseek", "gpt_oss")
MODULES = [
    *(f"megatron.bridge.recipes.{family}.h100" for family in FAMILIES),
    *(f"megatron.bridge.perf_recipes.{family}" for family in FAMILIES),
]
# Models that no plan can be made for: layers of linear attention, and a family whose configuration is not public.
BEYOND = ("Qwen/Qwen3-Next-80B-A3B-Instruct", "deepseek-ai/DeepSeek-V4-Flash", "deepseek-ai/DeepSeek-V4-Pro")
# Megatron-core gives these a value of its own where none is said.
FILLED = {"model.recompute_modules": ["core_attn"], "model.cp_comm_type": None}
DENSE = (
    "dp16 mbs1 zero1 overlap=grad,param",
    "pp2 dp8 mbs1 zero1 recompute=full overlap=grad graphs=none moments=bf16",
    "dp16 mbs1 zero3 recompute=selective overlap=grad,param shard8",
    "pp2 vp2 dp8 mbs1 zero1 overlap=grad,param,p2p",
    "cp2 dp8 mbs1 zero0 overlap=grad graphs=full grads=fp32",
)
SPARSE = (
    "pp4 ep8 dp8 mbs1 zero1 recompute=full overlap=grad,param graphs=none",
    "tp2 ep16 dp16 mbs1 sp zero1 recompute=selective:core_attn,moe_act overlap=grad,param,tp dispatch=alltoall",
    "ep8 dp32 mbs1 zero3 overlap=grad,param dispatch=deepep graphs=none",
    "pp2 vp2 ep8 dp16 mbs1 zero1 overlap=grad,p2p,ep dispatch=deepep moments=bf16",
)


@pytest.fixture(scope="session")
def bridge() -> Iterator[Harness]:
    harness = Harness("bridge", "bridge_harness.py", TRANSFORMERS_OFFLINE="1", HF_HUB_OFFLINE="1")
    yield harness
    harness.close()


def launch_of(name: str, folder: Path, strategy: str, **request: Any) -> Launch:
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIGS[name]), encoding="utf-8")
    gpus = 32 if "ep" in strategy else 16
    return given(str(path), f"{gpus}xH100", strategy, batch=128, runtime="megatron-bridge", **({"seq": 4096} | request))


def plans(name: str, folder: Path, function: str, turn: int) -> Iterator[Launch]:
    """Two plans of a model: neighbours in the list, so that in turn every recipe's kind meets every plan."""
    task = "lora" if "_peft_" in function else "finetune" if "_sft_" in function else "pretrain"
    strategies = SPARSE if "experts" in json.dumps(CONFIGS[name]) else DENSE
    for place in (turn, turn + 1):
        strategy = strategies[place % len(strategies)]
        precision = "fp8" if strategy in (DENSE[0], SPARSE[0]) else "bf16"
        launch = launch_of(name, folder, uneven(strategy, name), task=task, precision=precision)
        assert refusals(EXPORTERS["megatron-bridge"], launch) == []
        yield launch


def uneven(strategy: str, name: str) -> str:
    """A split of the layers over the stages, one layer fewer at the end."""
    words = dict.fromkeys(strategy.split())
    stages = int(next((word[2:] for word in words if word.startswith("pp")), "1"))
    stages *= int(next((word[2:] for word in words if word.startswith("vp")), "1"))
    if stages == 1:
        return strategy
    depth = int(CONFIGS[name]["num_hidden_layers"])
    each = [depth // stages + (index < depth % stages) for index in range(stages)]
    each = [each[0] + 1, *each[1:-1], each[-1] - 1]
    return f"{strategy} layers={','.join(map(str, each))}"


def test_every_recipe_takes_the_plan(bridge: Harness, tmp_path: Path) -> None:
    recipes = bridge.ask(list=MODULES)["recipes"]
    assert {name for _, _, name in recipes} - set(BEYOND) == set(CONFIGS)
    wrong, count = [], 0
    for turn, (module, function, name) in enumerate(recipes):
        if name in BEYOND:
            continue
        for launch in plans(name, tmp_path, function, turn):
            count += 1
            wrong += [
                f"{function}: {launch.strategy}: {fault}" for fault in faults(bridge, launch, module, function, name)
            ]
    print(f"\n{count} configurations of {len(recipes)} recipes")
    assert count > 700
    assert wrong == [], "\n".join(wrong[:20])


@pytest.mark.parametrize("attention", ["fp8", "bf16"])
def test_attention_in_fp8_reaches_the_model(bridge: Harness, tmp_path: Path, attention: str) -> None:
    """On top of a recipe that has it, switched on and off."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[GPT_OSS]), encoding="utf-8")
    strategy = f"ep8 dp32 mbs1 zero1 overlap=grad,param,ep dispatch=hybridep graphs=full attention={attention}"
    launch = given(
        str(tmp_path / "config.json"), "32xGB200", strategy, batch=128, seq=4096, runtime="megatron-bridge",
        precision="mxfp8",
    )  # fmt: skip
    assert refusals(EXPORTERS["megatron-bridge"], launch) == []
    module, function = "megatron.bridge.perf_recipes.gpt_oss", "gpt_oss_120b_pretrain_64gpu_gb200_fp8mx_config"
    assert faults(bridge, launch, module, function, GPT_OSS) == []
    said = ("mixed_precision.fp8_dot_product_attention", "true" if attention == "fp8" else "false")
    assert said in list(overrides(launch))


def test_every_recipe_that_a_plan_may_name_is_there(bridge: Harness) -> None:
    """Of every model of the catalog, whatever the task: what ``train.py`` imports."""
    tasks = ("pretrain", "finetune", "lora")
    written = {recipe_for(model(name), task).function for name in model_names() for task in tasks}
    assert {"gemma2_9b_sft_config", "nemotronh_8b_pretrain_config", "vanilla_gpt_pretrain_config"} <= written
    assert bridge.ask(names=sorted(written))["absent"] == []


def faults(bridge: Harness, launch: Launch, module: str, function: str, name: str) -> list[str]:
    """What the configuration that would be trained with does not say as the plan does."""
    files = EXPORTERS["megatron-bridge"].files(launch)
    env = {"PRETRAINED_CHECKPOINT": str(Path(__file__).parent), "HF_MODEL": name}
    if launch.strategy.zero < 2:
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    verdict = bridge.ask(
        files={file: files[file] for file in ("train.py", "overrides.txt")},
        recipe=[module, function],
        config=CONFIGS[name],
        world=launch.gpus,
        env=env,
        more=["dataset.path_to_cache=/tmp"] * ("perf_recipes.gpt_oss" in module and launch.workload.task == "pretrain"),
    )
    if not verdict["accepted"]:
        return [verdict["error"]]
    found = []
    for key, said in overrides(launch):
        got = verdict["values"][key]
        if key != "model.pipeline_model_parallel_layout" and got != value(said) and got != FILLED.get(key, got is None):
            found.append(f"{key} is {got!r}, not {said}")
    derived = {
        "dp": launch.strategy.dp,
        "layers": launch.model.layers,
        "vocab": launch.model.vocab,
        "attention": "AttnBackend.auto",
        "bf16": True,
        "chunks": [list(launch.layers[rank :: launch.strategy.pp]) for rank in range(launch.strategy.pp)],
        "peft": "LoRA" if launch.workload.task == "lora" else None,
        "pretrained": None if launch.workload.task == "pretrain" else str(Path(__file__).parent),
    }
    return found + [
        f"{key} is {verdict[key]!r}, not {wanted!r}" for key, wanted in derived.items() if verdict[key] != wanted
    ]


def value(text: str) -> Any:
    """An override as Hydra reads it."""
    if text.startswith("["):
        return [word for word in text[1:-1].split(",") if word]
    plain = {"null": None, "true": True, "false": False}
    if text in plain:
        return plain[text]
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text.strip("'")


def test_script_starts_the_program(tmp_path: Path) -> None:
    launch = given("llama-3.1-70b", "64xH100", "tp8 pp4 dp2 mbs1 sp zero1", batch=256, runtime="megatron-bridge")
    write(tmp_path, EXPORTERS["megatron-bridge"].files(launch))
    started = run_script(tmp_path)
    assert started.after("train.py") == []
