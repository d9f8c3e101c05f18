"""Quantities as text, both ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.units import GIB, parse_count, show_count, show_dollars, show_gib, show_seconds
from tests.properties.jobs import law


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1T", 1e12), ("400k", 4e5), ("15.6e12", 15.6e12), ("1_000", 1000), ("1,024", 1024), (" 2 m ", 2e6),
        ("7b", 7e9), ("7G", 7e9), (".5", 0.5), ("3.", 3), ("1e3k", 1e6), ("0", 0),
    ],
)  # fmt: skip
def test_counts_are_read(text: str, value: float) -> None:
    assert parse_count(text) == value


@pytest.mark.parametrize("text", ["", "k", "-1", "1x", "1kk", "nan", "inf", "1e999", "0x10", "1 2", "one", "\u0661"])
def test_what_is_no_count_is_none(text: str) -> None:
    assert parse_count(text) is None


@law(200)
@given(st.text(max_size=12))
def test_no_text_makes_the_reader_fail(text: str) -> None:
    value = parse_count(text)
    assert value is None or value >= 0


@law(100)
@given(st.floats(1, 9e14))
def test_a_count_shown_is_read_as_nearly_the_same(value: float) -> None:
    again = parse_count(show_count(value))
    assert again is not None
    assert again == pytest.approx(value, rel=1e-3, abs=0.5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 us"), (12.34e-6, "12.3 us"), (0.0456, "45.6 ms"), (4.561, "4.56 s"), (600, "10.0 min"),
        (7500, "2.1 h"), (86400 * 14.5, "14.5 days"), (86400 * 12345, "12,345.0 days"),
    ],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert show_seconds(seconds) == text


def test_the_rest() -> None:
    assert show_gib(61.2 * GIB) == "61.2 GiB"
    assert [show_count(n) for n in (512, 0.25, 70.6e9, 1.5e12, 215_000)] == ["512", "0.25", "70.6B", "1.5T", "215k"]
    assert [show_dollars(n) for n in (1.5, 1234, 12_300, 1.23e6)] == ["$1.50", "$1,234", "$12.3k", "$1.23M"]
