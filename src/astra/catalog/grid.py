"""How much CO2 a kilowatt-hour of a cloud's region makes: dated averages of the grid there, with their source."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, NamedTuple

from astra.catalog import hardware
from astra.errors import fold
from astra.files import csv_rows

_APART: Final = re.compile(r"[/ ]+")


class Grid(NamedTuple):
    """A grid's average over a year, without what a cloud buys elsewhere."""

    g_co2_per_kwh: float
    source: str


def grid(provider: str, region: str) -> Grid | None:
    """The grid of a provider's region; None where the offer names several, or none that is known."""
    names = _APART.split(region.strip().lower())
    return _grids().get((fold(provider), names[0])) if len(names) == 1 else None


@cache
def _grids() -> dict[tuple[str, str], Grid]:
    path = hardware.DATA / "grid.csv"
    rows = csv_rows(path.read_text(encoding="utf-8"), path.name)
    _, header = next(rows)
    found = {}
    for _, row in rows:
        cells = dict(zip(header, row, strict=True))
        source = f"{cells['place']}, {cells['date'][:4]} ({cells['source']})"
        found[fold(cells["provider"]), cells["region"]] = Grid(float(cells["g_co2_per_kwh"]), source)
    return found
