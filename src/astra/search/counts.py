"""The best strategy of every number of nodes of one kind, found together.

What a plan costs depends on how many GPUs there are only through its degrees, so one table holds the cores of every
count and one pass costs them. As in ``planner`` it is best first and exact: a core or mesh is left uncosted only if a
lower bound of its step time is at or above the limit of its count, which is the best step found for that count or the
longest step that could still matter to the caller, whichever is shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from astra.families.kinds import layer_kinds
from astra.provenance import Floats, Ints
from astra.space.enumerate import Space, divisors
from astra.space.restrictions import Restrictions
from astra.space.rules import RULES
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.table import Column, code

MOST_PENDING: Final = 4096  # meshes put aside before the savers are tried on them
_NO_BUBBLE: Final = code("schedule", "zb")

Limits = Callable[[Floats], Floats]  # best step so far of each count -> the longest step of interest


class Rungs(NamedTuple):
    """What was found for each count; infinite where nothing fits or nothing could matter."""

    counts: Ints
    step_s: Floats
    strategies: list[Strategy | None]


class CountSpace(Space):
    """The legal cores of every count at once."""

    def __init__(self, job: Job, counts: Ints) -> None:
        self.counts = counts
        super().__init__(job, Restrictions())

    def _degrees(self) -> dict[str, Column]:
        """Every tp * cp * pp * dp that is one of the counts and deals the batch; expert degrees for a MoE model."""
        self.rules = tuple(rule for rule in RULES if rule.name != "gpus")  # the table has many numbers of GPUs
        model, batch, most = self.job.model, self.job.workload.global_batch, int(self.counts[-1])
        depth = len(layer_kinds(model))
        tp = np.array([n for n in range(1, min(model.heads, most) + 1) if model.heads % n == 0], np.int64)
        cp = np.array([n for n in divisors(self.job.workload.seq) if n <= most], np.int64)
        pp = np.arange(1, min(depth, most) + 1)
        dp = np.array([n for n in divisors(batch) if n <= most], np.int64)
        shape = tp[:, None, None, None] * cp[None, :, None, None] * pp[None, None, :, None] * dp
        rows = np.nonzero(np.isin(shape, self.counts))
        columns = {n: c[r] for n, c, r in zip(("tp", "cp", "pp", "dp"), (tp, cp, pp, dp), rows, strict=True)}
        return self._with_experts(columns)

    def gpus(self) -> Ints:
        """GPUs of each core."""
        return np.asarray(self.cores["tp"] * self.cores["cp"] * self.cores["pp"] * self.cores["dp"])
