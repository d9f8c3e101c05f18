"""The parts of a rule's condition as functions over columns.

Values are NumPy columns or plain scalars. A scalar side of ``and``/``or`` decides without looking at the rest, so that
facts switch whole rules off for free. ``live`` marks the rows on which a value matters (None: all of them): a division
by zero is an error only there, as it is in Python, which stops at the first side that decides.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from astra.columns import FIELDS
from astra.rules.names import ALIASES, DERIVED, NAMES, Names
from astra.spec.strategy_fields import INTEGERS

Value = Any  # a column or a scalar
Run = Callable[[Names, Value], Value]  # names and live rows -> value
Kind = Literal["number", "truth", "choice", "text", "string"]
DIVIDING: Final = ("/", "//", "%")
_INTEGER_LIMIT: Final = 2**62  # beyond this int64 columns could wrap around: such numbers are computed in float64
_TABLE_LIMIT: Final = 4096  # values of a column that are worth a table
_NO_TABLE: Final = np.zeros(0)
_COLUMNS: Final = frozenset((*FIELDS, *DERIVED, *ALIASES))
_COMPUTE: Final[Mapping[str, Callable[[Value, Value], Value]]] = {
    **{"+": operator.add, "-": operator.sub, "*": operator.mul},
    **{"/": operator.truediv, "//": operator.floordiv, "%": operator.mod},
    **{"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge},
}
_REACH: Final[Mapping[str, Callable[[float, float], float]]] = {
    **{"+": operator.add, "-": operator.add, "*": operator.mul},
    **{"/": lambda a, b: math.inf, "//": lambda a, b: a, "%": lambda a, b: b},
}


class ZeroDivisor(Exception):
    """A divisor is zero on a row that matters; carries where it stands in the text."""


class ConditionPart(NamedTuple):
    """A part of a condition."""

    position: int  # in the text
    kind: Kind
    run: Run
    reach: Callable[[Names], float] | None = None  # of a number: a bound on how far from zero it goes
    names: tuple[str, ...] = ()
    divides: bool = False
    said: Any = None  # the name or the constant, where it is one


def constant(position: int, value: bool | float | str) -> ConditionPart:
    """A number, a truth value, a word or the code of a choice."""
    kind: Kind = "truth" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    size = abs(float(value)) if kind == "number" else 0.0
    return ConditionPart(position, kind, lambda names, live: value, lambda names: size, said=value)


def name(position: int, word: str) -> ConditionPart:
    """A column or a fact."""
    kinds: dict[str, Kind] = {"number": "number", "switch": "truth", "choice": "choice", "text": "text"}

    def reach(names: Names) -> float:
        return float(max(abs(bound) for bound in names.span(word)))

    return ConditionPart(position, kinds[NAMES[word].kind], lambda names, live: names[word], reach, (word,), said=word)


def arithmetic(position: int, sign: str, left: ConditionPart, right: ConditionPart) -> ConditionPart:
    """A number made of two numbers, exact for whole numbers below 2**62."""
    compute, far = _COMPUTE[sign], _REACH[sign]
    (run_left, run_right), divides = _sides(left, right), sign in DIVIDING
    reach_left, reach_right = left.reach, right.reach
    assert reach_left is not None
    assert reach_right is not None

    def reach(names: Names) -> float:
        return far(reach_left(names), reach_right(names))

    def add(names: Names, live: Value) -> Value:
        first = run_left(names, live)
        return compute(first * 1.0 if reach(names) >= _INTEGER_LIMIT else first, run_right(names, live))

    def divide(names: Names, live: Value) -> Value:
        return compute(run_left(names, live), _without_zeros(run_right(names, live), live, position))

    run = divide if divides else add
    return ConditionPart(
        position, "number", run, reach, left.names + right.names, divides or left.divides or right.divides
    )


def negative(position: int, inner: ConditionPart) -> ConditionPart:
    """A number with its sign changed."""
    run = inner.run
    return inner._replace(position=position, run=lambda names, live: -run(names, live), said=None)


def opposite(position: int, inner: ConditionPart) -> ConditionPart:
    """A condition turned round."""
    run = inner.run
    return inner._replace(position=position, run=lambda names, live: np.logical_not(run(names, live)), said=None)


def comparison(position: int, sign: str, left: ConditionPart, right: ConditionPart) -> ConditionPart:
    """Two values of one kind compared."""
    compute, (run_left, run_right) = _COMPUTE[sign], _sides(left, right)

    def run(names: Names, live: Value) -> Value:
        return compute(run_left(names, live), run_right(names, live))

    return ConditionPart(position, "truth", run, None, left.names + right.names, left.divides or right.divides)


def joined(position: int, symbol: Literal["and", "or"], conditions: Sequence[ConditionPart]) -> ConditionPart:
    """``and`` or ``or`` of several conditions; a single one stays itself."""
    if len(conditions) == 1:
        return conditions[0]
    decides = symbol == "or"
    sides = list(zip(_sides(*conditions), [part.divides for part in conditions], strict=True))

    def run(names: Names, live: Value) -> Value:
        """Stops at the first side that decides for every row; sides that divide are told which rows are undecided."""
        result: Value = None
        for side, divides in sides:
            value = side(names, _undecided(result, decides, live) if divides and result is not None else live)
            if result is not None:
                result = result | value if decides else result & value
            elif isinstance(value, np.ndarray) and value.size != 1:
                result = value
            elif bool(value) is decides:
                return decides
        return (not decides) if result is None else result

    names = tuple(name for part in conditions for name in part.names)
    return ConditionPart(position, "truth", run, None, names, any(part.divides for part in conditions))


def looked_up(part: ConditionPart) -> Run:
    """A part that divides and looks at a single column is worked out once per value of that column, then looked up.

    An integer remainder costs three times a lookup, and degrees take few values.
    """
    columns = _COLUMNS.intersection(part.names)
    if not part.divides or len(columns) != 1 or not columns <= set(INTEGERS):
        return part.run
    (column,), plain = columns, part.run
    others = set(part.names) - columns

    def run(names: Names, live: Value) -> Value:
        table = names.tables.get(id(run))
        if table is None:
            table = names.tables[id(run)] = _table(names, column, others, plain)
        return plain(names, live) if table is _NO_TABLE else np.take(table, names[column])

    return run


def _table(names: Names, column: str, others: set[str], plain: Run) -> Value:
    """A part's value for every value its column may have; ``_NO_TABLE`` where that is impossible or not worth it."""
    low, high = (int(bound) for bound in names.span(column))
    small = 0 <= low <= high <= _TABLE_LIMIT and np.size(names[column]) >= max(_TABLE_LIMIT, 2 * high)
    if not small or any(np.ndim(names[other]) for other in others):
        return _NO_TABLE
    try:
        values = plain(names.at({column: np.arange(low, high + 1)}), None)
    except ZeroDivisor:  # of a value that may not occur, or where it does not matter
        return _NO_TABLE
    return np.concatenate([np.zeros(low, dtype=values.dtype), values]) if np.ndim(values) else _NO_TABLE


def _sides(*parts: ConditionPart) -> list[Run]:
    """The parts of a larger one to run; they are looked up where the larger one cannot be."""
    columns = {name for part in parts for name in part.names if name in _COLUMNS}
    whole = len(columns) <= 1 and columns <= set(INTEGERS)
    return [part.run if whole else looked_up(part) for part in parts]


def _undecided(result: Value, decides: bool, live: Value) -> Value:
    rows = np.logical_not(result) if decides else result
    return rows if live is None else rows & live


def _without_zeros(divisor: Value, live: Value, position: int) -> Value:
    zero = divisor == 0
    if not np.any(zero):
        return divisor
    if np.any(zero if live is None else zero & live):
        raise ZeroDivisor(position)
    return np.where(zero, 1, divisor) if isinstance(divisor, np.ndarray) else 1
