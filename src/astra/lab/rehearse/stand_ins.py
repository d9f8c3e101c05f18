"""Fused kernels as far as memory goes: what each keeps for backward. No kernel is chosen, nothing is computed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

Makes = Callable[..., tuple[Any, tuple[Any, ...]]]  # the output, and what is kept besides the inputs


@functools.cache
def _fused(makes: Makes) -> Any:
    """One kernel each way: it keeps its inputs and what ``makes`` says, and backward makes their gradients."""

    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            out, kept = makes(*inputs)
            ctx.save_for_backward(*inputs, *kept)
            ctx.inputs = len(inputs)
            return out

        @staticmethod
        def backward(ctx: Any, *_: Any) -> Any:
            return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[: ctx.inputs])

    return Fused


def _normed(x: Any, weight: Any) -> tuple[Any, tuple[Any, ...]]:
    return torch.empty_like(x), (x.new_empty(x.shape[:-1], dtype=torch.float32),)


def rms_norm(x: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """Torch's function of that name, as a GPU runs it; elsewhere torch would take it apart, and keep more."""
    return _fused(_normed).apply(x, weight)


def _gated(gate: Any, up: Any) -> tuple[Any, tuple[Any, ...]]:
    return torch.empty_like(gate), ()


def gated(gate: Any, up: Any) -> Any:
    """SwiGLU as a compiler makes it: the activation is made again in backward."""
    return _fused(_gated).apply(gate, up)


def _lost(logits: Any) -> tuple[Any, tuple[Any, ...]]:
    return logits.new_empty((), dtype=torch.float32), ()


def loss_of(logits: Any, _: Any) -> Any:
    """Cross-entropy as a compiler makes it: logits are kept as they come, statistics stay in registers."""
    return _fused(_lost).apply(logits)


def _latent(q: Any, k: Any, v: Any) -> tuple[Any, tuple[Any, ...]]:
    b, heads, s, _ = q.shape
    out = q.new_empty(b, s, heads, v.shape[3]).transpose(1, 2)
    return out, (out, q.new_empty(b, heads, s, dtype=torch.float32))


def attend(kernel: str, q: Any, k: Any, v: Any) -> Any:
    """Attention of [b, heads, s, dim] by the fused operator itself: choosing a kernel would ask for a GPU.

    With keys wider than values, as cuDNN runs it: inputs, output and one number a row are kept.
    """
    del kernel
    if q.shape[3] != v.shape[3]:
        return _fused(_latent).apply(q, k, v)
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True)[0]
