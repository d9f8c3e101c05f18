"""The tree of a rule's condition and its evaluation on columns.

Values are NumPy columns or plain scalars. A scalar side of ``and``/``or`` decides without looking at the rest,
so that facts switch whole rules off for free. ``live`` marks the rows on which a node's value matters: a division by
zero is an error only there, as it would be in a language that stops at the first false condition.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

import numpy as np

from astra.space.names import ALIASES, DERIVED, Names
from astra.table import FIELDS, INTEGERS

Value = Any  # a column or a scalar
NodeKind = Literal["number", "truth", "choice", "text", "string"]
# Beyond this, int64 columns could wrap around: such products are computed in float64.
_INTEGER_LIMIT: Final = 2**62

_ARITHMETIC: Final[Mapping[str, Callable[[Value, Value], Value]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISON: Final[Mapping[str, Callable[[Value, Value], Value]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ADDING: Final = ("+", "-")
DIVIDING: Final = ("/", "//", "%")
COMPARING: Final = tuple(_COMPARISON)
_TABLE_LIMIT: Final = 4096
_NO_TABLE: Final = np.zeros(0)


class ZeroDivisor(Exception):
    """A divisor is zero on a row that matters; carries where it stands in the text."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


class Node(Protocol):
    """A part of a condition."""

    @property
    def position(self) -> int:
        """Where the part starts in the text."""

    @property
    def kind(self) -> NodeKind:
        """What its value is."""

    @property
    def children(self) -> tuple[Node, ...]:
        """The parts it is made of."""

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Its value on every row; ``live`` None: all rows matter."""

    def reach(self, names: Names) -> float:
        """A bound on how far from zero a number goes."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a truth value, a string or the code of a choice."""

    position: int
    kind: NodeKind
    value: Value
    children: tuple[Node, ...] = ()

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """The constant itself."""
        del names, live
        return self.value

    def reach(self, names: Names) -> float:
        """Its own size."""
        del names
        return abs(float(self.value)) if self.kind == "number" else 0.0


@dataclass(frozen=True, slots=True)
class Name:
    """A column or a fact."""

    position: int
    kind: NodeKind
    name: str
    children: tuple[Node, ...] = ()

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Its column."""
        del live
        return names[self.name]

    def reach(self, names: Names) -> float:
        """The largest size in its column."""
        return float(max(abs(bound) for bound in names.span(self.name)))


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A number made of two numbers."""

    position: int  # of the operator
    symbol: str
    children: tuple[Node, Node]
    kind: NodeKind = "number"

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Element-wise result, exact for integers below 2**62."""
        left = self.children[0].evaluate(names, live)
        right = self.children[1].evaluate(names, live)
        if self.symbol in DIVIDING:
            right = _without_zeros(right, live, self.position)
        elif self.reach(names) >= _INTEGER_LIMIT:
            left = left * 1.0
        return _ARITHMETIC[self.symbol](left, right)

    def reach(self, names: Names) -> float:
        """From the reach of its sides."""
        left, right = (child.reach(names) for child in self.children)
        if self.symbol in DIVIDING:
            return {"/": math.inf, "//": left, "%": right}[self.symbol]
        return left * right if self.symbol == "*" else left + right


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two values of one kind compared."""

    position: int  # of the operator
    symbol: str
    children: tuple[Node, Node]
    kind: NodeKind = "truth"

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Element-wise truth."""
        left = self.children[0].evaluate(names, live)
        right = self.children[1].evaluate(names, live)
        return _COMPARISON[self.symbol](left, right)

    def reach(self, names: Names) -> float:
        """Not a number."""
        del names
        return 0.0


@dataclass(frozen=True, slots=True)
class Logic:
    """``and`` or ``or`` of several conditions."""

    position: int
    symbol: Literal["and", "or"]
    children: tuple[Node, ...]
    guarded: tuple[bool, ...]  # per child: it divides, so it must know which rows are still undecided
    kind: NodeKind = "truth"

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Element-wise truth; stops at the first side that decides for every row."""
        decides = self.symbol == "or"
        result: Value = None
        for child, guarded in zip(self.children, self.guarded, strict=True):
            undecided = _undecided(result, decides, live) if guarded and result is not None else live
            value = child.evaluate(names, undecided)
            if result is not None:
                result = result | value if decides else result & value
            elif isinstance(value, np.ndarray) and value.size != 1:
                result = value
            elif bool(value) is decides:
                return decides
        return (not decides) if result is None else result

    def reach(self, names: Names) -> float:
        """Not a number."""
        del names
        return 0.0


