"""Describe the GPU a measurement was made on, and watch its clocks while it works."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from astra.errors import InputError
from astra.lab.profile.plan import PACKAGES

_LONGEST_NAME: Final = 120  # letters of a kernel's name that are kept
_QUERY: Final = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


def require_gpu() -> None:
    """Say what is missing before anything is written."""
    if importlib.util.find_spec("torch") is None:
        fix = "Install it: pip install 'astra-planner[gpu]' (or pip install torch), on the machine with the GPU."
        raise InputError("profile", None, want=f"torch, which this Python ({sys.executable}) does not have", fix=fix)
    import torch

    if not torch.cuda.is_available():
        fix = "Run it on the machine with the GPU, with its driver and a torch built for CUDA (see pytorch.org)."
        raise InputError("profile", None, want=f"a CUDA GPU; torch {torch.__version__} sees none", fix=fix)


def describe_gpu(torch: Any) -> dict[str, Any]:
    """Name, memory, driver, libraries and clocks of GPU 0."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "l2_bytes": getattr(properties, "L2_cache_size", None),
        "driver": _ask("driver_version"),
        "power_limit_w": _number(_ask("power.limit")),
        "clocks": {"max_sm_mhz": _number(_ask("clocks.max.sm")), "max_mem_mhz": _number(_ask("clocks.max.mem"))},
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "gpus": torch.cuda.device_count(),
        "packages": packages(),
    }


def packages() -> dict[str, str | None]:
    """Versions of the packages whose kernels are measured too; None where one is not installed."""
    found: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for name in PACKAGES:
        if importlib.util.find_spec(name) is not None:
            with contextlib.suppress(ImportError, OSError):  # installed, but for another torch or GPU
                found[name] = str(getattr(importlib.import_module(name), "__version__", "unknown"))
    return found


def _ask(field: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "0"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def _number(text: str | None) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        return float(text or "")
    return None


# First match wins; attention kernels name their tile library too, so they come before the products.
_KINDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("attention", ("flash", "sdpa", "fmha", "mha_")),
    ("grouped_gemm", ("grouped", "group_gemm", "groupproblemshape")),
    ("gemm", ("nvjet", "gemm", "cutlass", "xmma", "cublas", "splitk")),
    ("compiled", ("triton",)),
    ("norm", ("rms_norm", "layer_norm", "layernorm", "gammabeta")),
    ("adam", ("multi_tensor", "adam")),
    ("random", ("distribution",)),
    ("copy", ("memcpy", "direct_copy", "copy_kernel", "catarray")),
    ("zero", ("memset", "fillfunctor")),
    ("index", ("index", "gather", "scatter", "embedding", "sort", "topk", "radix", "masked", "scan")),
    ("softmax", ("softmax",)),
    ("reduce", ("reduce", "norm")),
    ("elementwise", ("elementwise",)),
)


def kernel_kind(name: str) -> str:
    """The family of a kernel, from its name."""
    lower = name.lower()
    return next((kind for kind, marks in _KINDS if any(mark in lower for mark in marks)), "other")


def kernels_of(torch: Any, run: Callable[[], object], *, names: int = 0) -> dict[str, Any]:
    """Kernels launched by ``run`` and the seconds the GPU was busy with them, in all and by family.

    ``names`` adds so many kernels by name, those that took the most time first.
    """
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    kinds: dict[str, list[float]] = {}
    named: dict[str, list[float]] = {}
    for event in seen.profiler.kineto_results.events():
        if "CUDA" not in str(event.device_type()) or event.name().startswith("ProfilerStep"):
            continue
        seconds = event.duration_ns() / 1e9
        for total in (
            kinds.setdefault(kernel_kind(event.name()), [0, 0.0]),
            named.setdefault(event.name()[:_LONGEST_NAME], [0, 0.0]),
        ):
            total[0] += 1
            total[1] += seconds
    most = sorted(named.items(), key=lambda pair: -pair[1][1])[:names]
    return {
        "kernels": sum(int(count) for count, _ in kinds.values()),
        "busy_s": sum(seconds for _, seconds in kinds.values()),
        "busy_by_kind": {kind: [int(count), seconds] for kind, (count, seconds) in sorted(kinds.items())},
        **({"busy_by_name": {name: [int(count), seconds] for name, (count, seconds) in most}} if names else {}),
    }


class ClockWatch:
    """Samples clocks and power in the background, through one long-lived ``nvidia-smi``."""

    def __init__(self, period_ms: int = 100) -> None:
        self.samples: list[tuple[float, ...]] = []
        self._period_ms = period_ms
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ClockWatch:
        command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", "0"]
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                [*command, "-lms", str(self._period_ms)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            threading.Thread(target=self._read, daemon=True).start()
        return self

    def _read(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        for line in self._process.stdout:
            values = [_number(part) for part in line.split(",")]
            if len(values) == 4 and all(value is not None for value in values):
                self.samples.append(tuple(value for value in values if value is not None))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def mark(self) -> int:
        """A place in the samples, to summarise from later."""
        return len(self.samples)

    def summary(self, since: int = 0) -> dict[str, float] | None:
        """Median clocks, power and temperature since a mark; None if nothing was sampled."""
        seen = self.samples[since:]
        if not seen:
            return None
        names = ("sm_mhz", "mem_mhz", "power_w", "temperature_c")
        return {name: statistics.median(column) for name, column in zip(names, zip(*seen, strict=True), strict=True)}
