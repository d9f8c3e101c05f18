"""The layers of one pipeline stage as one tensor-parallel rank holds them, in plain torch. Tensors are [s, b, h]."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from astra.lab.rehearse import fabric
from astra.lab.rehearse.case import Case, padded_vocab
from astra.spec.model import ModelSpec

_EPS: Final = 1e-5
_ROTARY_BASE: Final = 500000.0


def received(case: Case, device: str) -> Any:
    """An activation, or its gradient, from the next rank: random, so that the GPU works as hard as it would."""
    strategy = case.strategy
    length = case.seq // (strategy.tp if strategy.sp else 1)
    tensor = torch.empty((length, strategy.mbs, case.model.hidden), dtype=torch.bfloat16, device=device)
    fabric.irecv(tensor)
    return tensor


@functools.cache
def _crossings(tp: int, sp: bool) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Into and out of a tensor-parallel region; each is the other's gradient. The network takes no time."""
    if tp == 1:
        return (lambda x: x), (lambda x: x)

    def gathered(x: Any) -> Any:
        whole = x.new_empty(x.shape[0] * tp, *x.shape[1:])
        dist.all_gather_into_tensor(whole, x.contiguous())
        return whole

    def scattered(x: Any) -> Any:
        part = x.new_empty(x.shape[0] // tp, *x.shape[1:])
        dist.reduce_scatter_tensor(part, x.contiguous())
        return part

    def same(x: Any) -> Any:  # an all-reduce in place, which takes no time here
        return x.view_as(x)

    into, out_of = (gathered, scattered) if sp else (same, same)

    class Enter(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return into(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return out_of(grads[0])

    class Leave(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return out_of(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return into(grads[0])

    return Enter.apply, Leave.apply


def attend(kernel: str, q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [b, heads, s, dim] by one of torch's fused kernels, or by that which it takes itself."""
    backends = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}
    with sdpa_kernel(backends[kernel]) if kernel in backends else contextlib.nullcontext():
        grouped = q.shape[1] != k.shape[1]
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)


def _core(case: Case, q: Any, k: Any, v: Any) -> Any:
    """Causal attention of [s, b, heads, dim]; gives [s, b, heads x dim]."""
    length, batch = q.shape[:2]
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k, v))
    return attend(case.attention, q, k, v).permute(2, 0, 1, 3).reshape(length, batch, -1)


def norm_of(model: ModelSpec, width: int, **where: Any) -> Any:
    """Torch's norm of the model's kind."""
    return (torch.nn.RMSNorm if model.norm == "rmsnorm" else torch.nn.LayerNorm)(width, eps=_EPS, **where)


def _linear(inputs: int, outputs: int, bias: bool, where: dict[str, Any]) -> Any:
    linear = torch.nn.Linear(inputs, outputs, bias=bias, **where)
    torch.nn.init.normal_(linear.weight, std=0.02)
    return linear


def _rotated(x: Any, table: Any) -> Any:
    first, second = x.chunk(2, -1)
    cos, sin = table
    return x * cos + torch.cat((-second, first), -1) * sin


def _again(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run now and once more in backward, keeping the arguments alone."""
    return checkpoint(function, *arguments, use_reentrant=False)


class _LayerModule(torch.nn.Module):
    """Attention and feed-forward, each with a norm before it and the residual around it."""

    def __init__(self, case: Case, where: dict[str, Any]) -> None:
        super().__init__()
        model, tp = case.model, case.strategy.tp
        self.case, self.dim = case, model.head_dim
        self.heads, self.kv_heads = model.heads // tp, max(model.kv_heads // tp, 1)
        self.enter, self.leave = _crossings(tp, case.strategy.sp)
        width, wide = self.heads * self.dim, (self.heads + 2 * self.kv_heads) * self.dim
        inner = model.ffn // tp
        self.norm1, self.norm2 = (norm_of(model, model.hidden, **where) for _ in range(2))
        self.qkv = _linear(model.hidden, wide, model.qkv_bias or model.mlp_bias, where)
        self.out = _linear(width, model.hidden, model.mlp_bias, where)
        self.up = _linear(model.hidden, inner * (2 if model.gated_mlp else 1), model.mlp_bias, where)
        self.down = _linear(inner, model.hidden, model.mlp_bias, where)
        self.qk_norms = torch.nn.ModuleList(
            norm_of(model, self.dim, **where) for _ in range(2 if model.qk_norm == "per_head" else 0)
        )

    def forward(self, x: Any, table: Any) -> Any:
        x = x + self.leave(self.out(self.attend(self.enter(self.norm1(x)), table)))
        return x + self.leave(self.down(self.activate(self.up(self.enter(self.norm2(x))))))

    def attend(self, x: Any, table: Any) -> Any:
        size = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = self.qkv(x).unflatten(-1, (-1, self.dim)).split(size, dim=2)
        if self.qk_norms:
            q, k = (norm(part) for norm, part in zip(self.qk_norms, (q, k), strict=True))
        if table is not None:
            q, k = _rotated(q, table), _rotated(k, table)
        core = functools.partial(_core, self.case)
        return _again(core, q, k, v) if self.case.strategy.recompute == "selective" else core(q, k, v)

    def activate(self, x: Any) -> Any:
        if not self.case.model.gated_mlp:
            return torch.nn.functional.gelu(x, approximate="tanh")
        gate, up = x.chunk(2, -1)
        return torch.nn.functional.silu(gate) * up


class StageModule(torch.nn.Module):
    """The rank's part of a stage, with random bf16 weights: the embedding on the first, the loss on the last."""

    def __init__(self, case: Case, device: str) -> None:
        super().__init__()
        where: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
        model, tp = case.model, case.strategy.tp
        rows = padded_vocab(model.vocab, tp) // tp
        self.case = case
        self.enter, self.leave = _crossings(tp, case.strategy.sp)
        self.layers = torch.nn.ModuleList(_LayerModule(case, where) for _ in range(case.chunk_layers[0]))
        first, last = case.stage == 0, case.stage == case.strategy.pp - 1
        self.embedding = torch.nn.Embedding(rows, model.hidden, **where) if first else None
        learned = first and model.learned_positions
        self.positions = torch.nn.Embedding(case.seq, model.hidden, **where) if learned else None
        self.norm = norm_of(model, model.hidden, **where) if last else None
        self.head = _linear(model.hidden, rows, False, where) if last else None
        if self.head is not None and self.embedding is not None and model.tied_embeddings:
            self.head.weight = self.embedding.weight
        self.table = None if model.learned_positions else _table(case, device)

    def forward(self, x: Any, labels: Any) -> Any:
        """Tokens or what the stage before sent; the loss or what is sent on."""
        if self.embedding is not None:
            x = self.embedding(x)
            if self.positions is not None:
                x = x + self.positions.weight.unsqueeze(1)
            x = self.leave(x)
        x = self.through(x)
        if self.head is None:
            return x
        logits = self.head(self.enter(self.norm(x)))
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())

    def through(self, x: Any) -> Any:
        """The layers, recomputed in backward as the case says."""
        strategy, layers = self.case.strategy, list(self.layers)
        if strategy.recompute != "full":
            return self.run(layers, x)
        size = strategy.recompute_layers if strategy.method == "uniform" else 1
        whole = len(layers) if strategy.method == "uniform" else min(strategy.recompute_layers, len(layers))
        for start in range(0, whole, size):
            x = _again(self.run, layers[start : min(start + size, whole)], x)
        return self.run(layers[whole:], x)

    def run(self, layers: Any, x: Any) -> Any:
        """Some layers, one after another."""
        for layer in layers:
            x = layer(x, self.table)
        return x


def _table(case: Case, device: str) -> tuple[Any, Any]:
    """Cosines and sines of rotary positions, [s, 1, 1, dim]."""
    dim = case.model.head_dim
    rates = _ROTARY_BASE ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(case.seq, device=device, dtype=torch.float32), rates).repeat(1, 2)
    cos, sin = (values.to(torch.bfloat16)[:, None, None] for values in (angles.cos(), angles.sin()))
    return cos, sin
