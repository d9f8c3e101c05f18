"""Operators are timed once for all rows that ask the same of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import numpy as np

from astra.columns import distinct, take
from astra.layers.operators import Shard
from astra.provenance import Bools, Floats, Ints

_FEW: Final = 256  # rows that are timed sooner than they are compared

R = TypeVar("R", bound=tuple[Any, ...])


class SameShardings:
    """Shardings that are alike to most operators: those ask for tokens and few degrees, whatever made the tokens."""

    def __init__(self, shard: Shard) -> None:
        self.rows = len(shard.tp)
        tokens = (shard.tokens, shard.tp, shard.sp)
        several = self.rows > _FEW
        self._groups = [distinct(*tokens), distinct(*tokens, shard.ep, shard.etp)] if several else []

    def distinct(self, *columns: Floats | Ints | Bools | float) -> tuple[Ints, Ints | slice]:
        """Rows that have every combination of the columns, few if it can be, and where among them each row's is."""
        wide = [np.asarray(column) for column in columns if np.ndim(column)]
        for first, place in self._groups:
            if all(np.array_equal(column[first][place], column) for column in wide):
                return first, place
        return np.arange(self.rows), slice(None)


def once(timed: Callable[..., R], *columns: Floats | Ints | Bools | float, repeated: SameShardings | None = None) -> R:
    """``timed`` of the columns, worked out for each distinct combination and dealt to the rows that have it.

    Columns broadcast; single numbers are handed on as they are. ``alike`` knows shardings that are mostly the same,
    which is quicker to try than to compare the columns.
    """
    given = [np.asarray(column) for column in columns]
    shape = np.broadcast_shapes(*(column.shape for column in given))
    flat = [np.broadcast_to(column, shape).ravel() if column.ndim else column for column in given]
    wide = [column for column in flat if column.ndim]
    first, place = distinct(*wide) if repeated is None else repeated.distinct(*wide)
    found = timed(*(column[first] if column.ndim else column for column in flat))
    rows: Any = place if isinstance(place, slice) else place.reshape(shape)
    return take(found, rows)
