"""Pools that are not always there: what the others do meanwhile, and the rate that is to be expected."""

from __future__ import annotations

from collections.abc import Mapping

from astra.search.fleet.pools import Fleet
from astra.search.fleet.search import Costed


def absences(
    fleet: Fleet, best: Costed, alone: Mapping[int, Costed | None], without: Mapping[int, Costed | None]
) -> list[str]:
    """A sentence on each pool that a plan uses and that is there only a part of the time."""
    told = []
    for place, (name, pool) in enumerate(zip(fleet.names, fleet.cluster.pools, strict=True)):
        if pool.available == 1 or name not in best.estimate.used:
            continue
        other = without.get(place) or _other(place, alone)
        rate = best.estimate.tokens_per_s
        rest = other.estimate.tokens_per_s if other is not None else 0.0
        mean = pool.available * rate + (1 - pool.available) * rest
        meanwhile = f"the others do {rest:,.0f} tokens/s" if rest else "the others can do nothing"
        told.append(
            f"{name} is there {pool.available:.0%} of the time: without it {meanwhile}, so that {mean:,.0f} tokens/s "
            "are to be expected, restarts not counted"
        )
    return told


def _other(place: int, alone: Mapping[int, Costed | None]) -> Costed | None:
    """Of two pools, the one that is left."""
    others = [each for there, each in alone.items() if there != place]
    return others[0] if len(others) == 1 else None
