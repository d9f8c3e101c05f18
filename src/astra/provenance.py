"""How a number is known. Ordered: a larger value is less sure, and a sum is as sure as its worst term."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]


class Source(IntEnum):
    """Where a figure comes from, best first."""

    MEASURED = 0  # this shape was measured on this GPU
    INTERPOLATED = 1  # between measured shapes of this GPU
    TRANSFERRED = 2  # measured on a relative, or outside the measured range
    ASSUMED = 3  # data sheet and rule of thumb

    @property
    def word(self) -> str:
        """Lower-case name, as shown to users."""
        return self.name.lower()


class Timed(NamedTuple):
    """A column of seconds with the provenance of each entry."""

    seconds: Floats
    source: Codes


def worst(*sources: Codes | Source | int) -> Codes:
    """Element-wise worst of several provenance columns."""
    columns = [np.asarray(source, dtype=np.int8) for source in sources]
    result = columns[0]
    for column in columns[1:]:
        result = np.maximum(result, column)
    return result
