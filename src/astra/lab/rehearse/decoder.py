"""The layers of one stage as FSDP2 frameworks write them, after torchtitan 0.3's Llama: tensors are [b, s, h].

Queries, keys and values are three products, a gated layer has two; rotary positions are turned in fp32.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from astra.lab.rehearse import layers
from astra.lab.rehearse.case import Case
from astra.lab.rehearse.megatron_config import grouped_mm
from astra.spec.model import ModelSpec

_ROTARY_BASE: Final = 500000.0
_PRODUCT: Final = grouped_mm()


def _rotated(x: Any, table: Any) -> Any:
    """Positions turned in fp32: pairs of neighbours as complex numbers (Llama), or halves (Qwen)."""
    if not table.is_complex():
        cos, sin = table.chunk(2, -1)
        wide = x.float()
        first, second = wide.chunk(2, -1)
        return (wide * cos + torch.cat((-second, first), -1) * sin).type_as(x)
    turned = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2)) * table
    return torch.view_as_real(turned).flatten(3).type_as(x)


def rotary_table(case: Case, device: str) -> Any:
    """Of each position: unit numbers [1, s, 1, dim / 2], or with query and key norms cosines and sines."""
    dim = case.model.head_dim
    rates = _ROTARY_BASE ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim)
    angles = torch.outer(torch.arange(case.seq, device=device, dtype=torch.float32), rates)
    if case.model.qk_norm != "none":
        return torch.cat((angles.cos(), angles.cos(), angles.sin(), angles.sin()), -1)[None, :, None]
    return torch.polar(torch.ones_like(angles), angles)[None, :, None]


class _AttentionModule(torch.nn.Module):
    """Grouped queries, rotated, through torch's fused attention."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        model = case.model
        self.kernel, self.dim, self.rotary = case.attention, model.head_dim, not model.learned_positions
        width, narrow = model.heads * model.head_dim, model.kv_heads * model.head_dim
        self.wq, self.wk, self.wv = (
            torch.nn.Linear(model.hidden, size, bias=model.qkv_bias) for size in (width, narrow, narrow)
        )
        self.wo = torch.nn.Linear(width, model.hidden, bias=model.out_bias)
        self.norms = torch.nn.ModuleList(
            layers.norm_of(model, model.head_dim) for _ in range(2 if model.qk_norm == "per_head" else 0)
        )

    def forward(self, x: Any, table: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (-1, self.dim)) for layer in (self.wq, self.wk, self.wv))
        if len(self.norms):
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rotary:
            q, k = _rotated(q, table), _rotated(k, table)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return self.wo(layers.attend(self.kernel, q, k, v).transpose(1, 2).flatten(2))


def gated(gate: Any, up: Any) -> Any:
    """SwiGLU as torch writes it."""
    return torch.nn.functional.silu(gate) * up


class _Mlp(torch.nn.Module):
    """Gated by SiLU, or plain with GELU."""

    def __init__(self, model: ModelSpec, width: int) -> None:
        super().__init__()
        self.w1 = torch.nn.Linear(model.hidden, width, bias=model.mlp_bias)
        self.w2 = torch.nn.Linear(width, model.hidden, bias=model.mlp_bias)
        self.w3 = torch.nn.Linear(model.hidden, width, bias=model.mlp_bias) if model.gated_mlp else None

    def forward(self, x: Any) -> Any:
        if self.w3 is None:
            return self.w2(torch.nn.functional.gelu(self.w1(x), approximate="tanh"))
        return self.w2(gated(self.w1(x), self.w3(x)))


class _Experts(torch.nn.Module):
    """Every token to its best experts: sorted by expert, three grouped products, added up again."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        model, moe = case.model, case.model.moe
        assert moe is not None
        self.topk, self.experts = moe.topk, moe.experts
        self.gate = torch.nn.Linear(model.hidden, moe.experts, bias=False)
        self.w1, self.w3 = (torch.nn.Parameter(torch.empty(moe.experts, moe.ffn, model.hidden)) for _ in range(2))
        self.w2 = torch.nn.Parameter(torch.empty(moe.experts, model.hidden, moe.ffn))
        self.shared = _Mlp(model, moe.shared_ffn) if moe.shared_ffn else None

    def forward(self, x: Any) -> Any:
        flat = x.flatten(0, 1)
        scores = torch.softmax(self.gate(flat).float(), dim=1)
        weights, chosen = torch.topk(scores, self.topk, dim=1)
        order = torch.argsort(chosen.view(-1), stable=True)
        counts = torch.histc(chosen.view(-1).float(), bins=self.experts, min=0, max=self.experts)
        ends = torch.cumsum(counts, 0, dtype=torch.int32)
        token = (order // self.topk)[:, None].expand(-1, flat.shape[1])
        sent = torch.gather(flat, 0, token)
        sent = (sent.float() * weights.view(-1)[order][:, None]).to(flat.dtype)
        pair = (_PRODUCT(sent, weight.transpose(-2, -1), offs=ends) for weight in (self.w1, self.w3))
        inner = gated(*pair)
        done = _PRODUCT(inner, self.w2.transpose(-2, -1), offs=ends).to(flat.dtype)
        own = self.shared(flat) if self.shared is not None else torch.zeros_like(flat)
        return own.scatter_add(0, token, done).view_as(x)


class _BlockModule(torch.nn.Module):
    """Attention and feed-forward, each with a norm before it and the residual around it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        model = case.model
        self.norm1, self.norm2 = (layers.norm_of(model, model.hidden) for _ in range(2))
        self.attention = _AttentionModule(case)
        self.feed_forward = _Experts(case) if model.moe else _Mlp(model, model.ffn)

    def forward(self, x: Any, table: Any) -> Any:
        x = x + self.attention(self.norm1(x), table)
        return x + self.feed_forward(self.norm2(x))


class Decoder(torch.nn.Module):
    """A stage: the embedding on the first, norm and output on the last."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        model, first, last = case.model, case.stage == 0, case.stage == case.strategy.pp - 1
        self.embedding = torch.nn.Embedding(model.vocab, model.hidden) if first else None
        learned = first and model.learned_positions
        self.positions = torch.nn.Embedding(case.seq, model.hidden) if learned else None
        self.layers = torch.nn.ModuleList(_BlockModule(case) for _ in range(case.chunk_layers[0]))
        self.norm = layers.norm_of(model, model.hidden) if last else None
        self.head = torch.nn.Linear(model.hidden, model.vocab, bias=False) if last else None
        if self.head is not None and self.embedding is not None and model.tied_embeddings:
            self.head.weight = self.embedding.weight
        self.table = None  # made where the weights are

    def forward(self, x: Any) -> Any:
        """Tokens or what the stage before sent; logits or what is sent on."""
        if self.embedding is not None:
            x = self.embedding(x)
        if self.positions is not None:
            x = x + self.positions(torch.arange(x.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x, self.table)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits: Any, labels: Any) -> Any:
    """Cross-entropy of fp32 logits, as torchtitan writes it."""
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(0, 1))
