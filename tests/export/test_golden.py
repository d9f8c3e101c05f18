"""Exports of a dozen plans, kept as text. ``UPDATE_GOLDEN=1`` writes them anew: look at the difference first."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from astra.catalog.hardware import node_type
from astra.export import EXPORTERS
from astra.export.base import Launch, Mesh, refusals
from tests.export.launching import given, job_of

PLAINLY = "dispatch=alltoall"
GOLDEN = Path(__file__).parents[1] / "golden" / "export"
LONG = {"seq": 131072, "batch": 64}
TITAN, DEEPSPEED, FSDP = {"runtime": "torchtitan"}, {"runtime": "deepspeed"}, {"runtime": "fsdp-eager"}
PYTORCH = {"runtime": "pytorch", "tokens": 1e12}
ALL = "overlap=grad,param,tp,p2p"
DATA = "overlap=grad,param"
CASES: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "dense": ("llama-3.1-70b", "64xH100", f"tp8 pp4 dp2 mbs1 sp zero1 recompute=selective {DATA}", {}, "megatron"),
    "dense-bridge": ("llama-3.1-70b", "64xH100", f"tp8 pp4 dp2 mbs1 sp zero1 {DATA}", {}, "megatron-bridge"),
    "interleaved": ("llama-3.1-70b", "64xH100", f"tp8 pp4 vp5 dp2 mbs1 sp zero1 {ALL}", {}, "megatron"),
    "uneven": ("llama-3.1-70b", "64xH100", f"tp8 pp8 dp1 mbs1 sp zero1 layers=9,10*3,11*3,8 {DATA}", {}, "slurm"),
    "moe": ("mixtral-8x7b", "64xH100", f"tp2 pp4 ep8 dp8 mbs1 sp zero1 {DATA}", {}, "megatron"),
    "mla": ("deepseek-v3", "1024xH100", "tp1 pp16 ep64 dp64 mbs1 zero1 recompute=full layers=3,4*14,2", {}, "megatron"),
    "long-context": ("llama-3.1-8b", "64xH100", f"tp4 cp8 dp2 mbs1 sp zero1 recompute=full {DATA}", LONG, "megatron"),
    "fp8": ("llama-3.1-8b", "16xB200", "dp16 mbs1 zero1", {"precision": "fp8"}, "megatron"),
    "fsdp": ("llama-2-7b", "16xH100", "dp16 mbs1 zero3", {"tokens": 1e12}, "skypilot"),
    "titan": ("llama-3.1-8b", "16xH100", f"tp2 pp2 dp4 mbs1 sp zero3 reshard=never layers=15,17 {DATA}", TITAN,
              "torchtitan"),
    "titan-moe": ("qwen3-30b-a3b", "32xH100", "ep16 dp32 mbs1 zero3", TITAN, "torchtitan"),
    "pytorch": ("qwen3-8b", "16xH100", f"tp2 pp2 dp4 mbs1 sp zero3 layers=17,19 {DATA}", PYTORCH, "pytorch"),
    "offload": ("llama-2-13b", "8xA100-40", "dp8 mbs1 zero1 offload=optimizer overlap=grad", DEEPSPEED, "deepspeed"),
    "accelerate": ("llama-2-7b", "16xH100", "dp16 mbs2 zero3 recompute=full", FSDP, "accelerate"),
    "kubernetes": ("llama-2-7b", "16xH100", "dp16 mbs1 zero3", {"runtime": "deepspeed"}, "kubernetes"),
    "mixed": ("llama-3.1-8b", "16xH100", f"tp2 pp2 dp4 mbs1 sp zero1 layers=20,12 {DATA}", {}, "flagscale"),
    "mixed-megatron": ("llama-3.1-8b", "16xH100", f"tp2 pp3 dp4 mbs1 sp zero1 layers=14,8,10 {DATA}", {}, "megatron"),
    "mixed-slurm": ("mixtral-8x7b", "16xH100", f"tp2 pp2 ep4 dp4 sp zero1 {PLAINLY} layers=20,12 {DATA}", {}, "slurm"),
}  # fmt: skip


def launch_of(case: str) -> Launch:
    model, gpus, strategy, request, _ = CASES[case]
    launch = given(model, gpus, strategy, **({"batch": 1024, "seq": 4096} | request))
    if not case.startswith("mixed"):
        return launch
    first, other, large = (job_of(model, pool).pool for pool in ("8xH100", "8xA100-80", "16xA100-40"))
    if case == "mixed-megatron":  # a node of sixteen GPUs behind one of eight
        large = replace(large, node=node_type("gcp-a2-megagpu-16g"))
        return launch._replace(meshes=(Mesh(first, 2, 1, 1, 4, 1), Mesh(large, 2, 1, 1, 4, 2)))
    if case == "mixed-slurm":
        return launch._replace(meshes=(Mesh(first, 2, 1, 4, 4, 1), Mesh(other, 2, 1, 4, 4, 1)))
    return launch._replace(meshes=(Mesh(first, 4, 1, 1, 2, 1), Mesh(other, 8, 1, 1, 1, 1)))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str) -> None:
    exporter, launch = EXPORTERS[CASES[case][4]], launch_of(case)
    assert refusals(exporter, launch) == []
    files, folder = exporter.files(launch), GOLDEN / case
    if os.environ.get("UPDATE_GOLDEN"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
    kept = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert kept == files


def test_no_golden_is_left_over() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == set(CASES)
