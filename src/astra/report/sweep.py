"""A sweep as a table and as charts with the changes of strategy marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from astra.report import drawing, explain
from astra.report.charts import ChartCurve, Dot, Panel, charts
from astra.report.explanation import short_strategy
from astra.report.layout import Part
from astra.report.markup import quoted, tag
from astra.report.page import bullets, page, section, table, wide
from astra.study.records import Sweep, SweepPoint
from astra.units import parse_count, show_count, show_dollars

TITLES: Final = {
    "gpus": "GPUs",
    "batch": "batch, samples",
    "seq": "tokens per sample",
    "precision": "precision",
    "link": "speed of links between servers, times",
    "memory": "memory per GPU, times",
    "price": "dollars per GPU and hour",
}
_CHARTED: Final = ("tokens_per_s", "mfu", "usd_per_billion_tokens")


def sweep_parts(found: Sweep, columns: int) -> list[Part]:
    """The points as a table; a mark stands where the strategy changes."""
    priced = any(point.usd_per_billion_tokens is not None for point in found.points)
    heads = [(name, "right") for name in found.over]
    heads += [("step time", "right"), ("tokens/s", "right"), ("per GPU", "right"), ("MFU", "right"), ("GiB", "right")]
    heads += [*[("$/billion", "right")] * priced, ("", "left"), ("best plan", "wrap")]
    out = drawing.table(*heads, rows=(_cells(found, point, priced=priced) for point in found.points))
    return [
        drawing.text((f"{found.model} on {found.gpus}", "bold"), f", over {' and '.join(found.over)}"),
        drawing.blank(),
        out,
        drawing.blank(),
        drawing.prose(("* the strategy is another one than in the row before, besides its replicas", "dim")),
        *drawing.closing([], found.notes),
    ]


def _cells(found: Sweep, point: SweepPoint, *, priced: bool) -> list[str]:
    at = [point.at[name] for name in found.over]
    if point.strategy is None or point.step_s is None or point.tokens_per_s is None:
        return [*at, *["-"] * (5 + priced), "", point.why]
    usd = "-" if point.usd_per_billion_tokens is None else show_dollars(point.usd_per_billion_tokens)
    return [
        *at,
        explain.show_step(point.step_s),
        f"{point.tokens_per_s:,.0f}",
        f"{point.tokens_per_s / (point.gpus or 1):,.0f}",
        f"{point.mfu or 0.0:.1%}",
        f"{point.peak_reserved_gib or 0.0:.1f}",
        *[usd] * priced,
        "*" if point.new_strategy else "",
        short_strategy(point.strategy),
    ]


def sweep_svg(found: Sweep) -> str:
    """Tokens per second, MFU and dollars per token over the first axis; a curve for each value of the second."""
    places = _places(found)
    ticks = [(x, words) for words, x in places.items()]
    marks = strategy_numbers(found)
    scale = len(places) > 1 and found.over[0] == "gpus" and _numeric(list(places))
    guide = _linear(found, places) if scale else ()
    tokens, mfu, usd = (_curves(found, places, marks, name) for name in _CHARTED)
    panels = [Panel("tokens per second", tokens, ticks, show_count, guide, log=scale)]
    panels.append(Panel("MFU", mfu, ticks, lambda y: f"{y:.0%}"))
    if any(point.usd_per_billion_tokens is not None for point in found.points):
        panels.append(Panel("dollars per billion tokens", usd, ticks, lambda y: show_dollars(y) if y else "$0"))
    notes = [f"{number}  {text}" for text, number in marks.items()]
    notes += ["Dashed: every GPU as fast as at the first point."] * scale
    return charts(f"{found.model} on {found.gpus}", panels, TITLES[found.over[0]], notes)


def strategy_numbers(found: Sweep) -> dict[str, str]:
    """A number for every strategy that a curve begins with or changes to, in their order."""
    numbers: dict[str, str] = {}
    for place, point in enumerate(found.points):
        before = found.points[place - 1]
        other = len(found.over) > 1 and point.at[found.over[1]] != before.at[found.over[1]]
        begins = place == 0 or before.strategy is None or other
        if point.strategy is not None and (point.new_strategy or begins):
            numbers.setdefault(short_strategy(point.strategy), str(len(numbers) + 1))
    return numbers


def _numeric(words: Sequence[str]) -> bool:
    return all(word[:1].isdigit() and parse_count(word) is not None for word in words)


def _places(found: Sweep) -> dict[str, float]:
    """Where each value stands: numbers by their logarithm, so that doublings are as wide; words one after another."""
    words = list(dict.fromkeys(point.at[found.over[0]] for point in found.points))
    if not _numeric(words) or any((parse_count(word) or 0) <= 0 for word in words):
        return {word: float(place) for place, word in enumerate(words)}
    ordered = sorted(words, key=lambda word: parse_count(word) or 0)
    return {word: math.log2(parse_count(word) or 1.0) for word in ordered}


def _dot(point: SweepPoint, name: str) -> tuple[float, float, float]:
    """A figure, and where the ends of the step's interval take it."""
    middle, slow, fast = getattr(point, name) or 0.0, 1.0, 1.0
    if point.step_s_range is not None and point.step_s is not None:
        slow, fast = point.step_s / point.step_s_range.high, point.step_s / point.step_s_range.low
    return (middle, middle / fast, middle / slow) if name.startswith("usd") else (middle, middle * slow, middle * fast)


