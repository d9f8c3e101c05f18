"""Published training runs as requests and strategies: any CSV with the columns of the project's survey of runs.

A row becomes a `Run`, which is what a user would ask ``astra estimate``, or a `Skipped` with the reason. What a row
leaves open is filled by a stated rule and remembered; what makes a measurement unfit for timing sets it aside, and that
is remembered too. No rule looks at who published a run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

from astra.catalog import runtimes
from astra.errors import AstraError, InputError
from astra.files import csv_rows, read_text
from astra.search.world import World
from astra.spec.cluster import Cluster
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.request import PlanRequest
from astra.spec.strategy import Strategy
from astra.validate.cells import Missing, Row, needed, words_of
from astra.validate.measured import Measured, measured_of
from astra.validate.models import batch_of, degrees_of, model_in, mtp_of, packing_of, precision_of, task_of
from astra.validate.pools import cluster_of
from astra.validate.strategies import Degrees, RunSettings, runtime_of, strategy_of

_NEEDED: Final = ("layers", "hidden", "heads", "gpu_type", "num_gpus")
_DELIMITERS: Final = (",", ";", "\t")
_LONGEST_CELL: Final = 4_000  # Python reads no longer numbers


class Run(NamedTuple):
    """One published run, as a user would ask for it."""

    id: str
    source: str  # short name of where it was published
    citation: str
    framework: str
    precision: str  # as published
    request: PlanRequest  # equal ones are one object
    strategy: Strategy
    measured: Measured
    aside: str = ""  # why its time is not scored; empty: it is
    filled: tuple[str, ...] = ()  # rules that filled what the row left open

    @property
    def job(self) -> Job:
        """The job of the request, on its first pool."""
        return World.of(self.request).job


class Skipped(NamedTuple):
    """A row that cannot be replayed."""

    id: str
    source: str
    reason: str


def read_runs(path: str | Path) -> list[Run | Skipped]:
    """Every row of a CSV file, with commas, semicolons or tabs."""
    text = read_text(path, "runs")
    first = text.partition("\n")[0]
    rows = csv_rows(text, str(path), delimiter=max(_DELIMITERS, key=first.count), strict=False)
    _, header = next(rows, (1, []))
    if not set(header).intersection(_NEEDED):
        raise InputError(str(path), None, want=f"a header with columns such as {', '.join(_NEEDED)}")
    return runs_of(dict(zip_longest(header, row[: len(header)], fillvalue="")) for _, row in rows)


def runs_of(rows: Iterable[Row]) -> list[Run | Skipped]:
    """Rows as runs; equal requests are one object, so that their strategies can be costed together."""
    requests: dict[tuple[object, ...], PlanRequest] = {}
    return [_run(row, f"row {place}", requests) for place, row in enumerate(rows, start=1)]


def source_of(row: Row) -> str:
    """The short name of a source: the identifier without its number, else the repository."""
    name = re.sub(r"[-_]?\d+$", "", (row.get("id") or "").strip())
    return name or (row.get("source_repo_or_paper") or "unknown").split("@")[0]


def _run(row: Row, unnamed: str, requests: dict[tuple[object, ...], PlanRequest]) -> Run | Skipped:
    identity, source = words_of(row, "id") or unnamed, source_of(row)
    try:
        return _read(row, identity, source, requests)
    except Missing as missing:
        return Skipped(identity, source, str(missing))
    except AstraError as error:
        return Skipped(identity, source, f"refused: {error}")
    except ArithmeticError as error:  # numbers no run can have; one row must not end the others
        return Skipped(identity, source, f"cannot be read: {error}")


def _read(row: Row, identity: str, source: str, requests: dict[tuple[object, ...], PlanRequest]) -> Run:
    if any(isinstance(cell, str) and len(cell) > _LONGEST_CELL for cell in row.values()):
        raise Missing(f"a cell of more than {_LONGEST_CELL:,} characters")
    filled: list[str] = []
    notes = words_of(row, "notes")
    name, assumed = runtime_of(
        words_of(row, "framework"), words_of(row, "framework_version_or_date"), notes, words_of(row, "flash_attn")
    )
    filled += [assumed] if assumed else []
    runtime, cluster = runtimes.runtime(name), cluster_of(row, filled)
    degrees = degrees_of(row, cluster.gpus, runtime, notes, filled)
    seq = needed(row, "seq_len", "sequence length")
    model, how = model_in(row, seq, notes, filled)
    filled.append(f"model {model.name}: {how}")
    batch = batch_of(row, degrees, cluster.gpus, seq, notes, filled)
    work: dict[str, Any] = {"batch": batch, "seq": seq, "runtime": name}
    work |= precision_of(words_of(row, "precision").lower(), cluster, runtime, filled)
    work |= task_of(words_of(row, "task").lower(), runtime, notes, filled)
    work |= packing_of(work["task"], seq, runtime, notes, filled)
    work |= mtp_of(words_of(row, "model_name"), model, filled)
    _check(degrees, model, batch)
    request = _request(model, cluster, work, requests)
    strategy, rules = strategy_of(World.of(request), degrees, _settings(row, notes))
    _check_experts(strategy)
    measured, aside = measured_of(row, request, runtime, notes, filled)
    citation = f"{words_of(row, 'source_repo_or_paper')}: {words_of(row, 'source_path_or_table')}".strip(": ")
    stated = words_of(row, "precision").lower()
    framework = words_of(row, "framework") or "unknown"
    return Run(identity, source, citation, framework, stated, request, strategy, measured, aside, (*filled, *rules))


def _request(
    model: ModelSpec, cluster: Cluster, work: dict[str, Any], requests: dict[tuple[object, ...], PlanRequest]
) -> PlanRequest:
    """The request; equal ones are one object."""
    key = (id(model), id(cluster), *sorted(work.items()))
    if key not in requests:
        requests[key] = PlanRequest(model=model, cluster=cluster, headroom=0.0, **work)
    return requests[key]


def _settings(row: Row, notes: str) -> RunSettings:
    return RunSettings(
        sp=words_of(row, "sp"),
        zero=words_of(row, "zero_stage_or_dist_opt"),
        recompute=words_of(row, "recompute"),
        flash=words_of(row, "flash_attn"),
        precision=words_of(row, "precision").lower(),
        version=words_of(row, "framework_version_or_date"),
        notes=notes,
    )


def _check(degrees: Degrees, model: ModelSpec, batch: int) -> None:
    if degrees.pp * degrees.vp > model.layers + 2:  # the embedding and the loss may be chunks of their own
        raise Missing("more pipeline chunks than layers")
    if batch % (degrees.dp * degrees.mbs):
        raise Missing("dp*mbs does not divide the batch")
    if model.heads % degrees.tp:
        raise Missing("tp does not divide the heads")
    if model.moe is not None and model.moe.experts % degrees.ep:
        raise Missing("ep does not divide the experts")


def _check_experts(strategy: Strategy) -> None:
    if (strategy.tp * strategy.cp * strategy.dp) % (strategy.ep * strategy.etp):
        raise Missing("ep*etp does not divide tp*cp*dp")
