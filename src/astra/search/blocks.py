"""Many numbers of GPUs in blocks, so that no table holds all of them; what cannot matter is never opened.

A sample takes at least so much with a tp and cp, whatever else a strategy chooses (``search.floors``).
Degrees of a count whose step would pass its limit even so are left out before any table is made. Counts with many
factors come first: what is found for them sets the limits of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.columns import Columns
from astra.cost import step
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.counts import flops_bound_s, least_passes, waits_on
from astra.search.degrees import degrees, expert_degrees
from astra.search.floors import Floors
from astra.search.space import divisors
from astra.spec.job import Job

MOST_ROWS: Final = 1_500_000  # of a table before the rules refuse any, as far as it can be told
ROWS: Final = 1400.0  # of them in a unit of effort
_LOOSE: Final = 1 - 1e-9


class CountStream:
    """The counts of one job that are still to be searched. ``known`` has what jobs of the same search left behind.

    Counts that are not ``able`` are known to be of no interest; ``doubts`` are the least of each count.
    """

    def __init__(
        self, job: Job, counts: Ints, restrictions: Restrictions, known: dict[bytes, Floats], effort: Effort,
        able: Bools, doubts: Floats | float = 1.0,
    ) -> None:  # fmt: skip
        self.job, self.counts, self._effort = job, counts, effort
        mbs = len(list(restrictions.filter("mbs", divisors(job.workload.global_batch))))
        self._width = 2 * mbs * len(expert_degrees(job, restrictions)["ep"])
        self._left = able.copy()
        self._columns = degrees(job, counts, restrictions)
        self._place = np.searchsorted(counts, _gpus(self._columns))
        self._floors = Floors(job, restrictions, self._columns, known, effort).closer_and_closer()
        tp, cp = (int(self._columns[name].max(initial=0)) for name in ("tp", "cp"))
        self._floor_s = np.zeros((2, tp + 1, cp + 1))  # of a sample's GPU-seconds and of a micro-batch, as far as known
        self._waits, self._doubts = waits_on(job, counts), np.broadcast_to(doubts, len(counts))

    @property
    def whole(self) -> bool:
        """Whether one table holds all counts."""
        return len(self._place) * self._width <= MOST_ROWS

    def hopeful(self, columns: Columns, limit_s: Floats) -> Bools:
        """Whether degrees may have a step under the limit of their count; ``limit_s`` is [count]."""
        place = np.searchsorted(self.counts, _gpus(columns))
        return self._least_s(columns, place) < limit_s[place]

    def _least_s(self, columns: Columns, place: Ints) -> Floats:
        """No step with some degrees is shorter: all samples on all GPUs, and one micro-batch through all layers.

        Samples go through the pipeline one by one at best: with fewer micro-batches its stages wait for longer.
        """
        sample_s, through_s = self._floor_s[:, columns["tp"], columns["cp"]]
        samples = self.job.workload.global_batch // columns["dp"]
        passes = least_passes(self.job, samples, columns["pp"])
        busy_s = np.maximum(sample_s * passes / (columns["tp"] * columns["cp"]), through_s)
        return step.least_seconds(self.job, busy_s, self._waits[place]) * self._doubts[place] * _LOOSE

    def come_closer(self, limit_s: Floats) -> None:
        """Work out floors as closely as it matters.

        Without a limit the first of them will do to choose by, and so it does where one table holds what is left.
        """
        while (able := self.hopeful(self._columns, limit_s)).any():
            few = np.count_nonzero(able) * self._width <= MOST_ROWS
            if self._floor_s.any() and (few or not np.isfinite(limit_s).any()):
                return
            if (floor := next(self._floors, None)) is None:
                return
            tp, cp = np.unique(np.stack([self._columns["tp"][able], self._columns["cp"][able]]), axis=1)
            self._floor_s[:, tp, cp] = floor(np.stack([tp, cp]))

    def open_s(self) -> Floats:
        """[count] seconds that no step on the counts not searched yet can beat; infinite for those that were."""
        least_s = np.full(len(self.counts), np.inf)
        np.minimum.at(least_s, self._place, self._least_s(self._columns, self._place))
        least_s = np.maximum(least_s, flops_bound_s(self.job, self.counts) * self._doubts)
        return np.where(self._left, least_s, np.inf)

    def next(self, limit_s: Floats) -> Ints | None:
        """The counts to search next; None when all are done. At least one, though its table be large."""
        chosen = np.flatnonzero(self._left)
        if not self.whole and len(chosen):
            self.come_closer(limit_s)
            kept = self._left[self._place] & self.hopeful(self._columns, limit_s)
            rows = np.bincount(self._place[kept], minlength=len(self.counts)) * self._width
            self._left &= rows > 0
            order = np.flatnonzero(self._left)
            order = order[np.argsort(-rows[order], kind="stable")]
            many = max(int(np.searchsorted(np.cumsum(rows[order]), MOST_ROWS, side="right")), 1)
            chosen = np.sort(order[:many])
            self._effort.spend(rows[chosen].sum() / ROWS)
        self._left[chosen] = False
        return self.counts[chosen] if len(chosen) else None

    def put_back(self, counts: Ints) -> None:
        """Leave some counts for later after all."""
        self._left[np.searchsorted(self.counts, counts)] = True


def _gpus(columns: Columns) -> Ints:
    return np.asarray(columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"])
