"""Charts as SVG: curves with their error bands, time against money. Drawn here, so that nothing is to be installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from astra.report.markup import keys, label, picture, quoted, tag
from astra.units import DAY_S, show_dollars, show_seconds

COLORS: Final = ("forward", "optimizer", "backward", "p2p", "gradient-reduction", "host")
PANEL_WIDTH: Final = 370.0
PANEL_HEIGHT: Final = 250.0
_INSET: Final = 10.0  # points stay clear of the words of the y axis
_MARGIN: Final = (62.0, 14.0, 34.0, 44.0)  # left, right, top, bottom
WIDTH: Final = 900.0
HEIGHT: Final = 380.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 24.0, 24.0, 46.0


class Dot(NamedTuple):
    """A point of a curve."""

    x: float
    y: float
    low: float
    high: float
    hover: str  # shown where one points at it
    mark: str = ""  # a number beside it, where something changes


class ChartCurve(NamedTuple):
    """Points of one name, in order."""

    name: str
    dots: Sequence[Dot]


class Panel(NamedTuple):
    """One chart of several side by side."""

    title: str
    curves: Sequence[ChartCurve]
    ticks: Sequence[tuple[float, str]]  # of the x axis
    show: Callable[[float], str]  # a value of the y axis
    guide: Sequence[tuple[float, float]] = ()  # a line to compare with
    log: bool = False  # the y axis by powers
    zero: bool = True  # the y axis begins at zero; else where the figures do


def charts(title: str, panels: Sequence[Panel], x_title: str, notes: Sequence[str] = ()) -> str:
    """Panels side by side, three in a row, under one legend; ``notes`` are lines below them."""
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    names = [curve.name for curve in panels[0].curves]
    named = [(name, _color(place)) for place, name in enumerate(names)] if len(names) > 1 else []
    legend, y = keys(named, 32.0, across * PANEL_WIDTH)
    top = y + 20 if named else 30.0
    parts = [label(title, 12, 20, class_="bold", font_size=14), *legend]
    for place, panel in enumerate(panels):
        left, high = place % across * PANEL_WIDTH, top + place // across * PANEL_HEIGHT
        parts.append(tag("g", *_panel(panel, x_title), transform=f"translate({left:g},{high:g})"))
    foot = top + down * PANEL_HEIGHT + 8
    parts += [label(note, 12, foot + 16 * place, class_="small") for place, note in enumerate(notes)]
    return picture(across * PANEL_WIDTH, foot + 16 * len(notes), title, *parts)


def _color(place: int) -> str:
    return COLORS[place % len(COLORS)]


def _panel(panel: Panel, x_title: str) -> Iterator[str]:
    left, right, top, bottom = _MARGIN
    wide, high = PANEL_WIDTH - left - right, PANEL_HEIGHT - top - bottom
    dots = [dot for curve in panel.curves for dot in curve.dots]
    least, most = _ends(panel, dots)
    first, last = panel.ticks[0][0], panel.ticks[-1][0]

    def across(x: float) -> float:
        return left + (wide / 2 if last == first else _INSET + (x - first) / (last - first) * (wide - 2 * _INSET))

    def up(y: float) -> float:
        share = math.log(y / least) / math.log(most / least) if panel.log else (y - least) / (most - least)
        return top + high * (1 - share)

    yield label(panel.title, left, 20, class_="bold")
    for y in _powers(least, most) if panel.log else _steps(least, most):
        yield tag("line", x1=left, x2=left + wide, y1=up(y), y2=up(y), class_="rule")
        yield label(panel.show(y), left - 6, up(y) + 4, class_="small end faint")
    # Words at the end of the axis stay within the panel.
    ticks = [(min(across(x), PANEL_WIDTH - 4 - 3.2 * len(words)), words) for x, words in panel.ticks]
    for x, words in spread_ticks(ticks):
        yield label(words, x, top + high + 15, class_="small mid faint")
    yield label(x_title, left + wide / 2, top + high + 32, class_="small mid")
    inside = [(x, y) for x, y in panel.guide if least <= y <= most]
    if len(inside) > 1:
        points = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in inside)
        yield tag("polyline", points=points, fill="none", stroke="var(--faint)", stroke_dasharray="4 4")
    for place, curve in enumerate(panel.curves):
        yield from _curve(curve, _color(place), across, up)


def _ends(panel: Panel, dots: Sequence[Dot]) -> tuple[float, float]:
    """From where to where the y axis goes."""
    low, high = min((dot.low for dot in dots), default=1.0), max((dot.high for dot in dots), default=1.0)
    if panel.log:
        return low / 1.2, high * 1.06
    if panel.zero or low == high:
        return 0.0, high * 1.06 or 1.0
    return low - 0.15 * (high - low), high + 0.15 * (high - low)


def _curve(
    curve: ChartCurve, color: str, across: Callable[[float], float], up: Callable[[float], float]
) -> Iterator[str]:
    dots = curve.dots
    if any(dot.high > dot.low for dot in dots) and len(dots) > 1:
        edge = [(dot.x, dot.high) for dot in dots] + [(dot.x, dot.low) for dot in reversed(dots)]
        band = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in edge)
        yield tag("polygon", points=band, class_=color, fill_opacity=0.14)
    line = " ".join(f"{across(dot.x):.1f},{up(dot.y):.1f}" for dot in dots)
    yield tag("polyline", points=line, fill="none", stroke=f"var(--{color})", stroke_width=2)
    for dot in dots:
        x, y = across(dot.x), up(dot.y)
        title = tag("title", quoted(dot.hover))
        yield tag("circle", title, cx=x, cy=y, r=5 if dot.mark else 3.5, class_=color,
                  stroke="var(--ink)" if dot.mark else None, stroke_width=1.5 if dot.mark else None)  # fmt: skip
        if dot.mark:
            yield label(dot.mark, x, y - 9, class_="small mid bold")


def spread_ticks(ticks: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Those whose words have room beside the ones before them; the last always has."""
    taken = -math.inf
    room = ticks[-1][0] - 3.2 * len(ticks[-1][1])
    for place, (x, words) in enumerate(ticks):
        half = 3.2 * len(words)
        if place == len(ticks) - 1 or (x - half > taken and x + half < room):
            yield x, words
            taken = x + half


