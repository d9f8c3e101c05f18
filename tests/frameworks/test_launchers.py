"""Launcher files through the real SkyPilot, Kubeflow and shellcheck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.quoting import yaml
from tests.export.hostile import HOSTILE, forged
from tests.export.launching import given, write
from tests.frameworks.conftest import Harness

PLANS = [
    ("llama-3.1-70b", "64xH100", "tp8 pp4 dp2 mbs1 sp zero1", {}),
    ("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3 overlap=grad,param", {"runtime": "torchtitan"}),
    ("llama-2-7b", "16xA100-80", "dp16 mbs1 zero3 overlap=grad,param", {"runtime": "deepspeed"}),
    ("mixtral-8x7b", "32xH200", "ep8 dp32 mbs1 zero1", {"node": "aws-p5en.48xlarge"}),
    ("llama-2-7b", "8xH100", "dp8 mbs1 zero1", {"node": "gcp-a3-highgpu-8g"}),
]


@pytest.mark.parametrize(("model", "gpus", "strategy", "request_"), PLANS)
def test_skypilot(
    launchers: Harness, tmp_path: Path, model: str, gpus: str, strategy: str, request_: dict[str, Any]
) -> None:
    launch = given(model, gpus, strategy, batch=256, **request_)
    exporter = EXPORTERS["skypilot"]
    assert refusals(exporter, launch) == []
    write(tmp_path, exporter.files(launch))
    verdict = launchers.ask(skypilot=str(tmp_path / "task.yaml"))
    assert verdict["accepted"], verdict
    assert verdict["nodes"] == launch.nodes
    assert list(verdict["accelerators"].values()) == [8]
    node = request_.get("node", "")
    if node:
        assert verdict["instance"] == node.partition("-")[2]


CLOUDS = [
    ("azure-nd96isr-h100-v5", "16xH100", {}),
    ("lambda-1cc-h100", "16xH100", {}),
    ("runpod-pod-h100", "8xH100", {}),
    ("oci-bm.gpu.h100.8", "16xH100", {"runtime": "pytorch"}),
    ("gcp-a3-highgpu-8g", "16xH100", {}),
    ("aws-p5.48xlarge", "16xH100", {}),
]


@pytest.mark.parametrize(("node", "gpus", "request_"), CLOUDS)
def test_every_cloud_can_do_what_its_task_asks(
    launchers: Harness, tmp_path: Path, node: str, gpus: str, request_: dict[str, Any]
) -> None:
    """SkyPilot's own check of features, which it makes before it asks a cloud for machines."""
    launch = given("llama-3.1-8b", gpus, f"dp{gpus.partition('x')[0]} mbs1 zero3", batch=256, node=node, **request_)
    exporter = EXPORTERS["skypilot"]
    assert refusals(exporter, launch) == []
    write(tmp_path, exporter.files(launch))
    verdict = launchers.ask(skypilot=str(tmp_path / "task.yaml"))
    assert verdict["accepted"], verdict


@pytest.mark.parametrize(("provider", "region"), [("AWS", "us-east-1"), ("Nebius", "eu-north1")])
def test_spot_machines_and_region_are_those_of_the_bill(
    launchers: Harness, tmp_path: Path, provider: str, region: str
) -> None:
    launch = given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3", batch=256)
    billed = launch.figures._replace(provider=provider, region=region, market="spot")
    write(tmp_path, EXPORTERS["skypilot"].files(launch._replace(figures=billed)))
    verdict = launchers.ask(skypilot=str(tmp_path / "task.yaml"))
    assert verdict["accepted"], verdict
    assert (verdict["cloud"], verdict["region"], verdict["spot"]) == (provider, region, True)


@pytest.mark.parametrize(("model", "gpus", "strategy", "request_"), PLANS)
def test_kubernetes(
    launchers: Harness, tmp_path: Path, model: str, gpus: str, strategy: str, request_: dict[str, Any]
) -> None:
    launch = given(model, gpus, strategy, batch=256, **request_)
    exporter = EXPORTERS["kubernetes"]
    assert refusals(exporter, launch) == []
    files = exporter.files(launch)
    write(tmp_path, files)
    verdict = launchers.ask(trainjob=str(tmp_path / "trainjob.yaml"))
    assert verdict["accepted"], verdict
    assert verdict["nodes"] == launch.nodes
    assert files["launch.sh"] in verdict["args"][0].replace("$$(", "$(")


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "slurm"])
def test_scripts_pass_shellcheck(launchers: Harness, tmp_path: Path, target: str) -> None:
    launch = given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero3 overlap=grad,param", batch=256)
    for name, text in EXPORTERS[target].files(launch).items():
        if text.startswith("#!"):
            write(tmp_path, {name: text})
            verdict = launchers.ask(shellcheck=str(tmp_path / name))
            assert verdict["accepted"], verdict["error"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(launchers: Harness, tmp_path: Path, name: str) -> None:
    launch = given("llama-3.1-8b", "16xH100", "dp16 mbs1 zero1", batch=256)
    launch = forged(launch, ("model", "name"), name=name)
    write(tmp_path, EXPORTERS["skypilot"].files(launch) | EXPORTERS["kubernetes"].files(launch))
    assert launchers.ask(skypilot=str(tmp_path / "task.yaml"))["accepted"]
    assert launchers.ask(trainjob=str(tmp_path / "trainjob.yaml"))["accepted"]


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "\ud800"])  # no character of YAML
def test_yaml_reads_back(launchers: Harness, name: str) -> None:
    value = {"a": name, name: [1, name, {"b": [name]}], "text": f"x {name}\ny\n", "empty": [], "none": None, "on": True}
    assert launchers.ask(yaml=yaml(value))["value"] == value
