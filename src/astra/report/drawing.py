"""Drawing primitives shared by the text reports: pages turned into a string, paragraphs, bars, tables."""

from __future__ import annotations

import math
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from astra.report.layout import Column, LaidOut, Part, Text, TextTable, drawn
from astra.units import show_dollars, show_seconds

NARROWEST: Final = 60
WIDEST: Final = 160
UNKNOWN_TERMINAL: Final = (100, 24)
PROSE: Final = 110  # longer lines are hard to follow
SCREEN_LINES: Final = 40
USUAL_PLANS, FEWEST_PLANS = 5, 3  # who asks for more sees them all

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_PLAIN: Final = str.maketrans(
    {"█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": ":", "▎": ":", "▏": ":", "─": "-", "━": "-", "±": "~"}
    | {"…": ".", "│": "|", "▶": ">"}
)
PICTURE_ROWS: Final = 12


def drawn_by(
    make: Callable[..., Sequence[Part]], record: object, width: int | None, color: bool | None, **amount: bool
) -> str:
    """A record as text: ``make`` has its parts, for a page of so many columns."""
    columns = page_width(width)
    return draw(make(record, columns, **amount), width=columns, color=bool(color))


def page_width(width: int | None) -> int:
    """The columns to draw in: as asked, or those of the terminal, within what reads well."""
    if width is not None:
        return max(NARROWEST, width)
    return min(max(shutil.get_terminal_size(UNKNOWN_TERMINAL).columns, NARROWEST), WIDEST)


def on_a_screen(
    make: Callable[[int], list[Part]], plans: int, columns: int, tight: Callable[[int], list[Part]] | None = None
) -> list[Part]:
    """A page with as many plans as one screen has room for: three or more, and all that it speaks of.

    ``tight`` says less, for a terminal so low that even those have no room.
    """
    page, most = laid_out(make(plans), columns), screen_lines()
    spoken = max((int(number) for number in re.findall(r"#(\d+)", page.plain)), default=1)
    while plans <= USUAL_PLANS and plans > max(FEWEST_PLANS, spoken) and len(page.found) > most:
        plans -= 1
        page = laid_out(make(plans), columns)
    return tight(plans) if tight is not None and len(page.found) > most else [page]


def laid_out(parts: Iterable[Part], columns: int) -> LaidOut:
    """Parts as the lines that they take on a page of so many columns."""
    return LaidOut([line for part in parts for line in part.lines(columns)])


def screen_lines() -> int:
    """The lines of a screen: those of a terminal that is lower than most, beside the line for the next command."""
    if sys.stdout is None or not sys.stdout.isatty():
        return SCREEN_LINES
    return min(shutil.get_terminal_size(UNKNOWN_TERMINAL).lines - 1, SCREEN_LINES)


def draw(parts: Iterable[Part], *, width: int, color: bool) -> str:
    """The parts one under the other, as text; lines have no trailing blanks and the text ends in one newline."""
    return "".join(f"{drawn(line, color=color)}\n" for part in parts for line in part.lines(width))


def text(*pieces: str | tuple[str, str]) -> Text:
    """Plain and styled pieces in a row."""
    return Text(_runs(pieces))


def prose(*pieces: str | tuple[str, str]) -> Text:
    """A paragraph, kept narrow enough to read."""
    return Text(_runs(pieces), PROSE)


