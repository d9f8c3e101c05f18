"""Exported Megatron-LM scripts are executed: their own flags, the real training loop, and the loss of one process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from astra.cli import main
from tests.export.launching import run_script
from tests.frameworks.conftest import Harness
from tests.frameworks.install import python_of, ready
from tests.frameworks.ranks import free_port

PROGRAM = Path(__file__).parents[2] / "tools" / "exported"

STEPS = 4
TINY = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
}  # fmt: skip
TIED = TINY | {"tie_word_embeddings": True}
ROUTED = TINY | {
    "model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16,
    "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
}  # fmt: skip
MODELS = {"dense": TINY, "odd": TINY | {"num_hidden_layers": 3}, "tied": TIED, "routed": ROUTED}

# Each axis alone, then together; what is not fixed is the plan's choice, the layout of a pipeline too.
PLANS = [
    ("dense", 2, "dp=2 zero=0 mbs=2"),
    ("dense", 2, "dp=2 zero=1 mbs=1"),
    ("dense", 2, "dp=2 zero=2 mbs=2"),
    ("dense", 2, "dp=2 zero=3 mbs=2"),
    ("dense", 2, "tp=2 sp=false mbs=2"),
    ("dense", 2, "tp=2 sp=true mbs=2"),
    ("dense", 2, "pp=2 vp=1 mbs=2"),
    ("dense", 2, "pp=2 vp=2 mbs=1"),
    ("odd", 2, "pp=2 vp=1 mbs=2"),
    ("dense", 2, "dp=2 recompute=selective mbs=2"),
    ("dense", 2, "pp=2 vp=1 recompute=full mbs=1"),
    ("tied", 2, "pp=2 vp=1 mbs=2"),
    ("routed", 2, "dispatch=alltoall ep=2 mbs=2"),
    ("routed", 2, "dispatch=alltoall pp=2 vp=1 mbs=2"),
    ("dense", 4, "tp=2 sp=true dp=2 zero=3 mbs=2"),
    ("routed", 4, "dispatch=alltoall ep=2 dp=4 zero=3 mbs=2"),
    ("dense", 4, "tp=2 sp=true dp=2 zero=1 mbs=2"),
    ("dense", 4, "tp=2 sp=true pp=2 vp=2 mbs=1 recompute=full"),
    ("dense", 4, "pp=2 vp=2 dp=2 zero=1 mbs=1"),
    ("routed", 4, "dispatch=alltoall tp=2 sp=true ep=2 dp=2 zero=1 mbs=2"),
    ("routed", 4, "dispatch=alltoall pp=2 vp=1 ep=2 dp=2 zero=1 mbs=2"),
]


@pytest.fixture(scope="module")
def training() -> Iterator[Harness]:
    harness = Harness("megatron", "training_harness.py")
    yield harness
    harness.close()


def exported(folder: Path, model: str, gpus: int, fixed: str) -> tuple[list[str], dict[str, str]]:
    """What ``astra plan`` and ``astra export`` make torchrun start: its arguments and environment."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODELS[model]), encoding="utf-8")
    plan = folder / "plan.json"
    asked = ["plan", str(folder / "config.json"), "--gpus", f"{gpus}xH100", "--batch", "8", "--seq", "32"]
    asked += ["--out", str(plan), "--quiet", "--top", "1"]
    for word in fixed.split():
        asked += ["--fix", word]
    assert main(asked) == 0
    assert main(["export", str(plan), "--to", "megatron", "--out", str(folder / "run")]) == 0
    started = run_script(folder / "run", LR="1e-2")
    return started.after("pretrain_gpt.py"), started.env


def losses(harness: Harness, folder: Path, model: str, gpus: int, fixed: str) -> list[float]:
    argv, env = exported(folder, model, gpus, fixed)
    kept = {name: env[name] for name in ("CUDA_DEVICE_MAX_CONNECTIONS",) if name in env}
    found = harness.ask(argv=[*argv, "--train-iters", str(STEPS)], env=kept, world=gpus)
    assert "error" not in found, found["error"]
    told: list[float] = found["loss"]
    return told


