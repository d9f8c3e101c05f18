"""What replayed runs ask: each as the TOML request of ``astra estimate`` that gives the same prediction."""

from __future__ import annotations

from collections.abc import Sequence

from astra.catalog.requests import write_request
from astra.errors import visible
from astra.validate.replay import ReplayedRun


def render_requests(rows: Sequence[ReplayedRun]) -> str:
    """One request after another; what was measured and filled in stands above each, as comments."""
    return "\n".join(map(_request, rows))


def _request(row: ReplayedRun) -> str:
    if row.request is None:
        return f"# {row.id}: skipped: {visible(row.skipped or '')}\n"
    measured = f"measured {row.measured_step_s:.6g} s" if row.measured_step_s else "no time measured"
    lines = [f"{row.id}: predicted {row.predicted_step_s:.6g} s, {measured}", f"published: {row.citation}"]
    lines += [f"filled: {rule}" for rule in row.filled]
    lines += [f"not scored: {row.not_scored}"] * bool(row.not_scored)
    return "".join(f"# {visible(line)}\n" for line in lines) + write_request(row.request, "estimate")
