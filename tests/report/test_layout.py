"""Pages are laid out as rich, an independent program, lays out the same parts."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich import box
from rich.console import Console, RenderableType
from rich.constrain import Constrain
from rich.table import Table as RichTable
from rich.text import Text as RichText

from astra.report import drawing
from astra.report.layout import cells

LETTERS = "abc xyz  1.2%·█▏─…é日本\n"
WORDS = st.text(LETTERS, max_size=60)
STYLES = st.sampled_from(["", "bold", "dim", "red", "bold cyan"])
PIECES = st.lists(st.tuples(WORDS, STYLES), min_size=1, max_size=4)
SIDES = st.sampled_from(["left", "right", "wrap"])
WIDTHS = st.integers(20, 120)


def by_rich(part: RenderableType, width: int, *, color: bool = False) -> str:
    page = io.StringIO()
    console = Console(
        file=page, width=width, force_terminal=color, color_system="standard" if color else None, no_color=not color,
        markup=False, emoji=False, highlight=False, legacy_windows=False,
    )  # fmt: skip
    console.print(part)
    return "".join(f"{line.rstrip()}\n" for line in page.getvalue().split("\n")[:-1])


@given(pieces=PIECES, width=WIDTHS)
def test_paragraphs(pieces: list[tuple[str, str]], width: int) -> None:
    expected = RichText.assemble(*pieces, overflow="fold")
    assert drawing.draw([drawing.text(*pieces)], width=width, color=False) == by_rich(expected, width)
    prose = Constrain(expected, drawing.PROSE)
    assert drawing.draw([drawing.prose(*pieces)], width=width, color=False) == by_rich(prose, width)


@given(
    data=st.data(),
    width=WIDTHS,
    gap=st.integers(1, 3),
    headed=st.booleans(),
    sides=st.lists(SIDES, min_size=1, max_size=6),
)
def test_tables(data: st.DataObject, width: int, gap: int, sides: list[str], headed: bool) -> None:
    cell = st.text(LETTERS, max_size=25)
    names = data.draw(st.lists(cell, min_size=len(sides), max_size=len(sides)))
    rows = data.draw(st.lists(st.lists(cell, min_size=len(sides), max_size=len(sides)), max_size=4))
    expected = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0), show_header=headed
    )
    found = drawing.table(*zip(names, sides, strict=True), gap=gap, headed=headed)
    for name, side in zip(names, sides, strict=True):
        justify = "right" if side == "right" else "left"
        expected.add_column(name, justify=justify, no_wrap=side != "wrap", overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        expected.add_row(*row)
        found.add_row(*row)
    assert drawing.draw([found], width=width, color=False) == by_rich(expected, width)


@given(sentences=st.lists(st.text(LETTERS, min_size=1, max_size=300), min_size=1, max_size=4), width=WIDTHS)
def test_bullets(sentences: list[str], width: int) -> None:
    grid = RichTable.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for sentence in sentences:
        grid.add_row("note:", sentence)
    found = drawing.draw(drawing.bullets(sentences, mark="note:"), width=width, color=False)
    assert found == by_rich(Constrain(grid, drawing.PROSE), width)


@given(pieces=PIECES, width=WIDTHS)
def test_colours_change_nothing_but_colours(pieces: list[tuple[str, str]], width: int) -> None:
    shown = drawing.draw([drawing.text(*pieces)], width=width, color=True)
    assert re.sub(r"\x1b\[[0-9;]*m", "", shown) == drawing.draw([drawing.text(*pieces)], width=width, color=False)


@pytest.mark.parametrize("style", ["bold", "dim", "red", "green", "yellow", "blue", "bold cyan", "bold red"])
def test_styles_are_those_of_terminals(style: str) -> None:
    shown = drawing.draw([drawing.text(("word", style))], width=40, color=True)
    assert shown == by_rich(RichText.assemble(("word", style)), 40, color=True)


def test_what_letters_take() -> None:
    assert [cells(word) for word in ("", "abc", "±…█", "日本", "e\u0301")] == [0, 3, 3, 4, 1]