@pytest.fixture(scope="module")
def alone(training: Harness, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("alone")
    return {model: losses(training, folder / model, model, 1, "mbs=2 recompute=none") for model in MODELS}


@pytest.mark.parametrize(("model", "gpus", "fixed"), PLANS, ids=lambda value: str(value).replace("=", ""))
def test_same_loss(
    training: Harness, alone: dict[str, list[float]], tmp_path: Path, model: str, gpus: int, fixed: str
) -> None:
    assert losses(training, tmp_path, model, gpus, fixed) == pytest.approx(alone[model], rel=2e-5)


def test_plans_use_every_axis(tmp_path: Path) -> None:
    """What the losses above speak of is in the flags: layouts even, uneven and interleaved, and each axis."""
    said = [" ".join(exported(tmp_path / str(place), *plan)[0]) for place, plan in enumerate(PLANS)]
    layouts = {word for flags in said for word in re.findall(r"parallel-layout (\S+)", flags)}
    assert {"Et*2|t*2L", "Et*3|tL"} <= layouts
    assert any(layout.count("|") == 3 for layout in layouts)
    for flag in (
        "--tensor-model-parallel-size 2", "--sequence-parallel", "--use-distributed-optimizer",
        "--expert-model-parallel-size 2", "--recompute-granularity full", "--recompute-granularity selective",
        "--overlap-param-gather", "optim_grads ", "optim_grads_params",
    ):  # fmt: skip
        assert any(flag in flags for flags in said), flag
        assert not all(flag in flags for flags in said), flag


def test_the_script_itself_runs(tmp_path: Path) -> None:
    """As a user starts it: bash, torchrun, bf16; only the program it starts is ours."""
    if not ready("megatron"):
        pytest.skip(".venvs/megatron could not be made (see make test-frameworks)")
    exported(tmp_path, "dense", 2, "pp=2 vp=1 mbs=2")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "torchrun").write_text(f'#!/bin/sh\nexec {python_of("megatron")} -m torch.distributed.run "$@"\n')
    (tools / "torchrun").chmod(0o755)
    settings = {"PATH": f"{tools}:{os.environ['PATH']}", "MEGATRON_DIR": str(PROGRAM)}
    settings["MASTER_PORT"] = str(free_port())
    ended = subprocess.run(
        ["bash", str(tmp_path / "run" / "launch.sh"), "--train-iters", str(STEPS)],
        env=settings | {"LR": "1e-2", "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False, timeout=900, cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    measured = json.loads(next(line for line in ended.stdout.splitlines() if line.startswith('{"loss"')))
    assert (measured["world"], measured["microbatches"]) == (2, 4)
    assert len(measured["loss"]) == STEPS
    assert measured["loss"][-1] < measured["loss"][0]


def test_megatron_shards_gradients_and_weights_outside_pipelines_alone(training: Harness, tmp_path: Path) -> None:
    """Why plans have no ZeRO-2 or 3 in a pipeline: Megatron-FSDP's mesh of ranks has no room for stages."""
    argv, _ = exported(tmp_path, "dense", 4, "pp=2 vp=1 dp=2 zero=1 mbs=2")
    sharded = ["--use-megatron-fsdp", "--data-parallel-sharding-strategy", "optim_grads_params"]
    sharded += ["--ckpt-format", "fsdp_dtensor", "--train-iters", "1"]
    found = training.ask(argv=[*argv, *sharded], world=4)
    assert "_get_dp_tp_mesh" in found["error"]


def test_it_learns(alone: dict[str, list[float]]) -> None:
    assert all(steps[-1] < steps[0] - 0.3 for steps in alone.values())


def test_the_benchmark_of_exported_jobs_runs_dry(tmp_path: Path) -> None:
    if not ready("megatron"):
        pytest.skip(".venvs/megatron could not be made (see make test-frameworks)")
    made = tmp_path / "rows.json"
    command = [sys.executable, str(PROGRAM.parents[1] / "benchmarks" / "exported_jobs.py"), "--dry", "--steps", "5"]
    command += ["--only", "megatron", "--python", str(python_of("megatron")), "--out", str(made)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]
    (row,) = json.loads(made.read_text(encoding="utf-8"))["rows"]
    assert row["measured"]["loss"][-1] < row["measured"]["loss"][0]
    assert row["plan"]["step_s"] < row["predicted"]["step_s"]
