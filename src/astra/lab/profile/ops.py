"""Time one row of a profile with torch, eagerly, as a training step would call it.

Random data, operands that rotate past the L2 cache, warm-up, the median of several, CUDA events.
"""

from __future__ import annotations

import functools
import importlib
import math
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

L2_SPAN_BYTES: Final = 256 << 20  # rotate over more than the cache holds
MAX_SETS: Final = 48
REPLAYS: Final = 5
TARGET_S: Final = 1.5e-3  # one timed batch of calls

Call = Callable[[], object]


def sets_for(nbytes: int) -> int:
    """How many operand sets make repeated calls miss the cache."""
    return max(1, min(MAX_SETS, math.ceil(L2_SPAN_BYTES / max(nbytes, 1))))


def gpu_seconds(torch: Any, calls: list[Call], *, graph: bool = True) -> float:
    """Median GPU seconds of one call, over calls that use different operands.

    With ``graph`` the calls are captured, so that short kernels are not hidden behind the host's launches. The
    current stream must then not be the default one (see ``own_stream``).
    """
    for call in calls[:2]:
        call()
    guess = _batch_seconds(torch, calls[:1], 1)
    count = max(1, min(200, round(TARGET_S / max(guess, 1e-6))))
    sequence = [calls[i % len(calls)] for i in range(max(count, len(calls) if guess < 1e-4 else 1))]
    if not graph:
        return statistics.median(_batch_seconds(torch, sequence, len(sequence)) for _ in range(REPLAYS))
    captured = _capture(torch, sequence)
    captured.replay()
    return statistics.median(_batch_seconds(torch, [captured.replay], len(sequence)) for _ in range(REPLAYS))


def _capture(torch: Any, sequence: list[Call]) -> Any:
    """The calls as one CUDA graph. Not torch.cuda.graph: that empties the allocator's cache each time."""
    captured = torch.cuda.CUDAGraph()
    torch.cuda.current_stream().synchronize()
    captured.capture_begin()
    try:
        for call in sequence:
            call()
    finally:
        captured.capture_end()
    return captured


def own_stream(torch: Any) -> Any:
    """A context with a stream of its own: work on the default stream cannot be captured."""
    return torch.cuda.stream(torch.cuda.Stream())


def _batch_seconds(torch: Any, sequence: list[Call], count: int) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for call in sequence:
        call()
    stop.record()
    stop.synchronize()
    return float(start.elapsed_time(stop)) / 1e3 / count


def host_seconds(torch: Any, call: Call, *, count: int = 3000) -> float:
    """Seconds the host needs to issue one call whose GPU work is negligible."""
    for _ in range(50):
        call()
    torch.cuda.synchronize()
    samples = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count // 5):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - began) / (count // 5))
    return statistics.median(samples)


Row = dict[str, Any]
_VOCAB: Final = 32768
_ROTARY_DIM: Final = 128
_NOT_CAPTURED: Final[set[str]] = set()

# Bytes moved per element of the operand (bf16 unless said), reads and writes of every eager kernel, and kernels.
_STREAMING: Final[dict[str, tuple[float, int]]] = {
    "copy": (4, 1),
    "residual_add": (6, 1),
    "cast_fp32": (6, 1),
    "accumulate_grad": (10, 1),  # fp32 += bf16
    "zero_fill": (4, 1),  # fp32 written
    "rmsnorm": (4, 1),
    "rmsnorm_bwd": (6, 2),
    "layernorm": (4, 1),
    "layernorm_bwd": (6, 2),
    "swiglu": (5, 2),  # per input element (two halves): silu, product
    "swiglu_bwd": (9, 4),
    "gelu": (4, 1),
    "gelu_bwd": (6, 1),
    "rotary": (20, 5),  # rotate half (copy), two products, one sum
    "cross_entropy": (14, 3),  # to fp32, log-softmax, gather
    "cross_entropy_bwd": (14, 3),
    "adam_fused": (28, 1),  # per fp32 parameter: p, g, m, v read; p, m, v written
    "adam_foreach": (76, 12),
    "te_rmsnorm": (4, 1),
    "te_rmsnorm_bwd": (6, 2),
}


def measure(torch: Any, row: Row) -> Row:
    """The row with its ``seconds``."""
    return _MEASURES[row["op"]](torch, row)


def _gemm(torch: Any, row: Row) -> Row:
    m, n, k = row["m"], row["n"], row["k"]
    if row["precision"] == "fp8":
        return {**row, "seconds": _fp8_gemm(torch, m, n, k)}
    count = sets_for(2 * (m * k + k * n + m * n))
    calls = [_gemm_call(torch, row["layout"], m, n, k) for _ in range(count)]
    return {**row, "seconds": gpu_seconds(torch, calls)}


def _gemm_call(torch: Any, layout: str, m: int, n: int, k: int) -> Call:
    def new(*size: int) -> Any:
        return torch.randn(size, dtype=torch.bfloat16, device="cuda")

    a = new(k, m).t() if layout == "wgrad" else new(m, k)
    b = new(n, k).t() if layout == "fwd" else new(k, n)
    out = new(m, n)
    return lambda: torch.mm(a, b, out=out)


