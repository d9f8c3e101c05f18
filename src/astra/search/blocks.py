"""Many numbers of GPUs in blocks, so that no table holds all of them; what cannot matter is never opened.

A sample takes at least so many GPU-seconds with a tp and cp, whatever else a strategy chooses (``search.floors``).
Degrees of a count whose step would pass its limit even so are left out before any table is made. Counts with many
factors come first: what is found for them sets the limits of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.columns import Columns
from astra.cost import step
from astra.partition.effort import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.counts import degrees, expert_degrees, flops_bound_s
from astra.search.floors import Floors
from astra.search.space import divisors
from astra.spec.job import Job

MOST_ROWS: Final = 1_500_000  # of a table before the rules refuse any, as far as it can be told
_LOOSE: Final = 1 - 1e-9


class Stream:
    """The counts of one job that are still to be searched. ``known`` has what jobs on the same GPU left behind."""

    def __init__(
        self, job: Job, counts: Ints, restrictions: Restrictions, known: dict[bytes, Floats], effort: Effort
    ) -> None:
        self.job, self.counts = job, counts
        mbs = len(list(restrictions.filter("mbs", divisors(job.workload.global_batch))))
        self._width = 2 * mbs * len(expert_degrees(job, restrictions)["ep"])
        self._left, self._again = np.ones(len(counts), bool), np.zeros(len(counts), bool)
        self.again = False  # whether the counts given last had been given before
        self._columns = degrees(job, counts, restrictions)
        self._place = np.searchsorted(counts, _gpus(self._columns))
        self._floors = Floors(job, restrictions, self._columns, known, effort)
        self._work_s: Floats | None = None  # [tp, cp] GPU-seconds of a sample
        self._waits = np.array([1 + job.straggling_on(gpus) for gpus in counts.tolist()])

    @property
    def whole(self) -> bool:
        """Whether one table holds all counts."""
        return len(self._place) * self._width <= MOST_ROWS

    def hopeful(self, columns: Columns, limit_s: Floats) -> Bools:
        """Whether degrees may have a step under the limit of their count; ``limit_s`` is [count]."""
        if self._work_s is None:
            self._work_s = self._floor_s(limit_s)
        return self._may_beat(columns, limit_s, self._work_s)

    def _floor_s(self, limit_s: Floats) -> Floats:
        """[tp, cp] the least GPU-seconds of a sample, as closely as it matters."""
        closer = np.unique(np.stack([self._columns["tp"], self._columns["cp"]]), axis=1)
        work_s = np.zeros(closer.max(axis=1) + 1)
        for floor in self._floors.closer_and_closer():
            work_s[closer[0], closer[1]] = floor(closer)
            able = self._may_beat(self._columns, limit_s, work_s)
            if not able.any():
                break
            closer = np.unique(np.stack([self._columns["tp"][able], self._columns["cp"][able]]), axis=1)
        return work_s

    def _may_beat(self, columns: Columns, limit_s: Floats, work_s: Floats) -> Bools:
        place = np.searchsorted(self.counts, _gpus(columns))
        sample_s = work_s[columns["tp"], columns["cp"]] * self.job.workload.global_batch
        step_s = step.least_seconds(self.job, sample_s / self.counts[place], self._waits[place])
        return np.asarray(step_s * _LOOSE < limit_s[place])

    def open_s(self) -> Floats:
        """[count] seconds that no step on the counts not searched yet can beat; infinite for those that were."""
        least_s = flops_bound_s(self.job, self.counts)
        if self._work_s is not None:
            gpu_s = np.full(len(self.counts), np.inf)
            np.minimum.at(gpu_s, self._place, self._work_s[self._columns["tp"], self._columns["cp"]])
            gpu_s *= self.job.workload.global_batch
            least_s = np.maximum(least_s, step.least_seconds(self.job, gpu_s / self.counts, self._waits))
        return np.where(self._left | self._again, least_s, np.inf)

    def next(self, limit_s: Floats) -> Ints | None:
        """The counts to search next; None when all are done. At least one, though its table be large."""
        for self.again, left in ((False, self._left), (True, self._again)):
            chosen = np.flatnonzero(left) if self.whole else self._largest(left, limit_s)
            if len(chosen):
                left[chosen] = False
                return self.counts[chosen]
        return None

    def put_back(self, counts: Ints) -> None:
        """Counts that were not searched to the end; they are given again when all others are done."""
        self._again[np.searchsorted(self.counts, counts)] = True

    def _largest(self, left: Bools, limit_s: Floats) -> Ints:
        """Those of the counts left that may matter and have the most degrees, as many as a table holds."""
        if not left.any():
            return np.zeros(0, np.int64)
        kept = left[self._place] & self.hopeful(self._columns, limit_s)
        rows = np.bincount(self._place[kept], minlength=len(self.counts)) * self._width
        todo = np.flatnonzero(left & (rows > 0))
        left &= rows > 0
        order = todo[np.argsort(-rows[todo], kind="stable")]
        many = max(int(np.searchsorted(np.cumsum(rows[order]), MOST_ROWS, side="right")), 1)
        return np.sort(order[:many])


def _gpus(columns: Columns) -> Ints:
    return np.asarray(columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"])
