"""Kernels bound by memory.

t = kernels x s + bytes / (f x HBM rate). The fraction f of kernels that read and write each byte once is measured; data
that stays in the L2 cache between kernels is not credited, so no kernel beats the memory's data-sheet rate.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from astra.errors import InputError
from astra.operators.basis import basis, read_json
from astra.provenance import Source, Timed
from astra.spec.cluster import Device


def streaming(device: Device, *, nbytes: npt.ArrayLike, kernels: npt.ArrayLike) -> Timed:
    """Seconds of ``kernels`` memory-bound kernels that together read and write ``nbytes``."""
    entry, source = _entry(device)
    moved, launched = np.asarray(nbytes, np.float64), np.asarray(kernels, np.float64)
    if not (np.all(moved >= 0) and np.all(launched >= 0)):
        raise InputError("streaming", None, want="bytes and kernels at or above zero")
    seconds = moved / (entry["fraction"] * device.memory_bytes_per_s) + launched * entry["kernel_s"]
    return Timed(np.asarray(seconds, np.float64), np.full(np.shape(seconds), source, np.int8))


def _entry(device: Device) -> tuple[dict[str, Any], Source]:
    """The achieved fraction and the fixed time of a kernel on a device."""
    table = read_json("streaming.json")
    measured: dict[str, dict[str, Any]] = table["gpus"]
    found = basis(device, measured)
    if found is None:
        return table["default"], Source.ASSUMED
    return measured[found.gpu], found.source
