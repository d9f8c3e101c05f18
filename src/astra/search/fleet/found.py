"""One search over a fleet: each pool alone, and what several of them do together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from astra.search.fleet.search import Costed, Planner, Progress

ALONE: Final = 0.4  # of the work of a search, about


class Found(NamedTuple):
    """What a search found."""

    alone: dict[int, Costed | None]  # by pool; none are planned where every GPU must be used
    candidates: list[Costed]  # the fastest first


def search(planner: Planner, *, better: bool = False, progress: Progress | None = None) -> Found:
    """The plans of a fleet; no answer is worse than the best pool alone. ``better``: only plans that beat that."""
    exact, names = planner.exact, planner.fleet.names
    alone = {} if exact else _alone(planner, progress)
    known = {names[place]: each for place, each in alone.items() if each is not None}
    known_s = min((planner.before_s(each) for each in known.values()), default=np.inf)
    found = planner.best(planner.counts, every=exact, known_s=known_s, below_s=known_s if better else np.inf)
    if progress is not None:
        progress(1.0)
    found = [each for each in found if not _reported_alone(each, known)]
    return Found(alone, sorted([*found, *known.values()], key=lambda each: each.estimate.step_s))


def _alone(planner: Planner, progress: Progress | None) -> dict[int, Costed | None]:
    """The plan of each pool by itself, the quickest pool first: once time is up a plan is enough."""
    rates, found = planner.rates(planner.counts), dict[int, Costed | None]()
    for done, place in enumerate(sorted(range(len(rates)), key=lambda place: -rates[place])):
        if planner.effort.late and any(found.values()):
            break
        found[place] = planner.alone(place)
        if progress is not None:
            progress(ALONE * (done + 1) / len(rates))
    return {place: found[place] for place in sorted(found)}


def _reported_alone(each: Costed, alone: Mapping[str, Costed]) -> bool:
    """Whether a plan uses one pool and is no faster than that pool's own plan, which is told anyway."""
    used = list(each.estimate.used)
    own = alone.get(used[0])
    return len(used) == 1 and own is not None and own.estimate.step_s <= each.estimate.step_s * (1 + 1e-6)
