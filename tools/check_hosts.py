"""How much of a rank's time is its host: ``python -m tools.check_hosts ROWS.json ...``, one file a machine.

Hosts of one type of machine issue operators at unlike speeds. For every file: the ``host_speed`` that its ranks which
waited for the host tell in the median, and the mean error of forward and backward with the constants as they are; with
the median speed of the other files; and with the speed told by a few of its own ranks. The last is scored on all other
ranks, for each such group in turn.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from astra.errors import AstraError
from astra.lab.rehearse.pace import Rank, host_speed, waited, with_host
from astra.search.detail import estimate
from tools.check_rehearsal import Table, job_of, measured_of, read_rows, text

FEW: Final = 8  # ranks that tell a host's speed
HEAD: Final = ("", "ranks", "waited", "speed", "as they are", "others' speed", f"speed of {FEW}: the rest")


class Ran(NamedTuple):
    """A rank that ran, and the speed of the host it tells, if it waited."""

    rank: Rank
    speed: float | None


class Line(NamedTuple):
    """One file: what its host is like, and the errors of its ranks."""

    name: str
    ranks: int
    waited: int
    speed: float
    errors: tuple[float, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """As they are shown."""
        counts = (str(self.ranks), str(self.waited)) if self.ranks else ("", "")
        return (self.name, *counts, f"{self.speed:.2f}", *(f"{error:.1%}" for error in self.errors))


def ranks_of(path: str) -> list[Ran]:
    """The ranks of a file that ran, in the order of their ids' digests."""
    rows, device = read_rows(path)

    def ran(row: dict[str, Any]) -> Ran:
        job, strategy = job_of(row, device)
        rank = Rank(replace(job, headroom=0.0), strategy, row["stage"], measured_of(row)["compute"])
        return Ran(rank, host_speed(rank) if waited(row) else None)

    every = [row for row in rows if not row["oom"]]
    return [ran(row) for row in sorted(every, key=lambda row: hashlib.sha256(row["id"].encode()).digest())]


def speed(ranks: Sequence[Ran]) -> float:
    """The speed of the host, as those that waited tell it; as it is, where none did."""
    told = [ran.speed for ran in ranks if ran.speed is not None]
    return median(told) if told else 1.0


def error(ranks: Sequence[Ran], told: float) -> float:
    """The mean error of forward and backward with a host of this speed."""
    sizes = []
    for rank in (ran.rank for ran in ranks):
        stage = estimate(with_host(rank.job, told), [rank.strategy])[0].stages[rank.stage]
        sizes.append(abs(stage.compute_s / rank.compute_s - 1))
    return fmean(sizes)


def error_of_the_rest(ranks: Sequence[Ran]) -> float:
    """The same with the speed that a few of them tell, over all others; the mean over such groups."""
    telling = [ran for ran in ranks if ran.speed is not None]
    groups = [telling[start : start + FEW] for start in range(0, len(telling) - FEW + 1, FEW)] or [telling]
    return fmean(error([ran for ran in ranks if ran not in group], speed(group)) for group in groups)


def lines(sessions: dict[str, list[Ran]]) -> list[Line]:
    """A line for each file, and their mean."""
    speeds, found = {name: speed(ranks) for name, ranks in sessions.items()}, []
    for name, ranks in sessions.items():
        others = [other for key, other in speeds.items() if key != name] or [1.0]
        errors = (error(ranks, 1.0), error(ranks, median(others)), error_of_the_rest(ranks))
        found.append(Line(name, len(ranks), sum(ran.speed is not None for ran in ranks), speeds[name], errors))
    means = tuple(map(fmean, zip(*(line.errors for line in found), strict=True)))
    return [*found, Line("mean over files", 0, 0, median(speeds.values()), means)]


def main(argv: list[str] | None = None) -> int:
    """Command line of the check."""
    parser = argparse.ArgumentParser(prog="python -m tools.check_hosts", description=__doc__)
    parser.add_argument("files", metavar="ROWS.json", nargs="+", help="rehearsed rows, each of one machine")
    options = parser.parse_args(argv)
    try:
        found = lines({Path(path).stem: ranks_of(path) for path in options.files})
    except AstraError as wrong:
        print(f"check_hosts: {wrong}", file=sys.stderr)
        return wrong.exit_code
    print(text([Table("Forward and backward, mean error", HEAD, [line.cells for line in found])]), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
