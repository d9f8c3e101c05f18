"""The strategy table: rows are strategies and back, and columns can be picked, joined and told apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.columns import FIELDS, Column, code, distinct, each, from_strategy, joined, largest, take, to_strategy
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES, INTEGERS, OVERLAPS, SCHEDULES, SWITCHES
from tests.properties.jobs import law

COUNTS = st.integers(1, 64)


@st.composite
def strategies(draw: st.DrawFn) -> Strategy:
    fields: dict[str, Any] = {name: draw(COUNTS) for name in INTEGERS if name != "zero"}
    fields |= {name: draw(st.sampled_from(choices)) for name, choices in CHOICES.items()}
    fields |= {name: draw(st.booleans()) for name in ("sp", "flash")}
    return Strategy(**fields, zero=draw(st.integers(0, 3)), overlap=tuple(draw(st.sets(st.sampled_from(OVERLAPS)))))


@law(100)
@given(strategies())
def test_a_row_is_a_strategy_and_back(strategy: Strategy) -> None:
    columns = from_strategy(strategy)
    assert sorted(columns) == sorted(FIELDS)
    assert to_strategy(columns, 0) == strategy


@law(40)
@given(st.lists(strategies(), min_size=2, max_size=6))
def test_rows_of_a_table_are_apart(several: list[Strategy]) -> None:
    tables = [from_strategy(strategy) for strategy in several]
    table = {name: np.concatenate([columns[name] for columns in tables]) for name in FIELDS}
    assert [to_strategy(table, row) for row in range(len(several))] == several


def test_a_column_of_one_stands_for_every_row() -> None:
    table = from_strategy(Strategy(tp=8)) | {"tp": np.array([1, 2, 4])}
    assert [to_strategy(table, row).tp for row in range(3)] == [1, 2, 4]
    assert {to_strategy(table, row).mbs for row in range(3)} == {1}


def test_degrees_are_wide_enough_to_multiply() -> None:
    columns = from_strategy(Strategy(dp=10**6))
    assert all(columns[name].dtype == np.int64 for name in INTEGERS)
    assert all(columns[name].dtype == np.bool_ for name in SWITCHES)
    assert all(columns[name].dtype == np.int16 for name in CHOICES)


def test_codes() -> None:
    assert [code("schedule", name) for name in SCHEDULES] == list(range(len(SCHEDULES)))
    with pytest.raises(ValueError, match="not in tuple"):
        code("schedule", "unknown")


class Inner(NamedTuple):
    a: Column


class Outer(NamedTuple):
    b: Column
    inner: Inner


def test_nested_records_of_columns() -> None:
    record = Outer(np.arange(4), Inner(np.arange(4) * 10))
    rows = np.array([2, 0])
    assert take(record, rows).inner.a.tolist() == [20, 0]
    assert each(record, lambda column: column + 1).b.tolist() == [1, 2, 3, 4]
    again = joined([take(record, np.array([0, 1])), take(record, np.array([2, 3]))])
    assert again.b.tolist() == record.b.tolist()
    assert again.inner.a.tolist() == record.inner.a.tolist()
    assert isinstance(again.inner, Inner)


@law(60)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from((0.5, 1.5, -2.0)), st.booleans()), min_size=1, max_size=40)
)
def test_distinct_rows(rows: list[tuple[int, float, bool]]) -> None:
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    first, place = distinct(*columns)
    assert len(first) == len(set(rows))
    again = list(zip(*(column[first][place].tolist() for column in columns), strict=True))
    assert again == rows


@law(60)
@given(st.lists(st.integers(0, 70_000), min_size=1, max_size=30))
def test_whole_numbers_are_told_apart_as_any_numbers_are(values: list[int]) -> None:
    whole = np.array(values)
    for column, same in zip(distinct(whole), distinct(whole.astype(np.float64)), strict=True):
        assert column.tolist() == same.tolist()


@pytest.mark.parametrize("shape", [(0, 3), (7, 1), (7, 3), (2, 9), (3, 4, 5)])
def test_the_largest_of_the_last_axis(shape: tuple[int, ...]) -> None:
    column = np.random.default_rng(7).normal(size=shape)
    assert np.array_equal(largest(column), column.max(axis=-1))
