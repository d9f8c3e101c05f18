"""The closest plan over several pools that a target can express: the fastest other one of the same file.

Between pools there is no small step: one degree changed moves every split. The search has ranked the alternatives and
costed each already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astra.export.base import CannotExport, Exporter, refusals
from astra.export.reading import figure, from_record, plan_of


def nearest_of_file(
    record: Mapping[str, Any], rank: int, exporter: Exporter, *, where: str
) -> tuple[int, dict[str, Any] | None]:
    """The rank to export, and what it differs by; the rank asked for if the target can express it."""
    reasons = _reasons(record, rank, exporter, where)
    if not reasons:
        return rank, None
    ranks = [plan.get("rank") for plan in record["plans"] if isinstance(plan, dict)]
    for other in sorted(other for other in ranks if isinstance(other, int)):
        if other != rank and not _reasons(record, other, exporter, where):
            return other, _difference(reasons, plan_of(record, rank, where), plan_of(record, other, where))
    reasons = [*reasons, f"nor any other of the {len(ranks)} plans of the file (astra plan --top N writes more)"]
    raise CannotExport(exporter.name, reasons, near=False)


def _reasons(record: Mapping[str, Any], rank: int, exporter: Exporter, where: str) -> list[str]:
    try:
        launch, _ = from_record(record, rank, where=where)
    except CannotExport as error:
        return error.reasons
    return refusals(exporter, launch)


def _difference(
    reasons: list[str], asked: tuple[Mapping[str, Any], str], other: tuple[Mapping[str, Any], str]
) -> dict[str, Any]:
    (before, _), (after, _) = asked, other
    return {
        "reasons": reasons,
        "changed": {name: [before.get(name), after.get(name)] for name in ("rank", "strategy")},
        "asked_step_s": figure(before, "step_s", asked[1]),
        "exported_step_s": figure(after, "step_s", other[1]),
        "asked_peak_gib": figure(before, "peak_reserved_gib", asked[1]),
        "exported_peak_gib": figure(after, "peak_reserved_gib", other[1]),
        "asked_runtime": before["estimate"].get("runtime"),
        "exported_runtime": after["estimate"].get("runtime"),
    }
