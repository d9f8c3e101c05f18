"""Time against money: what nothing beats in both, as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from astra.report.markup import label, picture, quoted, tag
from astra.units import DAY_S, show_dollars, show_seconds

WIDTH: Final = 900.0
HEIGHT: Final = 380.0
LEFT, RIGHT, TOP, BOTTOM = 74.0, 24.0, 24.0, 46.0


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
