"""Catalog entries as a table, or one entry in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from astra.report import drawing
from astra.report.layout import Part


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
    page = drawing.page_width(width)
    gap = 1 if page < 100 else 2
    kept = [index for index, column in enumerate(columns) if page >= column.drop_below]
    shown, cells = [columns[index] for index in kept], [[row[index] for index in kept] for row in rows]
    room = _room(shown, cells, page - gap * (len(kept) - 1))
    listing = drawing.table(*((column.title, column.setting) for column in shown), gap=gap)
    for row in cells:
        listing.add_row(*(drawing.cut(cell, room.get(index, len(cell))) for index, cell in enumerate(row)))
    parts: list[Part] = [drawing.heading(title, f"{len(rows):,}"), listing]
    if remarks:
        parts += [drawing.blank(), *drawing.bullets(remarks, mark="note:", style="dim")]
    return drawing.draw(parts, width=page, color=bool(color))


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
    fields = drawing.table(("field", "left"), ("value", "wrap"))
    for name, value in entry.items():
        for key, text in _flat(name, value):
            fields.add_row(key, text)
    parts: list[Part] = [drawing.heading(title), fields]
    return drawing.draw(parts, width=drawing.page_width(width), color=bool(color))


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
