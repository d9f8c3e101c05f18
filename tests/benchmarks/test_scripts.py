"""Every script of benchmarks/ starts: what it imports is there, and it says how it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
SCRIPTS = sorted(path for path in FOLDER.rglob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_it_says_how_it_is_used(script: Path) -> None:
    done = subprocess.run([sys.executable, script, "--help"], check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage:")


def test_there_are_scripts() -> None:
    assert {"random_requests.py", "plan_speed.py", "run.py"} <= {script.name for script in SCRIPTS}
