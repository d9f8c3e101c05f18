"""The documented install of the rehearsal is enough: an empty environment, the extra, and a rank that is counted."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from astra.lab.rehearse.here import INSTALL
from tests.frameworks.install import python_of, ready
from tests.frameworks.test_training import TINY

DOCS = Path(__file__).parents[2] / "docs" / "rehearsal.md"


def run(*words: str) -> str:
    """The command line of that environment, which sees nothing of this one."""
    command = [str(python_of("rehearse")), "-m", "astra", *words]
    settings = {**os.environ, "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=settings)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout


def test_it_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    if not ready("rehearse"):
        pytest.skip(".venvs/rehearse could not be made (see make test-frameworks)")
    (tmp_path / "config.json").write_text(json.dumps(TINY), encoding="utf-8")
    plan = str(tmp_path / "plan.json")
    words = ("--gpus", "4xH100", "--batch", "8", "--seq", "32", "--fix", "pp=2", "--out", plan, "--quiet")
    run("plan", str(tmp_path / "config.json"), *words)
    found = json.loads(run("rehearse", plan, "--json"))
    assert len(found["stages"]) == 2
    assert all(stage["measured"]["peak_allocated_gib"] > 0 for stage in found["stages"])


def test_what_is_said_is_what_was_installed() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for told in (text, INSTALL["megatron"]):
        assert "'astra-planner[rehearse]'" in told
        assert "pip install torch, then" not in told
        assert "--python-version 3.12 --ignore-requires-python --target DIR megatron-core==0.19.2" in told
