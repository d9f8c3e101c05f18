"""How fast a search is: in process, from the shell, and as GPUs grow. Run: python benchmarks/plan_speed.py [--save].

Prints strategies considered per second beside the 1.27 s a single-type search takes in the Astra paper
(arXiv 2502.13480). ``--save`` writes benchmarks/results/<date>_plan_speed.json, which is tracked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import astra

PAPER_S = 1.27
CASES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("llama-2-70b 64xH100", {"model": "llama-2-70b", "gpus": "64xH100", "batch": 1024, "seq": 4096}),
    ("llama-2-70b 1024xH100", {"model": "llama-2-70b", "gpus": "1024xH100", "batch": 1024, "seq": 4096}),
    ("llama-3.1-405b 16384xH100", {"model": "llama-3.1-405b", "gpus": "16384xH100", "batch": 2048, "seq": 8192}),
    ("llama-2-70b 100000xH100", {"model": "llama-2-70b", "gpus": "100000xH100", "batch": 20000, "seq": 4096}),
    ("mixtral-8x7b 256xH100", {"model": "mixtral-8x7b", "gpus": "256xH100", "batch": 1024, "seq": 4096}),
    ("deepseek-v3 2048xH800", {"model": "deepseek-v3", "gpus": "2048xH800", "batch": 15360, "seq": 4096}),
)


def in_process(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """Median and first (caches cold) seconds of a plan, and what it considered."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        plans = astra.plan(**request)
        seconds.append(time.perf_counter() - started)
    return {
        "first_s": seconds[0],
        "median_s": statistics.median(seconds),
        "considered": float(plans.search.considered),
        "evaluated": float(plans.search.evaluated),
    }


def from_shell(arguments: list[str], repeats: int) -> float:
    """Median wall-clock of a fresh process."""
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def peak_mib(arguments: list[str]) -> float:
    """Peak resident memory of a fresh process."""
    code = f"import resource,runpy,sys; sys.argv={arguments!r}; runpy.run_module('astra', run_name='__main__')"
    subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    shell_plan = ["-m", "astra", "plan", "llama-2-70b", "--gpus", "1024xH100", "--batch", "1024", "--seq", "4096"]
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "import_s": from_shell(["-c", "import astra"], options.repeats),
        "shell_s": from_shell(shell_plan, options.repeats),
        "peak_mib": peak_mib(["astra", *shell_plan[2:]]),
        "cases": {},
    }
    print(f"import astra          {results['import_s']:.3f} s")
    print(
        f"astra plan, shell     {results['shell_s']:.3f} s   llama-2-70b 1024xH100, {results['peak_mib']:.0f} MiB peak"
    )
    print(
        f"{'in process':28s} {'first s':>8s} {'median s':>9s} {'considered':>15s} {'costed':>9s} {'paper 1.27 s':>13s}"
    )
    for name, request in CASES:
        row = results["cases"][name] = in_process(request, options.repeats)
        print(
            f"{name:28s} {row['first_s']:8.3f} {row['median_s']:9.3f} {row['considered']:15,.0f} "
            f"{row['evaluated']:9,.0f} {PAPER_S / row['median_s']:12.1f}x"
        )
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_plan_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
