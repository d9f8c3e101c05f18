"""How fast plans over several pools are, and how the time grows. Run: python benchmarks/mixed_speed.py [--save].

Targets: two or three pools of about 1,024 GPUs under 1 s for dense models and 3 s for experts, latent attention and
encoder-decoders, five odd pools under 3 s, eight pools of 100,000 under 8 s; memory under 300 MB.
No runtime of the catalog trains an encoder-decoder over pools: T5 is planned for one like Megatron-LM that could.
Sources are compiled before, as those of an installed package are.
Beside: the Astra paper's 81 s for mixed types (arXiv 2502.13480); Metis 311 to 315 s and Sailor 0.1 to 0.5 s for
16 + 16 GPUs; Sailor 6 to 7 s and FlashFlex 110 s for 128 + 384 GPUs (measured with Sailor's harness).
``--save`` writes benchmarks/results/<date>_mixed_speed.json, which is tracked.
"""

from __future__ import annotations

import argparse
import atexit
import datetime
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

import astra

COMPILED: Final = "PYTHONPYCACHEPREFIX"

SEVEN = ("A100-80", "H200", "H20", "B200", "A100-40", "H800", "A800")
EIGHT = ["12504xH100", *(f"{12472 if gpu == 'H20' else 12504}x{gpu}" for gpu in SEVEN)]
CASES: tuple[tuple[str, dict[str, Any], float | None], ...] = (
    ("2 pools, 16+16", {"gpus": ["16xA100-40", "16xV100-16"], "model": "gpt-2-xl", "precision": "fp16"}, 0.5),
    ("2 pools, 128+384", {"gpus": ["128xA100-40", "384xV100-16"], "model": "gpt-2-xl", "precision": "fp16"}, 0.5),
    ("2 pools, 512+512", {"gpus": ["512xH100", "512xA100-80"]}, 1.0),
    ("3 pools, 1,024", {"gpus": ["256xH100", "512xA100-80", "256xH20"]}, 1.0),
    ("405B, 512+512", {"gpus": ["512xH100", "512xA100-80"], "model": "llama-3.1-405b"}, 1.0),
    ("5 odd pools, 70B", {"gpus": ["24xH100", "5xA100-80", "16xH20", "7xL40S", "3xA100-40"], "batch": 96}, 3.0),
    ("DeepSeek-V3, 512+256+512", {"gpus": ["512xH100", "256xA100-80", "512xH20"], "model": "deepseek-v3"}, 3.0),
    ("DeepSeek-V3, 1,024+1,024", {"gpus": ["1024xH100", "1024xH20"], "model": "deepseek-v3"}, 3.0),
    ("T5, 256+512+256", {"gpus": ["256xH100", "512xA100-80", "256xH20"], "model": "t5-11b", "seq": 512}, 3.0),
    ("8 pools, 100,000", {"gpus": EIGHT, "batch": 16384}, 8.0),
)
GROWTH: tuple[tuple[str, list[tuple[str, dict[str, Any]]]], ...] = (
    ("GPUs", [(f"2x{n}", {"gpus": [f"{n}xH100", f"{n}xA100-80"]}) for n in (64, 256, 1024, 4096, 16384)]),
    ("pools", [(f"{n} of 256", {"gpus": [f"256x{gpu}" for gpu in ("H100", *SEVEN)[:n]]}) for n in (2, 3, 4, 5, 6)]),
    (
        "layers",
        [
            (f"{model} ({layers})", {"gpus": ["512xH100", "512xA100-80"], "model": model})
            for model, layers in (("llama-2-7b", 32), ("llama-2-70b", 80), ("llama-3.1-405b", 126))
        ],
    ),
)


