"""Exported torchtitan plans are executed: its own Trainer in CPU processes, and the loss and norm of one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.spec.strategy import parse_strategy
from tests.export.launching import given, run_script, write
from tests.frameworks.conftest import Harness

TITAN = EXPORTERS["torchtitan"]
STEPS = 3
ALONE = "mbs2 zero0 overlap=grad"
DENSE = [
    "dp2 mbs2 zero0 overlap=grad",
    "dp2 mbs2 zero3 overlap=grad,param",
    "dp2 mbs2 zero3 reshard=never overlap=grad,param recompute=full",
    "dp4 mbs1 zero3 shard2 overlap=grad,param",
    "tp2 mbs4 sp zero0 overlap=grad",
    "tp2 mbs4 zero0 overlap=grad",
    "pp2 mbs2 zero0 overlap=grad layers=15,17",
    "pp2 mbs2 zero0 overlap=grad schedule=gpipe recompute=full",
    "pp2 vp2 mbs1 zero0 overlap=grad,p2p",
    "tp2 dp2 mbs2 sp zero3 overlap=grad,param",
    "tp2 pp2 mbs2 sp zero0 overlap=grad",
    "pp2 dp2 mbs1 zero3 reshard=never overlap=grad,param",
]
ROUTED = ["dp2 ep2 mbs2 zero3 overlap=grad,param", "pp2 mbs2 zero0 overlap=grad"]


@pytest.fixture(scope="module")
def training() -> Iterator[Harness]:
    harness = Harness("torchtitan", "titan_training_harness.py")
    yield harness
    harness.close()


def trained(harness: Harness, folder: Path, model: str, strategy: str) -> dict[str, Any]:
    """What torchtitan logs of the steps of an exported plan."""
    gpus = parse_strategy(strategy).gpus
    launch = given(model, f"{gpus}xH100", strategy, batch=8, seq=32, runtime="torchtitan")
    assert refusals(TITAN, launch) == []
    started = run_script(write(folder, TITAN.files(launch)))
    found = harness.ask(folder=str(folder), argv=started.after("torchtitan.train"), world=gpus, steps=STEPS)
    assert "error" not in found, found["error"]
    # The plan's micro-batches and layers are what it trained with.
    assert found["accumulation"] == (launch.microbatches if launch.strategy.pp == 1 else 1)
    assert found["parts"] == list(launch.layers[launch.strategy.pp - 1 :: launch.strategy.pp])
    assert len(found["loss"]) == STEPS
    return found


@pytest.fixture(scope="module")
def alone(training: Harness, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("alone")
    return {model: trained(training, folder / model, model, ALONE) for model in ("llama-3.1-8b", "qwen3-30b-a3b")}


@pytest.mark.parametrize("strategy", DENSE)
def test_every_plan_trains_as_one_process_does(
    training: Harness, alone: dict[str, dict[str, Any]], tmp_path: Path, strategy: str
) -> None:
    found, wanted = trained(training, tmp_path, "llama-3.1-8b", strategy), alone["llama-3.1-8b"]
    assert found["loss"] == pytest.approx(wanted["loss"], rel=2e-6)
    assert found["norm"] == pytest.approx(wanted["norm"], rel=1e-5)


@pytest.mark.parametrize("strategy", ROUTED)
def test_experts_too(training: Harness, alone: dict[str, dict[str, Any]], tmp_path: Path, strategy: str) -> None:
    """Its experts multiply in bf16: sums in another order round otherwise, and Adam carries that on."""
    found, wanted = trained(training, tmp_path, "qwen3-30b-a3b", strategy), alone["qwen3-30b-a3b"]
    assert found["loss"][0] == pytest.approx(wanted["loss"][0], rel=2e-6)
    assert found["norm"][0] == pytest.approx(wanted["norm"][0], rel=1e-4)
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-3)


def test_it_learns(alone: dict[str, dict[str, Any]]) -> None:
    assert all(found["loss"][-1] < found["loss"][0] - 0.05 for found in alone.values())
