"""The files of one plan for a target, made and not yet written, and the record of what they are."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from astra.answer import Estimate
from astra.errors import UnknownName
from astra.export import EXPORTERS
from astra.export.base import CannotExport, Exporter, Launch, refusals, strategy_could_help
from astra.export.figures import estimated_anew
from astra.export.nearest import Nearest, find, in_target
from astra.spec.job import Job

EXPORT_SCHEMA: Final = "astra.export/1"


class Made(NamedTuple):
    """What a target starts, and what is told of it."""

    files: dict[str, str]  # name and content
    record: dict[str, Any]  # but for the folder and the names of the files


def target(name: str, flag: str) -> Exporter:
    """The exporter of a name."""
    if name not in EXPORTERS:
        raise UnknownName(flag, name, EXPORTERS, fix=f"The targets are {', '.join(EXPORTERS)}.")
    return EXPORTERS[name]


def make(launch: Launch, job: Job | None, exporter: Exporter, *, nearest: bool = False) -> Made:
    """The files of a plan, or of the closest one that the target can express if that is asked for."""
    reasons, found, there = refusals(exporter, launch), None, None
    near = strategy_could_help(exporter, launch)
    if reasons and (job is None or not nearest or not near):
        raise CannotExport(exporter.name, reasons, near=near)
    planned = launch
    if job is not None:
        if reasons:
            found = find(exporter, launch, job)
            launch = found.launch._replace(figures=estimated_anew(launch.figures, msgspec.to_builtins(found.after)))
        else:
            there = in_target(exporter, launch, job)
            if there is not None:
                figures = estimated_anew(planned.figures, msgspec.to_builtins(there))
                launch = planned._replace(step_s=there.step_s, figures=figures)
    record = {
        "schema": EXPORT_SCHEMA,
        "target": exporter.name,
        "strategy": str(launch.strategy),
        "verified": exporter.verified,
        "nearest": _difference(reasons, found) if found is not None else None,
        "estimated": None if there is None else _estimated(planned, there),
    }
    return Made(exporter.files(launch), record)


def _estimated(planned: Launch, there: Estimate) -> dict[str, Any]:
    """The plan in the target's runtime, where it was made for another."""
    return {
        "planned_runtime": planned.runtime,
        "planned_step_s": planned.step_s,
        "runtime": there.runtime,
        "step_s": there.step_s,
        "peak_gib": there.peak_reserved_gib,
        "limit_gib": there.memory_limit_gib,
        "fits": there.fits,
    }


def _difference(reasons: list[str], found: Nearest) -> dict[str, Any]:
    return {
        "reasons": reasons,
        "changed": {name: [_plain(value) for value in pair] for name, pair in found.changed.items()},
        "asked_step_s": found.before.step_s,
        "exported_step_s": found.after.step_s,
        "asked_peak_gib": found.before.peak_reserved_gib,
        "exported_peak_gib": found.after.peak_reserved_gib,
        "asked_runtime": found.before.runtime,
        "exported_runtime": found.after.runtime,
    }


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
