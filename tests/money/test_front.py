"""The front against its definition, row by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from astra.money import front as pareto

small = st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=14)
Rows = list[tuple[int, int]]


def columns(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, float).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def beats(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] <= other[0] and one[1] <= other[1] and one != other


@given(small)
def test_nothing_dominated_is_on_the_front_and_nothing_undominated_is_missing(rows: Rows) -> None:
    found = [rows[place] for place in pareto.front(*columns(rows))]
    undominated = {row for row in rows if not any(beats(other, row) for other in rows)}
    assert set(found) == undominated
    assert len(found) == len(undominated), "equal rows are shown once"
    assert found == sorted(found)


@given(small)
def test_dominated(rows: Rows) -> None:
    assert pareto.dominated(*columns(rows)).tolist() == [any(beats(other, row) for other in rows) for row in rows]


def test_rows_that_are_not_finite_never_count() -> None:
    assert pareto.front(np.array([np.inf, 2.0, np.nan]), np.array([1.0, 2.0, 0.5])).tolist() == [1]
    assert not len(pareto.front(np.array([]), np.array([])))


@given(small.filter(bool), st.integers(1, 6), st.floats(0.1, 10))
def test_from_the_first_dominated_time_on_something_is_no_worse(rows: Rows, rate: int, factor: float) -> None:
    times, dollars = columns(rows)
    limit = float(pareto.first_dominated(np.array([float(rate)]), times, dollars)[0])
    time_s = limit * factor
    no_worse = ((times <= time_s * (1 + 1e-12)) & (dollars <= rate * time_s * (1 + 1e-12))).any()
    assert no_worse == (factor >= 1 - 1e-12)


def test_the_knee_is_where_the_front_bends() -> None:
    times, dollars = np.array([1.0, 2.0, 40.0]), np.array([100.0, 11.0, 10.0])
    assert pareto.knee(times, dollars) == 1
    assert pareto.knee(times * 7, dollars * 0.3) == 1, "units do not matter"
    assert pareto.knee(times[:1], dollars[:1]) == 0
