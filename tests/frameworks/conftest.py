"""Tests that need the real frameworks. They run under ``make test-frameworks``, which makes the environments."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.install import python_of, ready

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave these tests out of the plain test run."""
    if os.environ.get("ASTRA_FRAMEWORKS"):
        return
    skip = pytest.mark.skip(reason="real frameworks: run make test-frameworks")
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(skip)


class Harness:
    """A program in another environment that answers one JSON line with another."""

    def __init__(self, environment: str, program: str, **settings: str) -> None:
        if not ready(environment):
            pytest.skip(f".venvs/{environment} could not be made (see make test-frameworks)")
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115  # a pipe nobody reads would fill up
        self._process = subprocess.Popen(
            [str(python_of(environment)), str(HERE / program)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            env={**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1", **settings},
        )
        self.versions = self._read()
        print(f"\n{environment}: {self.versions}")

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._complaints.seek(0)
            raise RuntimeError(f"the harness ended: {self._complaints.read()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, **case: Any) -> dict[str, Any]:
        """One question and its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(case) + "\n")
        self._process.stdin.flush()
        return self._read()

    def close(self) -> None:
        """End the program."""
        self._process.kill()
        self._process.communicate()
        self._complaints.close()


@pytest.fixture(scope="session")
def megatron() -> Iterator[Harness]:
    harness = Harness("megatron", "megatron_harness.py")
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def torchtitan() -> Iterator[Harness]:
    harness = Harness("torchtitan", "torchtitan_harness.py")
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def deepspeed() -> Iterator[Harness]:
    harness = Harness("deepspeed", "deepspeed_harness.py", DS_ACCELERATOR="cpu")
    yield harness
    harness.close()


@pytest.fixture(scope="session")
def launchers() -> Iterator[Harness]:
    harness = Harness("launchers", "launchers_harness.py")
    yield harness
    harness.close()
