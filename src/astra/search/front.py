"""Choices as simulated, with their bills: the front of time against money, and what a goal makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from astra.answer import Estimate, PriceTag
from astra.cost.stage import SHARD_COLUMNS, gather_parts
from astra.errors import InputError, NoFeasiblePlan
from astra.money.bill import Hired, cost_of, judged_by
from astra.money.front import front
from astra.money.objectives import Goal
from astra.money.offers import Offer
from astra.search.detail import as_row, full_estimate
from astra.search.offers import FoundOffer, JobOf
from astra.spec.job import Job
from astra.spec.money import Money
from astra.units import show_dollars, show_seconds


class OfferPart(NamedTuple):
    """So many GPUs of an offer."""

    offer: Offer
    gpus: int

    @property
    def nodes(self) -> int:
        """Servers, the last one perhaps in part."""
        return -(-self.gpus // self.offer.node.gpus)


class Refined(NamedTuple):
    """A choice as simulated, with its bill.

    Times and dollars are of the whole run: those it is ranked by, and those of the expected step, which are the same
    where that ranks.
    """

    parts: tuple[OfferPart, ...]  # one, or two for a mix
    estimate: Estimate
    time_s: float
    usd: float
    middle_s: float
    middle_usd: float

    @property
    def gpus(self) -> int:
        """All of them."""
        return sum(part.gpus for part in self.parts)

    @property
    def name(self) -> str:
        """``64xH100-SXM5-80GB from Lambda``, and in which market where that is not the usual one."""
        types, tag = " + ".join(f"{part.gpus}x{part.offer.device.name}" for part in self.parts), self.parts[0].offer.tag
        own = {"owned": "of your own", "given": "at your price"}
        market = f" {tag.market}" if tag.market in ("spot", "reserved") else ""
        return f"{types} {own.get(tag.market, f'from {tag.provider}{market}')}"


def refine(job_of: JobOf, options: Money, found: Sequence[FoundOffer], *, upper: bool) -> list[Refined]:
    """Simulate choices; those the detailed account of memory turns down are left out."""
    return [
        refined_of(job_of(one.offer, one.gpus), result, options, one.offer.tag, (OfferPart(*one[:2]),), upper=upper)
        for one, result in estimates(job_of, found)
        if result.fits and result.legal
    ]


def refined_of(
    job: Job, result: Estimate, options: Money, tag: PriceTag, parts: tuple[OfferPart, ...],
    machines: Hired | None = None, *, upper: bool,
) -> Refined:  # fmt: skip
    """An estimate with its bill, and the figures it is ranked by; ``machines`` are those of several pools."""
    priced = msgspec.structs.replace(result, cost=cost_of(job, result, options, tag, machines))
    ends = [judged_by(job, result, options, tag, machines, upper=end) for end in (upper, False)]
    return Refined(parts, priced, *ends[0], *ends[1])


def estimates(job_of: JobOf, found: Sequence[FoundOffer]) -> Iterator[tuple[FoundOffer, Estimate]]:
    """Each choice in full; parts do not depend on the count, so those of one offer are costed together."""
    by_offer: dict[int, list[FoundOffer]] = {}
    for one in found:
        by_offer.setdefault(id(one.offer), []).append(one)
    for some in by_offer.values():
        jobs = [job_of(one.offer, one.gpus) for one in some]
        rows = [as_row(job, one.strategy) for job, one in zip(jobs, some, strict=True)]
        shards = {name: np.concatenate([row.meshes.columns[name] for row in rows]) for name in SHARD_COLUMNS}
        gathered = gather_parts(jobs[0], shards)
        for place, (one, job, row) in enumerate(zip(some, jobs, rows, strict=True)):
            yield one, full_estimate(job, row, gathered.take(np.array([place])), ())


def front_of(choices: Sequence[Refined]) -> list[Refined]:
    """Those no other dominates, fastest first."""
    times, dollars = (np.array([getattr(one, name) for one in choices]) for name in ("time_s", "usd"))
    return [choices[place] for place in front(times, dollars)]


def choose(choices: Sequence[Refined], goal: Goal) -> list[Refined]:
    """The choices the goal allows, best first; if it allows none, an error that says what would be possible.

    Where none keeps the caps by what it is ranked by, those that are expected to.
    """
    try:
        return _choose(choices, goal)
    except NoFeasiblePlan:
        middle = [one._replace(time_s=one.middle_s, usd=one.middle_usd) for one in choices]
        return [choices[middle.index(one)] for one in _choose(middle, goal)]


def _choose(choices: Sequence[Refined], goal: Goal) -> list[Refined]:
    """By the figures they are ranked by."""
    table = {"time_s": np.array([one.time_s for one in choices]), "usd": np.array([one.usd for one in choices])}
    table["usd_per_token"] = table["usd"] / np.array([tokens_of(one) for one in choices])
    for name in ("kwh", "kg_co2"):
        found = [getattr(one.estimate.cost, name, None) for one in choices]
        table[name] = np.array([np.inf if each is None else each for each in found])
    rows = goal.objective.rank(table, goal.cap)
    within = rows[(table["usd"][rows] <= goal.most_usd) & (table["time_s"][rows] <= goal.most_s)]
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
    if goal.objective.name == "co2":
        fix = "Give --g-co2-per-kwh."
        raise InputError("objective", goal.objective.name, want="a price whose region's grid is known", fix=fix)
    least = choices[int(table["time_s"].argmin())]
    raise NoFeasiblePlan(
        f"Nothing takes {show_seconds(goal.cap)} or less. The fastest takes {show_seconds(least.time_s)}, for "
        f"{show_dollars(least.usd)}: {least.name}."
    )


def _over_budget(cheapest: Refined, choices: Sequence[Refined], goal: Goal) -> str:
    """A deadline that can be met, but not for the money; ``cheapest`` is the cheapest that meets it."""
    if goal.objective.name != "deadline":  # of energy or CO2, which have limits beside them
        caps = [f"takes {show_seconds(goal.most_s)} or less"] if np.isfinite(goal.most_s) else []
        caps += [f"costs {show_dollars(goal.most_usd)} or less"] if np.isfinite(goal.most_usd) else []
        quick = min(choices, key=lambda one: one.time_s)
        return (
            f"Nothing {' and '.join(caps)}. The fastest takes {show_seconds(quick.time_s)}, for "
            f"{show_dollars(quick.usd)}: {quick.name}."
        )
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