def _fp8_gemm(torch: Any, m: int, n: int, k: int) -> float:
    kind = torch.float8_e4m3fn
    one = torch.ones((), dtype=torch.float32, device="cuda")

    def call() -> Call:
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).to(kind)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).to(kind).t()
        return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)

    return gpu_seconds(torch, [call() for _ in range(sets_for(m * k + k * n + 2 * m * n))])


def _attention(torch: Any, row: Row) -> Row:
    backward = row["direction"] == "bwd"
    run = _ATTENTION_CALLS.get(row["kernel"], _sdpa)(torch, row)

    def new(heads: int, seq: int, dim: int) -> Any:
        """[batch, seq, heads, dim], as a projection leaves it."""
        size = (row["batch"], seq, heads, dim)
        return torch.randn(size, dtype=torch.bfloat16, device="cuda", requires_grad=backward)

    def call() -> Call:
        q = new(row["heads"], row["seq_q"], row["head_dim"])
        k = new(row["kv_heads"], row["seq_kv"], row["head_dim"])
        v = new(row["kv_heads"], row["seq_kv"], row["head_dim_v"])
        if not backward:
            return lambda: run(q, k, v)
        out = run(q, k, v)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    nbytes = 2 * row["batch"] * row["seq_q"] * row["heads"] * row["head_dim"] * 3
    calls = [call() for _ in range(min(8, sets_for(nbytes)))]
    return {**row, **_graph_or_eager(torch, calls, f"{row['kernel']} {row['direction']}")}


def _sdpa(torch: Any, row: Row) -> Callable[..., Any]:
    """Torch's own, by one of its back ends, over views in [batch, heads, seq, dim] order."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = SDPBackend.CUDNN_ATTENTION if row["kernel"] == "cudnn" else SDPBackend.FLASH_ATTENTION
    grouped = row["heads"] != row["kv_heads"]

    def run(*operands: Any) -> Any:
        q, k, v = (x.transpose(1, 2) for x in operands)
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=row["causal"], enable_gqa=grouped
            )

    return run


def _flash_attn(package: str) -> Callable[[Any, Row], Callable[..., Any]]:
    """The flash-attn package (FlashAttention-2), or its Hopper version."""

    def make(torch: Any, row: Row) -> Callable[..., Any]:
        function = importlib.import_module(package).flash_attn_func

        def run(q: Any, k: Any, v: Any) -> Any:
            out = function(q, k, v, causal=row["causal"])
            return out[0] if isinstance(out, tuple) else out  # early versions also give the softmax's sums

        return run

    return make


def _transformer_engine(torch: Any, row: Row) -> Callable[..., Any]:
    """TransformerEngine's attention, by the kernel it picks itself."""
    engine = importlib.import_module("transformer_engine.pytorch")
    module: Callable[..., Any] = engine.DotProductAttention(
        row["heads"], (row["head_dim"], row["head_dim_v"]), num_gqa_groups=row["kv_heads"], qkv_format="bshd",
        attn_mask_type="causal" if row["causal"] else "no_mask", attention_dropout=0.0,
    )  # fmt: skip
    return module


_ATTENTION_CALLS: Final[dict[str, Callable[[Any, Row], Callable[..., Any]]]] = {
    "flash_attn": _flash_attn("flash_attn"),
    "flash_attn3": _flash_attn("flash_attn_interface"),
    "te": _transformer_engine,
}


def _graph_or_eager(torch: Any, calls: list[Call], kind: str) -> Row:
    """GPU time from a graph where such calls can be captured, else from plain launches."""
    if kind not in _NOT_CAPTURED:
        try:
            return {"timing": "graph", "seconds": gpu_seconds(torch, calls)}
        except RuntimeError:
            _NOT_CAPTURED.add(kind)  # a failed capture is costly: do not try this kind again
            torch.cuda.synchronize()
    return {"timing": "eager", "seconds": gpu_seconds(torch, calls, graph=False)}


def _streaming(torch: Any, row: Row) -> Row:
    name, elements = row["name"], row["elements"]
    per_element, kernels = _STREAMING[name]
    nbytes = int(per_element * elements)
    call = _STREAM_CALLS[name.removeprefix("adam_") if name.startswith("adam") else name.removesuffix("_bwd")]
    backward = name.endswith("_bwd")
    calls = [call(torch, elements, row["width"], backward) for _ in range(min(16, sets_for(nbytes)))]
    if name.startswith("adam"):  # its step counters live on the host
        timed = {"timing": "eager", "seconds": gpu_seconds(torch, calls, graph=False)}
    else:
        timed = _graph_or_eager(torch, calls, name)
    return {**row, "nbytes": nbytes, "kernels": kernels, **timed}


def _new(torch: Any, *size: int, grad: bool = False) -> Any:
    return torch.randn(size, dtype=torch.bfloat16, device="cuda", requires_grad=grad)


