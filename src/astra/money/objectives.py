"""What "best" means: one registry of objectives over columns of time and money."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

import numpy as np

from astra.errors import InputError, UnknownName
from astra.money.front import front
from astra.provenance import Floats, Ints
from astra.spec.names import by_name
from astra.units import parse_count, parse_seconds

Columns = Mapping[str, Floats]  # time_s, usd, usd_per_token


class Objective(NamedTuple):
    """One way to rank plans: the columns to make small, in order, and the column a user may cap."""

    name: str
    columns: tuple[str, ...]  # the first decides, the next break ties
    direction: Literal["least", "front"]
    unit: str
    sentence: str
    cap: str = ""  # the column that must not exceed the user's number
    needs_tokens: bool = True

    def rank(self, table: Columns, cap: float = np.inf) -> Ints:
        """Rows that may be chosen, best first; rows that are not finite may not."""
        values = [np.asarray(table[name], np.float64) for name in self.columns]
        if self.direction == "front":
            return front(values[0], values[1])
        allowed = np.all([np.isfinite(value) for value in values], axis=0)
        if self.cap:
            allowed &= table[self.cap] <= cap
        rows = np.flatnonzero(allowed)
        ranked: Ints = rows[np.lexsort([rows, *(value[rows] for value in reversed(values))])]
        return ranked


OBJECTIVES: Final = by_name(
    Objective("fastest", ("time_s", "usd"), "least", "days", "the shortest training", needs_tokens=False),
    Objective("cheapest", ("usd", "time_s"), "least", "dollars", "the least money"),
    Objective("budget", ("time_s", "usd"), "least", "days", "the shortest training within a budget", cap="usd"),
    Objective("deadline", ("usd", "time_s"), "least", "dollars", "the least money within a deadline", cap="time_s"),
    Objective(
        "dollars-per-token", ("usd_per_token", "time_s"), "least", "dollars per token", "the least money per token",
        needs_tokens=False,
    ),
    Objective("energy", ("kwh", "time_s"), "least", "kWh", "the least energy"),
    Objective("co2", ("kg_co2", "time_s"), "least", "kg", "the least CO2"),
    Objective("pareto", ("time_s", "usd"), "front", "days and dollars", "every trade of time for money worth making"),
)  # fmt: skip


class Goal(NamedTuple):
    """An objective with the user's cap."""

    objective: Objective
    cap: float = np.inf  # dollars or seconds
    most_usd: float = np.inf  # a budget beside a deadline
    most_s: float = np.inf  # a deadline beside energy or CO2

    def record(self) -> dict[str, str | float | None]:
        """For the request that is kept with an answer."""
        caps = {"cap": self.cap, "most_usd": self.most_usd} | ({"most_s": self.most_s} if is_green(self) else {})
        return {"objective": self.objective.name} | {k: float(v) if np.isfinite(v) else None for k, v in caps.items()}


def find(name: str) -> Objective:
    """An objective by name."""
    if name not in OBJECTIVES:
        raise UnknownName("objective", name, OBJECTIVES, fix=f"It is one of {', '.join(OBJECTIVES)}.")
    return OBJECTIVES[name]


def is_green(goal: Goal) -> bool:
    """Whether a goal is about energy or what it makes."""
    return goal.objective.name in GREEN


def is_rate(name: str | None) -> bool:
    """Whether an objective is a rate, the same for any number of tokens."""
    return name == "dollars-per-token"


def goal_of(
    objective: str | None, budget: float | str | None, deadline: float | str | None, tokens: float | None
) -> Goal:
    """The user's goal from the options, which may contradict each other."""
    given = [name for name, value in (("budget", budget), ("deadline", deadline)) if value is not None]
    if objective in GREEN and given and tokens is not None:  # which have limits beside them, not goals
        most_s = seconds_of(deadline) if "deadline" in given else np.inf
        return Goal(find(objective), np.inf, dollars_of(budget) if "budget" in given else np.inf, most_s)
    if objective is not None and given and objective not in given:
        raise InputError("objective", objective, want=f"no objective beside --{given[0]}, which is one")
    chosen = find(given[-1] if given else objective or "fastest")  # with both: the cheapest in time, within the budget
    if chosen.cap and not given:
        raise InputError(
            chosen.name, None, want=f"a number with the objective {chosen.name}", fix=_EXAMPLE[chosen.name]
        )
    if chosen.needs_tokens and tokens is None:
        raise InputError("tokens", None, want=f"the tokens to train, for {chosen.sentence}", fix="Such as --tokens 2T.")
    most_usd = dollars_of(budget) if "budget" in given else np.inf
    if "deadline" in given:
        return Goal(chosen, seconds_of(deadline), most_usd)
    return Goal(chosen, most_usd)


GREEN: Final = ("energy", "co2")
_EXAMPLE: Final = {"budget": "Such as --budget 400k.", "deadline": "Such as --deadline 14d."}


def dollars_of(budget: float | str | None) -> float:
    """Read ``400k``, ``$1.2M`` or a number of dollars."""
    value = parse_count(str(budget).strip().removeprefix("$"))
    if value is None or value <= 0:
        raise InputError("budget", budget, want="dollars above zero, such as 400k or 1.2M")
    return value


def seconds_of(deadline: float | str | None) -> float:
    """Read ``14d``, ``36h``, ``2w`` or a number of days."""
    value = parse_seconds(str(deadline))
    if value is None:
        raise InputError("deadline", deadline, want="a time above zero, such as 14d, 36h, 20min or 2w")
    return value
