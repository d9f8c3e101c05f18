"""Layers of PyTorch operators that nobody fused, on one GPU: Megatron-LM 1.1.5 and Megatron-DeepSpeed without fusion.

Run on a GPU: ``python benchmarks/eager_layers.py eager_layers.json``. A layer is what those frameworks run unless told
otherwise: layer norm, products, scores masked in place on a view, softmax, dropout, bias, activation, residual, each a
kernel or more. Its time is told forward and backward, of the GPU by kind of kernel and of the host that issues it.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from typing import Any, NamedTuple

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    PARSER.add_argument("--device", default="cuda", help="cpu: tiny sizes, to see that it runs")
    ASKED = PARSER.parse_args()

import torch
import torch.nn.functional as F

LAYERS, WARM_S, CALLS = 4, 0.6, 5


class Shape(NamedTuple):
    """A layer as one tensor-parallel rank has it."""

    hidden: int
    heads: int
    seq: int
    tp: int
    batch: int
    precision: str  # fp16, bf16, or tf32: fp32 tensors
    dropout: float
    activation: str


class Layer(torch.nn.Module):
    """The products of one rank, without what they send."""

    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__()
        self.shape, self.local = shape, shape.heads // shape.tp
        self.width = shape.hidden // shape.heads
        inner = self.local * self.width
        self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(shape.hidden, device=device) for _ in range(2)])
        self.qkv = torch.nn.Linear(shape.hidden, 3 * inner, device=device)
        self.out = torch.nn.Linear(inner, shape.hidden, bias=False, device=device)
        self.out_bias = torch.nn.Parameter(torch.zeros(shape.hidden, device=device))
        ffn = 4 * shape.hidden // shape.tp
        self.up = torch.nn.Linear(shape.hidden, ffn, bias=False, device=device)
        self.up_bias = torch.nn.Parameter(torch.zeros(ffn, device=device))
        self.down = torch.nn.Linear(ffn, shape.hidden, bias=False, device=device)
        self.down_bias = torch.nn.Parameter(torch.zeros(shape.hidden, device=device))

    def attention(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        seq, batch, _ = x.shape
        q, k, v = self.qkv(x).view(seq, batch, self.local, 3 * self.width).chunk(3, dim=-1)
        together = (seq, batch * self.local, self.width)
        scores = torch.empty(batch * self.local, seq, seq, dtype=x.dtype, device=x.device)
        q, k, v = (part.reshape(together).transpose(0, 1) for part in (q, k, v))
        scores = torch.baddbmm(scores, q, k.transpose(1, 2), beta=0.0, alpha=self.width**-0.5)
        probabilities = scores.view(batch, self.local, seq, seq).masked_fill_(mask, -10000.0).softmax(dim=-1)
        if self.shape.dropout:
            probabilities = F.dropout(probabilities, self.shape.dropout)
        context = torch.bmm(probabilities.view(batch * self.local, seq, seq), v)
        context = context.view(batch, self.local, seq, self.width).permute(2, 0, 1, 3).contiguous()
        return self.out(context.view(seq, batch, -1))

    def added(self, x: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        x = x + bias
        return residual + (F.dropout(x, self.shape.dropout) if self.shape.dropout else x)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.added(self.attention(self.norms[0](x), mask), self.out_bias, x)
        inner = self.up(self.norms[1](x)) + self.up_bias
        inner = F.relu(inner) if self.shape.activation == "relu" else F.gelu(inner)
        return self.added(self.down(inner), self.down_bias, x)


KINDS = (
    ("gemm", ("gemm", "cutlass", "cublas", "nvjet", "sgemm", "s884", "s1688", "s16816")),
    ("softmax", ("softmax",)),
    ("dropout", ("dropout", "masked_scale", "bernoulli")),
    ("norm", ("layer_norm", "LayerNorm", "GammaBeta")),
    ("copy", ("copy", "Memcpy", "CatArray")),
    ("mask", ("masked_fill",)),
    ("reduce", ("reduce",)),
    ("elementwise", ("elementwise",)),
)


def kind_of(kernel: str) -> str:
    return next((kind for kind, words in KINDS if any(word in kernel for word in words)), "other")


def settled(call: Any, sync: Any) -> None:
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:
        call()
        sync()


def wall_s(call: Any, sync: Any) -> tuple[float, float]:
    """Of one call: until the GPU is done, and until the host is."""
    sync()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    issued = time.perf_counter()
    sync()
    return (time.perf_counter() - start) / CALLS, (issued - start) / CALLS


def by_kind(call: Any, sync: Any) -> tuple[dict[str, float], int]:
    """Seconds of the GPU by kind of kernel, and how many kernels."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        sync()
    found: defaultdict[str, float] = defaultdict(float)
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    for event in kernels:
        found[kind_of(event.name)] += event.self_device_time_total / 1e6
    return dict(found), len(kernels)


def measured(shape: Shape, device: str) -> dict[str, Any]:
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32}[shape.precision]
    sync = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    layers = [Layer(shape, device).to(dtype) for _ in range(LAYERS)]
    x = torch.randn(shape.seq, shape.batch, shape.hidden, device=device, dtype=dtype).requires_grad_()
    mask = torch.triu(torch.ones(1, 1, shape.seq, shape.seq, device=device, dtype=torch.bool), 1)
    gradient = torch.randn_like(x)
    parameters = [parameter for layer in layers for parameter in layer.parameters()]

    def forward() -> torch.Tensor:
        out = x
        for layer in layers:
            out = layer(out, mask)
        return out

    def both() -> None:
        torch.autograd.grad(forward(), [x, *parameters], gradient)

    settled(both, sync)
    forward_s, forward_host_s = wall_s(forward, sync)
    both_s, both_host_s = wall_s(both, sync)
    row = {
        "forward_s": forward_s, "both_s": both_s, "forward_host_s": forward_host_s, "both_host_s": both_host_s,
    }  # fmt: skip
    row = {name: seconds / LAYERS for name, seconds in row.items()}
    if device == "cuda":
        for name, call in (("forward", forward), ("both", both)):
            kinds, kernels = by_kind(call, sync)
            row |= {f"{name}_kernels": kernels / LAYERS}
            row |= {f"{name}_{kind}_s": seconds / LAYERS for kind, seconds in kinds.items()}
    return shape._asdict() | row


def shapes(device: str) -> list[Shape]:
    if device == "cpu":
        return [Shape(64, 4, 32, 1, 1, "tf32", 0.1, "gelu")]
    sizes = [(1024, 16, 1024, "fp16", 0.1, "gelu"), (1024, 16, 2048, "tf32", 0.0, "relu")]
    sizes += [(2560, 20, 2048, "tf32", 0.0, "gelu"), (1024, 16, 1024, "bf16", 0.1, "gelu")]
    found = [
        Shape(hidden, heads, seq, tp, batch, precision, dropout, activation)
        for hidden, heads, seq, precision, dropout, activation in sizes
        for tp in (1, 2, 4)
        for batch in (1, 4, 8)
        if hidden < 2000 or (tp, batch) in ((1, 1), (2, 1), (4, 1), (4, 4))
    ]
    tiny = [(precision, dropout) for precision in ("fp16", "tf32") for dropout in (0.0, 0.1)]
    return [Shape(1024, 16, 16, 1, 1, precision, dropout, "gelu") for precision, dropout in tiny] + found


def main() -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    device = ASKED.device
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    found: dict[str, Any] = {"gpu": name, "torch": torch.__version__, "rows": []}
    for shape in shapes(device):
        row = measured(shape, device)
        print(json.dumps(row), flush=True)
        found["rows"].append(row)
    with open(ASKED.out, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
