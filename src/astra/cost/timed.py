"""Parts that were timed for a job, kept for the next one that asks for them.

What one micro-batch costs on a rank depends neither on the global batch nor on how many GPUs there are, so searches of
the same pool with other batches and other numbers of GPUs share one table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from astra.columns import Columns, distinct, unique
from astra.cost.gathered import Gathered
from astra.cost.stage import SHARD_COLUMNS, gather_parts
from astra.provenance import Ints
from astra.spec.job import Job, Words


class PartTable:
    """Every sharding that was timed, once; it only grows."""

    def __init__(self) -> None:
        self.timed: list[Gathered] = []  # all of them as one, if there are any

    def gather(self, job: Job, columns: Columns) -> Gathered:
        """The parts of some shardings, of which those are timed that were not before."""
        if not self.timed:
            self._job = job  # which may recompute as much as any that asks
            self.timed.append(gather_parts(job, columns))
            return self.timed[0]
        first, place = distinct(*(columns[name] for name in SHARD_COLUMNS))
        wanted = {name: columns[name][first] for name in SHARD_COLUMNS}
        known = self.timed[0].shard
        rows = len(known.tp)
        both = (np.concatenate([getattr(known, name), column]) for name, column in wanted.items())
        earliest, same = distinct(*both)
        at = earliest[same[rows:]]  # the first row that is the same
        new = unique(at[at >= rows]) - rows
        if len(new):
            fresh = gather_parts(self._job, {name: column[new] for name, column in wanted.items()})
            at[at >= rows] = rows + fresh.place[np.searchsorted(new, at[at >= rows] - rows)]
            self.timed[0] = _appended(self.timed[0], fresh)
        return self.timed[0]._replace(place=at[place])

    def rows(self, job: Job, columns: Columns) -> Gathered:
        """The parts of a few shardings by themselves, so that whoever keeps them does not keep the table."""
        found = self.gather(job, columns)
        at, place = np.unique(found.place, return_inverse=True)
        shard = {name: getattr(found.shard, name)[at] for name in SHARD_COLUMNS}
        rows = len(found.shard.tp)
        parts = {key: _taken(part, at, rows) for key, part in found.parts.items()}
        return Gathered(found.shard._replace(**shard), parts, place, {})


class PartTables:
    """Tables of the jobs of one pool, which differ in batch, number of GPUs and what their strategies say."""

    def __init__(self) -> None:
        self._tables: dict[tuple[int, int, Words | None, tuple[str, ...] | None], PartTable] = {}

    def of(self, job: Job) -> PartTable:
        """The table of a job, or of one that says the same and may recompute more."""
        within = job.pool.gpus_per_node, job.pool.scaleup_gpus  # all that its number of GPUs says of one micro-batch
        for (*known, repeats), table in self._tables.items():
            more = repeats is None or (job.repeats is not None and {*job.repeats} <= {*repeats})
            if known == [*within, job.settled] and more:
                return table
        return self._tables.setdefault((*within, job.settled, job.repeats), PartTable())


def _appended(table: Gathered, fresh: Gathered) -> Gathered:
    """Both, those of the table first."""
    rows = len(table.shard.tp), len(fresh.shard.tp)
    columns = {name: _joined(getattr(table.shard, name), getattr(fresh.shard, name), rows) for name in SHARD_COLUMNS}
    parts = {key: _joined(part, fresh.parts[key], rows) for key, part in table.parts.items()}
    return table._replace(shard=table.shard._replace(**columns), parts=parts)


def _joined(one: Any, other: Any, rows: tuple[int, int]) -> Any:
    """Columns of both, however they are nested; a single number is the same in both."""
    if isinstance(one, Mapping):  # the provenance has no term for an axis over which nothing is sent
        nothing = np.zeros(1, np.int8)
        return {key: _joined(one.get(key, nothing), other.get(key, nothing), rows) for key in {**one, **other}}
    if isinstance(one, tuple):
        return type(one)(*(_joined(here, there, rows) for here, there in zip(one, other, strict=True)))
    if not np.ndim(one) and not np.ndim(other):
        return one
    return np.concatenate([_whole(column, count) for column, count in zip((one, other), rows, strict=True)])


def _taken(one: Any, at: Ints, rows: int) -> Any:
    """Some rows of columns, however they are nested."""
    if isinstance(one, Mapping):
        return {key: _taken(value, at, rows) for key, value in one.items()}
    if isinstance(one, tuple):
        return type(one)(*(_taken(value, at, rows) for value in one))
    return one if not np.ndim(one) else _whole(one, rows)[at]


def _whole(column: Any, rows: int) -> Any:
    """A column with all of its rows, where one stands for all."""
    return column if np.shape(column) == (rows,) else np.broadcast_to(column, rows)
