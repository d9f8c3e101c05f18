"""What is released: the wheel and the source archive are whole, and work in an empty environment, old and new.

Environments are made empty, with the oldest and the newest versions that ``pyproject.toml`` allows. ``ASTRA_PYTHONS``
names other interpreters (``/opt/python3.10:/opt/python3.12``); those of the path are found by themselves.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import astra
from tests.frameworks.install import PIP, VENVS, python_of, ready

ROOT = VENVS.parent
VERSIONS = ("3.10", "3.11", "3.12", "3.13")
OLDEST = {"numpy": "1.26.0", "msgspec": "0.18.6", "rich": "13.7.0"}
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("plan", "llama-2-7b", "--gpus", "16xH100", "--batch", "64", "--seq", "2048", "--out", "plan.json"),
    ("estimate", "llama-2-7b", "--gpus", "16xH100", "--batch", "64", "--seq", "2048", "--strategy", "tp2 dp8 mbs1 sp"),
    ("export", "plan.json", "--to", "megatron", "--out", "launch"),
    ("rent", "llama-3-8b", "--tokens", "1B", "--gpus", "H100", "--max-gpus", "8", "--batch", "64", "--seq", "2048"),
    ("trace", "plan.json", "--out", "step.svg"),
    ("catalog", "models"),
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the source archive of the working tree."""
    if not ready("release"):
        pytest.skip(".venvs/release could not be made (see make test-frameworks)")
    out = tmp_path_factory.mktemp("dist")
    _run([str(python_of("release")), "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)])
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


def _run(command: list[str], folder: Path = ROOT) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, f"{command}: {done.stderr[-2000:]}"
    return done.stdout


def _tracked(folder: str) -> set[str]:
    return {line for line in _run(["git", "ls-files", folder]).splitlines() if (ROOT / line).exists()}


def test_the_version_is_said_in_one_place(made: tuple[Path, Path]) -> None:
    assert made[0].name == f"astra_planner-{astra.__version__}-py3-none-any.whl"
    assert made[1].name == f"astra_planner-{astra.__version__}.tar.gz"
    assert re.search(rf"^version: {re.escape(astra.__version__)}$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert f"## [{astra.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(made: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(made[0]) as wheel:
        held = {name for name in wheel.namelist() if ".dist-info/" not in name}
        told = {name for name in wheel.namelist() if ".dist-info/" in name}
    assert held == {name.removeprefix("src/") for name in _tracked("src/astra")}
    assert any(name.endswith("licenses/LICENSE") for name in told)


def test_the_source_archive_makes_the_same_wheel(made: tuple[Path, Path], tmp_path: Path) -> None:
    with tarfile.open(made[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    assert _tracked("src") | {"README.md", "LICENSE", "pyproject.toml"} <= {
        str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()
    }
    _run(
        [str(python_of("release")), "-m", "build", "--no-isolation", "--wheel", "--outdir", str(tmp_path), str(source)]
    )
    (again,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(made[0]) as other:
        assert {item.filename: item.CRC for item in one.infolist()} == {
            item.filename: item.CRC for item in other.infolist()
        }


def _answers(python: Path, folder: Path) -> dict[str, Any]:
    """Run the commands from an empty folder; the plan without what differs by machine."""
    folder.mkdir()
    for words in COMMANDS:
        _run([str(python), "-m", "astra", *words], folder)
    plan: dict[str, Any] = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    del plan["search"]["seconds"], plan["search"]["strategies_per_s"]
    plan["launch"] = (folder / "launch" / "launch.sh").read_text(encoding="utf-8")
    return plan


def _installed(interpreter: str, wheel: Path, folder: Path, *pins: str) -> Path:
    """An empty environment with the wheel and what it needs."""
    _run([interpreter, "-m", "venv", str(folder)])
    python = folder / "bin" / "python"
    _run([str(python), "-m", "pip", "install", *PIP, str(wheel), *pins])
    _run([str(python), "-m", "pip", "check"])
    return python


@pytest.fixture(scope="module")
def newest(made: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("newest")
    return _answers(_installed(sys.executable, made[0], folder / "venv"), folder / "work")


def test_the_oldest_versions_answer_as_the_newest(
    made: tuple[Path, Path], newest: dict[str, Any], tmp_path: Path
) -> None:
    if sys.version_info >= (3, 13):
        pytest.skip("the oldest versions have no wheels for this Python")
    pins = [f"{name}=={version}" for name, version in OLDEST.items()]
    declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert all(f'"{name}>={version.removesuffix(".0")}' in declared for name, version in OLDEST.items())
    assert_alike(_answers(_installed(sys.executable, made[0], tmp_path / "venv", *pins), tmp_path / "work"), newest)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_supported_python_answers_alike(
    version: str, made: tuple[Path, Path], newest: dict[str, Any], tmp_path: Path
) -> None:
    interpreter = _interpreter(version)
    if interpreter is None:
        pytest.skip(f"there is no python{version} here")
    assert_alike(_answers(_installed(interpreter, made[0], tmp_path / "venv"), tmp_path / "work"), newest)


def _interpreter(version: str) -> str | None:
    """A Python of a version: named, on the path, or of pyenv, whose names on the path may lead nowhere."""
    named = [path for path in os.environ.get("ASTRA_PYTHONS", "").split(":") if path.endswith(version)]
    kept = sorted(map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}")))
    for path in (*named, shutil.which(f"python{version}"), *kept):
        if path and subprocess.run([path, "-c", "import venv"], capture_output=True, check=False).returncode == 0:
            return path
    return None


def assert_alike(one: Any, other: Any, path: str = "") -> None:
    """The same answer; figures up to the last digits, which depend on NumPy's version."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_alike(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for place, pair in enumerate(zip(one, other, strict=True)):
            assert_alike(*pair, f"{path}[{place}]")
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-9, abs=1e-12), path
    else:
        assert one == other, path
