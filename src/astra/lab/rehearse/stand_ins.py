# Torch is imported where it is used: only a measurement may need it.
# ruff: noqa: PLC0415
# mypy: disable-error-code="import-not-found, import-untyped, misc"
"""Fused kernels as far as memory goes: what each keeps for backward. No kernel is chosen, nothing is computed."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def _norm_function() -> Any:
    """RMSNorm as a GPU runs it, in one kernel each way; elsewhere torch would take it apart, and keep more."""
    import torch

    class FusedNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            x, weight, _ = ctx.saved_tensors
            return torch.empty_like(x), torch.empty_like(weight)

    return FusedNorm


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Torch's function of that name, as a GPU runs it."""
    return _norm_function().apply(x, weight)


@functools.cache
def _gated_function() -> Any:
    """SwiGLU as a compiler makes it, one kernel each way: the activation is made again in backward."""
    import torch

    class FusedGate(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, gate: Any, up: Any) -> Any:
            ctx.save_for_backward(gate, up)
            return torch.empty_like(gate)

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors)

    return FusedGate


def gated(gate: Any, up: Any) -> Any:
    """SwiGLU in one kernel each way."""
    return _gated_function().apply(gate, up)


@functools.cache
def _loss_function() -> Any:
    """Cross-entropy as a compiler makes it: logits are kept as they come, statistics stay in registers."""
    import torch

    class FusedLoss(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Any) -> Any:
            ctx.save_for_backward(logits)
            return logits.new_empty((), dtype=torch.float32)

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return torch.empty_like(ctx.saved_tensors[0])

    return FusedLoss


def loss_of(logits: Any, _: Any) -> Any:
    """Cross-entropy in one kernel each way."""
    return _loss_function().apply(logits)


@functools.cache
def _latent_function() -> Any:
    """Attention with keys wider than values, as cuDNN runs it: inputs, output and one number a row are kept."""
    import torch

    class LatentAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Any, k: Any, v: Any) -> Any:
            b, heads, s, _ = q.shape
            out = q.new_empty(b, s, heads, v.shape[3]).transpose(1, 2)
            ctx.save_for_backward(q, k, v, out, q.new_empty(b, heads, s, dtype=torch.float32))
            return out

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])

    return LatentAttention


def attend(kernel: str, q: Any, k: Any, v: Any) -> Any:
    """Attention of [b, heads, s, dim] by the fused operator itself: choosing a kernel would ask for a GPU."""
    import torch

    del kernel

    if q.shape[3] != v.shape[3]:
        return _latent_function().apply(q, k, v)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
