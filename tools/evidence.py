"""Write the table of evidence: ``python -m tools.evidence [--kept]``. It takes minutes.

Every timed run of ``astra validate`` with its kind and the error of a prediction whose constants never saw its source
(``tools.leave_out``). ``--kept`` takes those constants as they were found last, which is done in a minute. How many of
a source's runs the bars made without it hold: ``astra validate``.
"""

from __future__ import annotations

import argparse
import csv
import io
import math
import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from astra.evidence.kinds import COLUMNS, FILE, OTHER, shape_of
from astra.search.world import World
from astra.validate.replay import ReplayedRun, kind_in, replay
from astra.validate.runs import Run
from astra.validate.table import published
from tools.leave_out import LeftOut, keep, kept, left_out, timed

TARGET = Path(str(files("astra.evidence"))) / "data" / FILE


def table(runs: Sequence[Run], found: Sequence[LeftOut], shipped: Sequence[ReplayedRun]) -> str:
    """The text of the table; ``shipped`` are the same runs with the constants as they are."""
    unseen = {row.id: (row, each.kin) for each in found for row in each.rows}
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(COLUMNS)
    for run, now in zip(runs, shipped, strict=True):
        row, kin = unseen[run.id]
        if row.error is None or now.error is None:
            continue
        own = row if kin else None if now.use == "fit" else now
        world = World.of(run.request)
        kind = [f"{value:.3g}" if isinstance(value, float) else value for value in kind_in(world, run.strategy)]
        unseen_error = _log_error(row)
        writer.writerow((run.source, shape_of(world.model), _log_error(own) if own else "", unseen_error, *kind))
        if not kin:
            writer.writerow((run.source, shape_of(world.model), unseen_error, unseen_error, OTHER, *kind[1:]))
    return page.getvalue()


def _log_error(row: ReplayedRun) -> str:
    return f"{-math.log1p(row.error or 0.0):.4f}"


def main(arguments: Sequence[str]) -> int:
    """Predict every source without it, and write what was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.evidence", description=__doc__)
    parser.add_argument("--kept", action="store_true", help="with the constants that were found last")
    options, runs = parser.parse_args(arguments), timed(published())
    found = left_out(runs, kept() if options.kept else None)
    keep(found)
    TARGET.write_text(table(runs, found, replay(runs)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
