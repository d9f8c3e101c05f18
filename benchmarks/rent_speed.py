"""How fast the search for what to rent is, and what a budget buys. Run: python benchmarks/rent_speed.py [--save].

``--every`` asks for each model of the catalog once, and prints the slowest and the largest of them.

Each case is a process of its own, as a user starts it. Ten GPU types in every number of whole nodes to
2,048 GPUs should take 2 s of processor time and 300 MB, all types 3 s.
``--save`` writes benchmarks/results/<date>_rent_speed.json, which is tracked.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from astra.catalog.models import model as find_model
from astra.catalog.models import model_names

TEN = ("--gpus", "H100,H200,B200,A100-80,A100-40,B300,GB200,L40S,H20,RTXPRO6000")
RUN = ("--tokens", "2T", "--batch", "1024", "--seq", "4096")
MODELS = (
    "llama-3.2-1b", "llama-3-8b", "llama-3-70b", "llama-3.1-405b", "mixtral-8x7b", "deepseek-v3", "kimi-k2",
    "qwen3-235b-a22b", "qwen3-30b-a3b", "gpt-oss-120b",
    "glm-4.5", "deepseek-v2", "qwen3.5-397b-a17b", "nemotron-h-8b",  # the slowest of the catalog, and the largest
)  # fmt: skip
MOST_S, MOST_MB, SHOWN = 2.0, 300.0, 8
CASES: dict[str, tuple[tuple[str, ...], float]] = {  # what is asked, and the seconds it should take
    **{f"rent {model}, 10 GPU types, to 2,048": (("rent", model, *RUN, *TEN), 2.0) for model in MODELS},
    **{
        f"rent {model}, any GPU, to 2,048": (("rent", model, *RUN), 3.0)
        for model in ("llama-3.2-1b", "llama-3-70b", "deepseek-v3")
    },
    "afford llama-3.2-1b for $5,000": (("afford", "llama-3.2-1b", "--budget", "5000"), 2.0),
    "afford anything for $2M in 30 days": (("afford", "--budget", "2M", "--deadline", "30d"), 2.0),
}
# ru_maxrss of children is the most of any of them, so that each is measured by a parent of its own.
MEASURE = """
import json, resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "astra", *sys.argv[1:], "--json"], stdout=subprocess.PIPE, check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, json.loads(done.stdout).get("search", {})]))
"""


def measure(asked: tuple[str, ...], repeats: int, cache: str) -> dict[str, Any]:
    """Processor seconds and megabytes of a process that is asked, byte code compiled before; what was searched."""
    runs = []
    for _ in range(repeats + (not os.listdir(cache))):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *asked], stdout=subprocess.PIPE, check=True,
            env=environment | {"PYTHONPYCACHEPREFIX": cache},
        )  # fmt: skip
        runs.append(json.loads(done.stdout))
    seconds, megabytes = ([run[place] for run in runs[-repeats:]] for place in (0, 1))
    return {
        "cpu_median_s": statistics.median(seconds),
        "cpu_least_s": min(seconds),
        "most_mb": max(megabytes),
        "search": runs[0][2],
    }


def every(repeats: int) -> None:
    """Ten GPU types for each model of the catalog, with 4,096 tokens or as many as it has positions for."""
    rows, left = [], []
    with tempfile.TemporaryDirectory() as cache:
        for name in model_names():
            model = find_model(name)
            seq = min(4096, model.max_seq) if model.causal else model.max_seq
            asked = ("rent", name, "--tokens", "2T", "--batch", "1024", "--seq", str(seq), *TEN)
            try:
                row = measure(asked, repeats, cache)
            except subprocess.CalledProcessError:  # said in a sentence above
                left.append(name)
                continue
            rows.append((row["cpu_median_s"], row["most_mb"], name))
    print(f"{len(rows)} models; of {len(left)} nothing can be rented so: {', '.join(left) or '-'}")
    for title, place, most in (("slowest", 0, MOST_S), ("largest", 1, MOST_MB)):
        over = sum(row[place] > most for row in rows)
        print(f"{title}, {over} above {most:g}")
        for row in sorted(rows, key=lambda row: -row[place])[:SHOWN]:
            print(f"  {row[2]:26s} {row[0]:5.2f} s {row[1]:5.0f} MB")


def main() -> None:
    """Measure every case, print and perhaps save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--every", action="store_true")
    options = parser.parse_args()
    if options.every:
        every(1)
        return
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "cases": {},
    }
    print(f"{'a process for each':42s} {'CPU s':>6s} {'least':>6s} {'aim':>5s} {'MB':>5s}")
    with tempfile.TemporaryDirectory() as cache:
        for name, (asked, aim_s) in CASES.items():
            row = results["cases"][name] = measure(asked, options.repeats, cache) | {"aim_s": aim_s}
            print(f"{name:42s} {row['cpu_median_s']:6.2f} {row['cpu_least_s']:6.2f} {aim_s:5.1f} {row['most_mb']:5.0f}")
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_rent_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
