"""What runs of a source may be used for.

Runs of the sources listed in ``data/sources.csv`` may shape runtimes and operator models, all of them or those of some
models. A table that reads like a simulator's shapes nothing and tests nothing: its errors are told apart. Runs of every
other source, known or not, are for testing only.
"""

from __future__ import annotations

import csv
import io
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

Use = Literal["fit", "test", "simulated"]


class RunSource(NamedTuple):
    """A source with what its runs may be used for."""

    name: str
    fit: tuple[str, ...]  # how the names of models begin whose runs may be fitted on; an empty start: all of them
    simulated: bool  # its times read like a simulator's


@cache
def sources() -> tuple[RunSource, ...]:
    """Every source whose runs are for more, or for less, than testing."""
    text = (files("astra.validate") / "data" / "sources.csv").read_text(encoding="utf-8")
    return tuple(_source(row) for row in csv.DictReader(io.StringIO(text)))


def _source(row: dict[str, str]) -> RunSource:
    fit = ("",) if row["fit"] == "all" else tuple(row["fit"].split())
    return RunSource(row["source"], fit, row["times"] == "simulated")


def use_of(source: str, model: str) -> Use:
    """What the runs of this source and model may be used for."""
    found = next((one for one in sources() if one.name == source), RunSource(source, (), simulated=False))
    if found.simulated:
        return "simulated"
    return "fit" if model.startswith(found.fit) else "test"
