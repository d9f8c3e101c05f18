"""How fast one GPU runs each kind of work for a moment, for long and beside others: its clock under the power cap.

Run on a GPU: ``python benchmarks/power.py power.json``. Each case is timed cold (a few milliseconds after a second of
rest) and over the second half of twelve seconds, with the clock and the power the driver reports meanwhile. Data are
random normal numbers, because a GPU draws less power on zeros. Needs torch and nvidia-smi, nothing of Astra.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

if __name__ == "__main__":  # --help answers where there is no torch
    PARSER = argparse.ArgumentParser(description=__doc__)
    PARSER.add_argument("out", help="file to write")
    ASKED = PARSER.parse_args()

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

RUN_S, KEPT_S, REST_S = 12.0, 6.0, 1.0
SLICE_S = 2e-3  # length of one kind's turn in a mix: far below the time in which the clock follows the power


class Work(NamedTuple):
    """One kind of work, repeated; ``amount`` is FLOPs or bytes of one call."""

    name: str
    kind: str  # gemm, attention, stream
    amount: float
    call: Callable[[], Any]


def gemm(m: int, n: int, k: int) -> Work:
    a, b = (
        torch.randn(m, k, device="cuda", dtype=torch.bfloat16),
        torch.randn(k, n, device="cuda", dtype=torch.bfloat16),
    )
    return Work(f"gemm bf16 {m}x{n}x{k}", "gemm", 2.0 * m * n * k, lambda: torch.matmul(a, b))


def gemm_fp8(m: int, n: int, k: int, *, rowwise: bool) -> Work:
    a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn).t()
    scale_a = torch.ones(m, 1, device="cuda") if rowwise else torch.ones((), device="cuda")
    scale_b = torch.ones(1, n, device="cuda") if rowwise else torch.ones((), device="cuda")

    def call() -> Any:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)

    return Work(f"gemm fp8 {'rowwise' if rowwise else 'tensorwise'} {m}x{n}x{k}", "gemm", 2.0 * m * n * k, call)


def attention(tokens: int, heads: int, size: int, backend: SDPBackend, *, backward: bool) -> Work:
    shape = (max(1, 16384 // tokens), heads, tokens, size)
    q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    flops = 2.0 * shape[0] * heads * tokens * tokens * size  # two products, half of the scores masked
    name = f"attention {backend.name.lower().removesuffix('_attention')} {tokens}x{heads}x{size}"
    with sdpa_kernel(backend):
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)

    def forward() -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def back() -> Any:
        return torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

    return Work(
        name + (" backward" if backward else ""),
        "attention",
        flops * (2.5 if backward else 1),
        back if backward else forward,
    )


def stream(elements: int) -> Work:
    x, y = (torch.randn(elements, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return Work(f"stream add {elements}", "stream", 6.0 * elements, lambda: torch.add(x, y, out=x))


@contextmanager
def driver_readings() -> Iterator[list[tuple[float, float, float]]]:
    """(time, MHz, W) ten times a second while the block runs."""
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw.instant", "--format=csv,noheader,nounits", "-lms", "100"]
    readings: list[tuple[float, float, float]] = []
    with subprocess.Popen(query, stdout=subprocess.PIPE, text=True) as process:

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                clock, power = line.split(",")
                readings.append((time.perf_counter(), float(clock), float(power)))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield readings
        finally:
            process.terminate()
            thread.join()


def seconds(call: Callable[[], Any], repeats: int) -> float:
    """Mean seconds of a call on the GPU."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000 / repeats


def burst_s(work: Work) -> float:
    """One call after a rest: the median of five moments of a few milliseconds each."""
    work.call()
    torch.cuda.synchronize()
    once = seconds(work.call, 3)
    repeats = max(1, round(5e-3 / once))
    moments = []
    for _ in range(5):
        time.sleep(REST_S / 2)
        moments.append(seconds(work.call, repeats))
    return statistics.median(moments)


