"""The strategy table: one row per candidate, one NumPy column per field, streamed in blocks.

Degrees are int64, switches are bool, choices are int16 codes into ``CHOICES``. A column may also be a
length-1 array that stands for every row; NumPy broadcasting keeps it cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from astra.provenance import Ints
from astra.spec.strategy import Strategy
from astra.spec.strategy_fields import CHOICES, INTEGERS, MODULES, OVERLAPS, SWITCHES

Column = npt.NDArray[Any]
Columns = Mapping[str, Column]

FIELDS: Final = (*INTEGERS, *SWITCHES, *CHOICES)
_PLAIN_SWITCHES: Final = ("sp", "flash", "dispatch_fp8")  # the others are of overlap and of modules
_DENSE: Final = 65536  # whole numbers below this are looked up, not sorted
_SPARSE, _SMALL = 4, 65536  # a table of this many possible combinations per row, and in all, is worth it


R = TypeVar("R", bound=tuple[Any, ...])


def each(record: R, change: Callable[[Column], Column]) -> R:
    """A NamedTuple of columns (or of such tuples) with every column changed."""
    made = (each(field, change) if isinstance(field, tuple) else change(field) for field in record)
    return type(record)(*made)


def take(record: R, rows: Column) -> R:
    """Some rows of every column; NumPy's own copies them whole, where an index goes entry by entry."""
    return each(record, lambda column: column.take(rows, axis=0))


def joined(records: Sequence[R]) -> R:
    """NamedTuples of columns, one after the other."""
    fields: list[Any] = [
        joined(parts) if isinstance(parts[0], tuple) else np.concatenate(parts) for parts in zip(*records, strict=True)
    ]
    return type(records[0])(*fields)


def keys(*columns: Column) -> tuple[Column, int]:
    """A number for each combination of values, equal where all are, and how many numbers there could be."""
    key, size = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        place, count = _ranked(column)
        key = key * count + place
        size *= count
    return key, size


def distinct(*columns: Column) -> tuple[Column, Column]:
    """The first row of each distinct combination, and the place of every row among them."""
    key, size = keys(*columns)
    if size > _SPARSE * len(key) + _SMALL:
        _, first, place = np.unique(key, return_index=True, return_inverse=True)
        return first, place
    # Few combinations are possible, so a table of them is shorter than a sort of the rows.
    at = np.full(size, -1)
    at[key[::-1]] = np.arange(len(key) - 1, -1, -1)  # of equal keys the first row is written last
    taken = at >= 0
    return at[taken], (np.cumsum(taken) - 1)[key]


def _ranked(column: Column) -> tuple[Column, int]:
    """The place of each value among the sorted distinct ones, and how many those are, at most."""
    if column.dtype == np.bool_:
        return column.astype(np.int64), 2
    whole = column.dtype.kind in "bui" and len(column) > 0
    if whole and column.min() >= 0 and (most := int(column.max())) < _DENSE:
        known = np.zeros(most + 1, bool)
        numbers = column.astype(np.int64, copy=False)
        known[numbers] = True
        return (np.cumsum(known) - 1)[numbers], int(known.sum())
    values = unique(column)
    return np.searchsorted(values, column), len(values)


def unique(column: Column) -> Column:
    """The sorted distinct values; NumPy's own loads its masked arrays first."""
    ordered: Column = np.sort(column, axis=None)
    first = np.concatenate((np.ones(min(len(ordered), 1), bool), ordered[1:] != ordered[:-1]))
    return np.asarray(ordered[first])


def largest(column: Column) -> Column:
    """The maximum over the last axis; NumPy's own is slow where that is short."""
    if column.shape[-1] > column.size // column.shape[-1] or not column.size:
        return np.asarray(column.max(axis=-1))
    found = column[..., 0].copy()
    for place in range(1, column.shape[-1]):
        np.maximum(found, column[..., place], out=found)
    return found


def code(column: str, choice: str) -> int:
    """The code of a choice, e.g. ``code("recompute", "full") == 2``."""
    return CHOICES[column].index(choice)


def from_strategy(strategy: Strategy) -> dict[str, Column]:
    """A one-row table."""
    columns: dict[str, Column] = {name: np.array([getattr(strategy, name)], dtype=np.int64) for name in INTEGERS}
    columns |= {name: np.array([code(name, getattr(strategy, name))], dtype=np.int16) for name in CHOICES}
    columns |= {name: np.array([getattr(strategy, name)]) for name in _PLAIN_SWITCHES}
    columns |= {f"overlap_{name}": np.array([name in strategy.overlap]) for name in OVERLAPS}
    columns |= {f"recompute_{name}": np.array([name in strategy.modules]) for name in MODULES}
    return columns


def to_strategy(columns: Columns, row: int) -> Strategy:
    """One row as a Strategy."""

    def cell(name: str) -> Any:
        column = columns[name]
        return column[row if len(column) > 1 else 0]

    fields: dict[str, Any] = {name: int(cell(name)) for name in INTEGERS}
    fields |= {name: choices[int(cell(name))] for name, choices in CHOICES.items()}
    fields |= {name: bool(cell(name)) for name in _PLAIN_SWITCHES}
    overlap = tuple(name for name in OVERLAPS if cell(f"overlap_{name}"))
    modules = tuple(name for name in MODULES if cell(f"recompute_{name}"))
    return Strategy(**fields, overlap=overlap, modules=modules)


def cross(columns: dict[str, Column], more: dict[str, Column]) -> tuple[dict[str, Column], Ints]:
    """Every row with every entry of ``more``; also the row each result came from."""
    rows = len(next(iter(columns.values())))
    width = len(next(iter(more.values()), (None,)))
    wide = {name: np.repeat(column, width) for name, column in columns.items()}
    wide |= {name: np.tile(column, rows) for name, column in more.items()}
    return wide, np.repeat(np.arange(rows), width)
