"""Every request of the contract, with the counts by runtime written down: ``make contract``.

The record is a list of runs, each with the models it covered and the catalog it had. ``--resume`` goes on with the
models that no run has, and ``--again`` with those the latest catalog's run has not, a few at a time, so that a run may
be stopped and gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import astra
from astra.catalog.hardware import catalog_hash
from astra.catalog.models import model_names
from tests.contract.requests import COUNTS, GPU, KINDS, Request, Verdict, requests, verdict

AT_ONCE = 6  # models between two records


def _both(request: Request) -> tuple[Request, Verdict]:
    return request, verdict(request)


def _new_run() -> dict[str, Any]:
    gpus = [f"{count}x{GPU}" for count in COUNTS]
    start: dict[str, Any] = {"version": astra.__version__, "catalog": catalog_hash(), "gpus": gpus}
    return start | {"models": [], "requests": 0, "seconds": 0, "runtimes": {}, "broken": []}


def _open_run(record: dict[str, Any]) -> dict[str, Any]:
    """The run of the present catalog, a new one if there is none."""
    for run in record["runs"]:
        if run["catalog"] == catalog_hash():
            found: dict[str, Any] = run
            return found
    record["runs"].append(_new_run())
    return _open_run(record)


def _cover(run: dict[str, Any], models: list[str], jobs: int) -> None:
    """Ask everything of some models, and add it to the run."""
    asked, started = [request for request in requests() if request.model in models], time.perf_counter()
    with Pool(jobs) as pool:
        for request, found in pool.imap_unordered(_both, asked, chunksize=4):
            row = run["runtimes"].setdefault(request.runtime, dict.fromkeys((*KINDS, "plans"), 0))
            row[found.kind] += 1
            row["plans"] += found.plans
            if found.kind == "broken":
                run["broken"].append([*request, found.said])
                print(*request, found.said, file=sys.stderr)
    run["models"] = sorted([*run["models"], *models])
    run["requests"] += len(asked)
    run["seconds"] += round(time.perf_counter() - started)


def main() -> int:
    """Run what is asked for; 1 if anything is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--resume", action="store_true", help="only models that no run has")
    parser.add_argument("--again", action="store_true", help="only models that the present catalog's run has not")
    parser.add_argument("--out", type=Path, default=Path("contract.json"))
    args = parser.parse_args()
    kept = args.out.exists() and (args.resume or args.again)
    record: dict[str, Any] = json.loads(args.out.read_text(encoding="utf-8")) if kept else {"runs": []}
    run = _open_run(record)
    runs = Counter(name for each in record["runs"] for name in each["models"])
    known = set(runs) if args.resume else set(run["models"])
    left = sorted((name for name in model_names() if name not in known), key=runs.__getitem__)  # the least asked first
    for first in range(0, len(left), AT_ONCE):
        _cover(run, left[first : first + AT_ONCE], args.jobs)
        args.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{len(run['models'])} models, {run['requests']} requests, {run['seconds']} s", file=sys.stderr)
    return 1 if run["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
