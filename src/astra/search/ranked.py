"""The best strategies on one pool: what each attempt at a job finds, with its layers dealt best, costed and ranked.

``astra plan`` on one GPU type and every pool of a fleet by itself are this search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from astra.answer import Estimate
from astra.cost.stage import Gathered
from astra.evidence.bars import UNEQUAL, Doubt
from astra.rules.restrictions import Restrictions
from astra.rules.table import Rule
from astra.search.attempts import LEAST_BETTER, Attempt, alternatives, attempts, roomiest
from astra.search.bounds import Grids
from astra.search.detail import estimate
from astra.search.engine import Candidate, Progress, SearchOutcome, among
from astra.search.plainer import PlainDeals
from astra.search.settle import GROUP
from astra.search.splits import best_splits
from astra.spec.job import Job
from astra.spec.strategy import Strategy, replace

KEPT: Final = 5  # plans whose layers are moved, however few are shown: the first does not depend on that

Costed = tuple[Strategy, Estimate]
GridsOf = Callable[[Attempt], Grids]


class Judged(NamedTuple):
    """What strategies keep to, and by what they are ranked."""

    restrictions: Restrictions
    rules: Sequence[Rule]
    upper: bool  # by the upper end of the step's interval, not by the expected step

    def by(self, result: Estimate) -> float:
        """What the least of is best."""
        return result.step_s_range.high if self.upper else result.step_s

    def doubt(self, attempt: Attempt) -> Doubt | None:
        """What a search multiplies steps by."""
        return Doubt(attempt.job) if self.upper else None

    def grids(self, attempt: Attempt) -> Grids:
        """All strategies of an attempt."""
        return Grids(attempt.job, attempt.restrictions, self.rules)


class Lone(NamedTuple):
    """The best plan of a pool by itself, and what the search that found it has beside."""

    job: Job
    plan: Costed | None  # none if nothing fits
    near: list[Candidate]
    timed: Sequence[Gathered]


class Ranked(NamedTuple):
    """The best of all searches of a job, with the attempt and the search of the first; and all searches."""

    attempt: Attempt
    found: SearchOutcome
    searches: list[SearchOutcome]
    plans: list[Costed]  # none if nothing fits
    costed: list[Costed]  # whether they fit or not

    @property
    def considered(self) -> int:
        """Strategies of all searches."""
        return sum(one.considered for one in self.searches)

    @property
    def evaluated(self) -> int:
        """Those that were costed in full."""
        return sum(one.evaluated for one in self.searches)

    @property
    def feasible(self) -> int:
        """Those of them that are legal and fit."""
        return sum(one.feasible for one in self.searches)

    def alone(self, within: float) -> Lone:
        """The first plan, with strategies that take ``within`` so many times the step of the first at most."""
        some = self.found.candidates
        near = [one for one in some if one.step_s <= within * some[0].step_s]
        return Lone(self.attempt.job, self.plans[0] if self.plans else None, near, self.found.grids.timed)


def ranked(
    job: Job, judged: Judged, top: int, *, progress: Progress | None = None, advise: bool = True,
    grids_of: GridsOf | None = None, late: Callable[[], bool] = bool,
) -> Ranked:  # fmt: skip
    """What the first attempt at a job finds that something fits in, and what is better beside it.

    ``advise``: where nothing fits, the smallest is sought. ``grids_of``: those of an attempt that may be known.
    ``late``: whether an answer is wanted at once, so that nothing is looked at beside.
    """
    keep, grids_of = max(top, KEPT), grids_of or judged.grids
    tried = attempts(roomiest(job, judged.restrictions, judged.rules), judged.restrictions)
    for attempt in tried:
        last = advise and attempt is tried[-1]
        found = among(grids_of(attempt), keep=keep, progress=progress, doubt=judged.doubt(attempt), advise=last)
        if found.candidates:
            break
    searches, first = [found], attempt
    best = _dealt_best(judged, attempt, found) if found.candidates else []
    if not any(_runs(result) for _, result in best):
        return Ranked(attempt, found, searches, [], best)
    known = found.grids
    for other in alternatives(first, judged.rules):
        if late():
            break
        below_s = (1 - other.worth) * min(judged.by(result) for _, result in best if _runs(result))
        quicker = known if other.slower else None
        more = among(grids_of(other), keep=keep, doubt=judged.doubt(other), below_s=below_s, quicker=quicker)
        searches.append(more)
        own = _dealt_best(judged, other, more) if more.candidates else []
        if any(_runs(result) and judged.by(result) < below_s for _, result in own):
            attempt, found, best = other, more, [*best, *own]
    fitting = sorted((pair for pair in best if _runs(pair[1])), key=lambda pair: judged.by(pair[1]))
    fitting = _best_of_groups(fitting)[:top]
    for name in ("params", "graphs"):
        if getattr(job.words, name) != getattr(first.job.words, name):
            fitting = _as_usual(judged, job, fitting, name)
    return Ranked(attempt, found, searches, _plainer(judged, attempt.job, fitting, found), best)


def _best_of_groups(plans: list[Costed]) -> list[Costed]:
    """The first of each group: other splits, and what other words found, may be variants of one plan."""
    best: dict[tuple[int, ...], Costed] = {}
    for strategy, result in plans:
        best.setdefault(tuple(getattr(strategy, name) for name in GROUP), (strategy, result))
    return list(best.values())


def _dealt_best(judged: Judged, attempt: Attempt, found: SearchOutcome) -> list[Costed]:
    """What a search found with its layers dealt best, costed in full."""
    splits = best_splits(attempt.job, found.candidates, judged.rules, found.grids.timed, attempt.restrictions)
    strategies = [one.strategy for one in splits]
    results = estimate(attempt.job, strategies, user_rules=judged.rules, timed=found.grids.timed)
    return list(zip(strategies, results, strict=True))


def _as_usual(judged: Judged, usual: Job, plans: list[Costed], name: str) -> list[Costed]:
    """Plans with a word as is usual, where they have room for it and are no worse worth telling."""
    strategies = [replace(strategy, **{name: getattr(usual.words, name)}) for strategy, _ in plans]
    results = estimate(usual, strategies, user_rules=judged.rules)
    return [
        (strategy, result) if _runs(result) and result.step_s <= plan[1].step_s * (1 + LEAST_BETTER) else plan
        for plan, strategy, result in zip(plans, strategies, results, strict=True)
    ]


def _plainer(judged: Judged, job: Job, plans: list[Costed], search: SearchOutcome) -> list[Costed]:
    """Plans with their layers dealt as plainly as is no worse worth telling."""
    deals = PlainDeals(job, judged.restrictions, judged.rules, search.grids.timed, UNEQUAL if judged.upper else 0.0)
    dealt = deals.of([(strategy, result.step_s) for strategy, result in plans])
    moved = [other for other, (strategy, _) in zip(dealt, plans, strict=True) if other is not strategy]
    results = estimate(job, moved, user_rules=judged.rules, timed=search.grids.timed) if moved else []
    found = dict(zip(moved, results, strict=True))
    chosen = [
        (other, found[other]) if other in found and _runs(found[other]) else plan
        for other, plan in zip(dealt, plans, strict=True)
    ]
    return sorted(chosen, key=lambda pair: judged.by(pair[1]))


def _runs(result: Estimate) -> bool:
    return result.fits and result.legal
