"""Random requests with their laws checked: ``make random``, or ``python -m tests.random_requests --seconds 600``.

Every request has a number, by which it is drawn; ``--first`` says where to begin. ``--record`` adds the counts to a
file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import astra
from astra.catalog.hardware import catalog_hash
from tests.random_requests.laws import Outcome, judged


def _numbered(seed: int) -> tuple[int, Outcome]:
    return seed, judged(seed)


def run(first: int, most: int, seconds: float, jobs: int) -> dict[str, Any]:
    """Judge requests until there are enough or the time is over."""
    began, codes, broken, drawn = time.perf_counter(), dict[int, int](), list[dict[str, Any]](), 0
    with Pool(jobs, maxtasksperchild=2000) as pool:
        for seed, outcome in pool.imap_unordered(_numbered, range(first, first + most)):
            codes[outcome.code] = codes.get(outcome.code, 0) + 1
            drawn += outcome.strategies
            if outcome.fault:
                broken.append({"seed": seed, "request": shlex.join(outcome.words), "fault": outcome.fault})
                print(f"{seed}: astra {shlex.join(outcome.words)}\n    {outcome.fault}", flush=True)
            if time.perf_counter() - began > seconds:
                pool.terminate()
                break
    return {
        "date": datetime.date.today().isoformat(),
        "version": astra.__version__,
        "catalog": catalog_hash(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {jobs} used, Python {platform.python_version()}",
        "first": first,
        "requests": sum(codes.values()),
        "answered": codes.get(0, 0),
        "exit_codes": {str(code): count for code, count in sorted(codes.items())},
        "strategies_held_against_plans": drawn,
        "seconds": round(time.perf_counter() - began),
        "requests_per_s": round(sum(codes.values()) / (time.perf_counter() - began), 2),
        "broken": broken,
    }


def main() -> int:
    """Run, print and perhaps record; 1 if a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    row = run(args.first, args.requests, args.seconds, args.jobs)
    held, rate = row["strategies_held_against_plans"], row["requests_per_s"]
    print(f"{row['requests']:,} requests, {row['answered']:,} answered, {held:,} strategies held against plans, "
          f"{rate} per second, {len(row['broken'])} broken")  # fmt: skip
    if args.record:
        runs = json.loads(args.record.read_text(encoding="utf-8"))["runs"] if args.record.exists() else []
        args.record.write_text(json.dumps({"runs": [*runs, row]}, indent=1) + "\n", encoding="utf-8")
    return 1 if row["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
