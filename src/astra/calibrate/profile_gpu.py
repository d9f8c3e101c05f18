"""Describe the GPU a measurement was made on, and watch its clocks while it works."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import threading
from typing import Any

_QUERY = "clocks.sm,clocks.mem,power.draw,temperature.gpu"


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
    }


def _ask(field: str) -> str | None:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "0"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def _number(text: str | None) -> float | None:
    with contextlib.suppress(TypeError, ValueError):
        return float(text or "")
    return None


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
