"""``rent``: which GPUs to rent, how many and from whom, as the exact front of time against money.

Every offer is tried in every count it is sold in. An offer or a count is passed over only when a lower bound of its
step time shows that something already found is no slower and no dearer. Choices on the front, and those within
``BAND`` of it by the closed form, are simulated, and the front is drawn from the simulated figures.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

import astra
from astra.catalog import runtimes
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoFeasiblePlan
from astra.families import weights as weights_of
from astra.provenance import Floats
from astra.result import Choice, Cost, Estimate, RentReport, RentSearch, Unused, Waste
from astra.search.bill import Money, checkpoint_bytes, cost_of, outlook, stale_warning
from astra.search.counts import CountSpace, Rungs, Shelf, climb, compute_bound_s, least_by_count, shelve
from astra.search.detail import estimate as estimate_job
from astra.search.objectives import Goal, goal_of
from astra.search.offers import ANY, Offer, market
from astra.search.pareto import dominated, first_dominated, front, knee
from astra.spec.job import Job
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy
from astra.units import show_dollars, show_seconds

BAND: Final = 0.05  # closed form and simulation agree within this for the best plans; tests measure it
POPULAR_GPUS: Final = ("H100-SXM5-80GB", "A100-SXM4-80GB", "H200-SXM5-141GB", "B200-SXM-180GB")
POPULAR_COUNT: Final = 256
MOST_GPUS: Final = 2048

Progress = Callable[[float], None]


class Found(NamedTuple):
    """One offer in one count with its best strategy by the closed form; times and dollars are of one step."""

    offer: Offer
    gpus: int
    strategy: Strategy
    step_s: float
    time_s: float  # with restarts where they are asked for
    usd: float


class Hunt:
    """The state of one search: the front so far, and what was done."""

    def __init__(self, job_of: Callable[[Offer, int], Job], options: Money) -> None:
        self._job_of, self._options = job_of, options
        self._spaces: list[CountSpace] = []
        self._shelves: dict[tuple[str, bytes], tuple[Job, Shelf]] = {}  # by GPU and counts, of the first offer of them
        self.found: list[Found] = []
        self.times, self.dollars = np.zeros(0), np.zeros(0)  # the front so far
        self.choices = self.considered = self.evaluated = 0

    def factors(self, offer: Offer) -> tuple[Floats, Floats]:
        """By count: elapsed time over useful time, and dollars per second."""
        nodes = -(-offer.counts // offer.node.gpus)
        slower = np.ones(len(offer.counts))
        if self._options.goodput == "expected":
            job = self._job_of(offer, int(offer.counts[-1]))
            useful = outlook(self._options, checkpoint_bytes(job), offer.counts, nodes, offer.tag.market).goodput
            slower = np.divide(1.0, useful, out=np.full_like(useful, np.inf), where=useful > 0)
        return slower, offer.counts * offer.tag.usd_per_gpu_h / 3600

    def try_offer(self, offer: Offer) -> None:
        """Search an offer in every count it is sold in."""
        job = self._job_of(offer, int(offer.counts[-1]))
        if not may_hold(job):
            return
        slower, usd_per_s = self.factors(offer)
        space, kind = self._space(job, offer), (offer.device.name, offer.counts.tobytes())
        known = self._shelves.get(kind)
        if known is not None:
            least = least_by_count(known[1], compute_bound_s(*known))
            if not (least * slower < self._limit(usd_per_s)).any():
                self._account(space, 0)
                return
        shelf = shelve(job, space)
        self._shelves.setdefault(kind, (job, shelf))
        self._add(offer, self.climb(job, shelf, slower, usd_per_s), slower, usd_per_s)

    def climb(self, job: Job, shelf: Shelf, slower: Floats, usd_per_s: Floats) -> Rungs:
        """The best strategy of each count that could be on the front, or near it."""
        others = self._limit(usd_per_s)

        def limits(best_s: Floats) -> Floats:
            own = front(best_s * slower, best_s * slower * usd_per_s)
            ours = first_dominated(usd_per_s, (best_s * slower)[own], (best_s * slower * usd_per_s)[own])
            return np.minimum(others, ours * (1 + BAND)) / slower

        rungs = climb(job, shelf, limits)
        self._account(shelf.space, rungs.evaluated)
        return rungs

    def _limit(self, usd_per_s: Floats) -> Floats:
        """By count, the time from which the front so far is better even by more than the band."""
        return first_dominated(usd_per_s, self.times, self.dollars) * (1 + BAND)

    def _space(self, job: Job, offer: Offer) -> CountSpace:
        for known in self._spaces:
            same = known.of(job, offer.counts)
            if same is not None:
                return same
        self._spaces.append(CountSpace(job, offer.counts))
        return self._spaces[-1]

    def _account(self, space: CountSpace, evaluated: int) -> None:
        self.choices += len(np.unique(space.gpus()))
        self.considered += space.considered
        self.evaluated += evaluated

    def _add(self, offer: Offer, rungs: Rungs, slower: Floats, usd_per_s: Floats) -> None:
        for place, strategy in enumerate(rungs.strategies):
            if strategy is not None:
                step_s = float(rungs.step_s[place])
                time_s = step_s * float(slower[place])
                self.found.append(
                    Found(offer, int(rungs.counts[place]), strategy, step_s, time_s, time_s * float(usd_per_s[place]))
                )
        times, dollars = (np.array([getattr(found, name) for found in self.found]) for name in ("time_s", "usd"))
        best = front(times, dollars) if len(times) else []
        self.times, self.dollars = times[best], dollars[best]

    def near_front(self) -> list[Found]:
        """Everything that could be on the front if the closed form were off by the band."""
        if not self.found:
            return []
        times, dollars = (np.array([getattr(found, name) for found in self.found]) for name in ("time_s", "usd"))
        limit = first_dominated(dollars / times, self.times, self.dollars)
        return [found for found, near in zip(self.found, times <= limit * (1 + BAND), strict=True) if near]


def may_hold(job: Job) -> bool:
    """Whether all GPUs together have room for the weights."""
    return 2.0 * weights_of.count(job.model).total <= job.limit_bytes * job.pool.gpus


def hunt(offers: Sequence[Offer], job_of: Callable[[Offer, int], Job], options: Money, progress: Progress | None) -> Hunt:
    """Try every offer, first those that promise the most for the money: a good front makes the rest short."""

    def usd_by_worth(offer: Offer) -> float:
        return offer.tag.usd_per_gpu_h / (max(offer.device.flops_per_s.values()) * offer.device.memory_bytes_per_s) ** 0.5

    state = Hunt(job_of, options)
    order = sorted(offers, key=usd_by_worth)
    for place, offer in enumerate(order):
        state.try_offer(offer)
        if progress is not None:
            progress((place + 1) / len(order))
    return state
