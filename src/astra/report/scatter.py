"""Points on logarithmic axes, in letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

from astra.units import show_dollars, show_seconds

PICTURE_ROWS: Final = 12


def picture(
    points: Sequence[tuple[float, float]],
    marks: Sequence[str],
    width: int,
    *,
    across: Callable[[float], str] = lambda days: show_seconds(days * 86400),
    up: Callable[[float], str] = show_dollars,
    legend: str = "F fastest, K best trade, C cheapest, * chosen; both axes logarithmic",
) -> str:
    """Points of (days, dollars) on logarithmic axes; later marks lie above earlier ones, unmarked points are dots."""
    cells = min(max(width - 14, 20), 100)
    days, usd = [math.log(point[0]) for point in points], [math.log(point[1]) for point in points]
    grid = [[" "] * cells for _ in range(PICTURE_ROWS)]
    order = sorted(range(len(points)), key=lambda place: marks[place] != " ")
    for place in order:
        column = _cell(days[place], min(days), max(days), cells)
        row = _cell(usd[place], min(usd), max(usd), PICTURE_ROWS)
        grid[PICTURE_ROWS - 1 - row][column] = marks[place] if marks[place].strip() else "o"
    labels = {0: up(max(p[1] for p in points)), PICTURE_ROWS - 1: up(min(p[1] for p in points))}
    lines = [f"{labels.get(row, ''):>9} │{''.join(cells_).rstrip()}" for row, cells_ in enumerate(grid)]
    low, high = (across(find(p[0] for p in points)) for find in (min, max))
    lines.append(f"{'':>9} └{'─' * cells}")
    lines.append(f"{'':>10} {low}{high:>{max(cells - len(low), len(high) + 1)}}")
    lines.append(f"{'':>10} {legend}")
    return "\n".join(lines)


def _cell(value: float, low: float, high: float, cells: int) -> int:
    return round((value - low) / (high - low) * (cells - 1)) if high > low else 0