@dataclass(frozen=True, slots=True)
class Not:
    """The opposite of a condition."""

    position: int
    children: tuple[Node]
    kind: NodeKind = "truth"

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Element-wise opposite."""
        return np.logical_not(self.children[0].evaluate(names, live))

    def reach(self, names: Names) -> float:
        """Not a number."""
        del names
        return 0.0


@dataclass(frozen=True, slots=True)
class Negative:
    """A number with its sign changed."""

    position: int
    children: tuple[Node]
    kind: NodeKind = "number"

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Element-wise negative."""
        return -self.children[0].evaluate(names, live)

    def reach(self, names: Names) -> float:
        """That of the number."""
        return self.children[0].reach(names)


@dataclass(frozen=True, slots=True)
class Tabulated:
    """A part that divides and looks at a single column: worked out once per value of that column, then looked up.

    An integer remainder costs three times a lookup, and degrees take few values.
    """

    inner: Node
    column: str

    @property
    def position(self) -> int:
        """That of the part."""
        return self.inner.position

    @property
    def kind(self) -> NodeKind:
        """That of the part."""
        return self.inner.kind

    @property
    def children(self) -> tuple[Node, ...]:
        """That of the part."""
        return (self.inner,)

    def evaluate(self, names: Names, live: Value | None) -> Value:
        """Looked up where that is possible and worth it, worked out on every row where not."""
        table = names.tables.get(id(self))
        if table is None:
            table = names.tables[id(self)] = self._table(names)
        return self.inner.evaluate(names, live) if table is _NO_TABLE else np.take(table, names[self.column])

    def reach(self, names: Names) -> float:
        """That of the part."""
        return self.inner.reach(names)

    def _table(self, names: Names) -> Value:
        low, high = (int(bound) for bound in names.span(self.column))
        small = 0 <= low <= high <= _TABLE_LIMIT and np.size(names[self.column]) >= max(_TABLE_LIMIT, 2 * high)
        if not small or any(np.ndim(names[name]) for name in names_of(self.inner) if name != self.column):
            return _NO_TABLE
        try:
            values = self.inner.evaluate(names.at({self.column: np.arange(low, high + 1)}), None)
        except ZeroDivisor:  # of a value that may not occur, or where it does not matter
            return _NO_TABLE
        return np.concatenate([np.zeros(low, dtype=values.dtype), values]) if np.ndim(values) else _NO_TABLE


def names_of(node: Node) -> Iterator[str]:
    """The names a condition uses, in reading order."""
    if isinstance(node, Name):
        yield node.name
    for child in node.children:
        yield from names_of(child)


def depth_of(node: Node) -> int:
    """Levels of the tree."""
    return 1 + max((depth_of(child) for child in node.children), default=0)


def join(position: int, symbol: Literal["and", "or"], conditions: tuple[Node, ...]) -> Node:
    """Several conditions as one; a single one stays itself."""
    if len(conditions) == 1:
        return conditions[0]
    return Logic(position, symbol, conditions, tuple(_may_divide(condition) for condition in conditions))


def _may_divide(node: Node) -> bool:
    divides = isinstance(node, Arithmetic) and node.symbol in DIVIDING
    return divides or any(_may_divide(child) for child in node.children)


def tabulated(node: Node) -> Node:
    """The tree with its largest parts that divide and look at one column marked as such."""
    if not _may_divide(node):
        return node
    columns = {name for name in names_of(node) if name in FIELDS or name in DERIVED or name in ALIASES}
    if len(columns) == 1 and columns <= set(INTEGERS):
        return Tabulated(node, columns.pop())
    return replace(node, children=tuple(tabulated(child) for child in node.children))  # type: ignore[type-var]


def _undecided(result: Value, decides: bool, live: Value | None) -> Value:
    rows = np.logical_not(result) if decides else result
    return rows if live is None else rows & live


def _without_zeros(divisor: Value, live: Value | None, position: int) -> Value:
    zero = divisor == 0
    if not np.any(zero):
        return divisor
    if np.any(zero if live is None else zero & live):
        raise ZeroDivisor(position)
    return np.where(zero, 1, divisor) if isinstance(divisor, np.ndarray) else 1
