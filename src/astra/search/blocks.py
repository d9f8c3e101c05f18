"""Many numbers of GPUs in blocks, so that no table holds all of them; what cannot matter is never opened.

A sample takes at least so many GPU-seconds with a tp and cp, whatever else a strategy chooses. Degrees of a count whose
step would pass its limit even so are left out before any table is made. Counts with many factors come first: what is
found for them sets the limits of the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from astra.columns import Column, Columns
from astra.cost import step
from astra.cost.stage import gather_parts, least_s, over_model
from astra.provenance import Bools, Floats, Ints
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import RULES, check
from astra.search.counts import degrees, expert_degrees, may_fit
from astra.search.space import cross, divisors
from astra.spec.job import Job

MOST_ROWS: Final = 1_500_000  # of a table before the rules refuse any, as far as it can be told
_LOOSE: Final = 1 - 1e-9


class Stream:
    """The counts of one job that are still to be searched."""

    def __init__(self, job: Job, counts: Ints, restrictions: Restrictions) -> None:
        self.job, self.counts, self.restrictions = job, counts, restrictions
        self._experts = expert_degrees(job, restrictions)
        self._mbs = list(restrictions.filter("mbs", divisors(job.workload.global_batch)))
        self._width = 2 * len(self._mbs) * len(self._experts["ep"])
        self._left = np.ones(len(counts), bool)
        self._columns = degrees(job, counts, restrictions)
        self._place = np.searchsorted(counts, _gpus(self._columns))
        self._work_s: Floats | None = None  # [tp, cp] GPU-seconds of a sample
        self._waits = np.array([1 + job.straggling_on(gpus) for gpus in counts.tolist()])

    @property
    def whole(self) -> bool:
        """Whether one table holds all counts."""
        return len(self._place) * self._width <= MOST_ROWS

    def hopeful(self, columns: Columns, limit_s: Floats) -> Bools:
        """Whether degrees may have a step under the limit of their count; ``limit_s`` is [count]."""
        if self._work_s is None:
            self._work_s = self._least_work()
        place = np.searchsorted(self.counts, _gpus(columns))
        work_s = self._work_s[columns["tp"], columns["cp"]] * self.job.workload.global_batch
        step_s = step.least_seconds(self.job, work_s / self.counts[place], self._waits[place])
        return np.asarray(step_s * _LOOSE < limit_s[place])

    def next(self, limit_s: Floats) -> Ints | None:
        """The counts to search next; None when all are done. At least one, though its table be large."""
        if not self._left.any():
            return None
        kept = self._left[self._place] & self.hopeful(self._columns, limit_s)
        rows = np.bincount(self._place[kept], minlength=len(self.counts)) * self._width
        todo = np.flatnonzero(self._left & (rows > 0))
        if not len(todo):
            self._left[:] = False
            return None
        order = todo[np.argsort(-rows[todo], kind="stable")]
        many = max(int(np.searchsorted(np.cumsum(rows[order]), MOST_ROWS, side="right")), 1)
        chosen = np.sort(order[:many])
        self._left[chosen] = False
        return self.counts[chosen]

    def _least_work(self) -> Floats:
        """[tp, cp] the least GPU-seconds of a sample over all else; infinite where nothing is legal and may fit."""
        job, limits = self.job, self.restrictions
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.name)
        columns: dict[str, Column] = {"tp": np.unique(self._columns["tp"])}
        columns, _ = cross(columns, {"cp": np.unique(self._columns["cp"])})
        columns, _ = cross(columns, self._experts)
        columns, _ = cross(columns, {"sp": np.array(list(limits.filter("sp", (False, True))), bool)})
        columns, _ = cross(columns, {"mbs": np.array(self._mbs, np.int64)})
        legal = check(columns, facts, tuple(rule for rule in RULES if rule.name != "gpus")).ok
        columns = {name: column[legal] for name, column in columns.items()}
        out = np.full((int(self._columns["tp"].max()) + 1, int(self._columns["cp"].max()) + 1), np.inf)
        flash = limits.filter("flash", (False, True))[-1]  # as in a table of many counts
        shards = columns | {"flash": np.full(len(columns["tp"]), flash)}
        fits = may_fit(job, shards)
        shards = {name: column[fits] for name, column in shards.items()}
        if len(shards["tp"]):
            whole_s = over_model(job, gather_parts(job, shards), least_s)
            work_s = whole_s * shards["tp"] * shards["cp"] / shards["mbs"]
            np.minimum.at(out, (shards["tp"], shards["cp"]), work_s)
        return out


def _gpus(columns: Columns) -> Ints:
    return np.asarray(columns["tp"] * columns["cp"] * columns["pp"] * columns["dp"])
