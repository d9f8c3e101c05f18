"""Rehearse the grid on this machine's GPU: ``python benchmarks/rehearsal/run.py --out results.json --seconds 540``.

megatron-core must be importable (PYTHONPATH); neither TransformerEngine nor Apex is needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2] / "src")]

from grid import SAMPLE, cases, held_experts, other_shapes  # noqa: E402

from astra.lab.rehearse.run import run_cases  # noqa: E402

UNFINISHED = 75  # run again: time was up, or the process had to end


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True, help="measurement file to write or continue")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no case after this long")
    parser.add_argument("--count", type=int, default=SAMPLE, help="size of the random part of the grid")
    parser.add_argument("--others", type=int, metavar="SEED", help="models outside the grid, drawn with this seed")
    parser.add_argument("--held-experts", action="store_true", help="ranks of few and many experts instead of the grid")
    parser.add_argument("--steps", type=int, default=2, help="fewest measured steps of a case")
    parser.add_argument("--only", default="", help="comma-separated places in the grid, for a trial")
    parser.add_argument("--list", action="store_true", help="print the ids and stop")
    args = parser.parse_args()
    if args.held_experts:
        grid = held_experts()
    else:
        grid = cases(args.count) if args.others is None else other_shapes(args.count, args.others)
    chosen = [grid[int(place)] for place in args.only.split(",")] if args.only else grid
    if args.list:
        print("\n".join(f"{case.split} {case.id}" for case in chosen))
        return 0
    store = run_cases(chosen, args.out, seconds=args.seconds, steps=args.steps)
    return 0 if all(case.id in store for case in chosen) else UNFINISHED


if __name__ == "__main__":
    sys.exit(main())