def _powers(least: float, most: float) -> list[float]:
    """Ones, twos and fives of every power of ten in between, or the ones alone where those are many."""
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    found = [times * 10.0**power for power in powers for times in (1, 2, 5)]
    inside = [value for value in found if least <= value <= most]
    return inside if len(inside) <= 7 else [value for value in inside if math.log10(value) % 1 == 0]


def _steps(least: float, most: float) -> list[float]:
    """Round values between two ends, four or five of them."""
    span = most - least
    unit = 10.0 ** math.floor(math.log10(span))
    step = next(unit * times for times in (0.1, 0.2, 0.25, 0.5, 1, 2, 2.5, 5) if span / (unit * times) <= 5.5)
    return [number * step for number in range(math.ceil(least / step), int(most / step) + 1)]


class Spot(NamedTuple):
    """Something one could run."""

    days: float
    usd: float
    name: str
    words: str  # beside it; empty for most
    low_usd: float
    high_usd: float
    on_front: bool = True
    link: str = ""  # where a click leads


def front_svg(spots: Sequence[Spot], title: str) -> str:
    """Days from left to right and dollars upward, both by their logarithm; bars are the interval of the dollars."""
    across = _scale([spot.days for spot in spots], LEFT, WIDTH - RIGHT)
    up = _scale([usd for spot in spots for usd in (spot.usd, spot.low_usd, spot.high_usd)], HEIGHT - BOTTOM, TOP)
    front = sorted((spot for spot in spots if spot.on_front), key=lambda spot: spot.days)
    stairs = " ".join(f"{across(spot.days):.1f},{up(spot.usd):.1f}" for spot in front)
    parts = [*_axes(spots, across, up)]
    parts.append(tag("polyline", points=stairs, fill="none", stroke="var(--accent)", stroke_width=1.5))
    for spot in spots:
        parts += _spot(spot, across(spot.days), up)
    linked = any(spot.link for spot in spots)
    return picture(WIDTH, HEIGHT, title, *parts, role="group" if linked else "img")


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    positive = [value for value in values if value > 0] or [1.0]
    low, high = math.log(min(positive) / 1.12), math.log(max(positive) * 1.12)
    return lambda value: start + (math.log(max(value, min(positive))) - low) / (high - low) * (end - start)


def _axes(spots: Sequence[Spot], across: Callable[[float], float], up: Callable[[float], float]) -> Iterator[str]:
    days, usd = [spot.days for spot in spots], [bound for spot in spots for bound in (spot.low_usd, spot.high_usd)]
    for value in rounds(min(days), max(days)):
        x = across(value)
        yield tag("line", x1=x, x2=x, y1=TOP, y2=HEIGHT - BOTTOM, class_="rule")
        yield label(f"{value:g}", x, HEIGHT - BOTTOM + 16, class_="small mid faint")
    for value in rounds(min(usd), max(usd)):
        y = up(value)
        yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="rule")
        yield label(show_dollars(value), LEFT - 8, y + 4, class_="small end faint")
    yield label("days", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, class_="mid")
    yield label("dollars", 12, 16)
    if any(not spot.on_front for spot in spots):
        yield label("grey: common choices that something beats in both", WIDTH - RIGHT, 16, class_="small end faint")


def rounds(low: float, high: float) -> list[float]:
    """Ones, twos and fives of every power of ten between two values; finer where few of them are."""
    for steps in ((1, 10), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8), tuple(1 + number / 10 for number in range(90))):
        powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
        found = sorted({round(step * 10.0**power, 12) for power in powers for step in steps})
        inside = [value for value in found if low / 1.05 <= value <= high * 1.05]
        if len(inside) >= 3:
            return inside if len(inside) <= 10 else inside[:: -(-len(inside) // 10)]
    return [low, high]


def _spot(spot: Spot, x: float, up: Callable[[float], float]) -> Iterator[str]:
    y = up(spot.usd)
    said = f"{spot.name}: {show_seconds(spot.days * DAY_S)}, {show_dollars(spot.usd)}"
    hover = tag("title", quoted(said))
    if spot.on_front:
        yield tag("line", x1=x, x2=x, y1=up(spot.low_usd), y2=up(spot.high_usd), stroke="var(--accent)",
                  stroke_opacity=0.35, stroke_width=3)  # fmt: skip
    dot = tag("circle", hover, cx=x, cy=y, r=6 if spot.words else 4.5, stroke="var(--ink)" if spot.words else None,
              class_="accent" if spot.on_front else "other", fill_opacity=1.0 if spot.on_front else 0.7)  # fmt: skip
    yield tag("a", dot, href=spot.link, aria_label=said) if spot.link else dot
    if spot.words:
        side = "end" if x > WIDTH * 0.72 else ""
        yield label(spot.words, x + (-10 if side else 10), y - 10, class_=f"small bold {side}")
