"""Every offer in every count: the one that makes the most steps within a budget and a deadline.

How long the caps let an offer train in a count does not depend on its step (``money.caps``). So what has made the most
steps gives every other count a longest step of interest, and one search answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from astra.money.caps import Allowed, Caps, allowed
from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.provenance import Floats
from astra.search.counts import BestByCount, CountTable, Limits
from astra.search.offers import ROUNDING, FoundOffer, FrontSearch, JobOf, OfferSearch, in_turns, waiting
from astra.spec.job import Job
from astra.spec.money import Money


class Buys(NamedTuple):
    """An offer in a count, and what the caps allow with it."""

    found: FoundOffer
    steps: float
    present_s: float
    usd: float


class MostSearch(FrontSearch):
    """The most steps so far. What makes ``as_many`` times fewer is of interest too."""

    def __init__(
        self, job_of: JobOf, options: Money, caps: Caps, as_many: float, effort: Effort, *, upper: bool
    ) -> None:
        super().__init__(job_of, options, effort=effort, upper=upper)
        self._caps, self._as_many, self.steps = caps, as_many, 0.0
        self._allowed: dict[int, Allowed] = {}

    def promised(self, offer: Offer) -> float:
        """Steps that no count of an offer makes more of."""
        job = self._job_of(offer, int(offer.counts[-1]))
        return float((self._within(job, offer).train_s / self.least_s(job, offer)).max())

    def allowed(self, search: OfferSearch) -> Allowed:
        """What the caps allow with an offer, by count."""
        return self._within(search.job, search.offer)

    def _within(self, job: Job, offer: Offer) -> Allowed:
        if id(offer) not in self._allowed:
            nodes = -(-offer.counts // offer.node.gpus)
            slower = waiting(job, self._options, offer.counts, nodes, offer.tag.market)
            self._allowed[id(offer)] = allowed(self._caps, self._options, offer.tag, offer.counts, nodes, slower)
        return self._allowed[id(offer)]

    def limit_s(self, offer_search: OfferSearch) -> Floats:
        """By count, the step from which fewer steps are made than by what was found."""
        return self._longest_s(self.allowed(offer_search).train_s, self.steps)

    def _longest_s(self, train_s: Floats, steps: float) -> Floats:
        if steps <= 0:
            return np.where(train_s > 0, np.inf, 0.0)
        return train_s * self._as_many * (1 + ROUNDING) / steps

    def limits(self, offer_search: OfferSearch, table: CountTable) -> Limits:
        """The longest step of each count that could make as many, from the best steps so far."""
        train_s = self.allowed(offer_search).train_s[offer_search.at(table.space.counts)]
        return lambda best_s: self._longest_s(train_s, max(self.steps, float((train_s / best_s).max(initial=0.0))))

    def add_counts(self, offer_search: OfferSearch, by_count: BestByCount) -> None:
        """Keep what was found for some counts of an offer."""
        super().add_counts(offer_search, by_count)
        train_s = self.allowed(offer_search).train_s[offer_search.at(by_count.counts)]
        self.steps = max(self.steps, float((train_s / by_count.step_s).max(initial=0.0)))

    def left_open(self) -> tuple[int, float]:
        """Choices the effort did not reach, and how many more steps one may make than the best found."""
        gains = [self.allowed(each).train_s / each.open_s / self.steps for each in self._offer_searches]
        gain = np.concatenate([np.zeros(0), *gains]) - 1
        return int((gain > ROUNDING).sum()), float(gain.max(initial=0.0))

    def buys(self) -> list[Buys]:
        """Everything found that makes any steps, the most first."""
        out = []
        for one in self.found:
            may, at = self._allowed[id(one.offer)], int(np.searchsorted(one.offer.counts, one.gpus))
            steps = float(may.train_s[at]) / one.step_s
            if steps > 0:
                out.append(Buys(one, steps, float(may.present_s[at]), float(may.usd[at])))
        return sorted(out, key=lambda one: -one.steps)


def search_most(
    offers: Sequence[Offer],
    job_of: JobOf,
    options: Money,
    caps: Caps,
    *,
    effort: Effort,
    upper: bool,
    as_many: float = 1.0,
    first: Sequence[Offer] = (),
    progress: Callable[[float], None] | None = None,
) -> MostSearch:
    """What makes the most steps within the caps, and what makes as many; ``first`` are offers to begin with."""
    state = MostSearch(job_of, options, caps, as_many, effort, upper=upper)
    some = [offer for offer in offers if len(offer.counts)]
    begin = {id(offer) for offer in first}
    order = {id(offer): (id(offer) not in begin, -state.promised(offer)) for offer in some}
    in_turns(state, sorted(some, key=lambda offer: order[id(offer)]), progress)
    return state


def open_notes(name: str, state: MostSearch) -> list[str]:
    """What a search did not look at because its work was done, and what that could bring at most."""
    choices, gain = state.left_open()
    if not choices:
        return []
    return [
        f"{name}: the search stopped at the work allowed for it: {choices:,} numbers of GPUs were not searched to the "
        f"end, and none of them trains more than {gain:.1%} more tokens than what was found."
    ]
