"""Many numbers of GPUs in blocks, so that no table holds all of them; what cannot matter is never opened.

A sample takes at least so much with a way to shard the layers, whatever else a strategy chooses (``search.floors``).
Grids of a count whose step would pass its limit even so are left out before any table is made. Counts with many
factors come first: what is found for them sets the limits of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.columns import Column, Columns, cross, distinct
from astra.cost import step
from astra.layers.kinds import layer_kinds
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.degrees import degrees, expert_degrees
from astra.search.floors import EXPERTS, PAIRS, SHARDS, Floor, Floors, SharedFloors, most_of
from astra.search.least import flops_bound_s, least_passes, waits_on
from astra.search.space import divisors
from astra.spec.job import Job

MOST_ROWS: Final = 1_500_000  # of a table before the rules refuse any, as far as it can be told
MOST_GRIDS: Final = 400_000  # of a table before those rules that ask about all degrees
ROWS: Final = 300.0  # of them in a unit of effort
_LOOSE: Final = 1 - 1e-9


class CountStream:
    """The counts of one job that are still to be searched. ``shared`` has what jobs of the same search left behind.

    Counts that are not ``able`` are known to be of no interest; ``doubts`` are the least of each count.
    """

    def __init__(
        self, job: Job, counts: Ints, restrictions: Restrictions, shared: SharedFloors, effort: Effort,
        able: Bools, doubts: Floats | float = 1.0,
    ) -> None:  # fmt: skip
        self.job, self.counts, self._effort = job, counts, effort
        mbs = len(list(restrictions.filter("mbs", divisors(job.workload.global_batch))))
        self._width = 2 * mbs * len(expert_degrees(job, restrictions)["ep"])
        self._left = able.copy()
        self._columns = degrees(job, counts, restrictions)
        self._place = np.searchsorted(counts, _gpus(self._columns))
        self._floors = Floors(job, restrictions, self._columns, shared, effort)
        self._closer = self._floors.closer_and_closer()
        self._floor: Floor | None = None  # as far as known, of what may matter
        self._layers = layer_kinds(job.model).count(most_of(job))
        self._waits, self._doubts = waits_on(job, counts), np.broadcast_to(doubts, len(counts))

    @property
    def whole(self) -> bool:
        """Whether one table holds all counts."""
        return len(self._place) * self._width <= MOST_ROWS

    def hopeful(self, columns: Columns, limit_s: Floats) -> Bools:
        """Whether grids, or degrees of them, may have a step under the limit of their count; ``limit_s`` is [count]."""
        place = np.searchsorted(self.counts, _gpus(columns))
        return self._least_s(columns, place) < limit_s[place]

    def _least_s(self, columns: Columns, place: Ints) -> Floats:
        """No step with some degrees is shorter: all samples on all GPUs, and one micro-batch through all layers.

        Samples go through the pipeline one by one at best: with fewer micro-batches its stages wait for longer.
        """
        if self._floor is None:
            return np.zeros(len(place))
        names = SHARDS if "mbs" in columns else EXPERTS if "ep" in columns else PAIRS
        numbers, mbs = self._floors.numbers, columns["mbs"] if "mbs" in columns else np.ones(1, np.int64)
        sample_s, through_s, layer_s = numbers.least(self._floor, names)[:, numbers.of(columns, names)]
        batches = self.job.workload.global_batch // (columns["dp"] * mbs)
        passes, layers = least_passes(self.job, batches, columns["pp"]), np.ceil(self._layers / columns["pp"])
        gpu_s = np.maximum(sample_s * passes, layer_s * layers * batches)
        busy_s = np.maximum(gpu_s * mbs / (columns["tp"] * columns["cp"]), through_s)
        return np.asarray(step.least_seconds(self.job, busy_s, self._waits[place]) * self._doubts[place] * _LOOSE)

    def with_experts(self, columns: dict[str, Column], experts: dict[str, Column]) -> tuple[dict[str, Column], Ints]:
        """Degrees with those ways to split experts that may matter with their tp and cp, and where each is from."""
        if self._floor is None:
            return cross(columns, experts)
        numbers, rows = self._floors.numbers, self._floor.rows
        first, _ = distinct(numbers.of(rows, EXPERTS))  # in the order of the numbers, and so by tp and cp
        several = np.bincount(numbers.of(rows, PAIRS)[first], minlength=numbers.size(PAIRS))
        pair = numbers.of(columns, PAIRS)
        row = np.repeat(np.arange(len(pair)), several[pair])
        start = (np.cumsum(several) - several)[pair] - (np.cumsum(several[pair]) - several[pair])
        way = first[np.arange(len(row)) + start[row]]
        return {name: column[row] for name, column in columns.items()} | {n: rows[n][way] for n in ("ep", "etp")}, row

    def come_closer(self, limit_s: Floats) -> None:
        """Work out floors as closely as it matters.

        Without a limit the first of them will do to choose by, and so it does where one table holds what is left.
        """
        self._floor = self._floor or self._floors.opened()
        while True:
            self._floor = self._floor.take(self._worth(limit_s))
            known = self._floor.sample_s.any()
            if known and (self._grids(limit_s).sum() <= MOST_GRIDS or not np.isfinite(limit_s).any()):
                break
            if (closer := next(self._closer, None)) is None:
                break
            self._floor = closer(self._floor)
        self._floor = self._floors.expanded(self._floor)

    def _worth(self, limit_s: Floats) -> Bools:
        """Whether a way to shard may matter with some degrees of the counts that are left."""
        assert self._floor is not None
        numbers, floor, left = self._floors.numbers, self._floor, self._left[self._place]
        tp, cp, pp, dp = (self._columns[name][left] for name in ("tp", "cp", "pp", "dp"))
        most_s = step.most_pipeline_s(self.job, limit_s / self._doubts / _LOOSE, self._waits)[self._place[left]]
        samples = self.job.workload.global_batch // dp
        most, number = np.full((2, numbers.size(PAIRS)), -np.inf), numbers.of(self._columns, PAIRS)[left]
        np.maximum.at(most[0], number, most_s * tp * cp / least_passes(self.job, samples, pp))
        np.maximum.at(most[1], number, most_s)
        sample_s, through_s = most[:, numbers.of(floor.rows, PAIRS)] / _LOOSE
        return np.asarray((floor.sample_s < sample_s) & (floor.through_s < through_s))

    def _grids(self, limit_s: Floats) -> Ints:
        """[count] grids that may matter, at most."""
        assert self._floor is not None
        numbers = self._floors.numbers
        kept = self._left[self._place] & self.hopeful(self._columns, limit_s)
        ways = np.bincount(numbers.of(self._floor.rows, PAIRS), self._floors.ways(self._floor), numbers.size(PAIRS))
        return np.bincount(
            self._place[kept], ways[numbers.of(self._columns, PAIRS)[kept]], minlength=len(self.counts)
        ).astype(np.int64)

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
            rows = self._grids(limit_s)
            self._left &= rows > 0
            order = np.flatnonzero(self._left)
            order = order[np.argsort(-rows[order], kind="stable")]
            many = max(int(np.searchsorted(np.cumsum(rows[order]), MOST_GRIDS, side="right")), 1)
            chosen = np.sort(order[:many])
            self._effort.spend(rows[chosen].sum() / ROWS)
        self._left[chosen] = False
        return self.counts[chosen] if len(chosen) else None

    def put_back(self, counts: Ints) -> None:
        """Leave some counts for later after all."""
        self._left[np.searchsorted(self.counts, counts)] = True


def _gpus(columns: Columns) -> Ints:
    return np.asarray(columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"])
