"""Count the memory of rehearsed rows without a GPU, beside what the GPU measured.

``python benchmarks/rehearsal/without_gpu.py benchmarks/results/2026-11-15_rehearsal_h200.json --every 5``; torch and
megatron-core must be importable, a GPU is not needed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from astra.lab.rehearse.compare import LIBRARY_BYTES  # noqa: E402
from astra.lab.rehearse.here import run_without_gpu  # noqa: E402
from tools.rehearsed_rows import case_of_row  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", help="rows measured on a GPU")
    parser.add_argument("--every", type=int, default=10, help="take one row in so many")
    parser.add_argument("--moe", action="store_true", help="only rows with experts")
    args = parser.parse_args()
    rows = [row for row in json.loads(Path(args.file).read_text())["rows"] if not row["oom"] and "error" not in row]
    rows = [row for row in rows if row["shape"]["experts"] or not args.moe][:: args.every]
    errors, exact = [], 0
    for row in rows:
        counted = run_without_gpu([case_of_row(row)])[0]
        if "error" in counted:
            print(f"ERROR {row['id']}: {counted['error']}", flush=True)
            continue
        exact += counted["params"] == row["params"]
        peak = counted["peak_allocated_bytes"] + LIBRARY_BYTES
        errors.append(peak / row["peak_allocated_bytes"] - 1)
        print(f"{errors[-1]:+.3%}  {counted['wall_s']:6.1f} s  {row['id']}", flush=True)
    sizes = [abs(error) for error in errors]
    worst = max(errors, key=abs)
    print(f"{len(errors)} of {len(rows)} rows, parameters equal in {exact}")
    print(f"peak: mean {statistics.mean(sizes):.3%}, median {statistics.median(sizes):.3%}, worst {worst:+.3%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
