"""Every objective against brute force; caps and contradictions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError, UnknownName
from astra.money.objectives import OBJECTIVES, Objective, dollars_of, find, goal_of, seconds_of
from astra.spec.names import by_name
from astra.spec.request import FIELDS

rows_of = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=10)
Rows = list[tuple[int, int]]


def table(rows: Rows) -> dict[str, np.ndarray]:
    times, dollars = np.array(rows, float).T
    return {"time_s": times, "usd": dollars, "usd_per_token": dollars / 100, "kwh": dollars, "kg_co2": dollars / 3}


def best_by_hand(name: str, rows: Rows, cap: float) -> tuple[int, int] | None:
    if name == "budget":
        return min((row for row in rows if row[1] <= cap), default=None)
    if name == "deadline":
        allowed = [row for row in rows if row[0] <= cap]
        return min(allowed, key=lambda row: (row[1], row[0]), default=None)
    if name == "fastest":
        return min(rows)
    return min(rows, key=lambda row: (row[1], row[0]))


@pytest.mark.parametrize("name", [name for name, one in OBJECTIVES.items() if one.direction == "least"])
@given(rows=rows_of, cap=st.integers(0, 10))
def test_the_first_is_the_best_by_hand(name: str, rows: Rows, cap: int) -> None:
    ranked = OBJECTIVES[name].rank(table(rows), cap)
    wanted = best_by_hand(name, rows, cap)
    assert (rows[ranked[0]] if len(ranked) else None) == wanted
    if not OBJECTIVES[name].cap:
        assert sorted(ranked.tolist()) == list(range(len(rows)))


@given(rows_of)
def test_pareto_holds_the_best_of_every_other_objective(rows: Rows) -> None:
    front = {rows[place] for place in OBJECTIVES["pareto"].rank(table(rows))}
    for name in ("fastest", "cheapest", "dollars-per-token"):
        assert rows[OBJECTIVES[name].rank(table(rows))[0]] in front
    for cap in range(1, 10):
        for name in ("budget", "deadline"):
            ranked = OBJECTIVES[name].rank(table(rows), cap)
            assert not len(ranked) or rows[ranked[0]] in front


def test_rows_without_a_figure_are_never_chosen() -> None:
    columns = {"time_s": np.array([1.0, 2.0]), "usd": np.array([np.nan, 5.0])}
    assert OBJECTIVES["cheapest"].rank(columns).tolist() == [1]
    assert OBJECTIVES["fastest"].rank(columns).tolist() == [1]


def test_the_command_line_knows_every_objective() -> None:
    assert all(name in str(FIELDS["objective"].help) for name in OBJECTIVES)
    for objective in OBJECTIVES.values():
        assert objective.sentence
        assert objective.unit


def test_a_new_objective_is_one_entry() -> None:
    dearest_hour = Objective("usd-per-hour", ("usd_per_s",), "least", "dollars an hour", "the smallest bill an hour")
    registry = by_name(*OBJECTIVES.values(), dearest_hour)
    assert registry["usd-per-hour"].rank({"usd_per_s": np.array([3.0, 1.0, 2.0])}).tolist() == [1, 2, 0]
    with pytest.raises(ValueError, match="usd-per-hour"):
        by_name(dearest_hour, dearest_hour)


@pytest.mark.parametrize(
    ("given_", "name", "cap"),
    [
        ({}, "fastest", np.inf),
        ({"objective": "cheapest"}, "cheapest", np.inf),
        ({"budget": "400k"}, "budget", 4e5),
        ({"budget": "$1.2M"}, "budget", 1.2e6),
        ({"budget": 5000, "objective": "budget"}, "budget", 5000),
        ({"deadline": "14d"}, "deadline", 14 * 86400),
        ({"deadline": "36h"}, "deadline", 36 * 3600),
        ({"deadline": 2}, "deadline", 2 * 86400),
        ({"deadline": "2w"}, "deadline", 14 * 86400),
        ({"deadline": "2w", "budget": "1M"}, "deadline", 14 * 86400),
        ({"deadline": "2w", "budget": "1M", "objective": "co2"}, "co2", np.inf),
    ],
)
def test_goals(given_: dict[str, Any], name: str, cap: float) -> None:
    goal = goal_of(given_.get("objective"), given_.get("budget"), given_.get("deadline"), 1e12)
    assert (goal.objective.name, goal.cap) == (name, cap)


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ({"budget": "400k", "deadline": "2d", "objective": "pareto"}, "budget"),
        ({"budget": "400k", "objective": "cheapest"}, "budget"),
        ({"objective": "budget"}, "--budget 400k"),
        ({"objective": "deadline"}, "--deadline 14d"),
    ],
)
def test_contradictions(given_: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        goal_of(given_.get("objective"), given_.get("budget"), given_.get("deadline"), 1e12)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_tokens_are_asked_for_where_they_are_needed(name: str) -> None:
    ask = (5 if name == "budget" else None, 5 if name == "deadline" else None)
    if OBJECTIVES[name].needs_tokens:
        with pytest.raises(InputError, match="tokens"):
            goal_of(name, *ask, tokens=None)
    else:
        assert goal_of(name, *ask, tokens=None).objective.name == name


@pytest.mark.parametrize("bad", ["", "0", "-3", "nan", "inf", "1e999", "four", "$", "d"])
def test_amounts_that_are_none(bad: str) -> None:
    with pytest.raises(InputError, match="budget"):
        dollars_of(bad)
    with pytest.raises(InputError, match="deadline"):
        seconds_of(bad)


def test_an_unknown_objective_is_named() -> None:
    with pytest.raises(UnknownName, match="cheapest"):
        find("cheap")
