"""Published runs predicted without their own source: every fitted constant of a runtime is found anew without it.

``python -m tools.leave_out`` prints and keeps the errors by source. It takes minutes; ``tools.evidence`` does the same
and makes the table from which error bars come.

Runtimes with the same kernels share their constants, so that a source is predicted by those of its kin, which lean on
all other sources where the kin has few runs; what was fitted on a source alone goes with it. A source without kin is
predicted as an unknown framework would be: with the constants that suit all other sources best, the host of torch's own
layers, and nothing that was learned from its own runs. What is counted from a framework's code stays.
"""

from __future__ import annotations

import argparse
import csv
import io
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from astra.search.world import World
from astra.spec.job import STRAGGLING
from astra.spec.runtime import Runtime, changed
from astra.validate.measured import use_of
from astra.validate.replay import ReplayedRun, replay
from astra.validate.runs import Run, Skipped
from astra.validate.score import errors_of
from astra.validate.table import published


class Constant(NamedTuple):
    """One fitted constant of a runtime, where the search for it starts and where it is looked for."""

    name: str
    first: float
    grid: tuple[float, ...]


CONSTANTS: Final = (
    Constant("clock", 1.0, (0.84, 0.88, 0.92, 0.96, 1.0, 1.04)),
    Constant("fp8_cast", 6.0, (6.0, 8.0, 9.5, 11.0, 12.5)),  # bytes per element, both ways
    Constant("straggling", 0.0, (0.0, 0.002, 0.0035, 0.005)),
)
# Fitted too, in runtimes whose constants nobody shares: common values, or the mechanism off.
OTHERS: Final = {
    "attention_rate": 1.0,
    "launch_s": 5.2e-5,  # torch's own layers on an H200 (benchmarks/eager_layers.py), as deepspeed has them
    "backward_s": 5e-5,
    "step_s": 0.02,  # the median over runtimes
    "pipelined_collective_s": 0.0,
    "gather_host_s": 0.0,
    "collective_launches": 2.0,
}
# Runtimes with the kernels of another.
KIN: Final = {
    "nemo": "megatron",
    "megatron-bridge": "megatron",
    "torchtitan-2024": "torchtitan",
    "torchtitan-2025": "torchtitan",
    "composer": "fsdp-eager",
    "composer-2023": "fsdp-eager",
    "torchtitan-eager": "fsdp-eager",
}
SAMPLE: Final = 40  # runs of a source that constants are found on
LEANS: Final = 20  # so many runs of its kin count as much as all other sources together
RESULT: Final = Path(str(files("astra.validate"))) / "data" / "left_out.csv"
Values = tuple[float, ...]
_REPLAYED: dict[tuple[str, Values, bool, bool], ReplayedRun] = {}  # one run is in the sample of many sources


def runtime_in(run: Run) -> str:
    """The runtime a run asks for."""
    assert run.request.runtime is not None
    return run.request.runtime


def kind_of(runtime: str) -> str:
    """The runtime whose constants this one shares."""
    return KIN.get(runtime, runtime)


def _changed(runtime: Runtime, values: Values, *, alone: bool, without: str) -> Runtime:
    clock, cast_bytes, _ = values
    cast = replace(runtime.kernels["fp8_cast"], forward_bytes=cast_bytes, backward_bytes=cast_bytes)
    learned = {name.rpartition(".")[2] for name, on in runtime.fitted.items() if on == without}
    counted = {name for name, effect in runtime.effects.items() if effect.counted_in}
    others = {name: value for name, value in OTHERS.items() if name in learned or (alone and name not in counted)}
    return changed(runtime, clock=clock, clock_ampere=0.0, kernels=runtime.kernels | {"fp8_cast": cast}, **others)


def predicted(runs: Sequence[Run], values: Values, *, alone: bool = False, left_out: bool = False) -> list[ReplayedRun]:
    """The runs replayed with other constants, each once. Straggling is the cost model's own, a factor of the step.

    Runs whose source is ``left_out`` know nothing of what was fitted on it alone.
    """
    new = [run for run in runs if (run.id, values, alone, left_out) not in _REPLAYED]
    for source in sorted({run.source for run in new}):
        own = [run for run in new if run.source == source]

        def change(world: World, without: str = source if left_out else "") -> World:
            return world._replace(runtime=_changed(world.runtime, values, alone=alone, without=without))

        for run, row in zip(own, replay(own, change=change), strict=True):
            lost = World.of(run.request).job.straggling
            factor = (1 + lost / STRAGGLING * values[-1]) / (1 + lost)
            known = replace(row, predicted_step_s=factor * row.predicted_step_s if row.predicted_step_s else None)
            _REPLAYED[run.id, values, alone, left_out] = known
    return [_REPLAYED[run.id, values, alone, left_out] for run in runs]


