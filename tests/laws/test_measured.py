"""Predictions against what was measured: ranks rehearsed on an H200, and published runs.

Bounds are the errors of the day they were written, rounded up; a better model may lower them. One was raised, in the
open: dgxc from 3.75% (median 2.75%), when fp8 weights came to be gathered in fp8. MLPerf's runs gained by that, these
lost, and nobody has looked up which of them gathered so. Another in the open: compute of the first 193 ranks from
5.53%, and biases from 1.0%, when kernels were fitted anew. On 56 ranks of other shapes run after that, kernels besides
products and attention were off by 7.1% and not 10.1%.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from astra.answer import StageEstimate
from astra.search.detail import estimate
from astra.units import GIB
from astra.validate.replay import replay
from astra.validate.score import Errors, errors_of
from astra.validate.table import published
from tools.check_rehearsal import job_of, kernel_seconds, measured_of, read_rows

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
REHEARSED = ("rehearsal", "rehearsal-unseen", "rehearsal-last")
# Mean and worst error of all rows: peak memory, and the compute of a step.
MEMORY = {"rehearsal": (0.0056, 0.044), "rehearsal-unseen": (0.0073, 0.044), "rehearsal-last": (0.0062, 0.047)}
COMPUTE = {"rehearsal": (0.0554, 0.206), "rehearsal-unseen": (0.0700, 0.346), "rehearsal-last": (0.0531, 0.263)}
# Mean and median error of the step; runs scored.
SOURCES = {"dgxc": (0.0385, 0.033, 126), "mosaic": (0.0415, 0.0280, 223)}


@cache
def rehearsed(name: str, date: str = "2026-11-15") -> list[tuple[dict[str, float], StageEstimate]]:
    """Every rank that ran, with what is predicted for it."""
    rows, device = read_rows(RESULTS / f"{date}_{name}_h200.json")
    found = []
    for row in (row for row in rows if not row["oom"]):
        job, strategy = job_of(row, device)
        found.append((row, estimate(job, [strategy])[0].stages[row["stage"]]))
    return found


def memory_errors(name: str, without: str = "") -> Errors:
    """Errors of the peak; ``without`` one of its parts."""
    found = errors_of(
        (stage.peak_allocated_gib - stage.memory.get(without, 0.0)) * GIB / row["peak_allocated_bytes"] - 1
        for row, stage in rehearsed(name)
    )
    assert found is not None
    return found


@pytest.mark.parametrize("name", REHEARSED)
def test_peak_memory_of_rehearsed_ranks(name: str) -> None:
    found, (mean, worst) = memory_errors(name), MEMORY[name]
    assert found.runs >= 80
    assert found.mean <= mean
    assert found.worst <= worst
    assert abs(found.bias) <= 0.005


@pytest.mark.parametrize("kind", ["weights", "gradients", "optimizer", "activations", "buffers"])
def test_no_part_of_the_memory_can_be_left_out(kind: str) -> None:
    """The law above would notice."""
    assert memory_errors("rehearsal-last", without=kind).mean > 3 * MEMORY["rehearsal-last"][0]


@pytest.mark.parametrize("name", REHEARSED)
def test_compute_of_rehearsed_ranks(name: str) -> None:
    found = errors_of(
        stage.compute_s / (row["compute_s"] - row["optimizer_s"] - row["zero_grad_s"]) - 1
        for row, stage in rehearsed(name)
    )
    assert found is not None
    mean, worst = COMPUTE[name]
    assert found.mean <= mean
    assert found.worst <= worst
    assert abs(found.bias) <= 0.02  # 0.011 while products of routers, told too quick, made up for hosts, told too slow


@pytest.mark.parametrize("name", REHEARSED)
def test_updates_of_rehearsed_ranks(name: str) -> None:
    """Those of 10 ms or more take a third longer than their bytes at the usual rate of memory-bound kernels."""
    found = errors_of(
        stage.optimizer_s / (row["optimizer_s"] + row["zero_grad_s"]) - 1
        for row, stage in rehearsed(name)
        if row["optimizer_s"] > 0.01
    )
    assert found is not None
    assert found.runs > 30
    assert found.mean <= 0.266
    assert found.bias >= -0.252


def test_fsdp2_ranks() -> None:
    """Eager and compiled, weights gathered again or kept, layers recomputed or not, experts, a pipeline."""
    pairs = rehearsed("rehearsal-fsdp2")
    peaks = errors_of(stage.peak_allocated_gib * GIB / row["peak_allocated_bytes"] - 1 for row, stage in pairs)
    reserves = errors_of(stage.peak_reserved_gib * GIB / row["peak_reserved_bytes"] - 1 for row, stage in pairs)
    times = errors_of(
        stage.compute_s / (row["compute_s"] - row["optimizer_s"] - row["zero_grad_s"]) - 1 for row, stage in pairs
    )
    assert peaks is not None
    assert reserves is not None
    assert times is not None
    assert peaks.runs == 32
    assert peaks.mean <= 0.0061
    assert peaks.worst <= 0.032
    assert reserves.mean <= 0.15
    assert times.mean <= 0.038
    assert times.worst <= 0.135


@pytest.mark.parametrize(
    ("name", "runs", "peak", "compute"),
    [
        ("rehearsal-transformers", 30, (0.008, 0.045), (0.044, 0.22)),
        ("rehearsal-torchtitan", 27, (0.037, 0.172), (0.0475, 0.17)),
    ],
)
def test_ranks_of_frameworks_with_their_own_models(
    name: str, runs: int, peak: tuple[float, float], compute: tuple[float, float]
) -> None:
    """Eager models of transformers; torchtitan's with tensor parallelism and float8, eager and compiled."""
    pairs = rehearsed(name, "2026-11-17")
    assert len(pairs) == runs
    peaks = errors_of(stage.peak_allocated_gib * GIB / row["peak_allocated_bytes"] - 1 for row, stage in pairs)
    times = errors_of(
        stage.compute_s / (row["compute_s"] - row["optimizer_s"] - row["zero_grad_s"]) - 1 for row, stage in pairs
    )
    assert peaks is not None
    assert times is not None
    assert peaks.mean <= peak[0]
    assert peaks.worst <= peak[1]
    assert times.mean <= compute[0]
    assert times.worst <= compute[1]


