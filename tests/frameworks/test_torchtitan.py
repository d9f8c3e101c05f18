"""Exports through the real torchtitan: configuration, parallel dimensions, and the model of each stage on meta."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra.catalog.models import model as find_model
from astra.export import EXPORTERS
from astra.export.base import Launch, refusals
from astra.layers.weights import count
from astra.spec.model import ModelSpec
from tests.export.launching import given, run_script, write
from tests.frameworks.conftest import Harness

TITAN = EXPORTERS["torchtitan"]
CASES = [
    ("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3 overlap=grad,param"),
    ("llama-3.1-8b", "16xH100", "tp4 dp4 mbs2 sp zero3 reshard=never overlap=grad,param recompute=full"),
    ("llama-3.1-8b", "16xH100", "tp2 cp2 dp4 mbs1 sp zero3 overlap=grad,param"),
    ("llama-3.1-8b", "16xH100", "tp2 pp4 dp2 mbs1 sp zero3 reshard=never overlap=grad,param layers=7,9,9,7"),
    ("llama-3.1-8b", "16xH100", "pp4 vp2 dp4 mbs1 zero0 overlap=grad,p2p"),
    ("llama-3-8b", "16xH100", "dp16 mbs1 zero3 overlap=grad,param"),
    ("llama-3.1-70b", "64xH100", "tp8 pp2 dp4 mbs1 sp zero3 reshard=never overlap=grad,param schedule=gpipe"),
    ("qwen3-14b", "16xH100", "tp2 dp8 mbs1 sp zero3 overlap=grad,param"),
    ("qwen3-30b-a3b", "32xH100", "dp32 ep16 mbs1 zero3 overlap=grad,param"),
    (
        "deepseek-v3",
        "256xH100",
        "pp8 dp32 ep32 mbs1 zero3 reshard=never overlap=grad,param recompute=full layers=6,8*6,7",
    ),
    ("gpt-oss-20b", "16xH100", "dp16 ep8 mbs1 zero3 overlap=grad,param"),
]


def ranks(launch: Launch) -> list[int]:
    strategy = launch.strategy
    return sorted({0, launch.gpus - 1}) if strategy.pp > 1 else [0]


@pytest.mark.parametrize(("model", "gpus", "strategy"), CASES)
def test_accepted(torchtitan: Harness, tmp_path: Path, model: str, gpus: str, strategy: str) -> None:
    launch = given(model, gpus, strategy, batch=256, runtime="torchtitan")
    assert refusals(TITAN, launch) == []
    started = run_script(write(tmp_path, TITAN.files(launch)))
    assert started.env["PYTHONPATH"].split(":")[0] == str(tmp_path)
    verdict = torchtitan.ask(
        folder=str(tmp_path), argv=started.after("torchtitan.train"), world=launch.gpus, ranks=ranks(launch)
    )
    assert verdict["accepted"], verdict
    assert verdict["dp"] == launch.strategy.dp
    per_step = launch.microbatches if launch.strategy.pp == 1 else 1
    assert verdict["accumulation"] == per_step
    check_rope(verdict["rope"], launch.model)
    counts = count(find_model(model))
    for rank in verdict["ranks"].values():
        assert rank["whole"] == counts.total
        assert rank["parameters"] <= rank["whole"]
    if launch.strategy.pp > 1:
        pp, vp = launch.strategy.pp, launch.strategy.vp
        first, last = verdict["ranks"]["0"], verdict["ranks"][str(launch.gpus - 1)]
        assert first["layers"] == [launch.layers[chunk * pp] for chunk in range(vp)]
        assert last["layers"] == [launch.layers[chunk * pp + pp - 1] for chunk in range(vp)]


def check_rope(rope: dict[str, object], model: ModelSpec) -> None:
    """The model's rotary positions arrive in every layer, whatever the recipe's were."""
    assert model.rotary is not None
    assert rope["theta"] == model.rotary.base
    assert rope["scaling"] == {"llama3": "llama"}.get(model.rotary.scaling, model.rotary.scaling)
    if model.rotary.scaling == "llama3":
        assert rope["scaling_factor"] == model.rotary.factor
    if model.rotary.scaling == "yarn":
        assert (rope["rope_factor"], rope["beta_fast"]) == (model.rotary.factor, model.rotary.beta_fast)
        assert rope["truncate"] == model.rotary.rounded


QUANTISED = [
    ("llama-3.1-8b", "16xH100", "tp2 dp8 mbs1 sp zero3 overlap=grad,param", "fp8-rowwise", ["Float8Linear"]),
    ("llama-3.1-8b", "16xB200", "dp16 mbs1 zero3 overlap=grad,param", "mxfp8", ["MXFP8Linear"]),
    ("qwen3-30b-a3b", "32xH100", "dp32 ep16 mbs1 zero3 overlap=grad,param", "fp8-rowwise",
     ["Float8Linear", "Float8Grouped"]),
    ("qwen3-30b-a3b", "32xB200", "dp32 ep16 mbs1 zero3 overlap=grad,param", "mxfp8", ["MXFP8Linear", "MXFP8Grouped"]),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "strategy", "precision", "kinds"), QUANTISED)
def test_low_precision_is_its_converters(
    torchtitan: Harness, tmp_path: Path, model: str, gpus: str, strategy: str, precision: str, kinds: list[str]
) -> None:
    """torchtitan's own converters take the layers, and experts where there are any, and the model is built of them."""
    launch = given(model, gpus, strategy, batch=256, runtime="torchtitan", precision=precision)
    assert refusals(TITAN, launch) == []
    started = run_script(write(tmp_path, TITAN.files(launch)))
    arch = 10 if "B200" in gpus else 9
    verdict = torchtitan.ask(
        folder=str(tmp_path), argv=started.after("torchtitan.train"), world=launch.gpus, ranks=[0], arch=arch
    )
    assert verdict["accepted"], verdict
    assert list(verdict["quantised"]) == kinds
    assert min(verdict["quantised"].values()) >= launch.model.layers


def test_fine_tuning_starts_from_weights(torchtitan: Harness, tmp_path: Path) -> None:
    """Its own manager takes where they lie, and its checkpointer would stop where nothing is there."""
    launch = given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3", batch=256, runtime="torchtitan", task="finetune")
    assert refusals(TITAN, launch) == []
    started = run_script(write(tmp_path, TITAN.files(launch)), PRETRAINED_CHECKPOINT="/models/llama")
    env = {"PRETRAINED_CHECKPOINT": started.env["PRETRAINED_CHECKPOINT"]}
    verdict = torchtitan.ask(
        folder=str(tmp_path), argv=started.after("torchtitan.train"), world=launch.gpus, ranks=[0], env=env
    )
    assert verdict["accepted"], verdict
    assert verdict["starts_from"] == ["/models/llama", True, True]
