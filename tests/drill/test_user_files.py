"""A user's own GPU, server, model and rules, from files, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astra.cli import main

CLUSTER = """
[[pool]]
gpu = "Mine-1"
node = "rack-of-mine"
count = 8

[[gpu]]
name = "Mine-1"
vendor = "Us"
arch = "Homegrown"
memory_bytes = 100e9
memory_bytes_per_s = 2e12
sms = 64
power_w = 400
host_bytes_per_s = 5e10

[gpu.flops_per_s]
bf16 = 500e12

[[node]]
name = "rack-of-mine"
gpu = "Mine-1"
gpus = 4

[[node.links]]
reach = 4
kind = "pcie"
bytes_per_s = 50e9
latency_s = 1e-5

[[node.links]]
reach = "any"
kind = "tcp"
bytes_per_s = 5e9
latency_s = 5e-5
"""
MODEL = """
layers = 6
hidden = 768
ffn = 3072
heads = 16
kv_heads = 16
head_dim = 48
vocab = 50257
max_seq = 2048
tied_embeddings = true
"""
RULES = 'near: tp > gpus_per_node   # our cables are slow\nno_full: recompute == "full"\n'


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    texts = {"cluster.toml": CLUSTER, "small.toml": MODEL, "rules.txt": RULES}
    for name, text in texts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return {name: tmp_path / name for name in texts}


def test_plan_and_report_from_files(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(files["small.toml"]), "--cluster", str(files["cluster.toml"]), "--batch", "64"]
    command += ["--seq", "1024", "--rules", str(files["rules.txt"]), "--tokens", "10B"]
    assert main([*command, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["request"]["gpu"] == "Mine-1"
    assert record["request"]["model"] == "small"
    for plan in record["plans"]:
        assert plan["estimate"]["legal"]
        assert "recompute=full" not in plan["strategy"]
        assert plan["estimate"]["provenance_worst"] == "assumed"  # nobody has measured this GPU
        assert plan["estimate"]["train_days"] > 0
        assert plan["estimate"]["train_usd"] is None  # and nobody has said what it costs
    reasons = {reject["reason"]: reject["sentence"] for reject in record["rejects"]}
    assert reasons["near"] == "our cables are slow"
    assert main([*command, "-v"]) == 0
    shown = capsys.readouterr().out
    assert "Mine-1" in shown
    assert "our cables are slow" in " ".join(shown.split())


def test_strict_refuses_what_nobody_has_measured(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", str(files["small.toml"]), "--cluster", str(files["cluster.toml"]), "--batch", "64", "--strict"]
    assert main(command) == 4
    assert "no measurement covers" in " ".join(capsys.readouterr().err.split())


def test_a_price_of_ones_own(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    priced = CLUSTER.replace("count = 8", "count = 8\nusd_per_gpu_h = 2.5")
    files["cluster.toml"].write_text(priced, encoding="utf-8")
    command = ["plan", str(files["small.toml"]), "--cluster", str(files["cluster.toml"]), "--batch", "64"]
    assert main([*command, "--tokens", "10B", "--json", "--top", "1"]) == 0
    estimate = json.loads(capsys.readouterr().out)["plans"][0]["estimate"]
    assert estimate["train_usd"] == pytest.approx(8 * 2.5 * 24 * estimate["train_days"])
