"""Every offer in every count: the exact front of time against money, as far as the effort goes.

An offer or a count is passed over only when a lower bound of its simulated step shows that something already found is
no slower and no dearer. What is found is simulated, so the front is that of the figures reported. Offers take turns,
a table of counts at a time: what one finds makes the others short. When the effort is spent, what is left open has a
lower bound, and so a most by which it could be better.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.layers import weights as weights_of
from astra.money.bill import checkpoint_bytes, outlook, run_usd, startup_s
from astra.money.front import first_dominated, front
from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.provenance import Bools, Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.blocks import CountStream
from astra.search.counts import (
    BestByCount,
    CountSearch,
    CountSpace,
    CountTable,
    Hopeful,
    Limits,
    are_plain,
    compute_bound_s,
    least_by_count,
    tabulate,
)
from astra.search.doubts import Doubts, least_doubts
from astra.search.floors import SharedFloors
from astra.search.least import flops_bound_s
from astra.spec.job import Job
from astra.spec.money import Money
from astra.spec.strategy import Strategy

ROUNDING: Final = 1e-9  # figures of one choice, worked out in different orders
# Of a search over offers and counts, ten seconds or so; few come near. Of models with experts that stopped at a fifth
# of it, the cheapest choice found cost a tenth too much.
MOST_EFFORT: Final = 130_000.0
BEGUN: Final = 2  # GPU types with large tables whose plainest grids are searched before any others
MOST_BEGUN: Final = 32  # grids of a number of GPUs
LEAST_SHARE: Final = 0.15  # of the effort left, for one turn

Progress = Callable[[float], None]
JobOf = Callable[[Offer, int], Job]


class FoundOffer(NamedTuple):
    """One offer in one count with its best strategy by the simulated step; times and dollars are of the whole run.

    Where the tokens are not known they are of one step.
    """

    offer: Offer
    gpus: int
    strategy: Strategy
    step_s: float  # by which it is ranked: the upper end of its interval, or the expected one
    time_s: float  # with start-up and idle time, and with restarts where they are to be judged by
    usd: float  # without egress, which is the same for all


class OfferSearch:
    """One offer: its counts, what is left of them to search, and how steps become time and dollars, all by count."""

    def __init__(self, job: Job, offer: Offer, options: Money) -> None:
        self.job, self.offer, self._options = job, offer, options
        steps, gpus = steps_of(job), offer.counts.astype(np.float64)
        nodes = -(-offer.counts // offer.node.gpus)
        self.known = bool(np.isfinite(steps))  # how long the run is
        slower = waiting(job, options, offer.counts, nodes, offer.tag.market)
        with np.errstate(over="ignore"):  # it would never end
            self._step_runs_s = slower * (steps if self.known else 1.0)  # seconds of the run for each of a step
        self._fixed_s = (startup_s(options, offer.tag, nodes) + options.idle_s) * self.known
        self._gpus = gpus
        self.usd_per_s = gpus * offer.tag.usd_per_gpu_h / 3600 + options.storage_usd_per_s
        self.least_usd = self.usd_of(np.zeros(len(gpus)), slice(None))
        self.open_s = np.full(len(offer.counts), np.inf)

    def at(self, counts: Ints) -> Ints:
        """Where some counts are among the offer's."""
        return np.searchsorted(self.offer.counts, counts)

    def time_of(self, step_s: Floats, at: Ints | slice) -> Floats:
        """The whole run, from the length of a step."""
        return step_s * self._step_runs_s[at] + self._fixed_s[at]

    def usd_of(self, time_s: Floats, at: Ints | slice) -> Floats:
        """Its bill without egress."""
        if not self.known:
            return time_s * self.usd_per_s[at]
        return run_usd(self._options, self.offer.tag, self._gpus[at], time_s)

    def step_of(self, time_s: Floats | float) -> Floats:
        """The step from which the run takes so long; below zero where start-up alone does, zero if it never ends."""
        ends = np.isfinite(self._step_runs_s)
        return np.divide(time_s - self._fixed_s, self._step_runs_s, out=np.zeros(len(ends)), where=ends)

    def dominated_s(self, times: Floats, dollars: Floats) -> Floats:
        """The step from which a row of times and dollars is no worse."""
        return self.step_of(first_dominated(self.usd_per_s, times, dollars, self.least_usd) * (1 + ROUNDING))


