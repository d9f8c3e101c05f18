"""Every offer in every count: the exact front of time against money.

An offer or a count is passed over only when a lower bound of its simulated step shows that something already found is
no slower and no dearer. What is found is simulated, so the front is that of the figures reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.answer import Estimate
from astra.cost.stage import SHARD_COLUMNS, gather_parts
from astra.errors import NoFeasiblePlan
from astra.layers import weights as weights_of
from astra.money.bill import checkpoint_bytes, cost_of, judged_by, outlook
from astra.money.front import first_dominated, front
from astra.money.objectives import Goal
from astra.money.offers import Offer
from astra.provenance import Floats, Ints
from astra.rules.restrictions import Restrictions
from astra.search.blocks import Stream
from astra.search.counts import CountSpace, Rungs, Shelf, climb, compute_bound_s, flops_bound_s, least_by_count, shelve
from astra.search.detail import as_row, in_full
from astra.spec.job import Job
from astra.spec.money import Money
from astra.spec.strategy import Strategy
from astra.units import show_dollars, show_seconds

ROUNDING: Final = 1e-9  # figures of one choice, worked out in different orders

Progress = Callable[[float], None]
JobOf = Callable[[Offer, int], Job]


class Found(NamedTuple):
    """One offer in one count with its best strategy by the simulated step; times and dollars are of one step."""

    offer: Offer
    gpus: int
    strategy: Strategy
    step_s: float
    time_s: float  # with restarts and its share of idle time where they are asked for
    usd: float  # without egress, which is the same for all


class Hunt:
    """The state of one search: the front so far, and what was done."""

    def __init__(self, job_of: JobOf, options: Money, restrictions: Restrictions | None = None) -> None:
        self._job_of, self._options, self._restrictions = job_of, options, restrictions
        self._spaces: list[CountSpace] = []
        self._shelves: dict[tuple[str, bytes], tuple[Job, Shelf]] = {}  # by GPU and counts, of the first offer of them
        self._floors: dict[bytes, Floats] = {}
        self.found: list[Found] = []
        self.times, self.dollars = np.zeros(0), np.zeros(0)  # the front so far
        self._idle_s = 0.0
        self.choices = self.considered = self.evaluated = self.passed = 0

    def factors(self, offer: Offer) -> tuple[Floats, Floats]:
        """By count: elapsed time over useful time, and dollars per second."""
        nodes = -(-offer.counts // offer.node.gpus)
        slower = waiting(
            self._job_of(offer, int(offer.counts[-1])), self._options, offer.counts, nodes, offer.tag.market
        )
        return slower, offer.counts * offer.tag.usd_per_gpu_h / 3600 + self._options.storage_usd_per_s

    def try_offer(self, offer: Offer) -> None:
        """Search an offer in every count it is sold in."""
        job = self._job_of(offer, int(offer.counts[-1]))
        if not may_hold(job):
            return
        slower, usd_per_s = self.factors(offer)
        self.choices += len(offer.counts)
        self._idle_s = idle_step_s(job, self._options)
        if not (flops_bound_s(job, offer.counts) * slower < self._limit(usd_per_s)).any():
            self.passed += 1
            return
        stream = Stream(job, offer.counts, self._restrictions or Restrictions(), self._floors)
        if not stream.whole:
            self._by_blocks(offer, stream)
            return
        space, kind = self._space(job, offer), (offer.device.name, offer.counts.tobytes())
        known = self._shelves.get(kind)
        if known is not None:
            least = least_by_count(known[1], compute_bound_s(*known))
            if not (least * slower < self._limit(usd_per_s)).any():
                self.passed += 1
                return
        shelf = shelve(job, space)
        self._shelves.setdefault(kind, (job, shelf))
        self._add(offer, self.climb(job, shelf, slower, usd_per_s), slower, usd_per_s)

    def _by_blocks(self, offer: Offer, stream: Stream) -> None:
        """Search an offer in more counts than one table should hold."""
        job, (slower, usd_per_s) = stream.job, self.factors(offer)

        def limit_s() -> Floats:
            return self._limit(usd_per_s) / slower

        while (counts := stream.next(limit_s())) is not None:
            space = CountSpace(
                job, counts, self._restrictions, hopeful=lambda columns: stream.hopeful(columns, limit_s())
            )
            at = np.searchsorted(offer.counts, counts)
            rungs = self.climb(job, shelve(job, space), slower[at], usd_per_s[at])
            self._add(offer, rungs, slower[at], usd_per_s[at])

    def climb(self, job: Job, shelf: Shelf, slower: Floats, usd_per_s: Floats) -> Rungs:
        """The best strategy of each count that could be on the front."""
        others = self._limit(usd_per_s)

        def limits(best_s: Floats) -> Floats:
            time_s = best_s * slower + self._idle_s
            own = front(time_s, time_s * usd_per_s)
            ours = first_dominated(usd_per_s, time_s[own], (time_s * usd_per_s)[own])
            return np.minimum(others, ours * (1 + ROUNDING) - self._idle_s) / slower

        rungs = climb(job, shelf, limits)
        self.considered += shelf.space.considered
        self.evaluated += rungs.evaluated
        return rungs

    def _limit(self, usd_per_s: Floats) -> Floats:
        """By count, the training time from which the front so far is better."""
        return first_dominated(usd_per_s, self.times, self.dollars) * (1 + ROUNDING) - self._idle_s

    def _space(self, job: Job, offer: Offer) -> CountSpace:
        for known in self._spaces:
            same = known.of(job, offer.counts)
            if same is not None:
                return same
        self._spaces.append(CountSpace(job, offer.counts, self._restrictions))
        return self._spaces[-1]

    def _add(self, offer: Offer, rungs: Rungs, slower: Floats, usd_per_s: Floats) -> None:
        for place, strategy in enumerate(rungs.strategies):
            if strategy is not None:
                step_s = float(rungs.step_s[place])
                time_s = step_s * float(slower[place]) + self._idle_s
                self.found.append(
                    Found(offer, int(rungs.counts[place]), strategy, step_s, time_s, time_s * float(usd_per_s[place]))
                )
        times, dollars = (np.array([getattr(found, name) for found in self.found]) for name in ("time_s", "usd"))
        best = front(times, dollars)
        self.times, self.dollars = times[best], dollars[best]

    def near_front(self) -> list[Found]:
        """Everything that could be on the front."""
        if not self.found:
            return []
        times, dollars = (np.array([getattr(found, name) for found in self.found]) for name in ("time_s", "usd"))
        limit = first_dominated(dollars / times, self.times, self.dollars)
        return [found for found, near in zip(self.found, times <= limit * (1 + ROUNDING), strict=True) if near]


def may_hold(job: Job) -> bool:
    """Whether all GPUs together have room for the weights."""
    return 2.0 * weights_of.count(job.model).total <= job.limit_bytes * job.pool.gpus


def hunt(
    offers: Sequence[Offer],
    job_of: JobOf,
    options: Money,
    *,
    restrictions: Restrictions | None = None,
    progress: Progress | None = None,
) -> Hunt:
    """Try every offer, first those that promise the most for the money: a good front makes the rest short."""

    def usd_by_worth(offer: Offer) -> float:
        worth = max(offer.device.flops_per_s.values()) * offer.device.memory_bytes_per_s
        return float(offer.tag.usd_per_gpu_h / worth**0.5)

    state = Hunt(job_of, options, restrictions)
    order = sorted(offers, key=usd_by_worth)
    for place, offer in enumerate(order):
        state.try_offer(offer)
        if progress is not None:
            progress((place + 1) / len(order))
    return state


def waiting(job: Job, options: Money, gpus: Ints, nodes: Ints, market: str) -> Floats:
    """Elapsed time over useful time of jobs of several sizes; 1 where restarts are not to be judged by."""
    if options.goodput != "expected":
        return np.ones(len(gpus))
    useful = outlook(options, checkpoint_bytes(job), gpus, nodes, market).goodput
    return np.divide(1.0, useful, out=np.full_like(useful, np.inf), where=useful > 0)


def idle_step_s(job: Job, options: Money) -> float:
    """The share of a step in the time that GPUs are paid for without training."""
    steps = steps_of(job)
    return options.idle_s / steps if np.isfinite(steps) else 0.0


def steps_of(job: Job) -> float:
    """Steps of the whole run; infinite where the tokens are not known."""
    tokens = job.workload.tokens
    return np.inf if tokens is None else tokens / (job.workload.global_batch * job.workload.seq)


class Part(NamedTuple):
    """So many GPUs of an offer."""

    offer: Offer
    gpus: int

    @property
    def nodes(self) -> int:
        """Servers, the last one perhaps in part."""
        return -(-self.gpus // self.offer.node.gpus)


class Refined(NamedTuple):
    """A choice as simulated, with its bill; times and dollars are those it is judged by, of the whole run."""

    parts: tuple[Part, ...]  # one, or two for a mix
    estimate: Estimate
    time_s: float
    usd: float

    @property
    def gpus(self) -> int:
        """All of them."""
        return sum(part.gpus for part in self.parts)

    @property
    def name(self) -> str:
        """``64xH100-SXM5-80GB from Lambda``."""
        types, tag = " + ".join(f"{part.gpus}x{part.offer.device.name}" for part in self.parts), self.parts[0].offer.tag
        own = {"owned": "of your own", "given": "at your price"}
        return f"{types} {own.get(tag.market, f'from {tag.provider}')}"


def refine(job_of: JobOf, options: Money, found: Sequence[Found]) -> list[Refined]:
    """Simulate choices; those the detailed account of memory turns down are left out."""
    out = []
    for one, job, result in _estimates(job_of, found):
        if result.fits and result.legal:
            priced = msgspec.structs.replace(result, cost=cost_of(job, result, options, one.offer.tag))
            judged = judged_by(job, result, options, one.offer.tag)
            out.append(Refined((Part(one.offer, one.gpus),), priced, *judged))
    return out


def _estimates(job_of: JobOf, found: Sequence[Found]) -> Iterator[tuple[Found, Job, Estimate]]:
    """Each choice in full; parts do not depend on the count, so those of one offer are costed together."""
    by_offer: dict[int, list[Found]] = {}
    for one in found:
        by_offer.setdefault(id(one.offer), []).append(one)
    for some in by_offer.values():
        jobs = [job_of(one.offer, one.gpus) for one in some]
        rows = [as_row(job, one.strategy) for job, one in zip(jobs, some, strict=True)]
        shards = {name: np.concatenate([row.meshes.columns[name] for row in rows]) for name in SHARD_COLUMNS}
        gathered = gather_parts(jobs[0], shards)
        for place, (one, job, row) in enumerate(zip(some, jobs, rows, strict=True)):
            yield one, job, in_full(job, row, gathered.take(np.array([place])), ())


def front_of(choices: Sequence[Refined]) -> list[Refined]:
    """Those no other dominates, fastest first."""
    times, dollars = (np.array([getattr(one, name) for one in choices]) for name in ("time_s", "usd"))
    return [choices[place] for place in front(times, dollars)]


def choose(choices: Sequence[Refined], goal: Goal) -> list[Refined]:
    """The choices the goal allows, best first; if it allows none, an error that says what would be possible."""
    table = {"time_s": np.array([one.time_s for one in choices]), "usd": np.array([one.usd for one in choices])}
    table["usd_per_token"] = table["usd"] / np.array([tokens_of(one) for one in choices])
    rows = goal.objective.rank(table, goal.cap)
    within = rows[table["usd"][rows] <= goal.most_usd]
    if len(within):
        return [choices[row] for row in within]
    if len(rows):
        raise NoFeasiblePlan(_over_budget(choices[rows[0]], choices, goal))
    if goal.objective.name == "budget":
        least = choices[int(table["usd"].argmin())]
        raise NoFeasiblePlan(
            f"Nothing costs {show_dollars(goal.cap)} or less. The least it could cost is {show_dollars(least.usd)}, in "
            f"{show_seconds(least.time_s)}: {least.name}."
        )
    least = choices[int(table["time_s"].argmin())]
    raise NoFeasiblePlan(
        f"Nothing takes {show_seconds(goal.cap)} or less. The fastest takes {show_seconds(least.time_s)}, for "
        f"{show_dollars(least.usd)}: {least.name}."
    )


def _over_budget(cheapest: Refined, choices: Sequence[Refined], goal: Goal) -> str:
    """A deadline that can be met, but not for the money; ``cheapest`` is the cheapest that meets it."""
    text = (
        f"Nothing takes {show_seconds(goal.cap)} or less and costs {show_dollars(goal.most_usd)} or less. The cheapest "
        f"in time costs {show_dollars(cheapest.usd)}: {cheapest.name}."
    )
    paid = [one for one in choices if one.usd <= goal.most_usd]
    if not paid:
        least = min(choices, key=lambda one: one.usd)
        return f"{text} The least it could cost is {show_dollars(least.usd)}, in {show_seconds(least.time_s)}."
    fastest = min(paid, key=lambda one: one.time_s)
    return f"{text} The fastest within the budget takes {show_seconds(fastest.time_s)}: {fastest.name}."


def tokens_of(choice: Refined) -> float:
    """Tokens trained in the time a choice is judged by, up to a factor that all choices share."""
    result = choice.estimate
    return result.tokens_per_s * result.step_s
