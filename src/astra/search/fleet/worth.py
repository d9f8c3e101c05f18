"""What each pool is worth: the best plan without it, with one more node of it, and with it where it is left idle.

These are remarks beside the answer, for those who ask: each plans the fleet again. They share an effort of their own;
a remark whose part of it was spent tells the best plan met, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from astra.partition.problem import Effort
from astra.search.fleet.frames import Counts
from astra.search.fleet.search import MANY_POOLS, MOST_EFFORT, Costed, Planner

MOST_GRIDS: Final = 60_000  # of strategies that are searched for one of them


class Remarks(NamedTuple):
    """Answers by pool, and the pools whose answers are the best met and not proven."""

    by_pool: dict[int, Costed | None]
    cut: list[int]


class Worth:
    """The remarks on one answer."""

    def __init__(self, planner: Planner, best: Costed) -> None:
        self.planner, self.best = planner, best
        planner.use(Effort(MOST_EFFORT))

    def _each(self, pools: Sequence[int], ask: Callable[[int], Costed | None]) -> Remarks:
        """Ask about each pool; none may take more than a third of what is left."""
        effort, out, cut = self.planner.effort, {}, []
        for pool in pools:
            with effort.part(1 / 3):
                self.planner.left_open = {}
                out[pool] = ask(pool)
                if self.planner.left_open:
                    cut.append(pool)
        return Remarks(out, cut)

    def without(self, pools: Sequence[int]) -> Remarks:
        """The best plans without each of some pools."""
        return self._each(pools, self._without)

    def one_more(self, pools: Sequence[int]) -> Remarks:
        """The best plans with one more node of each of some pools."""
        return self._each(pools, self._one_more)

    def using(self, pools: Sequence[int]) -> Remarks:
        """The best plans that use each of some pools, wanted or not."""
        return self._each(pools, self._using)

    def _without(self, pool: int) -> Costed | None:
        """The best plan on all other pools."""
        planner = self.planner
        counts = tuple(0 if place == pool else gpus for place, gpus in enumerate(planner.counts))
        others = [place for place, gpus in enumerate(counts) if gpus]
        alone = [each for place in others if (each := planner.alone(place)) is not None]
        met = planner.cost(planner.known(counts), most=1)
        below = min(map(planner.before_s, [*alone, *met]), default=np.inf)
        return min([*alone, *met, *self._planned(counts, below)], key=_step_s, default=None)

    def _one_more(self, pool: int) -> Costed | None:
        """The best plan with one more node of a pool, which is the best plan itself where that brings nothing."""
        planner, best = self.planner, self.best
        node = planner.fleet.cluster.pools[pool].node.gpus
        if planner.counts[pool] % node:  # a part of a node has no next one
            return None
        counts = tuple(gpus + (node if place == pool else 0) for place, gpus in enumerate(planner.counts))
        return min([best, *self._planned(counts, planner.before_s(best), fewer=planner.counts)], key=_step_s)

    def _planned(self, counts: Counts, below: float, fewer: Counts | None = None) -> list[Costed]:
        """The best plans of some GPUs that beat a limit, as the planner finds them: groups, then pipelines over pools.

        ``fewer`` GPUs are known to give nothing better.
        """
        planner = self.planner
        groups = planner.sharing(counts, every=False, limit=below, most=MOST_GRIDS, fewer=fewer)
        below = min([below, *(one.step_s for one in groups[:1])])
        several = sum(gpus > 0 for gpus in counts) > 1
        found = planner.same_replicas(counts, below=below, fewer=fewer) if several else []
        below = min([below, *(one.step_s for one in found[:1])])
        joined = planner.joined(counts, every=False, limit=below)
        return planner.cost([*groups[:1], *found[:1], *joined[:1]], most=3)

    def _using(self, pool: int) -> Costed | None:
        """The best plan that uses a pool, wanted or not; with many pools, of those with one shape for all stages."""
        planner = self.planner
        many = len(planner.counts) >= MANY_POOLS
        found = planner.cost(planner.same_replicas(planner.counts, must=1 << pool, uniform=many), most=1)
        return found[0] if found else None


def _step_s(costed: Costed) -> float:
    return costed.estimate.step_s