@pytest.mark.parametrize(
    ("name", "date", "runs", "mean", "worst"),
    [
        ("rehearsal-others", "2026-11-17", 56, 0.0064, 0.0445),
        ("rehearsal-others", "2026-11-19", 58, 0.0052, 0.0315),
        ("rehearsal-held-experts", "2026-11-19", 80, 0.0121, 0.0475),
    ],
)
def test_memory_of_shapes_outside_the_grid(name: str, date: str, runs: int, mean: float, worst: float) -> None:
    found = errors_of(
        stage.peak_allocated_gib * GIB / row["peak_allocated_bytes"] - 1 for row, stage in rehearsed(name, date)
    )
    assert found is not None
    assert found.runs == runs
    assert found.mean <= mean
    assert found.worst <= worst


def test_times_of_few_and_many_experts_on_a_rank() -> None:
    found = errors_of(
        stage.compute_s / (row["compute_s"] - row["optimizer_s"] - row["zero_grad_s"]) - 1
        for row, stage in rehearsed("rehearsal-held-experts", "2026-11-19")
    )
    assert found is not None
    assert found.mean <= 0.0346
    assert found.worst <= 0.1205


# Mean error of kernels over the ranks that ran: matrix products, attention.
KERNELS = {
    ("rehearsal-held-experts", "2026-11-19"): (0.0265, 0.043),  # routers in fp32, experts of uneven sizes
    ("rehearsal-unseen", "2026-11-15"): (0.024, 0.048),
    ("rehearsal-torchtitan", "2026-11-17"): (0.0335, 0.043),
    ("rehearsal-transformers", "2026-11-17"): (0.0275, 0.067),
}


@pytest.mark.parametrize(("name", "date"), KERNELS)
def test_kernels_of_rehearsed_ranks(name: str, date: str) -> None:
    """One clock for every framework: no constant of it is a runtime's."""
    rows, device = read_rows(RESULTS / f"{date}_{name}_h200.json")
    sizes: dict[str, list[float]] = {"gemm": [], "attention": []}
    for row in (row for row in rows if not row["oom"]):
        job, strategy = job_of(row, device)
        predicted, measured = kernel_seconds(job, strategy, row["stage"]), measured_of(row)
        for kind, errors in sizes.items():
            errors.append(abs(predicted[kind] / measured[kind] - 1))
    for errors, most in zip(sizes.values(), KERNELS[name, date], strict=True):
        assert np.mean(errors) <= most


@pytest.mark.parametrize("source", SOURCES)
def test_published_runs_of_a_fitted_source(source: str) -> None:
    mean, median, runs = SOURCES[source]
    found = errors_of(row.error for row in replay([run for run in published() if run.source == source]))
    assert found is not None
    assert found.runs == runs
    assert found.mean <= mean
    assert found.median <= median
