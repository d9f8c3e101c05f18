"""Tables with one row per pipeline stage: memory, and time without and with communication."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from astra.answer import Estimate, StageEstimate
from astra.report import drawing, explain
from astra.report.layout import TextTable
from astra.report.terms import MEMORY_LABELS

MOST_KINDS_NARROW: Final = 5
MOST_KINDS_WIDE: Final = 9


def memory_table(estimate: Estimate, *, width: int) -> TextTable:
    """GiB by kind for each stage, with the allocated and reserved peaks."""
    kinds = _kinds(estimate.stages, MOST_KINDS_WIDE if width >= 110 else MOST_KINDS_NARROW)
    headers = [MEMORY_LABELS.get(kind, kind.replace("_", " ")) for kind in kinds]
    hidden = sorted({kind for stage in estimate.stages for kind in stage.memory} - set(kinds))
    limited = any(stage.own_limit_gib is not None for stage in estimate.stages)
    alive = width >= 100 or not limited  # a narrow page has room for the pools or for what is in flight
    columns = ["layers", *["in flight"] * alive, *headers, *["other"] * bool(hidden), "allocated", "reserved"]
    columns += ["limit"] * limited
    out = _stage_table(estimate, columns, gap=1 if width < 110 and (limited or width < 100) else 2)
    for row in explain.memory_rows(estimate.stages):
        stage = row.stage
        cells = [f"{stage.memory.get(kind, 0.0):.1f}" for kind in kinds]
        if hidden:
            cells.append(f"{sum(stage.memory.get(kind, 0.0) for kind in hidden):.1f}")
        peaks = (f"{stage.peak_allocated_gib:.1f}", f"{'' if stage.fits else '! '}{stage.peak_reserved_gib:.1f}")
        limit = [f"{stage.own_limit_gib or estimate.memory_limit_gib:.1f}"] * limited
        style = "" if stage.fits else "red"
        names = [*_names(estimate, row), str(stage.layers), *[str(stage.in_flight)] * alive]
        out.add_row(*names, *cells, *peaks, *limit, style=style)
    return out


def time_unit(estimate: Estimate) -> tuple[str, float]:
    """The unit in which the stages' times read best, and its seconds."""
    return ("s", 1.0) if estimate.step_s >= 1.0 else ("ms", 1e-3)


def time_table(estimate: Estimate, *, width: int) -> TextTable:
    """Times of a step on one rank of each stage; communication is busy time by kind, then what is not hidden."""
    kinds = sorted({kind for stage in estimate.stages for kind in stage.communication_s if stage.communication_s[kind]})
    roomy = width >= 100
    halves = ["forward", "backward"] if roomy else []
    columns = ["layers", *halves, "compute", "optimizer", *kinds]
    columns += ["exposed"] if kinds else []
    unit_s = time_unit(estimate)[1]
    out = _stage_table(estimate, columns, gap=2 if roomy else 1)
    for row in explain.time_rows(estimate.stages):
        stage = row.stage
        seconds = [stage.forward_s, stage.backward_s] if roomy else []
        seconds += [stage.compute_s, stage.optimizer_s, *(stage.communication_s.get(kind, 0.0) for kind in kinds)]
        seconds += [sum(stage.exposed_s.values())] if kinds else []
        out.add_row(*_names(estimate, row), str(stage.layers), *(f"{value / unit_s:.2f}" for value in seconds))
    return out


def _stage_table(estimate: Estimate, columns: Sequence[str], gap: int) -> TextTable:
    """A table of stages; what they run on stands beside them where that differs."""
    pools = [("pool", "left")] * _differ(estimate)
    return drawing.table(("stage", "left"), *pools, *((name, "right") for name in columns), gap=gap)


def _names(estimate: Estimate, row: explain.StageRow) -> list[str]:
    return [row.name, *[row.stage.place] * _differ(estimate)]


def _differ(estimate: Estimate) -> bool:
    return len({stage.place for stage in estimate.stages}) > 1


def _kinds(stages: Sequence[StageEstimate], most: int) -> list[str]:
    """The kinds of memory that get a column: the five everyone knows first, then the largest."""
    peak: dict[str, float] = {}
    for stage in stages:
        for kind, gib in stage.memory.items():
            peak[kind] = max(peak.get(kind, 0.0), gib)
    known = [kind for kind in MEMORY_LABELS if kind in peak]
    others = sorted((kind for kind in peak if kind not in MEMORY_LABELS), key=lambda kind: (-peak[kind], kind))
    return [*known, *others][:most]