PUBLISHED: dict[str, str] = {
    "2 pools, 16+16": "Metis 311-315 s, Sailor 0.1-0.5 s",
    "2 pools, 128+384": "FlashFlex 110 s, Sailor 6-7 s",
    "2 pools, 512+512": "Astra paper 81 s (its own fleet and model)",
}
HEADER = f"{'case':28s} {'first s':>8s} {'median s':>9s} {'CPU s':>7s} {'peak MiB':>9s} {'solved':>7s}  target"


def timed(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """First and median seconds in process, with the process's own peak of memory."""
    seq = 1024 if request.get("model") == "gpt-2-xl" else 4096
    full = {"model": "llama-2-70b", "batch": 1024, "seq": seq} | request
    planned = encoders_planned if full["model"].startswith("t5") else astra.plan
    seconds, cpu = [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        plans = planned(**full)
        seconds.append(time.perf_counter() - started)
        cpu.append(time.process_time() - used)
    return {
        "first_s": seconds[0],
        "median_s": statistics.median(seconds),
        "cpu_s": statistics.median(cpu),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "step_s": plans.best.estimate.step_s,
        "considered": float(plans.search.considered),
        "solved": float(plans.search.evaluated),
    }


def encoders_planned(model: str, **asked: Any) -> astra.PlanSet:
    """A plan for a runtime that is like Megatron-LM and can train whatever the model has."""
    from astra.search.fleet.plan import plan_fleet  # noqa: PLC0415 - what is timed loads what it needs
    from astra.search.world import World  # noqa: PLC0415
    from astra.spec.blocks import blocks_of  # noqa: PLC0415
    from astra.spec.request import requested  # noqa: PLC0415

    world = World.of(requested("plan", model, asked | {"runtime": "megatron"}))
    can = replace(world.runtime.can, blocks=(*world.runtime.can.blocks, *blocks_of(world.model)))
    return plan_fleet(world._replace(runtime=replace(world.runtime, can=can)))


def apart(request: dict[str, Any], repeats: int) -> dict[str, float]:
    """A case in a process of its own, so that its memory is its own."""
    command = [sys.executable, __file__, "--one", json.dumps(request), "--repeats", str(repeats)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=kept | {COMPILED: compiled()})
    answer: dict[str, float] = json.loads(found.stdout)
    return answer


@cache
def compiled() -> str:
    """A folder with the package's sources compiled; it goes with the process."""
    folder = tempfile.mkdtemp(prefix="compiled_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    small = json.dumps({"gpus": ["8xH100", "8xA100-80"], "model": "llama-2-7b", "batch": 64})
    command = [sys.executable, __file__, "--one", small, "--repeats", "1"]
    subprocess.run(command, check=True, capture_output=True, env=kept | {COMPILED: folder})
    return folder


def line(name: str, row: dict[str, float], note: str = "") -> str:
    return (
        f"{name:28s} {row['first_s']:8.3f} {row['median_s']:9.3f} {row['cpu_s']:7.3f} {row['peak_mib']:9.0f} "
        f"{row['solved']:7.0f}  {note}"
    ).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(timed(json.loads(options.one), options.repeats)))
        return
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg()[0],
        "published": PUBLISHED,
        "cases": {},
        "growth": {},
    }
    print(HEADER)
    for name, request, target in CASES:
        repeats = 1 if target is None or target > 1 else options.repeats
        row = results["cases"][name] = apart(request, repeats) | {"target_s": target}
        print(line(name, row, f"{f'{target:g} s' if target else 'none'}  {PUBLISHED.get(name, '')}"), flush=True)
    for axis, steps in GROWTH:
        print(f"growth in {axis}")
        for name, request in steps:
            row = results["growth"][f"{axis}: {name}"] = apart(request, 2)
            print(line(f"  {name}", row), flush=True)
    results["load_at_end"] = os.getloadavg()[0]
    print(f"load {results['load']:.1f} at the start, {results['load_at_end']:.1f} at the end")
    if options.save:
        path = Path(__file__).parent / "results" / f"{results['date']}_mixed_speed.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(f"saved {path}")


if __name__ == "__main__":
    main()
