"""A contributor's first day, on a copy of the package: one file and one line for each extension, then plan and report.

What CONTRIBUTING promises in its table. The copy runs in a process of its own, so that nothing leaks.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import astra

SOURCE = Path(astra.__file__).parent

FILES = {
    "catalog/data/devices/Toy9000.toml": """
name = "Toy9000"
vendor = "NVIDIA"
arch = "Hopper"
memory_bytes = 64e9
memory_bytes_per_s = 3e12
sms = 100
power_w = 500
host_bytes_per_s = 60e9
relative = "H100-SXM5-80GB"
aliases = ["T9"]
source = "a drill"
date = "2026-01-01"

[flops_per_s]
bf16 = 800e12
fp16 = 800e12
""",
    "catalog/data/nodes/toybox.toml": """
name = "toybox"
provider = "on-prem"
gpu = "Toy9000"
gpus = 4
default_for = ["Toy9000"]
source = "a drill"
date = "2026-01-01"

[[links]]
reach = 4
kind = "nvswitch"
bytes_per_s = 300e9
latency_s = 5e-6
source = "a drill"

[[links]]
reach = "any"
kind = "infiniband"
bytes_per_s = 25e9
latency_s = 2e-5
source = "a drill"
""",
    "catalog/data/models/toymodel.toml": """
layers = 12
hidden = 1024
ffn = 4096
heads = 16
kv_heads = 4
head_dim = 64
vocab = 32000
max_seq = 4096
source = "a drill"
date = "2026-01-01"
""",
    "schedule/toy.py": '''
"""All forwards, then all backwards, as GPipe, under another name."""

from dataclasses import replace

from astra.schedule import gpipe

SCHEDULE = replace(gpipe.SCHEDULE, name="toy")
''',
    "axes/toy.py": '''
"""Every layer tells the ranks of its context-parallel group something in forward."""

import numpy as np

from astra.axes.base import Axis, Send


def layer_sends(model, kind, shard):
    nbytes = 2.0 * shard.tokens * model.hidden
    return [Send("all_gather", nbytes, shard.cp, shard.tp, 1.0, 0.0)]


TOY = Axis(name="toy", title="a drill", degree="cp", layer_sends=layer_sends)
''',
}
LINES = {
    "schedule/registry.py": [
        ("from astra.schedule import gpipe,", "from astra.schedule import toy, gpipe,"),
        ("zbv.SCHEDULE\n)", "zbv.SCHEDULE, toy.SCHEDULE\n)"),
    ],
    "spec/strategy_fields.py": [('"zb", "zbv")', '"zb", "zbv", "toy")')],
    "axes/__init__.py": [
        ("from astra.axes.tp import TP", "from astra.axes.tp import TP\nfrom astra.axes.toy import TOY"),
        ("(TP, CP, EP)", "(TP, CP, EP, TOY)"),
    ],
    "space/rules.py": [
        ("RULES: Final = _rules(", 'RULES: Final = _rules(\n    ("toy", "the drill allows tp up to 4", "tp > 4"),'),
    ],
    # A runtime lists the schedules it can run: its file is its entry.
    "catalog/data/runtimes/megatron.toml": [('schedules = ["1f1b",', 'schedules = ["toy", "1f1b",')],
}
PROGRAM = """
import json, sys
import astra

asked = dict(gpus="16xT9", batch=64, seq=2048, top=5)
plan = astra.plan("toymodel", **asked)
wide = astra.estimate("toymodel", gpus="16xT9", batch=64, seq=2048, strategy="cp4 dp4 mbs1 zero1")
alone = astra.estimate("toymodel", gpus="16xT9", batch=64, seq=2048, strategy="dp16 mbs1 zero1")
split = astra.plan("toymodel", **asked, fix=["schedule=toy", "pp=4"])
broken = astra.estimate("toymodel", gpus="16xT9", batch=64, seq=2048, strategy="tp8 dp2 mbs1 sp zero1")
records = {"plan": plan, "wide": wide, "broken": broken, "alone": alone, "split": split}
told = {"text": str(plan), "html": plan._repr_html_(), "home": astra.__file__}
json.dump({name: record.to_dict() for name, record in records.items()} | told, sys.stdout)
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the extended copy answers."""
    home = tmp_path_factory.mktemp("drill")
    shutil.copytree(SOURCE, home / "astra", ignore=shutil.ignore_patterns("__pycache__", "*.csv.gz"))
    for name, text in FILES.items():
        (home / "astra" / name).write_text(text.lstrip(), encoding="utf-8")
    for name, changes in LINES.items():
        path = home / "astra" / name
        text = path.read_text(encoding="utf-8")
        for old, new in changes:
            assert text.count(old) >= 1, f"{name} has no {old!r}: CONTRIBUTING and this drill are out of date"
            text = text.replace(old, new, 1)
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM],
        env={**os.environ, "PYTHONPATH": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    assert answers["home"].startswith(str(home))
    return answers


def test_a_gpu_a_node_and_a_model(extended: dict[str, Any]) -> None:
    request = extended["plan"]["request"]
    assert (request["gpu"], request["node"], request["model"]) == ("Toy9000", "toybox", "toymodel")
    best = extended["plan"]["plans"][0]["estimate"]
    assert best["legal"]
    assert best["fits"]
    assert best["memory_usable_gib"] < 64e9 / 2**30
    assert best["provenance"]["gemm"] == "transferred"  # borrowed from its relative


def test_a_rule(extended: dict[str, Any]) -> None:
    refused = {reject["reason"]: reject for reject in extended["plan"]["rejects"]}
    assert refused["toy"]["sentence"] == "the drill allows tp up to 4"
    assert refused["toy"]["strategies"] > 0
    assert any("the drill allows tp up to 4" in sentence for sentence in extended["broken"]["violations"])
    assert not any(plan["strategy"].startswith(("tp8", "tp16")) for plan in extended["plan"]["plans"])


def test_a_schedule(extended: dict[str, Any]) -> None:
    plans = extended["split"]["plans"]
    assert plans
    for plan in plans:
        assert "schedule=toy" in plan["strategy"]
        assert plan["estimate"]["legal"]
        assert plan["estimate"]["bubble_fraction"] > 0
        assert plan["estimate"]["stages"][0]["in_flight"] == plan["estimate"]["microbatches"]  # as GPipe


def test_an_axis(extended: dict[str, Any]) -> None:
    wide, alone = extended["wide"], extended["alone"]
    assert wide["breakdown"]["toy communication"] > 0
    assert wide["stages"][0]["communication_s"]["toy"] > 0
    assert "toy" in wide["provenance"]
    assert alone["breakdown"]["toy communication"] == 0  # degree 1 is a no-op
    assert "toy" not in alone["provenance"]


def test_the_report_tells_of_them(extended: dict[str, Any]) -> None:
    assert "Toy9000" in extended["text"]
    assert "toymodel" in extended["html"]
    assert "the drill allows tp up to 4" in " ".join(extended["text"].split())


def test_degree_one_of_a_new_axis_changes_nothing(extended: dict[str, Any]) -> None:
    """The same estimate as the package without the axis gives, for the same hardware."""
    alone = extended["alone"]
    total = sum(seconds for cause, seconds in alone["breakdown"].items() if cause != "toy communication")
    assert total == pytest.approx(alone["step_s"])