class Spaces:
    """The grids of some counts, made once for all jobs that have the same."""

    def __init__(self, restrictions: Restrictions | None = None, hopeful: Hopeful | None = None) -> None:
        self._restrictions, self._hopeful, self._known = restrictions, hopeful, list[CountSpace]()

    def of(self, job: Job, counts: Ints) -> CountSpace:
        """Those of a job."""
        same = (known.of(job, counts) for known in self._known)
        found = next((space for space in same if space is not None), None)
        if found is None:
            found = CountSpace(job, counts, self._restrictions, self._hopeful)
            self._known.append(found)
        return found


class FrontSearch:
    """The state of one search: the front so far, and what was done."""

    def __init__(
        self, job_of: JobOf, options: Money, restrictions: Restrictions | None = None, effort: Effort | None = None,
        *, upper: bool, most_s: float = np.inf,
    ) -> None:  # fmt: skip
        self._upper = upper  # choices are ranked by the upper ends of their steps' intervals
        self._most_s = most_s  # a run that takes longer is of no interest
        self._job_of, self._options, self._restrictions = job_of, options, restrictions or Restrictions()
        self._effort = effort or Effort()
        self._spaces = Spaces(self._restrictions)
        self._tables: dict[str, list[CountTable]] = {}  # by GPU: bounds that hold in any node, without the parts
        self._floors = SharedFloors()
        self._least_s: dict[int, Floats] = {}  # by offer
        self._doubts: dict[int, Floats] = {}  # likewise
        self._begun: set[str] = set()  # GPUs whose plainest grids were looked at
        self._best: dict[tuple[int, int], FoundOffer] = {}  # by offer and count
        self._offer_searches: list[OfferSearch] = []
        self.times, self.dollars = np.zeros(0), np.zeros(0)  # the front so far
        self.share = 1.0  # of the effort left, for one turn
        self.choices = self.considered = self.evaluated = self.passed = 0

    @property
    def found(self) -> list[FoundOffer]:
        """The best of every offer and count searched."""
        return list(self._best.values())

    def least_s(self, job: Job, offer: Offer) -> Floats:
        """By count, a lower bound of what a step is ranked by that needs no table."""
        if id(offer) not in self._least_s:
            self._least_s[id(offer)] = flops_bound_s(job, offer.counts) * self._doubts_of(job, offer)
        return self._least_s[id(offer)]

    def _doubts_of(self, job: Job, offer: Offer) -> Floats:
        """By count, the least that any step is doubted."""
        if id(offer) not in self._doubts:
            self._doubts[id(offer)] = least_doubts(job, offer.counts, upper=self._upper)
        return self._doubts[id(offer)]

    def turns(self, offer: Offer) -> Iterator[bool]:
        """Search an offer in every count it is sold in, a table at a time; true after its plainest grids alone."""
        job = self._job_of(offer, int(offer.counts[-1]))
        if not may_hold(job):
            return
        offer_search = OfferSearch(job, offer, self._options)
        self.choices += len(offer.counts)
        able = self.least_s(job, offer) < self.limit_s(offer_search)
        if not able.any():
            self.passed += 1
            return
        self._offer_searches.append(offer_search)
        doubts = self._doubts_of(job, offer)
        stream = CountStream(job, offer.counts, self._restrictions, self._floors, self._effort, able, doubts)
        if not stream.whole and self._begin(offer_search, able):
            yield True
        search_counts: CountSearch | None = None
        while not self._effort.over or not self._best:
            counts = stream.next(self.limit_s(offer_search)) if search_counts is None else None
            if counts is not None and self._effort.over and self._best:
                stream.put_back(counts)
                break
            if counts is not None:
                search_counts = self._search(offer_search, stream, counts)
            if search_counts is None:
                return
            by_count = self._go_on(offer_search, search_counts)
            offer_search.open_s[offer_search.at(by_count.counts)] = by_count.open_s
            if not np.isfinite(by_count.open_s).any():
                search_counts = None
            yield False
        offer_search.open_s = np.minimum(offer_search.open_s, stream.open_s())

    def _begin(self, offer_search: OfferSearch, able: Bools) -> bool:
        """Search the plainest grids of a few GPU types alone, which are soon found and seldom far from the best."""
        job, counts = offer_search.job, offer_search.offer.counts
        nodes = counts // counts[0]
        counts = counts[able & (nodes & (nodes - 1) == 0)]
        begun = job.pool.device.name in self._begun or len(self._begun) == BEGUN
        if begun or not len(counts):
            return False
        self._begun.add(job.pool.device.name)
        table = tabulate(job, CountSpace(job, counts, self._restrictions, hopeful=are_plain), self._effort)
        limits = self.limits(offer_search, table)
        search = CountSearch(job, table, limits, self._effort, upper=self._upper, most=MOST_BEGUN)
        self._go_on(offer_search, search)
        return True

    def _go_on(self, offer_search: OfferSearch, search_counts: CountSearch) -> BestByCount:
        """A turn of some counts of an offer."""
        before = search_counts.evaluated
        with self._effort.part(self.share):
            by_count = search_counts.go_on(found=bool(self._best))
        self.evaluated += search_counts.evaluated - before
        self.add_counts(offer_search, by_count)
        return by_count

    def _search(self, offer_search: OfferSearch, stream: CountStream, counts: Ints) -> CountSearch | None:
        """The search of some counts; nobody else keeps its table, which is large."""
        table = self._table(offer_search, stream, counts)
        if table is None:
            return None
        self.considered += table.space.considered
        limits = self.limits(offer_search, table)
        return CountSearch(offer_search.job, table, limits, self._effort, upper=self._upper, known=bool(self._best))

    def _table(self, offer_search: OfferSearch, stream: CountStream, counts: Ints) -> CountTable | None:
        """The grids of some counts with their parts; None where no count may matter."""
        job, limit_s = offer_search.job, self.limit_s(offer_search)
        if not stream.whole:
            space = CountSpace(
                job, counts, self._restrictions, lambda columns: stream.hopeful(columns, limit_s), stream.with_experts
            )
            return tabulate(job, space, self._effort)
        counts = counts[self._elsewhere_s(job, counts) < limit_s[offer_search.at(counts)]]
        if not len(counts):
            self.passed += 1
            return None
        table = tabulate(job, self._spaces.of(job, counts), self._effort)
        bounds = table._replace(bound_s=compute_bound_s(job, table), gathered=table.gathered._replace(parts={}))
        self._tables.setdefault(job.pool.device.name, []).append(bounds)
        return table

    def _elsewhere_s(self, job: Job, counts: Ints) -> Floats:
        """By count, a lower bound from tables of the same GPU in other nodes; zero where none has the count."""
        least_s = np.zeros(len(counts))
        for table in self._tables.get(job.pool.device.name, ()):
            shared = np.isin(counts, table.space.counts)
            same = table.space.of(job, table.space.counts) is not None  # its grids are this job's
            if same and (shared & (least_s == 0)).any():
                doubts = Doubts(job, table.space.counts, upper=self._upper)
                doubt = doubts.least(table.space, table.grids, table.place)
                by_count = least_by_count(table, table.bound_s * doubt)
                least_s[shared] = by_count[np.searchsorted(table.space.counts, counts[shared])]
        return least_s

    def limits(self, offer_search: OfferSearch, table: CountTable) -> Limits:
        """The longest step of each count that could be on the front, from the best steps so far."""
        at = offer_search.at(table.space.counts)

        def limits(best_s: Floats) -> Floats:
            time_s = offer_search.time_of(best_s, at)
            usd = offer_search.usd_of(time_s, at)
            own = front(time_s, usd)
            return np.minimum(self.limit_s(offer_search), offer_search.dominated_s(time_s[own], usd[own]))[at]

        return limits

    def limit_s(self, offer_search: OfferSearch) -> Floats:
        """By count, the step from which the front so far is better, or the run too long."""
        dominated_s = offer_search.dominated_s(self.times, self.dollars)
        return np.minimum(dominated_s, offer_search.step_of(self._most_s * (1 + ROUNDING)))

    def add_counts(self, offer_search: OfferSearch, by_count: BestByCount) -> None:
        """Keep what was found for some counts of an offer."""
        at = offer_search.at(by_count.counts)
        time_s = offer_search.time_of(by_count.step_s, at)
        usd = offer_search.usd_of(time_s, at)
        columns = (by_count.counts, by_count.step_s, time_s, usd)
        for strategy, count, *figures in zip(by_count.strategies, *(each.tolist() for each in columns), strict=True):
            if strategy is not None:
                self.add(FoundOffer(offer_search.offer, count, strategy, *figures))
        times, dollars = (np.array([getattr(found, name) for found in self.found]) for name in ("time_s", "usd"))
        best = front(times, dollars)
        self.times, self.dollars = times[best], dollars[best]

    def on_front(self, offer: Offer) -> int:
        """How much of the front so far is an offer's."""
        return sum(one.offer is offer for one in self.near_front())

    def add(self, found: FoundOffer) -> None:
        """Keep what is the best of its offer and count."""
        key = id(found.offer), found.gpus
        if key not in self._best or found.step_s < self._best[key].step_s:
            self._best[key] = found

    def left_open(self) -> tuple[int, float]:
        """Choices the effort did not reach, and how much better one may be in both time and money than one found."""
        gains = [
            first_dominated(each.usd_per_s, self.times, self.dollars, each.least_usd)
            / each.time_of(each.open_s, slice(None))
            for each in self._offer_searches
        ]
        gain = np.concatenate([np.zeros(0), *gains]) - 1
        return int((gain > ROUNDING).sum()), float(gain.max(initial=0.0))

    def near_front(self) -> list[FoundOffer]:
        """Everything that could be on the front."""
        found = self.found
        if not found:
            return []
        times, dollars = (np.array([getattr(one, name) for one in found]) for name in ("time_s", "usd"))
        limit = first_dominated(dollars / times, self.times, self.dollars)
        return [one for one, near in zip(found, times <= limit * (1 + ROUNDING), strict=True) if near]