def loss(rows: Iterable[ReplayedRun]) -> float:
    """Mean size of the logarithmic error, each source with the same weight."""
    sizes: dict[str, list[float]] = {}
    for row in rows:
        if row.error is not None:
            sizes.setdefault(row.source, []).append(abs(float(np.log1p(row.error))))
    return float(np.mean([np.mean(part) for part in sizes.values()])) if sizes else 0.0


def fitted(kin: Sequence[Run], others: Sequence[Run]) -> Values:
    """The constants that predict samples of these runs best, one at a time, twice around."""
    values = [constant.first for constant in CONSTANTS]
    samples = [_sample(kin), _sample(others)]
    weights = (len(kin) / (len(kin) + LEANS), LEANS / (len(kin) + LEANS))
    for place, constant in [*enumerate(CONSTANTS)] * 2:
        trials = [(*values[:place], trial, *values[place + 1 :]) for trial in constant.grid]
        losses = [
            sum(weight * loss(predicted(runs, trial)) for weight, runs in zip(weights, samples, strict=True))
            for trial in trials
        ]
        values[place] = constant.grid[int(np.argmin(losses))]
    return tuple(values)


def _sample(runs: Sequence[Run]) -> list[Run]:
    return [run for source in sorted({run.source for run in runs}) for run in _spread(runs, source)]


def _spread(runs: Sequence[Run], source: str) -> list[Run]:
    """Runs of a source, evenly spread over its table."""
    own = [run for run in runs if run.source == source]
    return own[:: -(-len(own) // SAMPLE)]


class LeftOut(NamedTuple):
    """A source predicted by constants that never saw it."""

    source: str
    kind: str
    constants: Values
    rows: list[ReplayedRun]
    kin: bool  # whether other sources ran on such a runtime


def kept() -> dict[tuple[str, str], Values]:
    """The constants that were found last, by source and kind of runtime."""
    with RESULT.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    each = re.compile(r"([\w-]+)(?: \(no kin\))? \(([^)]*)\)")
    return {
        (row["source"], kind): tuple(map(float, values.split(",")))
        for row in rows
        for kind, values in each.findall(row["constants"])
    }


def left_out(runs: Sequence[Run], known: Mapping[tuple[str, str], Values] | None = None) -> list[LeftOut]:
    """Every scored run predicted by constants that never saw its source: found anew, or as they are ``known``."""
    found = []
    for source, kind in sorted({(run.source, kind_of(runtime_in(run))) for run in runs}):
        others = [run for run in runs if run.source != source]
        kin = [run for run in others if kind_of(runtime_in(run)) == kind]
        constants = (known or {}).get((source, kind)) or fitted(kin, others)
        own = [run for run in runs if run.source == source and kind_of(runtime_in(run)) == kind]
        rows = predicted(own, constants, alone=not kin, left_out=True)
        found.append(LeftOut(source, kind, constants, rows, kin=bool(kin)))
    return found


def timed(runs: Iterable[Run | Skipped]) -> list[Run]:
    """Runs that somebody timed: scored, and not of a table that reads like a simulator's."""
    scored = [run for run in runs if isinstance(run, Run) and not run.aside and run.measured.step_s]
    return [run for run in scored if use_of(run.source, World.of(run.request).model.name) != "simulated"]


def keep(found: Sequence[LeftOut]) -> None:
    """Print and keep the errors by source."""
    print(f"Constants found without the source: {', '.join(constant.name for constant in CONSTANTS)}")
    lines = [_line("all", [row for each in found for row in each.rows], "")]
    for source in sorted({each.source for each in found}):
        mine = [each for each in found if each.source == source]
        how = "; ".join(f"{each.kind}{'' if each.kin else ' (no kin)'} {each.constants}" for each in mine)
        lines.append(_line(source, [row for each in mine for row in each.rows], how))
    _write(RESULT, ("source", "runs", "mean", "median", "p90", "bias", "constants"), lines)


def main(arguments: Sequence[str]) -> int:
    """Predict every source without it, and write what was found."""
    argparse.ArgumentParser(prog="python -m tools.leave_out", description=__doc__).parse_args(arguments)
    keep(left_out(timed(published())))
    return 0


def _line(name: str, rows: Sequence[ReplayedRun], how: str) -> tuple[object, ...]:
    errors = errors_of(row.error for row in rows)
    assert errors is not None
    shares = (errors.mean, errors.median, errors.p90, errors.bias)
    print(f"{name:16} {errors.runs:6,}" + "".join(f" {share:7.1%}" for share in shares) + f"  {how}")
    return name, errors.runs, *(f"{share:.4f}" for share in shares), how


def _write(path: Path, header: Sequence[str], lines: Iterable[Sequence[object]]) -> None:
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(lines)
    path.write_text(page.getvalue(), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
