"""Random requests with their laws checked: ``make random``, or ``python -m tests.random_requests --seconds 600``.

Every request has a number, by which it is drawn, so that each can be asked again: ``--first N --requests 1``. With
``--record`` runs add up in one file: a run goes on where the last one ended, and what it has done is written every
minute, so that a million can be asked over as many nights as it takes, whatever ends them.

Products are small and there is a process for each core: threads of BLAS and memory that goes back to the system after
every column cost a tenth of the time, so both are turned off.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pool
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is loaded

import astra
from astra.atomic import write_file
from astra.catalog import hardware, models, runtimes
from astra.money.objectives import OBJECTIVES
from tests.random_requests.drawing import KINDS
from tests.random_requests.laws import Outcome, judged

_KEPT: Final = {"M_TRIM_THRESHOLD": -1, "M_MMAP_THRESHOLD": -3}  # of glibc's mallopt
_KEPT_BYTES: Final = 1 << 30

GOAL: Final = 1_000_000
WRITTEN_EVERY_S: Final = 60
# Of names, how many were drawn of how many there are.
NAMES: Final = {
    "model": models.model_names(), "runtime": runtimes.runtime_names(), "objective": tuple(OBJECTIVES),
    "gpus": tuple(hardware.names("devices")),
}  # fmt: skip


class Tally:
    """What became of a range of requests."""

    def __init__(self, first: int) -> None:
        self.first, self.began = first, time.perf_counter()
        self.kinds: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.laws: Counter[str] = Counter()
        self.names: dict[str, set[str]] = {name: set() for name in NAMES}
        self.broken: list[dict[str, Any]] = []
        self.cpu_s = 0.0

    def add(self, number: int, outcome: Outcome, cpu_s: float) -> None:
        """Count one request."""
        asked = outcome.asked
        self.cpu_s += cpu_s
        self.kinds[asked.kind] += 1
        self.codes[f"{asked.kind} {outcome.code}"] += 1
        self.laws.update(outcome.laws)
        for name, seen in self.names.items():
            values = asked.fields.get(name, ())
            for value in values if isinstance(values, list) else [values]:
                text = str(value).rpartition("x")[2] if name == "gpus" and "x" in str(value) else str(value)
                seen.update({text} & {*NAMES[name]})
        if outcome.fault:
            said = list(asked.words) or asked.fields
            self.broken.append({"number": number, "kind": asked.kind, "spelled": asked.spelling, "asked": said,
                                "fault": outcome.fault})  # fmt: skip
            print(f"{number}: {asked.verb} by {asked.spelling} {said!r}\n    {outcome.fault}", flush=True)

    def row(self, **more: Any) -> dict[str, Any]:
        """Its line of the record."""
        requests, seconds = sum(self.kinds.values()), time.perf_counter() - self.began
        return more | {
            "first": self.first,
            "requests": requests,
            "by_kind": {kind: self.kinds[kind] for kind in KINDS},
            "by_exit_code": dict(sorted(self.codes.items())),
            "answered": sum(count for code, count in self.codes.items() if code.endswith(" 0")),
            "names_drawn": {name: f"{len(seen)} of {len(NAMES[name])}" for name, seen in self.names.items()},
            "laws_checked": dict(sorted(self.laws.items())),
            "seconds": round(seconds),
            "cpu_s": round(self.cpu_s),
            "requests_per_cpu_s": round(requests / max(self.cpu_s, 1e-9), 1),
            "broken": self.broken,
        }


def keep_memory() -> None:
    """Freed memory is kept for the next request, where the C library can be told so."""
    with contextlib.suppress(OSError, AttributeError):
        for option in _KEPT.values():
            ctypes.CDLL(None).mallopt(option, _KEPT_BYTES)


def _numbered(number: int) -> tuple[int, Outcome, float]:
    began = time.process_time()
    outcome = judged(number)
    return number, outcome, time.process_time() - began


def outcomes(first: int, most: int, jobs: int) -> Iterator[tuple[int, Outcome, float]]:
    """Requests judged in the order of their numbers, by some processes."""
    if jobs == 1:
        keep_memory()
        yield from map(_numbered, range(first, first + most))
        return
    with Pool(jobs, keep_memory, maxtasksperchild=20_000) as pool:
        yield from pool.imap(_numbered, range(first, first + most), chunksize=20)


def state() -> dict[str, str]:
    """What is being asked, and where."""
    git = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(git, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return {
        "date": datetime.date.today().isoformat(),
        "version": astra.__version__,
        "commit": done.stdout.strip(),
        "catalog": hardware.catalog_hash(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }


def recorded(path: Path | None) -> list[dict[str, Any]]:
    """The runs of a record."""
    if path is None or not path.exists():
        return []
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def keep(path: Path, runs: list[dict[str, Any]]) -> None:
    """Write a record, with its sums."""
    laws: Counter[str] = Counter()
    for run in runs:
        laws.update(run["laws_checked"])
    asked = {"goal": GOAL, **{name: sum(run[name] for run in runs) for name in ("requests", "answered", "cpu_s")}}
    broken = sum(len(run["broken"]) for run in runs)
    record = {**asked, "laws_checked": dict(sorted(laws.items())), "broken": broken, "runs": runs}
    write_file(path, json.dumps(record, indent=1) + "\n")


def main() -> int:
    """Run, print and perhaps record; 1 if a law is broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, help="default: where the record ends")
    parser.add_argument("--requests", type=int, default=GOAL)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    record = args.record and args.record.absolute()
    runs = recorded(record)
    first = max((run["first"] + run["requests"] for run in runs), default=0) if args.first is None else args.first
    tally, told, written = Tally(first), state(), time.perf_counter()
    folder = tempfile.TemporaryDirectory(prefix="astra-random-")
    os.chdir(folder.name)  # whatever a damaged command line writes is out of the way
    save = partial(keep, record) if record else None
    for number, outcome, cpu_s in outcomes(first, args.requests, args.jobs):
        tally.add(number, outcome, cpu_s)
        now = time.perf_counter()
        if save and now - written > WRITTEN_EVERY_S:
            save([*runs, tally.row(**told)])
            written = now
        if now - tally.began > args.seconds:
            break
    row = tally.row(**told)
    if save:
        save([*runs, row])
    held, rate = row["laws_checked"].get("unbeaten", 0), row["requests_per_cpu_s"]
    print(f"{row['requests']:,} requests, {row['answered']:,} answered, {held:,} strategies held against plans, "
          f"{rate} per second of one core, {len(row['broken'])} broken")  # fmt: skip
    return 1 if row["broken"] else 0


if __name__ == "__main__":
    sys.exit(main())
