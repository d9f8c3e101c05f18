"""Operator timing: what cost/ asks for. Formulas, data and guarantees are in docs/operators.md."""

from __future__ import annotations

from astra.operators.attention import FP8_KERNELS, KERNELS, attention, best_kernel
from astra.operators.basis import sustained
from astra.operators.gemm import gemm
from astra.operators.streaming import launch_s, streaming

__all__ = ["FP8_KERNELS", "KERNELS", "attention", "best_kernel", "gemm", "launch_s", "streaming", "sustained"]
