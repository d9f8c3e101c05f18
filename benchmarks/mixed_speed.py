"""How fast plans over several pools are, and how the time grows. Run: python benchmarks/mixed_speed.py [--save].

Targets: two pools of 512 GPUs under 0.5 s, three pools of 1,024 in all under 1 s, eight pools of 100,000 under 30 s and
2 GB. Beside: the Astra paper's 81 s for mixed types (arXiv 2502.13480); Metis 311 to 315 s and Sailor 0.1 to 0.5 s for
16 + 16 GPUs; Sailor 6 to 7 s and FlashFlex 110 s for 128 + 384 GPUs (measured with Sailor's harness).
``--save`` writes benchmarks/results/<date>_mixed_speed.json, which is tracked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import astra

SEVEN = ("A100-80", "H200", "H20", "B200", "A100-40", "H800", "A800")
EIGHT = ["12504xH100", *(f"{12472 if gpu == 'H20' else 12504}x{gpu}" for gpu in SEVEN)]
CASES: tuple[tuple[str, dict[str, Any], float], ...] = (
    ("2 pools, 16+16", {"gpus": ["16xA100-40", "16xV100-16"], "model": "gpt-2-xl", "precision": "fp16"}, 0.5),
    ("2 pools, 128+384", {"gpus": ["128xA100-40", "384xV100-16"], "model": "gpt-2-xl", "precision": "fp16"}, 0.5),
    ("2 pools, 512+512", {"gpus": ["512xH100", "512xA100-80"]}, 0.5),
    ("3 pools, 1,024", {"gpus": ["256xH100", "512xA100-80", "256xH20"]}, 1.0),
    ("8 pools, 100,000", {"gpus": EIGHT, "batch": 16384}, 30.0),
)
GROWTH: tuple[tuple[str, list[tuple[str, dict[str, Any]]]], ...] = (
    ("GPUs", [(f"2x{n}", {"gpus": [f"{n}xH100", f"{n}xA100-80"]}) for n in (64, 256, 1024, 4096, 16384)]),
    ("pools", [(f"{n} of 256", {"gpus": [f"256x{gpu}" for gpu in ("H100", *SEVEN)[:n]]}) for n in (2, 3, 4, 5, 6)]),
    (
        "layers",
        [
            (f"{model} ({layers})", {"gpus": ["512xH100", "512xA100-80"], "model": model})
            for model, layers in (("llama-2-7b", 32), ("llama-2-70b", 80), ("gpt-3-175b", 96), ("llama-3.1-405b", 126))
        ],
    ),
)


def timed(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """First and median seconds in process."""
    seq = 2048 if request.get("model") == "gpt-2-xl" else 4096
    full = {"model": "llama-2-70b", "batch": 1024, "seq": seq} | request
    seconds, cpu = [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        plans = astra.plan(**full)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return {
        "first_s": seconds[0],
        "median_s": statistics.median(seconds),
        "cpu_s": statistics.median(cpu),
        "step_s": plans.best.estimate.step_s,
        "considered": float(plans.search.considered),
        "solved": float(plans.search.evaluated),
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
        "cases": {},
        "growth": {},
    }
    print(f"{'case':28s} {'first s':>8s} {'median s':>9s} {'CPU s':>7s} {'target s':>9s} {'solved':>7s}")
    for name, request, target in CASES:
        repeats = 1 if "8 pools" in name else options.repeats
        row = results["cases"][name] = timed(request, repeats) | {"target_s": target}
        print(
            f"{name:28s} {row['first_s']:8.3f} {row['median_s']:9.3f} {row['cpu_s']:7.3f} {target:9.1f} "
            f"{row['solved']:7.0f}"
        )
    for axis, steps in GROWTH:
        print(f"growth in {axis}")
        for name, request in steps:
            row = results["growth"][f"{axis}: {name}"] = timed(request, 2)
            print(f"  {name:26s} {row['first_s']:8.3f} {row['median_s']:9.3f} {row['cpu_s']:7.3f}")
    results["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {results['peak_mib']:.0f} MiB, load {results['load']:.1f}")
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_mixed_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
