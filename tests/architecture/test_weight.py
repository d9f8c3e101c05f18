"""What importing astra and starting a command may load."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = (
    "rich",
    "torch",
    "scipy",
    "pandas",
    "sklearn",
    "matplotlib",
    "megatron",
    "starlette",
    "uvicorn",
    "pyarrow",
    "ray",
    "highspy",
)


def loaded(code: str) -> set[str]:
    """Top-level modules in a fresh interpreter after running some code."""
    report = "import json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, timeout=300
    )
    return set(json.loads(ended.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", ["astra", "astra.api", "astra.answer", "astra.cli"])
def test_imports_are_light(module: str) -> None:
    assert loaded(f"import {module}") & set(HEAVY) == set()


def test_starting_the_command_does_not_load_the_planner() -> None:
    found = loaded("import astra.cli; assert astra.cli.main(['--help']) == 0")
    assert "astra" in found
    assert found & {"numpy", *HEAVY} == set()


def test_json_output_needs_no_drawing() -> None:
    code = "import astra.cli; assert astra.cli.main(['catalog', 'gpus', '--json']) == 0"
    assert loaded(code) & set(HEAVY) == set()