def _runs(pieces: Iterable[str | tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((piece, "") if isinstance(piece, str) else piece for piece in pieces)


def remark(sentence: str | None) -> list[Part]:
    """A paragraph that should be seen, or nothing."""
    return [prose((sentence, "yellow"))] if sentence else []


def blank() -> Text:
    """An empty line."""
    return text("")


def heading(title: str, note: str = "") -> Text:
    """A section title with an optional remark beside it."""
    return prose((title, "bold cyan"), (f"  {note}", "dim") if note else "")


def table(
    *columns: tuple[str, str], rows: Iterable[Sequence[str | Text]] = (), gap: int = 2, headed: bool = True
) -> TextTable:
    """A table without frames; each column is a header and ``left``, ``right`` or ``wrap`` (left, may wrap)."""
    made = [Column(name, right=side == "right", wraps=side == "wrap") for name, side in columns]
    found = TextTable(made, gap=gap, headed=headed)
    for row in rows:
        found.add_row(*row)
    return found


def bullets(sentences: Iterable[str], *, mark: str = "-", style: str = "") -> list[Part]:
    """Sentences that wrap under themselves, each behind a mark."""
    listed = TextTable([Column("", style=style), Column("", wraps=True)], gap=1, headed=False, widest=PROSE)
    rows = [sentence for sentence in sentences if sentence]
    for sentence in rows:
        listed.add_row(mark, sentence)
    return [listed] if rows else []


def closing(warnings: Sequence[str], notes: Sequence[str]) -> list[Part]:
    """What a report ends with: what to beware of, and what was assumed."""
    parts: list[Part] = [blank(), *bullets(warnings, mark="!", style="yellow")] if warnings else []
    return [*parts, blank(), *bullets(notes, mark="note:", style="dim")] if notes else parts


def cut(words: str, cells: int) -> str:
    """The beginning that fits."""
    return words if len(words) <= cells else words[: max(cells - 1, 0)] + "…"


def bar(fraction: float, cells: int) -> str:
    """A bar of at most ``cells`` cells, in steps of an eighth; anything above zero shows."""
    eighths = round(min(max(fraction, 0.0), 1.0) * cells * 8)
    if fraction > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


def encodable(drawn: str, encoding: str | None) -> str:
    """The same text in characters the stream can carry."""
    try:
        drawn.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return drawn.translate(_PLAIN).encode(encoding or "ascii", "replace").decode(encoding or "ascii")
    except LookupError:
        return drawn.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    return drawn


def scatter(
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


class ListingColumn(NamedTuple):
    """One column of a listing; ``drop_below`` leaves it out on pages narrower than that."""

    title: str
    setting: Literal["left", "right", "wrap", "cut"] = "left"  # `cut` gives way first, and keeps to the line
    drop_below: int = 0


def render_listing(
    title: str,
    columns: Sequence[ListingColumn],
    rows: Sequence[Sequence[str]],
    *,
    remarks: Sequence[str] = (),
    width: int | None = None,
    color: bool | None = None,
) -> str:
    """A titled table with one row per entry."""
    page = page_width(width)
    gap = 1 if page < 100 else 2
    kept = [index for index, column in enumerate(columns) if page >= column.drop_below]
    shown, cells = [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]
    room = _room(shown, cells, page - gap * (len(kept) - 1))
    listing = table(*((column.title, column.setting) for column in shown), gap=gap)
    for row in cells:
        listing.add_row(*(cut(cell, room.get(index, len(cell))) for index, cell in enumerate(row)))
    parts: list[Part] = [heading(title, f"{len(rows):,}"), listing]
    if remarks:
        parts += [blank(), *bullets(remarks, mark="note:", style="dim")]
    return draw(parts, width=page, color=bool(color))


def _room(columns: Sequence[ListingColumn], rows: Sequence[Sequence[str]], width: int) -> dict[int, int]:
    """Cells for each column that is cut: what the others leave, shared so that short columns are whole."""
    need = [max((len(row[index]) for row in rows), default=0) for index in range(len(columns))]
    need = [max(cells, len(column.title)) for cells, column in zip(need, columns, strict=True)]
    cuts = sorted((index for index, column in enumerate(columns) if column.setting == "cut"), key=lambda i: need[i])
    free = width - sum(cells for index, cells in enumerate(need) if index not in cuts)
    room: dict[int, int] = {}
    for position, index in enumerate(cuts):
        room[index] = max(min(need[index], free // (len(cuts) - position)), 4)
        free -= room[index]
    return room


def render_entry(title: str, entry: Mapping[str, Any], *, width: int | None = None, color: bool | None = None) -> str:
    """One entry, field by field."""
    fields = table(("field", "left"), ("value", "wrap"))
    for name, value in entry.items():
        for key, text in _flat(name, value):
            fields.add_row(key, text)
    parts: list[Part] = [heading(title), fields]
    return draw(parts, width=page_width(width), color=bool(color))


def _flat(name: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, Mapping):
        return [pair for key, item in value.items() for pair in _flat(f"{name}.{key}", item)]
    if isinstance(value, list | tuple):
        if all(isinstance(item, str | int | float) for item in value):
            return [(name, ", ".join(str(item) for item in value))] if value else []
        return [pair for index, item in enumerate(value) for pair in _flat(f"{name}[{index}]", item)]
    if value in (None, ""):
        return []
    return [(name, f"{value:.6g}" if isinstance(value, float) else str(value))]
