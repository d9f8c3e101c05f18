"""Exports through the real Megatron-LM: parsed, validated, configured, and built rank by rank on the meta device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra.catalog.models import models
from astra.export import EXPORTERS
from astra.export.base import Launch, Mesh, refusals
from astra.spec.model import ModelSpec, Rotary
from tests.export.launching import given, job_of, planned, run_script, write
from tests.frameworks.conftest import Harness
from tests.frameworks.shards import rank_parameters

MEGATRON = EXPORTERS["megatron"]
HOPPER, BLACKWELL = 9, 10

PLANNED: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-2-7b", "8xH100", {"batch": 128}),
    ("llama-3.1-8b", "16xA100-80", {"batch": 256, "seq": 8192}),
    ("llama-3.1-8b", "8xB200", {"batch": 64, "precision": "fp8"}),
    ("llama-3.1-70b", "64xH100", {"seq": 8192}),
    ("llama-3.1-70b", "512xH100", {"fix": ["pp=8"]}),
    ("llama-3.1-405b", "1024xH100", {"seq": 8192, "batch": 2048}),
    ("llama-3.1-8b", "64xH100", {"seq": 131072, "batch": 64}),
    ("qwen2.5-1.5b", "8xH100", {"fix": ["pp=2"]}),
    ("qwen2.5-72b", "128xH200", {}),
    ("qwen2.5-0.5b", "8xL40S", {}),
    ("qwen3-32b", "64xH100", {"fix": ["tp=8"]}),
    ("mistral-7b-v0.1", "16xH100", {"fix": ["zero=3"]}),
    ("mixtral-8x7b", "64xH100", {}),
    ("mixtral-8x22b", "128xH200", {"fix": ["ep=8"]}),
    ("qwen3-30b-a3b", "32xH100", {}),
    ("qwen3-235b-a22b", "256xH100", {"precision": "fp8"}),
    ("deepseek-v2", "256xH100", {"fix": ["pp=4"]}),
    ("deepseek-v3", "1024xH100", {"batch": 8192}),
    ("deepseek-v3", "512xB200", {"batch": 8192, "precision": "fp8"}),
    ("glm-4.5", "512xH200", {"fix": ["pp=8"]}),
    ("glm-4.5-air", "256xH100", {}),
    ("gpt-oss-20b", "16xH100", {}),
    ("gpt-oss-120b", "128xH200", {}),
    ("gpt-2-xl", "8xA100-40", {"seq": 1024, "precision": "fp16"}),
    ("gpt-3-175b", "128xH200", {"seq": 2048, "fix": ["vp=4"]}),
    ("megatron-530b", "280xA100-80", {"seq": 2048, "batch": 1960}),
    ("yi-34b", "48xH100", {"batch": 960, "fix": ["pp=6"]}),
    ("llama-2-13b", "8xA100-40", {"fix": ["offload=optimizer", "zero=1"]}),
    ("phi-4", "32xH100", {"fix": ["recompute=full"]}),
]  # fmt: skip

GIVEN = [
    ("llama-3.1-70b", "64xH100", "tp8 pp4 vp5 dp2 mbs1 sp zero1 recompute=selective overlap=grad,param,tp,p2p"),
    ("llama-3.1-70b", "64xH100", "tp8 pp8 dp1 mbs1 sp zero1 layers=9,10*3,11*3,8"),
    ("llama-3.1-70b", "64xH100", "tp16 pp4 dp1 mbs1 sp zero0 overlap=grad"),
    ("llama-2-7b", "16xH100", "tp2 dp8 mbs2 sp zero2 recompute=full method=block recompute_layers=3"),
    ("llama-2-7b", "16xH100", "tp1 pp4 vp4 dp4 mbs1 zero1 overlap=grad,param"),
    ("llama-2-7b", "16xH100", "tp2 cp4 dp2 mbs1 sp zero3 flash=on"),
    ("llama-2-7b", "16xH100", "tp2 dp8 mbs1 zero1 overlap=none flash=off"),
    ("mixtral-8x7b", "64xH100", "tp4 pp4 dp4 ep2 etp2 mbs1 sp zero1"),
    ("deepseek-v3", "1024xH100", "tp2 pp16 vp2 dp32 ep64 mbs1 sp zero1 recompute=full layers=1,2*30,0"),
    ("deepseek-v3", "1024xH100", "tp1 pp16 dp64 ep64 mbs1 zero1 offload=optimizer layers=3,4*14,2"),
]


def take(harness: Harness, launch: Launch, folder: Path, *, ranks: list[int]) -> dict[str, Any]:
    """Write the export, run its script, and give Megatron what it would have started."""
    started = run_script(write(folder, MEGATRON.files(launch)))
    arch = BLACKWELL if "Blackwell" in launch.pool.device.arch else HOPPER
    env = {name: started.env[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS",) if name in started.env}
    script = "pretrain_gpt.py" if launch.model.state_space is None else "pretrain_hybrid.py"
    return harness.ask(argv=started.after(script), env=env, world=launch.gpus, ranks=ranks, arch=arch)


def some_ranks(launch: Launch) -> list[int]:
    """A rank of the first, of a middle and of the last pipeline stage."""
    strategy = launch.strategy
    per_stage = strategy.tp * strategy.cp * strategy.dp
    return sorted({0, strategy.pp // 2 * per_stage, launch.gpus - 1})


def check(harness: Harness, launch: Launch, folder: Path) -> None:
    assert refusals(MEGATRON, launch) == []
    verdict = take(harness, launch, folder, ranks=some_ranks(launch))
    assert verdict["accepted"], f"{launch.strategy}: {verdict}"
    strategy = launch.strategy
    assert (verdict["dp"], verdict["vpp"]) == (strategy.dp, strategy.vp)
    assert verdict["microbatches"] == launch.microbatches
    assert verdict["distributed_optimizer"] == (strategy.zero > 0)
    for rank in verdict["ranks"].values():
        stage = rank["pipeline_rank"]
        chunks = [launch.layers[stage + chunk * strategy.pp] for chunk in range(strategy.vp)]
        assert [chunk["layers"] for chunk in rank["chunks"]] == chunks
        assert sum(chunk["parameters"] for chunk in rank["chunks"]) == rank_parameters(launch, stage)


@pytest.mark.parametrize(("model", "gpus", "request_"), PLANNED, ids=lambda value: str(value)[:40])
def test_plans_are_accepted(megatron: Harness, tmp_path: Path, model: str, gpus: str, request_: dict[str, Any]) -> None:
    launch, _ = planned(model, gpus, **request_)
    check(megatron, launch, tmp_path)


@pytest.mark.parametrize(("model", "gpus", "strategy"), GIVEN)
def test_strategies_are_accepted(megatron: Harness, tmp_path: Path, model: str, gpus: str, strategy: str) -> None:
    check(megatron, given(model, gpus, strategy, batch=2048), tmp_path)


def test_mixed_pools_are_accepted(megatron: Harness, tmp_path: Path) -> None:
    """One pipeline over two GPU types, even where nodes differ in size; also interleaved."""
    small, large = (job_of("llama-2-7b", pool).pool for pool in ("8xH100", "16xA100-40"))
    for strategy, stages in (
        ("tp2 pp3 dp4 mbs1 sp zero1 layers=14,8,10", (1, 2)),
        ("tp2 pp3 vp2 dp4 mbs1 sp zero1 overlap=grad,param,p2p layers=7,4,5,7,4,5", (1, 2)),
    ):
        launch = given("llama-2-7b", "24xH100", strategy, batch=384)
        launch = launch._replace(meshes=(Mesh(small, 2, 1, 1, 4, stages[0]), Mesh(large, 2, 1, 1, 4, stages[1])))
        assert launch.gpus == 24
        check(megatron, launch, tmp_path)


def expected_forward(model: ModelSpec) -> dict[str, Any]:
    """What Megatron must derive from the flags of a model."""
    rotary, moe = model.rotary or Rotary(), model.moe
    stretched = rotary.scaling == "yarn"
    names = {"silu": "silu", "clamped_swiglu": "quick_gelu", "gelu": "gelu", "relu2": "squared_relu"}
    experts = moe and {
        "score": moe.score,
        "pre_softmax": moe.score == "softmax" and (moe.topk == 1 or not moe.normalized),
        "weight_scale": moe.weight_scale,
        "groups": moe.groups,
        "groups_kept": moe.groups_kept,
        "balance_bias": moe.balance_bias,
    }
    plain = "yarn" if stretched and model.mla is None else "rope"
    if model.state_space is not None and model.rotary is None:
        plain = "none"
    return {
        "positions": "learned_absolute" if model.learned_positions else plain,
        "base": rotary.base,
        "fraction": rotary.fraction,
        "llama3": rotary.scaling == "llama3",
        "yarn": {
            "factor": rotary.factor if stretched else 1.0,
            "mscale_all_dim": rotary.mscale_all_dim,
            "beta_fast": rotary.beta_fast,
        },
        "epsilon": model.norm_epsilon,
        "activation": names[str(model.activation)],
        "gated": model.gated_mlp,
        "clamp": 7.0 if model.activation == "clamped_swiglu" else None,
        "experts": experts,
    }


def test_every_catalog_model_is_itself_or_refused(megatron: Harness, tmp_path: Path) -> None:
    """Positions, norms, activation and routing of each model arrive in Megatron's own configuration."""
    taken = []
    for model in models():
        launch = given(model.name, "8xH100", "dp8 mbs1 zero1", batch=64, seq=512)
        if refusals(MEGATRON, launch):
            continue
        plain = model.state_space is None and model.delta_net is None
        verdict = take(megatron, launch, tmp_path, ranks=[0] if plain else [])
        assert verdict["accepted"], f"{model.name}: {verdict}"
        assert verdict["forward"] == expected_forward(model), model.name
        if plain:  # the harness builds GPT models; the script of others is parsed and validated
            assert verdict["ranks"]["0"]["chunks"][0]["parameters"] == rank_parameters(launch, 0)
        taken.append(model.name)
    assert len(taken) >= 50


def test_versions_are_those_we_state(megatron: Harness) -> None:
    assert megatron.versions["megatron-core"].partition("+")[0] in MEGATRON.verified
