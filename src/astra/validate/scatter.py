"""Predicted against measured step times, as a picture: HTML without any dependency, or PNG with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from astra.atomic import write_file
from astra.errors import InputError, OutputError
from astra.report.markup import quoted
from astra.validate.replay import ReplayedRun

SIDE: Final = 640
MARGIN: Final = 56
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
    ending = Path(path).suffix.lower()
    points = points_of(rows)
    if ending in (".html", ".svg"):
        text = page(points) if ending == ".html" else svg(points)
        write_file(path, text)
    elif ending == ".png":
        _png(points, path)
    else:
        raise InputError("--plot", path, want="a name that ends in .html, .svg or .png")


def page(points: Sequence[Point]) -> str:
    """A web page with the picture and nothing from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<title>Predicted against measured</title></head>\n"
        f'<body style="font-family:sans-serif"><h1>Predicted against measured step time</h1>\n<p>{len(points):,} runs; '
        f"the band is {BAND:.0%} either way. Hover for the run.</p>\n{svg(points)}</body></html>\n"
    )


def svg(points: Sequence[Point]) -> str:
    """The picture itself."""
    low, high = limits(points)

    def place(seconds: float) -> float:
        return (math.log10(seconds) - low) / (high - low) * (SIDE - 2 * MARGIN)

    def across(seconds: float) -> float:
        return round(MARGIN + place(seconds), 1)

    def up(seconds: float) -> float:
        return round(SIDE - MARGIN - place(seconds), 1)

    first, last = 10.0**low, 10.0**high
    width = SIDE + 180
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {SIDE}" width="{width}" font-size="12">',
        f'<polygon fill="#eee" points="{across(first)},{up(first * (1 + BAND))} {across(last)},{up(last * (1 + BAND))} '
        f'{across(last)},{up(last * (1 - BAND))} {across(first)},{up(first * (1 - BAND))}"/>',
        f'<line x1="{across(first)}" y1="{up(first)}" x2="{across(last)}" y2="{up(last)}" stroke="#888"/>',
    ]
    for power in range(low, high + 1):
        tick = 10.0**power
        parts.append(f'<text x="{across(tick)}" y="{SIDE - MARGIN + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{MARGIN - 8}" y="{up(tick) + 4}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{SIDE / 2}" y="{SIDE - 12}" text-anchor="middle">measured, s</text>')
    parts.append(f'<text transform="rotate(-90)" x="{-SIDE / 2}" y="14" text-anchor="middle">predicted, s</text>')
    for place_of, source in enumerate(dict.fromkeys(point.source for point in points)):
        color = COLORS[place_of % len(COLORS)]
        members = [point for point in points if point.source == source]
        dots = "".join(
            f'<circle cx="{across(p.measured_s)}" cy="{up(p.predicted_s)}" r="2.5"><title>{quoted(p.label)}'
            f" predicted {p.predicted_s:.4g} s, measured {p.measured_s:.4g} s</title></circle>"
            for p in members
        )
        parts.append(f'<g fill="{color}" fill-opacity="0.6">{dots}</g>')
        name = f"{quoted(source)} ({len(members)})"
        parts.append(f'<text x="{SIDE}" y="{MARGIN + 18 * place_of}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _png(points: Sequence[Point], path: str) -> None:
    try:
        from matplotlib.figure import Figure  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415
    except ImportError:
        fix = "Install it (pip install 'astra-planner[plot]'), or ask for .html or .svg, which need nothing."
        raise InputError("--plot", path, want="matplotlib for a PNG", fix=fix) from None
    low, high = limits(points)
    figure = Figure(figsize=(8, 7), dpi=120, layout="tight")
    axes = figure.add_subplot()
    line = [10.0**low, 10.0**high]
    axes.fill_between(line, [(1 - BAND) * x for x in line], [(1 + BAND) * x for x in line], color="#eee")
    axes.plot(line, line, color="#888", linewidth=0.8)
    for place_of, source in enumerate(dict.fromkeys(point.source for point in points)):
        members = [point for point in points if point.source == source]
        axes.scatter(
            [p.measured_s for p in members], [p.predicted_s for p in members], s=6, alpha=0.6,
            color=COLORS[place_of % len(COLORS)], label=f"{source} ({len(members)})",
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="measured, s", ylabel="predicted, s", xlim=line, ylim=line)
    axes.set_title(f"Step time of {len(points):,} runs; the band is {BAND:.0%} either way", fontsize=10)
    axes.legend(fontsize=7, loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise OutputError(f"{path}: {error.strerror or error}.") from None
