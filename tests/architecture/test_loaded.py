"""What a plan loads: no drawing, no planner of several pools for one of them, no reader of prices without a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import astra

PLAN = "astra.plan('llama-2-7b', gpus={gpus!r}, batch=64, seq=2048)"
DRAWING = ("astra.report", "rich", "astra.cli")
OTHERS = ("astra.search.fleet", "astra.partition.solve", "astra.cost.mixed", "astra.search.front")


def loaded(code: str) -> set[str]:
    words = [sys.executable, "-c", f"import sys, astra; {code}; print(*sys.modules)"]
    return set(subprocess.run(words, check=True, capture_output=True, text=True).stdout.split())


def within(modules: set[str], packages: tuple[str, ...]) -> list[str]:
    return sorted(name for name in modules if any(name == one or name.startswith(f"{one}.") for one in packages))


def test_one_pool_does_without_drawing_and_without_other_planners() -> None:
    assert within(loaded(PLAN.format(gpus="16xH100")), (*DRAWING, *OTHERS, "astra.catalog.huggingface")) == []


def test_several_pools_do_without_drawing() -> None:
    modules = loaded(PLAN.format(gpus=["8xH100", "8xA100-80"]))
    assert within(modules, DRAWING) == []
    assert "astra.search.fleet" in modules


def test_a_verb_loads_no_other() -> None:
    modules = loaded("from astra.cli import parser; parser.parse(['model', 'llama-2-7b'])")
    assert within(modules, ("astra.cli",)) == [
        f"astra.cli{one}" for one in ("", ".model", ".options", ".output", ".parser")
    ]


def test_importing_astra_loads_next_to_nothing() -> None:
    source = str(Path(astra.__file__).parents[1])
    code = f"import sys; sys.path.append({source!r}); known = set(sys.modules); import astra"
    words = [sys.executable, "-I", "-S", "-c", f"{code}; print(*sorted(set(sys.modules) - known))"]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout.split() == ["__future__", "astra"]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="threads are counted on Linux alone")
def test_the_command_line_starts_no_threads() -> None:
    code = (
        "import os, astra.cli; astra.cli.main(['--version']); import numpy; print(len(os.listdir('/proc/self/task')))"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    words = [sys.executable, "-c", code]
    said = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
    assert said.split()[-1] == "1"
