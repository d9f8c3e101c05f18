"""Bytes per element of a rehearsed runtime's kernels, fitted: ``python -m tools.fit_kernels ROWS.json [...]``.

Of each rank the time of all kernels but products, attention and the optimizer is known. It is linear in the bytes that
a kernel moves for each element, so that they are the solution of a least-squares problem: of relative errors, large
ones counted less, near the values that the runtime has (a solution that was shipped is found again). Ranks whose
optimizer takes much of the step are left out: its kernels cannot be told from others. Printed: what is, what was found.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from astra.provenance import Floats
from astra.spec.cluster import Device
from astra.spec.job import Job
from astra.spec.runtime import Kernel
from astra.spec.strategy import Strategy
from tools.check_rehearsal import job_of, kernel_seconds, measured_of, read_rows

COUNTED: Final[tuple[str, ...]] = ("accumulate", "bias", "fp8_cast", "gather", "router", "sort")  # left as they are
MOST_OPTIMIZER: Final = 0.06  # of the step
NEAR: Final = 0.1  # weight of what the runtime has, against one row
SMALL: Final = 0.02  # relative error from which on a row counts less
TIMES: Final = 2000

Term = tuple[str, str]  # kernel, field


def seconds(job: Job, strategy: Strategy, stage: int, only: Term | None) -> float:
    """Time of other kernels if only one term moved bytes, one for each element; of launches alone without a term."""
    still = {
        name: replace(kernel, forward_bytes=0.0, backward_bytes=0.0) for name, kernel in job.runtime.kernels.items()
    }
    if only is not None:
        still[only[0]] = replace(still[only[0]], **{only[1]: 1.0})
    changed = replace(job, runtime=replace(job.runtime, kernels=still))
    return kernel_seconds(changed, strategy, stage)["rest"]


def usable(row: Mapping[str, Any]) -> bool:
    """Whether it ran, and its optimizer took little of the step."""
    return not row["oom"] and row["optimizer_s"] + row["zero_grad_s"] < MOST_OPTIMIZER * row["compute_s"]


def relative(rows: Sequence[Mapping[str, Any]], device: Device) -> tuple[list[Term], Floats, Floats, Floats]:
    """Terms, what they are, their share of each row's time for one byte, and what is left for them to explain."""
    first = job_of(rows[0], device)[0].runtime.kernels
    terms = [(name, way) for name, kernel in first.items() if name not in COUNTED
             for way in ("forward_bytes", "backward_bytes") if getattr(kernel, way)]  # fmt: skip
    shares, left = np.empty((len(rows), len(terms))), np.empty(len(rows))
    for place, row in enumerate(rows):
        job, strategy = job_of(row, device)
        whole_s, launches_s = measured_of(row)["rest"], seconds(job, strategy, row["stage"], None)
        shares[place] = [(seconds(job, strategy, row["stage"], term) - launches_s) / whole_s for term in terms]
        counted = replace(job, runtime=replace(job.runtime, kernels=_counted(job)))
        left[place] = 1 - kernel_seconds(counted, strategy, row["stage"])["rest"] / whole_s
    return terms, np.array([getattr(first[name], way) for name, way in terms]), shares, left


def _counted(job: Job) -> dict[str, Kernel]:
    """The kernels, of which those that are fitted move nothing."""
    still = {
        name: replace(kernel, forward_bytes=0.0, backward_bytes=0.0) for name, kernel in job.runtime.kernels.items()
    }
    return still | {name: job.runtime.kernels[name] for name in COUNTED if name in still}


def solve(start: Floats, shares: Floats, left: Floats) -> Floats:
    """Non-negative bytes with the least errors, by multiplicative steps from ``start``; rows far off count less."""
    scaled, factors = shares * start, np.ones(len(start))
    for _ in range(TIMES):
        weights = SMALL / np.maximum(np.abs(scaled @ factors - left), SMALL)
        wanted = scaled.T @ (weights * np.maximum(left, 0)) + NEAR
        factors *= wanted / (scaled.T @ (weights * (scaled @ factors)) + NEAR * factors)
    return start * factors


def main() -> int:
    """Print the bytes of every kernel, as they are and as fitted, and the errors with both."""
    parser = argparse.ArgumentParser(prog="python -m tools.fit_kernels", description=__doc__)
    parser.add_argument(
        "rows", nargs="+", metavar="ROWS.json", help="ranks of one framework, rehearsed on one type of GPU"
    )
    found = [read_rows(path) for path in parser.parse_args().rows]
    rows = [row for some, _ in found for row in some if usable(row)]
    terms, now, shares, left = relative(rows, found[0][1])
    fitted = solve(now, shares, left)
    for (name, way), is_bytes, to_bytes in zip(terms, now, fitted, strict=True):
        print(f"{name:16s} {way:16s} {is_bytes:7.2f} {to_bytes:7.2f}")
    for what, values in (("now", now), ("fitted", fitted)):
        errors = shares @ values - left
        print(f"{what:7s} {len(rows)} rows: mean {np.abs(errors).mean():.1%}, bias {np.median(errors):+.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