def _simple(make: Callable[[Any, Any, Any], Call]) -> Callable[..., Call]:
    """An operator without backward on two equal operands."""

    def call(torch: Any, elements: int, width: int, backward: bool) -> Call:
        return make(torch, _new(torch, elements // width, width), _new(torch, elements // width, width))

    return call


def _differentiable(apply: Callable[[Any, Any, Any], Any], weighted: bool = False) -> Callable[..., Call]:
    """An operator on one operand (and a weight vector), forward or backward."""

    def call(torch: Any, elements: int, width: int, backward: bool) -> Call:
        x = _new(torch, elements // width, width, grad=backward)
        weight = _new(torch, width, grad=backward) if weighted else None
        if not backward:
            return lambda: apply(torch, x, weight)
        out = apply(torch, x, weight)
        grad = torch.randn_like(out)
        inputs = (x, weight) if weighted else (x,)
        return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)

    return call


def _swiglu(torch: Any, x: Any, _: Any) -> Any:
    gate, up = torch.chunk(x, 2, -1)
    return torch.nn.functional.silu(gate) * up


def _rotary(torch: Any, x: Any, other: Any) -> Call:
    heads = x.view(-1, x.shape[-1] // _ROTARY_DIM, _ROTARY_DIM)
    cos, sin = (other[:, :_ROTARY_DIM].unsqueeze(1) for _ in range(2))

    def call() -> Any:
        first, second = torch.chunk(heads, 2, -1)
        return heads * cos + torch.cat((-second, first), -1) * sin

    return call


def _cross_entropy(torch: Any, elements: int, width: int, backward: bool) -> Call:
    logits = _new(torch, max(1, elements // _VOCAB), _VOCAB, grad=backward)
    labels = torch.randint(_VOCAB, (logits.shape[0],), device="cuda")

    def loss() -> Any:
        return torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")

    if not backward:
        return loss
    out = loss()
    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, (logits,), grad, retain_graph=True)


def _te_rmsnorm(torch: Any, elements: int, width: int, backward: bool) -> Call:
    norm = importlib.import_module("transformer_engine.pytorch").RMSNorm(width, params_dtype=torch.bfloat16)
    x = _new(torch, elements // width, width, grad=backward)
    if not backward:
        return lambda: norm(x)
    out = norm(x)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, (x, norm.weight), grad, retain_graph=True)


def _adam(kind: str) -> Callable[..., Call]:
    def call(torch: Any, elements: int, width: int, backward: bool) -> Call:
        parameter = torch.nn.Parameter(torch.randn(elements, device="cuda"))
        parameter.grad = torch.randn(elements, device="cuda")
        step: Call = torch.optim.AdamW([parameter], lr=1e-4, **{kind: True}).step
        return step

    return call


def _into_fp32(torch: Any, x: Any, other: Any) -> Call:
    total = torch.randn(x.shape, device="cuda")
    return functools.partial(total.add_, x)


def _zeros(torch: Any, x: Any, other: Any) -> Call:
    zero: Call = torch.empty(x.shape, device="cuda").zero_
    return zero


_STREAM_CALLS: Final[dict[str, Callable[..., Call]]] = {
    "copy": _simple(lambda torch, x, y: lambda: x.copy_(y)),
    "residual_add": _simple(lambda torch, x, y: lambda: x + y),
    "cast_fp32": _simple(lambda torch, x, y: x.float),
    "accumulate_grad": _simple(_into_fp32),
    "zero_fill": _simple(_zeros),
    "rmsnorm": _differentiable(lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-5), True),
    "layernorm": _differentiable(lambda torch, x, w: torch.nn.functional.layer_norm(x, w.shape, w, w, 1e-5), True),
    "swiglu": _differentiable(_swiglu),
    "gelu": _differentiable(lambda torch, x, w: torch.nn.functional.gelu(x, approximate="tanh")),
    "rotary": _simple(_rotary),
    "cross_entropy": _cross_entropy,
    "te_rmsnorm": _te_rmsnorm,
    "fused": _adam("fused"),
    "foreach": _adam("foreach"),
}


def _launch(torch: Any, row: Row) -> Row:
    x = _new(torch, 16, 64, grad=True)
    weight = _new(torch, 64, 64, grad=True)
    plain = torch.ones(1, device="cuda")
    left, right, out = (_new(torch, 64, 64) for _ in range(3))
    norm_weight = _new(torch, 64, grad=True)
    calls: dict[str, Call] = {
        "add_": lambda: plain.add_(1.0),
        "mm": lambda: torch.mm(left, right, out=out),
        "linear_fwd_bwd": lambda: torch.nn.functional.linear(x, weight).sum().backward(),
        "rmsnorm_fwd_bwd": lambda: torch.nn.functional.rms_norm(x, (64,), norm_weight).sum().backward(),
    }
    return {**row, "seconds": host_seconds(torch, calls[row["name"]])}


_MEASURES: Final[dict[str, Callable[[Any, Row], Row]]] = {
    "gemm": _gemm,
    "attention": _attention,
    "streaming": _streaming,
    "launch": _launch,
}
