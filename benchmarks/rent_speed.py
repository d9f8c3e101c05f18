"""How fast the search for what to rent is. Run: python benchmarks/rent_speed.py [--save].

Ten GPU types in every number of whole nodes to 2,048 GPUs for Llama-3-70B must take under 2 s of processor time.
``--save`` writes benchmarks/results/<date>_rent_speed.json, which is tracked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import astra

TARGET_S = 2.0
TEN = "H100,H200,B200,A100-80,A100-40,B300,GB200,L40S,H20,RTXPRO6000"
LLAMA: dict[str, Any] = {"model": "llama-3-70b", "tokens": "2T", "batch": 1024, "seq": 8192}
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-3-70b, 10 GPU types, to 2,048", LLAMA | {"gpus": TEN}),
    ("llama-3-70b, any GPU, to 2,048", LLAMA),
    ("llama-3-70b, H100 alone, to 2,048", LLAMA | {"gpus": "H100"}),
    ("llama-3-8b, any GPU, to 2,048", LLAMA | {"model": "llama-3-8b"}),
    ("mixtral-8x7b, 10 GPU types, to 512", LLAMA | {"model": "mixtral-8x7b", "gpus": TEN, "max_gpus": 512}),
    ("deepseek-v3, any GPU, to 2,048", LLAMA | {"model": "deepseek-v3", "seq": 4096}),
)


def measure(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """First (caches cold) and median wall-clock seconds, median processor seconds, and what was searched."""
    wall, cpu = [], []
    for _ in range(repeats):
        began, spent = time.perf_counter(), time.process_time()
        report = astra.rent(**request)
        wall.append(time.perf_counter() - began)
        cpu.append(time.process_time() - spent)
    return {
        "first_s": wall[0],
        "median_s": statistics.median(wall),
        "least_s": min(wall),
        "cpu_median_s": statistics.median(cpu),
        "gpu_types": float(report.search.gpu_types),
        "choices": float(report.search.choices),
        "considered": float(report.search.considered),
        "evaluated": float(report.search.evaluated),
        "front": float(len(report.front)),
        "mixes": float(report.search.mixes.considered),
        "mixes_planned": float(report.search.mixes.planned),
        "mixes_open": float(report.search.mixes.open),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "target_s": TARGET_S,
        "cases": {},
    }
    heads = (("first s", 8), ("median s", 9), ("CPU s", 7), ("sizes", 7), ("front", 6), ("mixes", 6), ("planned", 8))
    print(f"{'in process':38s} {' '.join(f'{name:>{wide}s}' for name, wide in heads)}  open")
    for name, request in CASES:
        row = results["cases"][name] = measure(request, options.repeats)
        print(
            f"{name:38s} {row['first_s']:8.2f} {row['median_s']:9.2f} {row['cpu_median_s']:7.2f} "
            f"{row['choices']:7,.0f} {row['front']:6.0f} {row['mixes']:6,.0f} {row['mixes_planned']:8.0f} "
            f"{row['mixes_open']:5.0f}"
        )
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_rent_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
