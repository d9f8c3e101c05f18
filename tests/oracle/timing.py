"""Operator times for tests: a roofline that needs no fitted data, and the fitted functions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from typing import Any

import numpy as np
import pytest

from astra.efficiency import operators
from astra.efficiency.attention import pairs
from astra.provenance import Source, Timed
from astra.spec.cluster import Device

FITTED = all(
    (files("astra.efficiency") / "data" / name).is_file() for name in ("gemm.json", "gemm.npz", "attention.json")
)
TIMINGS = ("roofline", "fitted") if FITTED else ("roofline",)


def gemm(device: Device, *, m: Any, n: Any, k: Any, precision: str, layout: str, groups: Any = 1) -> Timed:
    """The peak, or the memory, or the smallest kernel; a little slower for weight gradients."""
    m, n, k, groups = np.broadcast_arrays(*(np.asarray(size, np.float64) for size in (m, n, k, groups)))
    flops_s = 2 * groups * m * n * k / device.peak(precision) * (1.04 if layout == "wgrad" else 1.0)
    bytes_s = 2 * groups * (m * k + k * n + m * n) / device.memory_bytes_per_s
    return _timed(np.maximum(flops_s, bytes_s) + 2e-6)


def attention(device: Device, *, causal: bool, window: int | None, kernel: str, direction: str, **shape: Any) -> Timed:
    """The pairs of the mask at the peak; all pairs, and their scores in memory, where attention is not fused."""
    sizes = [np.asarray(shape[name], np.float64) for name in ("batch", "heads", "seq_q", "seq_kv", "head_dim")]
    batch, heads, rows, keys, dim = np.broadcast_arrays(*sizes)
    times = 2.5 if direction == "bwd" else 1.0
    seen = rows * keys if kernel == "unfused" else pairs(rows, keys, causal=causal, window=window)
    flops = 2 * times * batch * heads * seen * (dim + shape["head_dim_v"])
    scores_bytes = shape["softmax_bytes"] * batch * heads * rows * keys if kernel == "unfused" else 0.0
    return _timed(flops / device.peak(shape["precision"]) + scores_bytes / device.memory_bytes_per_s + 3e-6)


def _timed(seconds: Any) -> Timed:
    return Timed(seconds, np.full(np.shape(seconds), Source.ASSUMED, np.int8))


@contextmanager
def timing(name: str) -> Iterator[None]:
    """Operator times of one sort while the block runs."""
    with pytest.MonkeyPatch.context() as patch:
        if name == "roofline":
            patch.setattr(operators, "gemm", gemm)
            patch.setattr(operators, "attention", attention)
            patch.setattr(operators, "best_kernel", lambda device: "flash2")
        yield
