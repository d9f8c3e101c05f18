"""Catalog tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.report.drawing import ListingColumn, _room, render_entry, render_listing

COLUMNS = [ListingColumn("name"), ListingColumn("GiB", "right"), ListingColumn("source", "cut", 70)]
ROWS = [["H100", "79.1", "a very long source " * 10], ["A100", "79.2", "short"]]


@pytest.mark.parametrize("width", [70, 80, 120])
def test_long_cells_are_cut_and_the_others_are_whole(width: int) -> None:
    page = render_listing("GPUs", COLUMNS, ROWS, width=width)
    assert max(len(line) for line in page.splitlines()) <= width
    assert "79.1" in page
    assert "a very long source" in page
    assert "…" in page


def test_columns_that_have_no_room_are_dropped() -> None:
    page = render_listing("GPUs", COLUMNS, ROWS, width=60)
    assert "source" not in page
    assert "H100" in page


@given(
    st.lists(st.sampled_from(["left", "cut"]), min_size=1, max_size=6),
    st.lists(st.integers(0, 60), min_size=6, max_size=6),
    st.integers(40, 200),
)
def test_cut_columns_share_the_room(settings: list[str], lengths: list[int], width: int) -> None:
    columns = [ListingColumn("t", "cut" if setting == "cut" else "left") for setting in settings]
    row = ["x" * lengths[index] for index in range(len(columns))]
    room = _room(columns, [row], width)
    assert set(room) == {index for index, setting in enumerate(settings) if setting == "cut"}
    fixed = sum(max(len(cell), 1) for index, cell in enumerate(row) if index not in room)
    if fixed + 4 * len(room) <= width:
        assert fixed + sum(room.values()) <= width


def test_an_entry_shows_every_field() -> None:
    entry = {
        "name": "x",
        "peaks": {"bf16": 1e15},
        "links": [{"reach": 8}],
        "aliases": ["a", "b"],
        "notes": "",
        "no": None,
    }
    page = render_entry("x", entry, width=80)
    assert "peaks.bf16" in page
    assert "1e+15" in page
    assert "links[0].reach" in page
    assert "a, b" in page
    assert "notes" not in page
