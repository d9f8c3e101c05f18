"""Fuzz the parsers: ``make fuzz``, or ``python -m tests.fuzz [TARGET ...] --seconds 60 [--record FILE]``.

Each target runs in a process of its own under Atheris (libFuzzer), guided by the branches it reaches in Astra. Inputs
that reached something new are kept in ``.fuzz/TARGET``, and the next run goes on from there. Whatever is not an answer
or one of our own errors is written to ``.fuzz/found`` and printed; the exit code is then 1. ``--record`` adds the
counts to a file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import astra
from astra.atomic import write_file
from tests.fuzz.seeds import MOST_BYTES
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".fuzz"
FOUND = KEPT / "found"
HUNG_S = 300  # of the clock for one input; libFuzzer ends the process
MOST_MB = 2000


def fuzz(name: str, seconds: int) -> dict[str, Any]:
    """Run one target; what became of it."""
    corpus = KEPT / name
    corpus.mkdir(parents=True, exist_ok=True)
    FOUND.mkdir(exist_ok=True)
    for place, seed in enumerate(TARGETS[name].seeds()):
        (corpus / f"seed-{place}").write_bytes(seed.encode("utf-8", "surrogatepass")[:MOST_BYTES])
    before = {path.name for path in FOUND.iterdir()}
    report = KEPT / f"{name}.json"
    report.unlink(missing_ok=True)
    words = [sys.executable, "-m", "tests.fuzz.child", name, str(report), str(FOUND), str(corpus)]
    words += [f"-max_total_time={seconds}", f"-timeout={HUNG_S}", f"-rss_limit_mb={MOST_MB}"]
    words += [f"-report_slow_units={HUNG_S}"]
    words += [f"-max_len={MOST_BYTES}", "-verbosity=0", f"-artifact_prefix={FOUND / name}-"]
    used = _children_s()
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, errors="replace", env=_environment(), check=False
    )
    cpu_s = _children_s() - used
    row: dict[str, Any] = {"inputs": 0, "refused": 0}
    if report.exists():
        row = json.loads(report.read_text(encoding="utf-8"))
    found = sorted({path.name for path in FOUND.iterdir()} - before)
    if done.returncode != 0 and not found:
        found = [f"{name}: ended with {done.returncode}: {done.stderr[-2000:]}"]
    return row | {"seconds": seconds, "cpu_s": round(cpu_s, 1), "kept": len(list(corpus.iterdir())), "found": found}


def _children_s() -> float:
    """Processor time of the processes that have ended: what a target had of the seconds it was given."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _environment() -> dict[str, str]:
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _save(path: Path, rows: dict[str, dict[str, Any]]) -> None:
    record = {
        "date": datetime.date.today().isoformat(),
        "version": astra.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "inputs": sum(row["inputs"] for row in rows.values()),
        "seconds": sum(row["seconds"] for row in rows.values()),
        "cpu_s": round(sum(row["cpu_s"] for row in rows.values())),
        "targets": rows,
    }
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    write_file(path, json.dumps({"runs": [*runs, record]}, indent=1) + "\n")


def main() -> int:
    """Run what is asked for; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []])
    parser.add_argument("--seconds", type=int, default=20, help="for each target")
    parser.add_argument("--record", type=Path)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    try:
        for name in args.targets or TARGETS:
            rows[name] = row = fuzz(name, args.seconds)
            print(f"{name:13s} {row['inputs']:9,d} inputs, {row['refused']:9,d} refused, {row['kept']:6,d} kept, "
                  f"{len(row['found'])} found", flush=True)  # fmt: skip
            for found in row["found"]:
                print(f"  {found}")
    finally:  # also of what was ended before its end
        if args.record and rows:
            _save(args.record, rows)
    return 1 if any(row["found"] for row in rows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