def may_hold(job: Job) -> bool:
    """Whether all GPUs together have room for the weights."""
    return 2.0 * weights_of.count(job.model).total <= job.limit_bytes * job.pool.gpus


def search_front(
    offers: Sequence[Offer],
    job_of: JobOf,
    options: Money,
    *,
    effort: Effort,
    upper: bool,
    most_s: float = np.inf,
    restrictions: Restrictions | None = None,
    progress: Progress | None = None,
) -> FrontSearch:
    """The front of every offer in every count."""

    def usd_by_worth(offer: Offer) -> float:
        worth = max(offer.device.flops_per_s.values()) * offer.device.memory_bytes_per_s
        return float(offer.tag.usd_per_gpu_h / worth**0.5)

    state = FrontSearch(job_of, options, restrictions, effort, upper=upper, most_s=most_s)
    in_turns(state, sorted(offers, key=usd_by_worth), progress)
    return state


def in_turns(state: FrontSearch, offers: Sequence[Offer], progress: Progress | None = None) -> None:
    """Try every offer in turns, first those that promise the most: what is found makes the rest short.

    Of those that were begun with the one goes on first that has the most of the front.
    """
    queue = deque((offer, state.turns(offer)) for offer in offers)
    begun = list[tuple[Offer, Iterator[bool]]]()
    while queue or begun:
        if len(begun) == BEGUN or not queue:
            queue = deque((*sorted(begun, key=lambda one: -state.on_front(one[0])), *queue))
            begun = []
        state.share = max(1 / len(queue), LEAST_SHARE)
        offer, turns = queue.popleft()
        plainest = next(turns, None)
        if plainest is not None:
            (begun if plainest else queue).append((offer, turns))
        elif progress is not None:
            progress(1 - (len(queue) + len(begun)) / len(offers))


def open_notes(state: FrontSearch) -> list[str]:
    """What a search did not look at because its work was done, and what that could bring at most."""
    choices, gain = state.left_open()
    if not choices:
        return []
    return [
        f"the search stopped at the work allowed for it: {choices:,} numbers of GPUs were not searched to the end, and "
        f"none of them is more than {gain:.1%} better in both time and cost than what was found"
    ]


def waiting(job: Job, options: Money, gpus: Ints, nodes: Ints, market: str) -> Floats:
    """Elapsed time over useful time of jobs of several sizes; 1 where restarts are not to be judged by."""
    if options.goodput != "expected":
        return np.ones(len(gpus))
    useful = outlook(options, checkpoint_bytes(job), gpus, nodes, market).goodput
    return np.divide(1.0, useful, out=np.full_like(useful, np.inf), where=useful > 0)


def steps_of(job: Job) -> float:
    """Steps of the whole run; infinite where the tokens are not known."""
    tokens = job.workload.tokens
    return np.inf if tokens is None else tokens / (job.workload.global_batch * job.workload.seq)
