"""Predicted against measured step times, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from astra.atomic import write_file
from astra.report.markup import label, picture, quoted, tag
from astra.report.pictures import as_file
from astra.validate.replay import ReplayedRun

SIDE: Final = 640.0
MARGIN: Final = 56.0
NAMES: Final = 220.0  # the width of the legend
BAND: Final = 0.10  # drawn around equality
COLORS: Final = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf",
    "#393b79", "#637939", "#8c6d31", "#843c39",
)  # fmt: skip


class Point(NamedTuple):
    """One scored run."""

    measured_s: float
    predicted_s: float
    source: str
    label: str


def points_of(rows: Sequence[ReplayedRun]) -> list[Point]:
    """The scored runs, by source and then by identifier."""
    found = [
        Point(row.measured_step_s or 0.0, row.predicted_step_s or 0.0, row.source, f"{row.id}: {row.strategy}")
        for row in rows
        if row.error is not None
    ]
    return sorted(found, key=lambda point: (point.source, point.label))


def limits(points: Sequence[Point]) -> tuple[int, int]:
    """The powers of ten that hold every time."""
    times = [time for point in points for time in (point.measured_s, point.predicted_s)] or [1.0, 10.0]
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    return low, max(high, low + 1)


def draw(rows: Sequence[ReplayedRun], path: str) -> None:
    """Write the picture; the ending of the name chooses the kind."""
    write_file(path, as_file(svg(points_of(rows)), path, "--plot"))


def svg(points: Sequence[Point]) -> str:
    """The picture itself: a dot for each run, and the line where both times are equal."""
    low, high = limits(points)

    def across(seconds: float) -> float:
        return MARGIN + (math.log10(seconds) - low) / (high - low) * (SIDE - 2 * MARGIN)

    def up(seconds: float) -> float:
        return SIDE - across(seconds)

    first, last = 10.0**low, 10.0**high
    corners = [(at, at * (1 + side)) for at, side in ((first, BAND), (last, BAND), (last, -BAND), (first, -BAND))]
    band = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in corners)
    parts = [tag("polygon", points=band, class_="bubble")]
    parts += [tag("line", x1=across(first), y1=up(first), x2=across(last), y2=up(last), stroke="var(--faint)")]
    for tick in (10.0**power for power in range(low, high + 1)):
        parts += [label(f"{tick:g}", across(tick), SIDE - MARGIN + 18, class_="mid"),
                  label(f"{tick:g}", MARGIN - 8, up(tick) + 4, class_="end")]  # fmt: skip
    parts += [label("measured, s", SIDE / 2, SIDE - 12, class_="mid"), label("predicted, s", 8.0, 20.0)]
    parts += [label(f"{len(points):,} runs; the band is {BAND:.0%} either way", SIDE / 2, 20.0, class_="mid faint")]
    for place, source in enumerate(dict.fromkeys(point.source for point in points)):
        own, color = [point for point in points if point.source == source], COLORS[place % len(COLORS)]
        dots = (_dot(one, across(one.measured_s), up(one.predicted_s)) for one in own)
        parts += [tag("g", *dots, fill=color, fill_opacity=0.6)]
        y = MARGIN + 18 * place
        parts += [tag("circle", cx=SIDE - 8, cy=y - 4, r=4, fill=color), label(f"{source} ({len(own)})", SIDE, y)]
    return picture(SIDE + NAMES, SIDE, "Predicted against measured step time", *parts)


def _dot(point: Point, x: float, y: float) -> str:
    said = f"{point.label} predicted {point.predicted_s:.4g} s, measured {point.measured_s:.4g} s"
    return tag("circle", tag("title", quoted(said)), cx=x, cy=y, r=2.5)
