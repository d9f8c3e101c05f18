"""What a row of a table says was measured, whether its time may be scored, and what its source may be used for.

Runs of the sources listed in ``data/sources.csv`` may shape runtimes and operator models, all of them or those of some
models. A table that reads like a simulator's shapes nothing and tests nothing: its errors are told apart. Runs of every
other source, known or not, are for testing only.
"""

from __future__ import annotations

import csv
import io
import re
from functools import cache
from importlib.resources import files
from typing import Final, Literal, NamedTuple

from astra.layers.weights import forward_flops_per_token
from astra.search.world import World
from astra.spec.request import PlanRequest
from astra.spec.runtime import Runtime
from astra.validate.cells import Row, number, switch, words_of

Use = Literal["fit", "test", "simulated"]


class RunSource(NamedTuple):
    """A source with what its runs may be used for."""

    name: str
    fit: tuple[str, ...]  # how the names of models begin whose runs may be fitted on; an empty start: all of them
    simulated: bool  # its times read like a simulator's


@cache
def sources() -> tuple[RunSource, ...]:
    """Every source whose runs are for more, or for less, than testing."""
    text = (files("astra.validate") / "data" / "sources.csv").read_text(encoding="utf-8")
    return tuple(_source(row) for row in csv.DictReader(io.StringIO(text)))


def _source(row: dict[str, str]) -> RunSource:
    fit = ("",) if row["fit"] == "all" else tuple(row["fit"].split())
    return RunSource(row["source"], fit, row["times"] == "simulated")


def use_of(source: str, model: str) -> Use:
    """What the runs of this source and model may be used for."""
    found = next((one for one in sources() if one.name == source), RunSource(source, (), simulated=False))
    if found.simulated:
        return "simulated"
    return "fit" if model.startswith(found.fit) else "test"


# Of the first stage or the worst rank: allocated, reserved by the allocator, or what the driver counts (nvidia-smi).
Peak = Literal["first", "most", "first reserved", "reserved", "first device", "device"]

_PEAKS: Final[dict[str, tuple[Peak, Peak]]] = {
    "allocated": ("first", "most"), "reserved": ("first reserved", "reserved"), "device": ("first device", "device"),
}  # fmt: skip
# Who counted it, where a run says so; what the driver counts is said beside other figures.
_COUNTED: Final = (
    (r"nvidia-smi|nvml|device memory used|total used", "device"),
    (r"max[_ ](?:memory[_ ])?allocated|peak allocated", "allocated"),
    (r"max[_ ](?:memory[_ ])?reserved|peak reserved", "reserved"),
)
_SUSPECT: Final = ("DO NOT USE", "SUSPECT", "INCONSISTENT")
_FILLED: Final = "shape not filled"  # by the survey; a row that is replayed has one


class Measured(NamedTuple):
    """What the source measured; None where it did not."""

    step_s: float | None
    peak_gib: float | None
    peak_of: Peak
    oom: bool | None


def measured_of(
    row: Row, request: PlanRequest, runtime: Runtime, notes: str, filled: list[str]
) -> tuple[Measured, str]:
    """What was measured, and why its time is not scored (empty: it is)."""
    world = World.of(request)
    step, tokens_per_step = number(row, "measured_step_time_s"), world.workload.tokens_per_step
    rate, tflops = number(row, "measured_tokens_per_s_per_gpu"), number(row, "measured_model_tflops_per_gpu")
    if step is None and rate:
        step = tokens_per_step / (rate * world.cluster.gpus)
        filled.append("step time from tokens per second")
    if step is None and tflops and world.workload.task != "lora":
        flops = 3 * forward_flops_per_token(world.model, world.workload.seq) * tokens_per_step
        step = flops / (tflops * 1e12 * world.cluster.gpus)
        filled.append("step time from TFLOP/s, counted as 3 forward passes with causal attention")
    oom = switch(words_of(row, "oom"))
    first = "rank 0" in notes.lower()
    logs = next((who for words, who in _COUNTED if re.search(words, notes.lower())), runtime.usual.logs)
    of: Peak = _PEAKS[logs][not first]
    peak = number(row, "measured_peak_mem_gb")
    return Measured(None if oom else step, peak, of, oom), _aside(notes, step, oom)


def _aside(notes: str, step: float | None, oom: bool | None) -> str:
    if oom:
        return "out of memory or crashed: no time"
    if step is None:
        return "no step time, tokens per second or TFLOP/s"
    if "clean=0" in notes:
        return "disturbed run by the survey's check (clean=0)"
    if ("q=C" in notes and _FILLED not in notes) or any(word in notes for word in _SUSPECT):
        return "incomplete, remembered or suspect (q=C)"
    return ""
