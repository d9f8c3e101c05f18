"""What exported jobs print is read: Megatron's line of JSON, and the lines of a trainer of its own."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "exported_jobs.py"


@pytest.fixture(scope="module")
def script() -> Any:
    found = importlib.util.spec_from_file_location("exported_jobs", SCRIPT)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_line_of_json_is_read(script: Any) -> None:
    text = 'noise\n{"loss": [3.0, 2.0], "step_s": [9.0, 1.0], "peak_allocated_bytes": 5}\nmore\n'
    found = script.read(text)
    assert (found["loss"], found["steps_s"], found["peak_allocated_bytes"]) == ([3.0, 2.0], [9.0, 1.0], 5)


def test_lines_of_a_trainer_are_read(script: Any) -> None:
    line = "step {} loss {} norm 1.2345 {} s 65,536 tokens/s peak {} GiB"
    values = [(1, 11.5, 9.0, 1.5), (2, 11.0, 8.0, 2.0), (3, 10.5, 2.0, 2.0), (4, 10.0, 0.5, 2.0), (5, 9.5, 0.7, 2.0)]
    found = script.read("\n".join(line.format(*row) for row in values))
    assert found["loss"] == [11.5, 11.0, 10.5, 10.0, 9.5]
    assert found["step_s"] == pytest.approx(0.6)  # the first three are not counted
    assert found["peak_allocated_bytes"] == 2 * 2**30


def test_every_job_can_be_planned_and_said(script: Any) -> None:
    assert len({job for job in script.JOBS if job.target == "megatron"}) >= 3
    assert all("=" in word for word in script._known("megatron"))
