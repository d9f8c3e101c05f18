"""How far steps are doubted on many numbers of GPUs at once."""

from __future__ import annotations

import numpy as np

from astra.columns import Columns, cross, distinct, unique
from astra.cost.memory import Sharding
from astra.evidence.bars import Doubt, least_factor
from astra.evidence.kinds import asked_of_degrees, kind_at
from astra.provenance import Floats, Ints
from astra.search.space import Space
from astra.spec.job import Job


class Doubts:
    """The upper end of a step's interval over the step, by count; 1 everywhere where steps are ranked as expected."""

    def __init__(self, job: Job, counts: Ints, *, upper: bool) -> None:
        self._job = job
        last, self._group = _groups_of(job, counts)
        self._doubts = [Doubt(job.on(gpus)) for gpus in counts[last].tolist()] if upper else []

    def of_each(self, columns: Columns, shardings: Sharding, place: Ints) -> Floats:
        """[row, sharding] of rows whose counts are at some places."""
        found = np.ones((len(place), len(shardings)))
        if self._doubts:
            group = self._group[place]
            for kind in unique(group).tolist():
                rows = np.flatnonzero(group == kind)
                some = {name: column[rows] for name, column in columns.items()}
                found[rows] = self._doubts[kind].of_each(some, shardings.zero, shardings.offload)
        return found

    def least(self, space: Space, rows: Ints, place: Ints) -> Floats:
        """The least of any strategy of some grids, whose counts are at some places."""
        if not self._doubts or not len(rows):
            return np.ones(len(rows))
        degrees, shardings = space.degrees, space.shardings
        # What is known of like runs asks about these alone, and there are few combinations of them.
        first, kind = distinct(*asked_of_degrees(self._job, degrees))
        few, _ = cross({name: column[first] for name, column in degrees.items()}, {"mbs": space.mbs})
        group, own = self._group[place], kind[space.degree[rows]]
        mbs = np.searchsorted(space.mbs, space.grids["mbs"][rows])
        found = np.ones(len(rows))
        for number in unique(group).tolist():
            some = np.flatnonzero(group == number)
            least = self._doubts[number].least(few, shardings.zero, shardings.offload).reshape(len(first), -1)
            found[some] = least[own[some], mbs[some]]
        return found


def least_doubts(job: Job, counts: Ints, *, upper: bool) -> Floats:
    """By count, the least of any strategy."""
    if not upper:
        return np.ones(len(counts))
    last, group = _groups_of(job, counts)
    return np.array([least_factor(kind_at(job.on(gpus), 0)) for gpus in counts[last].tolist()])[group]


def _groups_of(job: Job, counts: Ints) -> tuple[Ints, Ints]:
    """The last of each kind of counts that kinds of runs tell apart, and the kind of every count.

    They tell how often one GPU was doubled, and whether the links of one node join all: those of the last, which has
    the most GPUs, reach as far as any strategy of the others.
    """
    links = job.pool.node.links
    reach = links[0].reach if links else 1
    downwards = counts[::-1]
    last, group = distinct(np.round(np.log2(downwards)).astype(np.int64), downwards <= reach)
    return len(counts) - 1 - last, group[::-1]
