"""The schedules Astra knows, and their formulas by code over columns.

A code is an index into ``astra.spec.strategy.SCHEDULES``, as in the strategy table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from astra.errors import UnknownName
from astra.provenance import Bools, Ints
from astra.schedule import gpipe, interleaved, one_f_one_b, zbv, zero_bubble
from astra.schedule.base import Schedule
from astra.spec.names import by_name
from astra.spec.strategy_fields import SCHEDULES as NAMES

Numbers = npt.ArrayLike  # a column, or one value for every row


SCHEDULES: Final = by_name(
    one_f_one_b.SCHEDULE, interleaved.SCHEDULE, gpipe.SCHEDULE, zero_bubble.SCHEDULE, zbv.SCHEDULE
)

SPLITTING: Final = tuple(NAMES.index(name) for name, schedule in SCHEDULES.items() if schedule.splits_backward)


def register(schedule: Schedule) -> None:
    """Add a schedule at run time. A name in use is refused."""
    SCHEDULES.update(by_name(*SCHEDULES.values(), schedule))


def find(schedule: str | Schedule) -> Schedule:
    """A schedule by name; a Schedule is returned as it is."""
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in SCHEDULES:
        raise UnknownName("schedule", schedule, SCHEDULES)
    return SCHEDULES[schedule]


def in_flight_chunks(codes: Numbers, *, p: Numbers, v: Numbers, m: Numbers, rank: Numbers) -> Ints:
    """Peak number of (micro-batch, chunk) activations alive on a rank."""
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.int64) for column in (p, v, m, rank)))
    counts: Ints = _by_code(codes, lambda schedule, rows: schedule.in_flight(*rows), columns).astype(np.int64)
    return counts


def legal(codes: Numbers, *, p: Numbers, v: Numbers, m: Numbers) -> Bools:
    """Whether each row's schedule is defined for its pipeline."""
    columns = np.broadcast_arrays(*(np.asarray(column, dtype=np.int64) for column in (p, v, m)))
    answers: Bools = _by_code(codes, lambda schedule, rows: schedule.legal(*rows), columns).astype(np.bool_)
    return answers


def _by_code(codes: Numbers, formula: Callable[[Schedule, Any], npt.NDArray[Any]], columns: Any) -> npt.NDArray[Any]:
    """Apply each schedule's formula to its rows. ``columns`` are equally long arrays."""
    codes = np.asarray(codes, dtype=np.int64)
    present = np.flatnonzero(np.bincount(codes.ravel()))  # there are few: no need to sort the rows
    if len(present) == 1:
        result = formula(SCHEDULES[NAMES[int(present[0])]], columns)
        return np.broadcast_to(result, np.broadcast_shapes(codes.shape, result.shape))
    codes, *spread = np.broadcast_arrays(codes, *columns)
    result = np.zeros(codes.shape)
    for code in present:
        rows = codes == code
        result[rows] = formula(SCHEDULES[NAMES[int(code)]], [column[rows] for column in spread])
    return result
