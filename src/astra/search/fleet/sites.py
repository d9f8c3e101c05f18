"""Sites with lines between them: from which bandwidth another site pays, and what local steps would bring.

A line carries every GPU's traffic, so a second site often costs more time than it saves. The bandwidth at which it
starts to pay is the least at which some plan over the line beats the best plan that does without it: plans are timed
again on wider and narrower lines, and the fleet is planned again below the width found until nothing new turns up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from astra.cost.lines import crossings
from astra.search.fleet.detail import estimate
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import CADENCES, SOURCE, LineRemark, LocalSteps, penalty
from astra.search.fleet.search import Costed, Planner
from astra.spec.cluster import Cluster, Link
from astra.spec.mixed import MixedStrategy

WIDEST: Final = 1e6  # of what is said of a line; beyond it the line no longer matters
BELOW: Final = 0.99  # where plans are looked for that need less of the line
ROUNDS: Final = 4
CLOSE: Final = 1.001  # of the width, found by halving
SMALL: Final = 0.02  # of a step: as much as the meeting of weights may take
WORTH: Final = 1.02  # faster by so much, or local steps are not spoken of

AUTO: Final = "auto"

Search = Callable[[Cluster, int], list[Costed]]  # the plans of a fleet with other lines, and so many local steps


def searching(planner: Planner) -> Search:
    """How a fleet is planned again."""
    return lambda cluster, local: planner.over(cluster, local).search(better=True).candidates


def crosses(fleet: Fleet, each: Costed) -> bool:
    """Whether a plan sends anything over a line."""
    if not isinstance(each.strategy, MixedStrategy):
        return False
    sent = crossings(fleet.cluster, fleet.names, fleet.job, each.strategy)
    return any(crossing.link.total_bytes_per_s is not None for crossing in sent)


class SiteRemarks(NamedTuple):
    """What is said of the lines of a fleet."""

    lines: list[LineRemark]
    local: LocalSteps | None
    sooner: list[Costed]  # plans over a line, met on the way, that beat all that were found for it as it is


NOTHING: Final = SiteRemarks([], None, [])


def over_sites(
    planner: Planner, candidates: Sequence[Costed], asked: int | str | None
) -> tuple[list[Costed], tuple[LineRemark, ...], LocalSteps | None]:
    """The plans with those of local steps that were asked for and those met on the way; what is said of the lines."""
    again = searching(planner)
    local = asked_for(planner.fleet, asked, again)
    said = NOTHING if planner.effort.late else remarks(planner.fleet, candidates, again)
    found = sorted([*candidates, *local, *said.sooner], key=lambda each: each.estimate.step_s)
    # A search that was cut short does not know the least width.
    lines = () if planner.effort.late else tuple(said.lines)
    return found, lines, of_asked(local, found) or said.local


def remarks(fleet: Fleet, candidates: Sequence[Costed], again: Search) -> SiteRemarks:
    """From which width each line pays, and the local steps that would be faster; nothing where there is no line."""
    if not fleet.cluster.lines or not candidates:
        return NOTHING
    wide = again(fleet.cluster.widened(WIDEST), 1)
    lines, over = _pays_from(fleet, candidates, wide, again)
    timed = [Costed(strategy, estimate(fleet, strategy)) for strategy in over]
    sooner = [each for each in timed if each.estimate.step_s < candidates[0].estimate.step_s and each.estimate.fits]
    best = min([candidates[0], *sooner], key=lambda each: each.estimate.step_s)
    return SiteRemarks(lines, _offered(fleet, best, wide), sooner)


def _pays_from(
    fleet: Fleet, candidates: Sequence[Costed], wide: Sequence[Costed], again: Search
) -> tuple[list[LineRemark], list[MixedStrategy]]:
    """The widths of the lines, all in proportion, from which some plan over them is the fastest; and such plans."""
    known = [each for each in candidates if not _is_local(each)]
    within_s = min((each.estimate.step_s for each in known if not crosses(fleet, each)), default=None)
    if within_s is None:  # no site can do it alone
        return [], []
    over = _crossing(fleet, [*known, *wide])
    times = None
    for _ in range(ROUNDS):
        times = _least(fleet, over.values(), within_s)
        if times is None:
            break
        new = _crossing(fleet, again(fleet.cluster.widened(BELOW * times), 1), below_s=within_s)
        if not new.keys() - over.keys():
            break
        over |= new
    lines = [
        LineRemark(ends=list(ends), bytes_per_s=link.total_bytes_per_s, pays_from_bytes_per_s=_of(link, times))
        for ends, link in _lines(fleet.cluster)
        if link.total_bytes_per_s is not None
    ]
    return lines, list(over.values())


def _of(link: Link, times: float | None) -> float | None:
    return None if times is None or link.total_bytes_per_s is None else times * link.total_bytes_per_s


def _lines(cluster: Cluster) -> list[tuple[tuple[str, str], Link]]:
    """Every line once, with its ends."""
    found: dict[frozenset[str], tuple[tuple[str, str], Link]] = {}
    for here, there in cluster.lines:
        link, ends = cluster.crossed(here, there)
        if link is not None:
            found.setdefault(frozenset(ends), (ends, link))
    return list(found.values())


def _crossing(fleet: Fleet, found: Iterable[Costed], below_s: float | None = None) -> dict[str, MixedStrategy]:
    return {
        str(each.strategy): each.strategy
        for each in found
        if isinstance(each.strategy, MixedStrategy)
        and crosses(fleet, each)
        and (below_s is None or each.estimate.step_s < below_s)
    }


def _least(fleet: Fleet, over: Iterable[object], within_s: float) -> float | None:
    """The least width at which one of some strategies takes less than a time."""
    best: float | None = None

    def sooner(strategy: MixedStrategy, times: float) -> bool:
        return estimate(fleet._replace(cluster=fleet.cluster.widened(times)), strategy).step_s < within_s

    for strategy in over:
        if not isinstance(strategy, MixedStrategy):
            continue
        high = WIDEST if best is None else best
        if not sooner(strategy, high):
            continue
        low = high
        while sooner(strategy, low) and low > 1 / WIDEST:
            high, low = low, low / 8
        while high / low > CLOSE:
            middle = (high * low) ** 0.5
            high, low = (middle, low) if sooner(strategy, middle) else (high, middle)
        best = high
    return best


def _offered(fleet: Fleet, best: Costed, wide: Sequence[Costed]) -> LocalSteps | None:
    """Groups that suit a line which does not matter, with local steps; None where that brings little."""
    groups = [each for each in wide if _may_be_local(each)]
    if not groups or _is_local(best):
        return None
    often = at_cadence(fleet, groups[0], CADENCES[0])
    chosen = at_cadence(fleet, often, chosen_cadence(often))
    return _compared(chosen, best) if chosen.estimate.step_s * WORTH < best.estimate.step_s else None


def asked_for(fleet: Fleet, asked: int | str | None, again: Search) -> list[Costed]:
    """Plans with the local steps that were asked for."""
    if asked is None:
        return []
    found = [each for each in again(fleet.cluster, CADENCES[-1] if asked == AUTO else int(asked)) if _is_local(each)]
    return [at_cadence(fleet, each, chosen_cadence(each)) for each in found] if asked == AUTO else found


def chosen_cadence(each: Costed) -> int:
    """The fewest inner steps of published runs after which the meeting of weights takes a small part of a step."""
    assert isinstance(each.strategy, MixedStrategy)
    met_s = each.estimate.breakdown.get("local", 0.0) * each.strategy.local
    rest_s = each.estimate.step_s - each.estimate.breakdown.get("local", 0.0)
    enough = [count for count in CADENCES if met_s / count <= SMALL * rest_s]
    return enough[0] if enough else CADENCES[-1]


def at_cadence(fleet: Fleet, each: Costed, cadence: int) -> Costed:
    """The same groups with another number of inner steps."""
    assert isinstance(each.strategy, MixedStrategy)
    strategy = replace(each.strategy, local=cadence)
    return Costed(strategy, estimate(fleet, strategy))


def _compared(each: Costed, best: Costed) -> LocalSteps:
    """As the answer tells it, against the best plan without."""
    assert isinstance(each.strategy, MixedStrategy)
    return LocalSteps(
        inner_steps=each.strategy.local,
        workers=len(each.strategy.groups),
        strategy=str(each.strategy),
        step_s=each.estimate.step_s,
        times=best.estimate.step_s / each.estimate.step_s,
        penalty=penalty(len(each.strategy.groups)),
        source=SOURCE,
    )


def of_asked(local: Sequence[Costed], candidates: Sequence[Costed]) -> LocalSteps | None:
    """What was asked for, against the best plan without."""
    without = [each for each in candidates if not _is_local(each)]
    return _compared(local[0], without[0]) if local and without else None


def _may_be_local(each: Costed) -> bool:
    """Whether it has groups that can train by themselves: each with a state of its own."""
    strategy = each.strategy
    return isinstance(strategy, MixedStrategy) and len(strategy.groups) > 1 and not strategy.shares


def _is_local(each: Costed) -> bool:
    return isinstance(each.strategy, MixedStrategy) and each.strategy.local > 1
