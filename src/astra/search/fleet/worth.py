"""What each pool is worth: the best plan without it, with one more node of it, and with it where it is left idle.

These are remarks beside the answer, for those who ask: each plans the fleet again. They share an effort of their own;
a remark whose part of it was spent tells the best plan met, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from astra.layers.kinds import layer_kinds
from astra.money.tags import tag_of
from astra.partition.problem import Effort
from astra.search.fleet.frames import Counts
from astra.search.fleet.pools import Fleet
from astra.search.fleet.records import Marginal, PoolChoice
from astra.search.fleet.search import MANY_POOLS, MOST_EFFORT, Costed, Planner
from astra.spec.money import Money
from astra.units import show_slower


class FleetAnswer(NamedTuple):
    """What is remarked on."""

    fastest: Costed
    best: Costed  # what is shown first
    candidates: Sequence[Costed]
    alone: Mapping[int, Costed | None]  # by pool
    left_out: Mapping[str, str]  # pools that cannot take part, and why


class Remarks(NamedTuple):
    """The remarks on an answer."""

    idle: list[str]  # on GPUs without work
    notes: list[str]  # on remarks that were cut short, and on pools that are not always there
    without: dict[int, Costed | None]  # the best plans without each of some pools
    marginal: list[Marginal]
    return_first: PoolChoice | None
    rent_next: PoolChoice | None


def remarks(planner: Planner, answer: FleetAnswer, money: Money, *, asked: bool) -> Remarks:
    """All remarks on an answer; those that plan the fleet again where they are asked for."""
    worth, names = Worth(planner, answer.fastest), planner.fleet.names
    without = worth.without(_missed(planner, answer, asked=asked))
    planned = asked and not planner.exact
    more = worth.one_more(range(len(names)) if planned else [])
    idle = _idle(planner, answer.best, answer.candidates, answer.left_out, worth if asked else None)
    marginal = _marginal(planner, answer.fastest, more)
    return Remarks(
        idle,
        [*_cut_short("without", without, names), *_cut_short("with one more node of", more, names),
         *absences(planner.fleet, answer.best, answer.alone, without.by_pool)],
        without.by_pool,
        marginal,
        _return_first(planner.fleet, answer, without.by_pool, money) if planned else None,
        _rent_next(planner.fleet, marginal, money),
    )  # fmt: skip


class ByPool(NamedTuple):
    """Answers by pool, and the pools whose answers are the best met and not proven."""

    by_pool: dict[int, Costed | None]
    cut: list[int]


class Worth:
    """The remarks on one answer."""

    def __init__(self, planner: Planner, best: Costed) -> None:
        self.planner, self.best = planner, best
        planner.use(Effort(MOST_EFFORT))

    def _each(self, pools: Sequence[int], ask: Callable[[int], Costed | None]) -> ByPool:
        """Ask about each pool: of few with all the effort of a search, of many with a third of what is left of one."""
        planner, out, cut = self.planner, {}, []
        for pool in pools:
            if len(planner.counts) < MANY_POOLS:
                planner.use(Effort(MOST_EFFORT))
            with planner.effort.part(1 if len(planner.counts) < MANY_POOLS else 1 / 3):
                planner.left_open = {}
                out[pool] = ask(pool)
                if planner.left_open:
                    cut.append(pool)
        return ByPool(out, cut)

    def without(self, pools: Sequence[int]) -> ByPool:
        """The best plans without each of some pools."""
        return self._each(pools, self._without)

    def one_more(self, pools: Sequence[int]) -> ByPool:
        """The best plans with one more node of each of some pools."""
        return self._each(pools, self._one_more)

    def using(self, pools: Sequence[int]) -> ByPool:
        """The best plans that use each of some pools, wanted or not."""
        return self._each(pools, self._using)

    def _without(self, pool: int) -> Costed | None:
        """The best plan on all other pools."""
        planner = self.planner
        counts = tuple(0 if place == pool else gpus for place, gpus in enumerate(planner.counts))
        others = [place for place, gpus in enumerate(counts) if gpus]
        alone = [each for place in others if (each := planner.alone(place)) is not None]
        return min([*alone, *self._planned(counts, alone)], key=_step_s, default=None)

    def _one_more(self, pool: int) -> Costed | None:
        """The best plan with one more node of a pool, which is the best plan itself where that brings nothing."""
        planner, best = self.planner, self.best
        node = planner.fleet.cluster.pools[pool].node.gpus
        if planner.counts[pool] % node:  # a part of a node has no next one
            return None
        counts = tuple(gpus + (node if place == pool else 0) for place, gpus in enumerate(planner.counts))
        return min([best, *self._planned(counts, [best])], key=_step_s)

    def _planned(self, counts: Counts, known: Sequence[Costed]) -> list[Costed]:
        """The best plans of some GPUs that beat those known, found as an answer is."""
        below_s = min(map(self.planner.before_s, known), default=np.inf)
        return self.planner.best(counts, every=False, known_s=below_s, below_s=below_s)

    def _using(self, pool: int) -> Costed | None:
        """The best plan that uses a pool, wanted or not; with many pools, of those with one shape for all stages."""
        planner = self.planner
        many = len(planner.counts) >= MANY_POOLS
        found = planner.cost(planner.same_replicas(planner.counts, must=1 << pool, uniform=many), most=1)
        return found[0] if found else None


def _step_s(costed: Costed) -> float:
    return costed.estimate.step_s


def absences(
    fleet: Fleet, best: Costed, alone: Mapping[int, Costed | None], without: Mapping[int, Costed | None]
) -> list[str]:
    """A sentence on each pool that a plan uses and that is there only a part of the time."""
    found = []
    for place, (name, pool) in enumerate(zip(fleet.names, fleet.cluster.pools, strict=True)):
        if pool.available == 1 or name not in best.estimate.used:
            continue
        other = without.get(place) or _other(place, alone)
        rate = best.estimate.tokens_per_s
        rest = other.estimate.tokens_per_s if other is not None else 0.0
        mean = pool.available * rate + (1 - pool.available) * rest
        meanwhile = f"the others do {rest:,.0f} tokens/s" if rest else "the others can do nothing"
        found.append(
            f"{name} is there {pool.available:.0%} of the time: without it {meanwhile}, so that {mean:,.0f} tokens/s "
            "are to be expected, restarts not counted"
        )
    return found


def _other(place: int, alone: Mapping[int, Costed | None]) -> Costed | None:
    """Of two pools, the one that is left."""
    others = [each for there, each in alone.items() if there != place]
    return others[0] if len(alone) == 2 else None


def _missed(planner: Planner, answer: FleetAnswer, *, asked: bool) -> list[int]:
    """Pools whose absence is planned: all that a plan uses where that is asked, else those that are not always there.

    Of two pools, what is left without one is the other alone.
    """
    pools = list(zip(planner.fleet.names, planner.fleet.cluster.pools, strict=True))
    if planner.exact or len(pools) < 3:
        return []
    used = {*answer.best.estimate.used, *(answer.fastest.estimate.used if asked else ())}
    return [place for place, (name, pool) in enumerate(pools) if name in used and (asked or pool.available < 1)]


def _usd_per_h(fleet: Fleet, money: Money) -> list[float | None]:
    """What a GPU of each pool costs an hour; unknown of all where it is of one, so that pools compare."""
    tags = [tag_of(money, pool) for pool in fleet.cluster.pools]
    prices = [None if tag is None else tag.usd_per_gpu_h for tag in tags]
    return [None] * len(prices) if not all(prices) else prices


def _return_first(
    fleet: Fleet, answer: FleetAnswer, without: Mapping[int, Costed | None], money: Money
) -> PoolChoice | None:
    """The pool with which the least tokens are lost for what it costs; of those with which none are, the dearest."""
    fastest, found = answer.fastest, []
    for place, (name, pool, usd) in enumerate(
        zip(fleet.names, fleet.cluster.pools, _usd_per_h(fleet, money), strict=True)
    ):
        lost = 0.0
        if name in fastest.estimate.used:
            other = without.get(place) or _other(place, answer.alone)
            if other is None:  # nothing fits without it
                continue
            lost = max(1 - fastest.estimate.step_s / other.estimate.step_s, 0.0)
        weight = pool.gpus * (usd or 1.0)
        whole = None if usd is None else weight
        found.append((lost / weight, -weight, PoolChoice(pool=name, gpus=pool.gpus, change=lost, usd_per_h=whole)))
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def _rent_next(fleet: Fleet, marginal: Sequence[Marginal], money: Money) -> PoolChoice | None:
    """The node that brings most for what it costs; none where none brings anything."""
    if not marginal:
        return None
    prices = dict(zip(fleet.names, _usd_per_h(fleet, money), strict=True))
    best = max(marginal, key=lambda each: each.gain / each.gpus / (prices[each.pool] or 1.0))
    usd = prices[best.pool]
    hourly = None if usd is None else usd * best.gpus
    return PoolChoice(pool=best.pool, gpus=best.gpus, change=best.gain, usd_per_h=hourly) if best.gain > 0 else None


def _marginal(planner: Planner, best: Costed, more: ByPool) -> list[Marginal]:
    return [
        Marginal(
            pool=planner.fleet.names[place],
            gpus=planner.fleet.cluster.pools[place].node.gpus,
            step_s=each.estimate.step_s,
            gain=best.estimate.step_s / each.estimate.step_s - 1,
            strategy=str(each.strategy),
        )
        for place, each in more.by_pool.items()
        if each is not None and (place not in more.cut or each.estimate.step_s < best.estimate.step_s)
    ]


def _idle(
    planner: Planner, best: Costed, candidates: Sequence[Costed], left_out: Mapping[str, str], worth: Worth | None
) -> list[str]:
    """Sentences on GPUs without work, with what using them would change where that is known or asked."""
    notes = [f"{name} is left idle: it {reason}." for name, reason in left_out.items()]
    depth, names = len(layer_kinds(planner.fleet.job.model)), planner.fleet.names
    used = [best.estimate.used.get(name, 0) for name in names]
    known = {
        place: min(some, key=lambda each: each.estimate.step_s)
        for place, name in enumerate(names)
        if (some := [each for each in candidates if name in each.estimate.used and len(each.estimate.used) > 1])
    }
    why = [planner.frame_space.why_not(place) for place in range(len(names))]
    asked = [place for place in range(len(names)) if not (used[place] or place in known or why[place])]
    using = ByPool({}, []) if worth is None else worth.using(asked)
    for place, (name, pool) in enumerate(zip(names, planner.fleet.cluster.pools, strict=True)):
        if used[place] == pool.gpus:
            continue
        if used[place]:
            idle = pool.gpus - used[place]
            notes.append(f"{idle} of the {pool.gpus} GPUs of {name} are idle: no plan with them is faster.")
            continue
        other = known.get(place) or using.by_pool.get(place)
        if why[place]:
            notes.append(f"{name} is left idle: {why[place]}")
        elif other is None and worth is None:
            notes.append(f"{name} is left idle: no plan with it was found that is faster.")
        elif other is None and place in using.cut:
            notes.append(f"{name} is left idle: no plan that uses it was found in the work allowed for this remark.")
        elif other is None:
            reason = f"the model has {depth} layers" if len(names) > depth else "no plan that uses it fits"
            notes.append(f"{name} is left idle: {reason}.")
        else:
            slower = show_slower(other.estimate.step_s, best.estimate.step_s)
            notes.append(f"{name} is left idle: the best plan found that uses it is {slower}.")
    return notes


def _cut_short(what: str, remarks: ByPool, names: Sequence[str]) -> list[str]:
    """Answers that are the best plan met and not the best there is."""
    if not remarks.cut:
        return []
    pools = ", ".join(names[place] for place in remarks.cut)
    return [f"{what} {pools}: not all was looked at in the work allowed for this remark, plan it to know"]
