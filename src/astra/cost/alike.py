"""Which rows of a table of shardings need to be timed."""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.families.operators import Shard
from astra.provenance import Floats, Ints
from astra.table import distinct

_FEW: Final = 256  # rows that are timed sooner than they are compared


class Alike:
    """Shardings that are alike to most operators: those ask for tokens and few degrees, whatever made the tokens."""

    def __init__(self, shard: Shard) -> None:
        self.rows = len(shard.tp)
        tokens = (shard.tokens, shard.tp, shard.sp)
        several = self.rows > _FEW
        self._groups = [distinct(*tokens), distinct(*tokens, shard.ep, shard.etp)] if several else []

    def once(self, *columns: Floats | Ints | float) -> tuple[Ints, Ints | slice]:
        """Rows that have every combination of the columns, few if it can be, and where among them each row's is."""
        wide = [np.asarray(column) for column in columns if np.ndim(column)]
        for first, place in self._groups:
            if all(np.array_equal(column[first][place], column) for column in wide):
                return first, place
        return np.arange(self.rows), slice(None)
