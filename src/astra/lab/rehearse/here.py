"""Rehearse cases on this machine in a process of their own: on its GPU, or without one by counting tensors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from astra.errors import AstraError, InputError
from astra.lab.rehearse.case import Case, as_row, write_cases

INSTALL: Final = {
    "megatron": "pip install 'astra-planner[rehearse]'; before Python 3.12 also "
    "pip install --no-deps --only-binary :all: --python-version 3.12 --ignore-requires-python --target DIR "
    "megatron-core==0.19.2 and put DIR on PYTHONPATH",
    "torch": "pip install torch",
    "transformers": "pip install torch transformers",
    "torchtitan": "pip install torch torchtitan==0.2.2",
}
_MODULES: Final = {
    "torch": "plain_torch",
    "fsdp2": "fsdp_rank",
    "transformers": "transformers_rank",
    "torchtitan": "titan_rank",
}
_NEEDED: Final = {"megatron": ("megatron-core", "megatron.core")} | {
    name: (name, name) for name in ("transformers", "torchtitan")
}
_MOST_TRIES: Final = 3


class RehearsalFailed(AstraError):
    """The framework could not be run at all; says its last words."""

    exit_code = 2


def gpu_here(framework: str = "megatron") -> str | None:
    """The name of the GPU of this machine, or None; what the framework needs must be there."""
    needs = framework if framework in _NEEDED else "torch"
    needed = [("torch", "torch"), *([_NEEDED[framework]] if framework in _NEEDED else [])]
    missing = [name for name, module in needed if not _there(module)]
    if missing:
        raise InputError(
            "rehearse",
            None,
            want=f"{' and '.join(missing)}, which this Python ({sys.executable}) does not have",
            fix=f"Nothing could be checked, neither memory nor time. Install: {INSTALL[needs]}.",
        )
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def run_on_gpu(cases: list[Case], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Rows of the cases, in order. A case that leaves memory behind, or dies, ends the process: another goes on."""
    with tempfile.TemporaryDirectory(prefix="astra-rehearse-") as folder:
        given, made = Path(folder) / "cases.json", Path(folder) / "rows.json"
        given.write_text(write_cases(cases), encoding="utf-8")
        command = [sys.executable, "-m", "astra.lab.rehearse.run", "--cases", str(given), "--out", str(made)]
        rows: dict[str, dict[str, Any]] = {}
        words = ""
        for _ in range(_MOST_TRIES * len(cases)):
            words = _run(command, say)
            found = json.loads(made.read_text(encoding="utf-8"))["rows"] if made.exists() else []
            rows = {row["id"]: row for row in found}
            if not made.exists() or all(case.id in rows for case in cases):
                break
    if not rows:
        raise RehearsalFailed(f"megatron-core could not be run: {words or 'it said nothing'}")
    lost = {"error": "it was not reached"}
    return [{**as_row(case), **rows.get(case.id, lost), "chunk_layers": case.chunk_layers} for case in cases]


def _run(command: list[str], say: Callable[[str], None]) -> str:
    """Run to the end, passing each line of output on; the last of what it complained of."""
    with tempfile.TemporaryFile("w+") as errors:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=_environment()) as child:
            for line in child.stdout or ():
                say(line.rstrip())
        errors.seek(0)
        return _last_line(errors.read())


def run_without_gpu(cases: list[Case]) -> list[dict[str, Any]]:
    """Rows of the cases by counting megatron-core's tensors, in order."""
    return _answers("fake", cases, "megatron-core")


def run_in_torch(cases: list[Case], framework: str, *, gpu: bool) -> list[dict[str, Any]]:
    """Rows of the cases in plain torch or FSDP2, on the GPU here or by counting tensors, in order."""
    hidden = {} if gpu else {"CUDA_VISIBLE_DEVICES": ""}
    return _answers(_MODULES[framework], cases, framework, **hidden)


def _answers(module: str, cases: list[Case], framework: str, **settings: str) -> list[dict[str, Any]]:
    """What a module that reads cases and writes rows says."""
    command, environment = [sys.executable, "-m", f"astra.lab.rehearse.{module}"], {**_environment(), **settings}
    ended = subprocess.run(
        command, input=write_cases(cases), capture_output=True, text=True, check=False, env=environment
    )
    try:
        rows = json.loads(ended.stdout)
    except ValueError:
        raise RehearsalFailed(f"{framework} could not be run: {_last_line(ended.stderr)}") from None
    return [{**row, "chunk_layers": case.chunk_layers} for case, row in zip(cases, rows, strict=True)]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else "it said nothing"


def _environment() -> dict[str, str]:
    """The child finds what this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
