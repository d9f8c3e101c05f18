"""Every request of the contract, with the counts by runtime written down: ``make contract``."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from multiprocessing import Pool
from pathlib import Path

import astra
from astra.catalog.hardware import catalog_hash
from tests.contract.requests import COUNTS, GPU, KINDS, Request, Verdict, requests, verdict


def _both(request: Request) -> tuple[Request, Verdict]:
    return request, verdict(request)


def main() -> int:
    """Run them all; 1 if any is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--gpus", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    asked = [request for request in requests() if request.gpus in args.gpus]
    counts: dict[str, Counter[str]] = {}
    broken, started = [], time.perf_counter()
    with Pool(args.jobs) as pool:
        for place, (request, found) in enumerate(pool.imap_unordered(_both, asked, chunksize=4), start=1):
            row = counts.setdefault(request.runtime, Counter())
            row[found.kind] += 1
            row["plans"] += found.plans
            if found.kind == "broken":
                broken.append([*request, found.said])
                print(*request, found.said, file=sys.stderr)
            if place % 500 == 0:
                print(f"{place} of {len(asked)}, {time.perf_counter() - started:.0f} s", file=sys.stderr)
    record = {
        "version": astra.__version__,
        "catalog": catalog_hash(),
        "gpus": [f"{count}x{GPU}" for count in args.gpus],
        "requests": len(asked),
        "seconds": round(time.perf_counter() - started),
        "runtimes": {name: {key: counts[name][key] for key in (*KINDS, "plans")} for name in sorted(counts)},
        "broken": broken,
    }
    text = json.dumps(record, indent=1) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    print(text)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
