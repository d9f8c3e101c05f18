"""What many would rent without looking: a common GPU in a common number, from a large provider.

A remark beside the answer, with an effort of its own; sentences say where that was not enough. Models with experts are
run as is common, with whole contexts and whole experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.rules.restrictions import Restrictions
from astra.search.counts import are_plain, best_on
from astra.search.front import Refined, estimates, refine
from astra.search.offers import FoundOffer, FrontSearch, JobOf, Spaces
from astra.search.words import said, settled
from astra.spec.money import Money
from astra.spec.strategy import Strategy

POPULAR_GPUS: Final = ("H100-SXM5-80GB", "A100-SXM4-80GB", "H200-SXM5-141GB", "B200-SXM-180GB")
POPULAR_PROVIDERS: Final = ("AWS", "Azure", "GCP", "CoreWeave", "Lambda")
POPULAR_COUNT: Final = 256
MOST_TRIED: Final = 2  # strategies of other GPUs
MOST_REMARKED: Final = 6_000.0  # effort of all of them, half a second at most


def popular(
    offers: Sequence[Offer], state: FrontSearch, job_of: JobOf, options: Money, *, upper: bool
) -> tuple[list[Refined], list[str]]:
    """The common choices that are sold, and what was not looked at."""
    remarks, chosen = _Leftover(state.found, job_of, options, upper=upper), []
    for gpu in POPULAR_GPUS:
        some = [offer for offer in offers if offer.device.name == gpu and len(offer.counts) > 1]
        if not some:
            continue
        offer = min(some, key=lambda each: (not each.node_known, _fame(each.tag.provider), each.tag.usd_per_gpu_h))
        sizes = [2**n for n in range(20) if 2**n <= POPULAR_COUNT and 2**n in offer.counts]
        one = remarks.best(offer, sizes[-1]) if sizes else None
        chosen += [one] if one is not None else []
    return refine(job_of, options, chosen, upper=upper), remarks.notes


def _fame(provider: str) -> int:
    return POPULAR_PROVIDERS.index(provider) if provider in POPULAR_PROVIDERS else len(POPULAR_PROVIDERS)


class _Leftover:
    """What the search of the front left behind, and what is told."""

    def __init__(self, found: list[FoundOffer], job_of: JobOf, options: Money, *, upper: bool) -> None:
        self.found, self.before = list(found), len(found)
        self.job_of, self.options, self.upper = job_of, options, upper
        self.effort, self.notes = Effort(MOST_REMARKED), list[str]()
        self.whole, self.plain = Spaces(), Spaces(hopeful=are_plain)

    def best(self, offer: Offer, gpus: int) -> FoundOffer | None:
        """An offer in a count with its best strategy."""
        what = f"{gpus}x{offer.device.name}, a common choice"
        for one in self.found:
            if (one.offer.device.name, one.offer.tag, one.gpus) == (offer.device.name, offer.tag, gpus):
                return one
        if self.effort.over:
            self.notes.append(f"{what}, was not looked at: the work allowed for it was done.")
            return None
        step_s, strategy = self._as_elsewhere(offer, gpus)
        with self.effort.part(1 / 2):
            job, sure = self.job_of(offer, gpus), strategy is not None or len(self.found) > self.before
            space = (self.whole if job.model.moe is None else self.plain).of(job, np.array([gpus]))
            by_count = best_on(job, space, self.effort, upper=self.upper, found=sure, below=step_s)
        if by_count.strategies[0] is not None and by_count.step_s[0] < step_s:
            step_s, strategy = float(by_count.step_s[0]), by_count.strategies[0]
        least_s = float(by_count.open_s[0])
        if strategy is None:
            if np.isfinite(least_s):
                self.notes.append(f"{what}: nothing was found in the work allowed for it.")
            return None
        if np.isfinite(least_s):
            self.notes.append(f"{what}, was not searched to the end: at most {step_s / least_s - 1:.1%} faster.")
        self.found.append(FoundOffer(offer, gpus, strategy, step_s, step_s, np.inf))
        return self.found[-1]

    def _as_elsewhere(self, offer: Offer, gpus: int) -> tuple[float, Strategy | None]:
        """The best of the strategies found for as many other GPUs, and its step here: what is better is quicker.

        First those of GPUs that have no more memory, which have room here too, the nearest first. Words that all
        strategies of a job share are its own.
        """
        own, job = offer.device.memory_bytes, settled(self.job_of(offer, gpus), Restrictions())
        others = [one for one in self.found if one.gpus == gpus]
        others.sort(key=lambda one: (one.offer.device.memory_bytes > own, abs(one.offer.device.memory_bytes - own)))
        known = dict.fromkeys(replace(one.strategy, **said(job, one.strategy.ep)) for one in others)
        here = [FoundOffer(offer, gpus, strategy, 0.0, 0.0, np.inf) for strategy in list(known)[:MOST_TRIED]]
        steps: list[tuple[float, Strategy | None]] = [(np.inf, None)]
        for one, result in estimates(self.job_of, here):
            if result.fits and result.legal:
                steps.append((result.step_s_range.high if self.upper else result.step_s, one.strategy))
        return min(steps, key=lambda each: each[0])
