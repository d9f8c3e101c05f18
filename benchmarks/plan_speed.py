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
import tempfile
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
    ("qwen3-235b-a22b 1024xH100", {"model": "qwen3-235b-a22b", "gpus": "1024xH100", "batch": 1024, "seq": 4096}),
    ("kimi-k2 2048xH800", {"model": "kimi-k2", "gpus": "2048xH800", "batch": 8192, "seq": 4096}),
)


def in_process(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """First (caches cold), median and least wall-clock seconds of a plan, processor seconds, what it considered."""
    seconds, cpu = [], []
    for _ in range(repeats):
        started, spent = time.perf_counter(), time.process_time()
        plans = astra.plan(**request)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - spent)
    return {
        "first_s": seconds[0],
        "median_s": statistics.median(seconds),
        "least_s": min(seconds),
        "cpu_median_s": statistics.median(cpu),
        "considered": float(plans.search.considered),
        "evaluated": float(plans.search.evaluated),
    }


def from_shell(arguments: list[str], repeats: int) -> tuple[float, float]:
    """Median wall-clock and processor seconds of a fresh process, its modules compiled as in an installed package."""
    wall, cpu = [], []
    with tempfile.TemporaryDirectory() as compiled:
        environment = os.environ | {"PYTHONPYCACHEPREFIX": compiled}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(repeats + 1):
            began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            wall.append(time.perf_counter() - began)
            cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return statistics.median(wall[1:]), statistics.median(cpu[1:])


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
    import_s, import_cpu_s = from_shell(["-c", "import astra"], options.repeats)
    shell_s, shell_cpu_s = from_shell(shell_plan, options.repeats)
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "import_s": import_s,
        "import_cpu_s": import_cpu_s,
        "shell_s": shell_s,
        "shell_cpu_s": shell_cpu_s,
        "peak_mib": peak_mib(["astra", *shell_plan[2:]]),
        "cases": {},
    }
    print(f"import astra       {import_s:.3f} s, {import_cpu_s:.3f} s of processor")
    print(f"astra plan, shell  {shell_s:.3f} s, {shell_cpu_s:.3f} s of processor, {results['peak_mib']:.0f} MiB peak")
    heads = (("first s", 8), ("median s", 9), ("CPU s", 7), ("considered", 15), ("costed", 9), ("paper 1.27 s", 13))
    print(f"{'in process':28s} {' '.join(f'{name:>{wide}s}' for name, wide in heads)}   (load {results['load']:.1f})")
    for name, request in CASES:
        row = results["cases"][name] = in_process(request, options.repeats)
        print(
            f"{name:28s} {row['first_s']:8.3f} {row['median_s']:9.3f} {row['cpu_median_s']:7.3f} "
            f"{row['considered']:15,.0f} {row['evaluated']:9,.0f} {PAPER_S / row['median_s']:12.1f}x"
        )
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_plan_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