def sustained(works: list[Work], share: list[float], burst: dict[str, float], idle: float = 0.0) -> dict[str, Any]:
    """Works in turn for RUN_S, each for its share of every cycle; ``idle`` is seconds of rest per cycle."""
    turns = [
        max(1, round(part * SLICE_S * len(works) / burst[work.name])) for work, part in zip(works, share, strict=True)
    ]
    spent: dict[str, list[float]] = {work.name: [] for work in works}
    began = time.perf_counter()
    with driver_readings() as readings:
        while (now := time.perf_counter() - began) < RUN_S:
            marks = []
            for _ in range(10):
                for work, repeats in zip(works, turns, strict=True):
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record()
                    for _ in range(repeats):
                        work.call()
                    end.record()
                    marks.append((work.name, repeats, start, end))
                if idle:
                    torch.cuda.synchronize()
                    time.sleep(idle)
            torch.cuda.synchronize()
            if now > RUN_S - KEPT_S:
                for name, repeats, start, end in marks:
                    spent[name].append(start.elapsed_time(end) / 1000 / repeats)
    kept = [reading for reading in readings if reading[0] > began + RUN_S - KEPT_S]
    return {
        "seconds": {name: statistics.median(times) for name, times in spent.items()},
        "turns": dict(zip(spent, turns, strict=True)),
        "sm_mhz": statistics.mean(row[1] for row in kept),
        "power_w": statistics.mean(row[2] for row in kept),
    }


def main(path: str) -> None:
    flash, cudnn = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
    make: list[Callable[[], Work]] = [
        lambda: gemm(8192, 8192, 8192),
        lambda: gemm(8192, 28672, 4096),
        lambda: gemm(4096, 4096, 4096),
        lambda: gemm(16384, 1024, 8192),
        lambda: gemm_fp8(8192, 8192, 8192, rowwise=False),
        lambda: gemm_fp8(8192, 8192, 8192, rowwise=True),
        lambda: gemm_fp8(8192, 28672, 4096, rowwise=False),
        *[
            (lambda s=s, d=d, kernel=kernel, back=back: attention(s, 32, d, kernel, backward=back))
            for kernel in (flash, cudnn) for s, d in ((4096, 128), (16384, 128), (4096, 64)) for back in (False, True)
        ],
        lambda: stream(1 << 28),
    ]  # fmt: skip
    rows: list[dict[str, Any]] = []
    burst: dict[str, float] = {}
    info = subprocess.run(
        ["nvidia-smi", "--query-gpu=name,driver_version,power.limit,clocks.max.sm", "--format=csv,noheader"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip

    def save() -> None:
        record = {"what": "power", "gpu": info, "torch": torch.__version__, "run_s": RUN_S, "rows": rows}
        with open(path, "w", encoding="utf-8") as file:
            json.dump(record, file, indent=1)

    works: dict[str, Work] = {}
    for maker in make:
        try:
            work = maker()
            burst[work.name] = burst_s(work)
            row = {"works": [work.name], "kinds": [work.kind], "share": [1.0], "burst_s": {work.name: burst[work.name]}}
            row |= {"amount": {work.name: work.amount}} | sustained([work], [1.0], burst)
        except Exception as error:  # a kernel this torch lacks
            print("left out:", type(error).__name__, str(error)[:200], flush=True)
            continue
        rows.append(row)
        works[work.name] = work
        rates = [work.amount / seconds / 1e12 for seconds in (burst[work.name], row["seconds"][work.name])]
        print(
            work.name,
            f"{rates[0]:.1f} -> {rates[1]:.1f} T/s {row['sm_mhz']:.0f} MHz {row['power_w']:.0f} W",
            flush=True,
        )
        save()
    product, adding = works["gemm bf16 8192x8192x8192"], works[f"stream add {1 << 28}"]
    attend = [work for name, work in works.items() if name.startswith("attention cudnn 16384x32x128")]
    attend = attend or [work for name, work in works.items() if name.startswith("attention flash 16384x32x128")]
    mixes = [([product, adding], [part, 1 - part], 0.0) for part in (0.25, 0.5, 0.75, 0.9)]
    mixes += [([product, one], [part, 1 - part], 0.0) for one in attend for part in (0.25, 0.5, 0.75)]
    mixes += [([attend[-1], adding], [part, 1 - part], 0.0) for part in (0.5, 0.75)]
    mixes += [
        ([product, attend[0], adding], [0.5, 0.25, 0.25], 0.0),
        ([product], [1.0], 2e-3),
        ([product], [1.0], 6e-4),
    ]
    for some, share, idle in mixes:
        row = {
            "works": [work.name for work in some],
            "kinds": [work.kind for work in some],
            "share": share,
            "idle_s": idle,
        }
        row |= {
            "burst_s": {work.name: burst[work.name] for work in some},
            "amount": {work.name: work.amount for work in some},
        }
        row |= sustained(some, share, burst, idle)
        rows.append(row)
        print(row["works"], share, idle, {n: f"{works[n].amount / s / 1e12:.1f}" for n, s in row["seconds"].items()},
              f"{row['sm_mhz']:.0f} MHz {row['power_w']:.0f} W", flush=True)  # fmt: skip
        save()


if __name__ == "__main__":
    main(ASKED.out)
