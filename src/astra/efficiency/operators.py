"""Operator timing: what cost/ asks for. Formulas, data and guarantees are in docs/operators.md."""

from __future__ import annotations

from astra.efficiency.attention import KERNELS, attention, best_kernel
from astra.efficiency.basis import sustained
from astra.efficiency.gemm import gemm
from astra.efficiency.streaming import launch_s, streaming

__all__ = ["KERNELS", "attention", "best_kernel", "gemm", "launch_s", "streaming", "sustained"]
