"""The closest plan over several pools that a target can express: the fastest other one of the same file.

Between pools there is no small step: one degree changed moves every split. The search has ranked the alternatives and
costed each already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astra.export.base import CannotExport, Exporter, refusals
from astra.export.reading import from_record


def nearest_of_file(
    record: Mapping[str, Any], rank: int, exporter: Exporter, *, where: str
) -> tuple[int, dict[str, Any] | None]:
    """The rank to export, and what it differs by; the rank asked for if the target can express it."""
    reasons = _reasons(record, rank, exporter, where)
    if not reasons:
        return rank, None
    plans = {plan["rank"]: plan for plan in record["plans"]}
    for other in sorted(plans):
        if other != rank and not _reasons(record, other, exporter, where):
            return other, _difference(reasons, plans[rank], plans[other])
    reasons = [*reasons, f"nor any other of the {len(plans)} plans of the file (astra plan --top N writes more)"]
    raise CannotExport(exporter.name, reasons, near=False)


def _reasons(record: Mapping[str, Any], rank: int, exporter: Exporter, where: str) -> list[str]:
    try:
        launch, _ = from_record(record, rank, where=where)
    except CannotExport as error:
        return error.reasons
    return refusals(exporter, launch)


def _difference(reasons: list[str], asked: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    before, after = asked["estimate"], other["estimate"]
    return {
        "reasons": reasons,
        "changed": {"rank": [asked["rank"], other["rank"]], "strategy": [asked["strategy"], other["strategy"]]},
        "asked_step_s": before["step_s"],
        "exported_step_s": after["step_s"],
        "asked_peak_gib": before["peak_reserved_gib"],
        "exported_peak_gib": after["peak_reserved_gib"],
        "asked_runtime": before["runtime"],
        "exported_runtime": after["runtime"],
    }