def _curves(found: Sweep, places: dict[str, float], marks: dict[str, str], figure: str) -> list[ChartCurve]:
    over, other = found.over[0], found.over[1] if len(found.over) > 1 else ""
    curves = []
    for name in dict.fromkeys(point.at[other] for point in found.points) if other else [""]:
        own = [one for one in found.points if (not name or one.at[other] == name) and one.strategy is not None]
        dots = []
        for place, point in enumerate(sorted(own, key=lambda one: places[one.at[over]])):
            middle, low, high = _dot(point, figure)
            mark = marks.get(short_strategy(point.strategy or ""), "") if point.new_strategy or place == 0 else ""
            hover = f"{over} {point.at[over]}: {middle:.4g}; {point.strategy}"
            dots.append(Dot(places[point.at[over]], middle, low, high, hover, mark))
        curves.append(ChartCurve(f"{other} {name}" if name else found.model, dots))
    return curves


def _linear(found: Sweep, places: dict[str, float]) -> list[tuple[float, float]]:
    """Tokens per second if every GPU stayed as fast as at the first point."""
    first = next(point for point in found.points if point.tokens_per_s is not None)
    each = (first.tokens_per_s or 0.0) / (parse_count(first.at["gpus"]) or 1.0)
    low, high = min(places.values()), max(places.values())
    steps = [low + (high - low) * number / 40 for number in range(41)]
    return [(x, each * 2**x) for x in steps]


def points_table(found: Sweep) -> str:
    """The points as a table of a page."""
    priced = any(point.usd_per_billion_tokens is not None for point in found.points)
    heads = (*found.over, "step time", "tokens/s", "per GPU", "MFU", "GiB", *["$/billion"] * priced, "", "best plan")
    rows = [_cells(found, point, priced=priced) for point in found.points]
    return table(heads, rows, left=(len(heads) - 2, len(heads) - 1))


def sweep_page(found: Sweep) -> str:
    """The charts, what their numbers mean, and the table, as a page of its own."""
    numbers = strategy_numbers(found)
    title = f"{found.model} on {found.gpus}, over {' and '.join(found.over)}"
    named = table(("", "strategy"), [(number, text) for text, number in numbers.items()], left=(0, 1))
    points = section("Points", points_table(found), bullets(found.notes, "faint"))
    return page(title, tag("h1", quoted(title)), wide(sweep_svg(found)), section("Strategies", named), points)
