"""The choice with the least energy or CO2: the same search, with energy in the place of dollars.

What draws so many watts for so long costs so many kilowatt-hours, as what is rented by the hour costs so many dollars.
So the front of time against energy is as exact as that against money, and its last row within the time has the least.
Of what has as little for all that is known, the cheapest is chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from astra.errors import InputError, NoFeasiblePlan
from astra.money.bill import co2_per_kwh, watts_of
from astra.money.objectives import Goal
from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.search.front import Refined, refine
from astra.search.offers import MOST_EFFORT, FoundOffer, JobOf, search_front
from astra.spec.money import Money

AS_LITTLE: Final = 1.05  # times the least: no step is known so well that this could be told apart


def least(
    offers: list[Offer], front: Sequence[Refined], job_of: JobOf, options: Money, goal: Goal, horizon_s: float, *,
    upper: bool,
) -> list[Refined]:  # fmt: skip
    """Choices within the time, the least energy or CO2 first; offers whose grid is not known have no CO2.

    Of those that have as little the cheapest is first; ``front`` is that of time against money.
    """
    column, twins = goal.objective.columns[0], dict[int, Offer]()
    priced = []
    for offer in offers:
        rate = _per_gpu_h(offer, options, column)
        if rate is not None:
            tag = msgspec.structs.replace(offer.tag, usd_per_gpu_h=rate, minimum_s=0.0, step_s=0.0)
            priced.append(offer._replace(tag=tag))
            twins[id(priced[-1])] = offer
    if not priced:
        fix = "Give --g-co2-per-kwh, or --regions and --providers of clouds whose grid is known (docs/money.md)."
        raise InputError("objective", goal.objective.name, want="offers whose grid is known", fix=fix)
    plain = msgspec.structs.replace(options, storage_tb=0.0, egress_tb=0.0)
    state = search_front(priced, job_of, plain, effort=Effort(MOST_EFFORT), upper=upper)
    near = [one._replace(offer=twins[id(offer)]) for one in state.near_front() for offer in _equals(one, priced, twins)]
    known = [one for one in front if len(one.parts) == 1 and getattr(one.estimate.cost, column) is not None]
    found = [*refine(job_of, options, near, upper=upper), *known]
    limit_s = goal.most_s if np.isfinite(goal.most_s) else horizon_s
    within = [one for one in found if one.time_s <= limit_s and one.usd <= goal.most_usd]
    if not within:
        raise NoFeasiblePlan("Nothing ends in this time: give a later --deadline, or more GPUs.")

    def amount(one: Refined) -> float:
        """What a choice takes at the upper end of its time: it grows as the time does."""
        return float(getattr(one.estimate.cost, column) * one.time_s / one.middle_s)

    most = AS_LITTLE * min(map(amount, within))
    return sorted(within, key=lambda one: (0.0, one.usd) if amount(one) <= most else (amount(one), one.time_s))


def _equals(one: FoundOffer, priced: Sequence[Offer], twins: dict[int, Offer]) -> list[Offer]:
    """Offers no dearer by the hour that run a choice equally and take as much for it, its own among them."""

    def hardware(offer: Offer) -> tuple[object, ...]:
        links = tuple(msgspec.structs.replace(link, source="") for link in offer.node.links)
        return offer.device.name, offer.node.gpus, links, offer.tag.market, offer.tag.usd_per_gpu_h, offer.tag.startup_s

    usd, own = twins[id(one.offer)].tag.usd_per_gpu_h, hardware(one.offer)
    same = [offer for offer in priced if one.gpus in offer.counts and hardware(offer) == own]
    return [offer for offer in same if twins[id(offer)].tag.usd_per_gpu_h <= usd]


def _per_gpu_h(offer: Offer, options: Money, column: str) -> float | None:
    """Kilowatt-hours, or kilograms of CO2, of a GPU in an hour."""
    kwh = watts_of(options, offer.device) / 1000 * options.pue
    if column == "kwh":
        return kwh
    grams = co2_per_kwh(options, offer.tag)[0]
    return None if grams is None or grams <= 0 else kwh * grams / 1000
