"""Exports through the real DeepSpeed and Accelerate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from tests.export.launching import given, run_script, write
from tests.frameworks.conftest import Harness

ZERO = [
    "dp16 mbs1 zero0 overlap=grad",
    "dp16 mbs2 zero1 overlap=grad offload=optimizer",
    "dp16 mbs1 zero2 overlap=none recompute=full",
    "dp16 mbs4 zero3 overlap=grad,param",
    "tp2 dp8 mbs2 zero1 overlap=grad",
]
FSDP = [
    "dp16 mbs1 zero3 overlap=grad,param",
    "dp16 mbs2 zero2 overlap=grad,param recompute=full",
    "cp2 dp8 mbs1 zero3 overlap=grad,param",
]


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("strategy", ZERO)
def test_deepspeed(deepspeed: Harness, tmp_path: Path, strategy: str, precision: str) -> None:
    exporter = EXPORTERS["deepspeed"]
    launch = given("llama-2-7b", "16xH100", strategy, batch=128, precision=precision, runtime="deepspeed")
    assert refusals(exporter, launch) == []
    write(tmp_path, exporter.files(launch))
    started = run_script(tmp_path, TRAIN_SCRIPT="train me.py")
    arguments = started.after("train me.py")
    config = json.loads(Path(arguments[arguments.index("--deepspeed") + 1]).read_text(encoding="utf-8"))
    verdict = deepspeed.ask(deepspeed=config, world=launch.gpus)
    assert verdict["accepted"], verdict
    chosen = launch.strategy
    assert verdict["stage"] == chosen.zero
    assert verdict["micro_batch"] == chosen.mbs
    assert verdict["batch"] == 128
    assert verdict["accumulation"] == launch.microbatches
    assert verdict["offload"] == (chosen.offload == "optimizer")
    assert verdict["bf16"] == (precision == "bf16")
    assert verdict["gradients"] == precision
    if chosen.zero:
        assert verdict["overlap"] == ("grad" in chosen.overlap)


def test_deepspeed_still_refuses(deepspeed: Harness) -> None:
    verdict = deepspeed.ask(deepspeed={"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, world=16)
    assert not verdict["accepted"]


@pytest.mark.parametrize("strategy", FSDP)
def test_accelerate(deepspeed: Harness, tmp_path: Path, strategy: str) -> None:
    exporter = EXPORTERS["accelerate"]
    launch = given("llama-2-7b", "16xH100", strategy, batch=128, runtime="fsdp-eager")
    assert refusals(exporter, launch) == []
    write(tmp_path, exporter.files(launch))
    started = run_script(tmp_path, TRAIN_SCRIPT="train.py")
    verdict = deepspeed.ask(accelerate=started.argv[started.argv.index("--config_file") + 1])
    assert verdict["accepted"], verdict
    assert verdict["type"] == "FSDP"
    assert (verdict["processes"], verdict["machines"]) == (16, 2)
    assert verdict["fsdp"]["fsdp_reshard_after_forward"] is (launch.strategy.zero == 3)
    assert verdict["parallelism"]["parallelism_config_cp_size"] == launch.strategy.cp


def test_accelerate_still_refuses(deepspeed: Harness, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("distributed_type: FSDP\nno_such_key: 1\n", encoding="utf-8")
    assert not deepspeed.ask(accelerate=str(path))["accepted"]
