"""Kernels of layers other than attention on one GPU: the state-space scan, the gated delta rule, experts with biases.

Run on a GPU: ``python benchmarks/scans.py scans.json``. Each kernel is the one frameworks run (mamba_ssm's Triton
scan, flash-linear-attention's chunked rule, Megatron-core's bias and activation of experts), forward and backward, the
GPU kept busy for a second first so that its clock has settled.
What cannot be imported is left out, with the reason.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    ASKED = PARSER.parse_args()

import torch

WARM_S, CALLS = 1.0, 20

Case = tuple[str, dict[str, int], Callable[[], Any], list[torch.Tensor]]


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> torch.Tensor:
    return (scale * torch.randn(shape, device="cuda")).to(dtype).requires_grad_()


def seconds(call: Callable[[], Any]) -> float:
    """The GPU's, of one call: the sum of its kernels, so that a slow host does not count."""
    start = time.perf_counter()
    while time.perf_counter() - start < WARM_S:
        call()
        torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return sum(event.self_device_time_total for event in kernels) / 1e6 / CALLS


def state_space() -> Iterator[Case]:
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined  # noqa: PLC0415

    for batch, seq, heads, width, groups, states, chunk in (
        (1, 8192, 64, 64, 8, 128, 128), (2, 8192, 64, 64, 8, 128, 128), (4, 8192, 64, 64, 8, 128, 128),
        (2, 8192, 128, 64, 8, 128, 128), (2, 4096, 128, 64, 8, 128, 128), (1, 8192, 16, 64, 1, 128, 128),
        (2, 8192, 64, 64, 8, 128, 256),
    ):  # fmt: skip
        x = random(batch, seq, heads, width)
        dt, a = random(batch, seq, heads, scale=0.1), (-torch.rand(heads, device="cuda")).requires_grad_()
        b, c = random(batch, seq, groups, states), random(batch, seq, groups, states)
        d, bias = random(heads, dtype=torch.float32), random(heads, dtype=torch.float32)
        sizes = {"batch": batch, "seq": seq, "heads": heads, "width": width, "groups": groups, "states": states}

        def call(
            x: Any = x, dt: Any = dt, a: Any = a, b: Any = b, c: Any = c, d: Any = d, bias: Any = bias, q: int = chunk
        ) -> Any:
            return mamba_chunk_scan_combined(x, dt, a, b, c, q, D=d, dt_bias=bias, dt_softplus=True)

        yield "state-space scan", sizes | {"chunk": chunk}, call, [x, dt, a, b, c, d, bias]


def delta_rule() -> Iterator[Case]:
    from fla.ops.gated_delta_rule.chunk import chunk_gated_delta_rule  # noqa: PLC0415

    for batch, seq, heads, width in ((1, 8192, 32, 128), (2, 8192, 32, 128), (4, 4096, 32, 128), (1, 8192, 8, 128)):
        q, k, v = (random(batch, seq, heads, width) for _ in range(3))
        g = (-torch.rand(batch, seq, heads, device="cuda")).requires_grad_()
        beta = torch.rand(batch, seq, heads, device="cuda").to(torch.bfloat16).requires_grad_()

        def call(q: Any = q, k: Any = k, v: Any = v, g: Any = g, beta: Any = beta) -> Any:
            return chunk_gated_delta_rule(q, k, v, g, beta, use_qk_l2norm_in_kernel=True)[0]

        yield "delta rule", {"batch": batch, "seq": seq, "heads": heads, "width": width}, call, [q, k, v, beta]


def experts() -> Iterator[Case]:
    from megatron.core.fusions.fused_bias_geglu import weighted_bias_quick_geglu_impl  # noqa: PLC0415
    from megatron.core.transformer.moe.experts import TEGroupedMLP  # noqa: PLC0415

    for tokens, width, local in ((65536, 2880, 16), (65536, 2880, 2), (16384, 2880, 16)):
        x, probability = random(tokens, width), random(tokens, 1, dtype=torch.float32)
        biases = [random(width) for _ in range(local)]
        split = [tokens // local] * local

        def bias(x: Any = x, p: Any = probability, biases: Any = biases, split: Any = split) -> Any:
            return TEGroupedMLP._apply_bias(x, biases, split, p)

        sizes = {"tokens": tokens, "width": width, "experts": local}
        yield "expert bias", sizes, bias, [x, probability, *biases]
        wide = random(tokens, 2 * width)

        def activation(x: Any = wide, p: Any = probability) -> Any:
            return weighted_bias_quick_geglu_impl(x, None, p, False, 1.0, 7.0)

        yield "clamped activation", sizes, activation, [wide, probability]


def main() -> None:
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}
    found |= {"rows": [], "left_out": {}}
    for family in (state_space, delta_rule, experts):
        try:
            for name, sizes, call, inputs in family():
                forward_s = seconds(lambda call=call: call())
                out = call()
                gradient = torch.randn_like(out)
                both = lambda out=out, inputs=inputs, gradient=gradient: torch.autograd.grad(  # noqa: E731
                    out, inputs, gradient, retain_graph=True
                )
                backward_s = seconds(both)
                row = {"kernel": name, **sizes, "forward_s": forward_s, "backward_s": backward_s}
                print(json.dumps(row), flush=True)
                found["rows"].append(row)
        except (ImportError, RuntimeError, AttributeError, TypeError) as error:  # noqa: PERF203
            found["left_out"][family.__name__] = f"{type(error).__name__}: {error}"[:400]
            print(family.__name__, found["left_out"][family.__name__], flush=True)
    with open(ASKED.out, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
