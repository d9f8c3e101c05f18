"""Write the table of evidence: ``python -m tools.evidence``. It takes minutes.

Every timed run of ``astra validate`` with its kind and the error of a prediction whose constants never saw its source
(``tools.leave_out``). Prints how many of a source's runs the bars made without it hold.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from astra.evidence.kinds import Kind
from astra.evidence.runs import COLUMNS, FILE, shape_of
from astra.search.world import World
from astra.validate.replay import ReplayedRun, kind_in
from astra.validate.runs import Run
from astra.validate.table import published
from tools.leave_out import left_out, timed

TARGET = Path(str(files("astra.evidence"))) / "data" / FILE


def table(runs: Sequence[Run], rows: Sequence[ReplayedRun]) -> str:
    """The text of the table."""
    errors = {row.id: row for row in rows}
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run in runs:
        row = errors.get(run.id)
        if row is None or not row.predicted_step_s or not row.measured_step_s:
            continue
        world = World.of(run.request)
        kind = kind_in(world, run.strategy)
        log_error = np.log(row.measured_step_s / row.predicted_step_s)
        writer.writerow((run.source, shape_of(world.model), f"{log_error:.4f}", *_shown(kind)))
    return page.getvalue()


def _shown(kind: Kind) -> list[str]:
    return [f"{value:.3g}" if isinstance(value, float) else value for value in kind]


def main() -> int:
    """Predict every source without it, and write what was found."""
    runs = timed(published())
    found = left_out(runs)
    TARGET.write_text(table(runs, [row for each in found for row in each.rows]), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
