"""Answers in the real pandas and polars, shown as IPython shows them, and as PNG."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.frameworks.conftest import Harness


@pytest.fixture(scope="module")
def frames() -> Iterator[Harness]:
    harness = Harness("frames", "frames_harness.py")
    yield harness
    harness.close()


@pytest.mark.parametrize("name", ["plan", "front", "pools", "rent", "afford", "sweep"])
def test_an_answer_is_the_same_in_every_library(frames: Harness, name: str) -> None:
    seen = frames.ask(name=name)
    assert "wrong" not in seen, seen["wrong"]
    columns = list(dict.fromkeys(column for row in seen["rows"] for column in row))
    whole = [{column: row.get(column) for column in columns} for row in seen["rows"]]
    assert seen["rows"], "there is something to compare"
    assert seen["pandas"] == whole
    assert seen["polars"] == whole
    assert seen["objects"] == []
    for column in columns:
        known = [row[column] for row in whole if row[column] is not None]
        if known and all(isinstance(value, float) for value in known):
            assert seen["numbers"][column] == "float64", f"{column} can be reckoned with"


@pytest.mark.parametrize("name", ["plan", "pools", "rent", "afford", "sweep"])
def test_a_notebook_shows_a_table_and_a_picture(frames: Harness, name: str) -> None:
    seen = frames.ask(name=name)
    assert "wrong" not in seen, seen["wrong"]
    assert "<table" in seen["shown"]["text/html"]
    assert len(seen["shown"]["text/plain"]) < 300, "one line where there is no HTML"
    assert "image/svg+xml" in seen["drawn"]
    size = re.search(r'width="([\d.]+)" height="([\d.]+)"', seen["svg"])
    assert size is not None
    high, wide, spread = seen["pixels"]
    assert (wide, high) == (round(2 * float(size.group(1))), round(2 * float(size.group(2))))
    assert spread > 0.02, "it is not one colour"
