"""What each pool is worth: the best plan without it, with one more node of it, and with it where it is left idle.

These are remarks beside the answer. They share an effort of their own, so that none of them delays the answer for long;
a remark whose part of it was spent tells the best plan met, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Final, NamedTuple

import numpy as np

from astra.partition.problem import Effort
from astra.search.fleet.frames import Counts, FoundPipeline
from astra.search.fleet.search import MANY_POOLS, MOST_BLOCKS, Costed, Planner

WORTH_TELLING: Final = 0.99  # of what is known without a pool: a loss is told in whole percents
MOST_EFFORT: Final = 4_000.0  # of all remarks, less than a second


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
                out[pool] = ask(pool)
                if effort.over:
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
        """The best plan on all other pools; pipelines over pools are searched where the best is one, unless many."""
        planner = self.planner
        counts = tuple(0 if place == pool else gpus for place, gpus in enumerate(planner.counts))
        others = [place for place, gpus in enumerate(counts) if gpus]
        if len(others) == 1:
            return planner.alone(others[0])
        found = [each for size in (len(others) - 1, len(others)) for some in combinations(others, size)
                 for each in planner.apart(planner.counts, some, every=False)]  # fmt: skip
        found.sort(key=lambda entry: entry.step_s)
        if (len(self.best.estimate.groups) == 1 or not found) and len(others) < MANY_POOLS:
            found += planner.same_replicas(counts, below=WORTH_TELLING * found[0].step_s if found else np.inf)
        costed = planner.cost(found, most=1)
        costed += [each for place in others if (each := planner.alone(place)) is not None]
        return min(costed, key=lambda each: each.estimate.step_s, default=None)

    def _one_more(self, pool: int) -> Costed:
        """The best plan with one more node of a pool, which is the best plan itself where that brings nothing."""
        planner, best = self.planner, self.best
        node = planner.fleet.cluster.pools[pool].node.gpus
        counts = tuple(gpus + (node if place == pool else 0) for place, gpus in enumerate(planner.counts))
        before_s = planner.before_s(best)
        found = planner.cost(planner.same_replicas(counts, below=before_s, fewer=planner.counts), most=1)
        # Or as groups: the pool's own pipelines anew, those of the others as they are.
        used = [place for place, gpus in enumerate(counts) if gpus]
        menus = [self._grown(pool, counts) if place == pool
                 else planner.menu(planner.counts, 1 << place, every=False, best_s=np.inf)[:1]
                 for place in used]  # fmt: skip
        dealt = [each for chosen in product(*menus) if (each := planner.dealt(chosen, before_s)) is not None]
        found += planner.cost([each for each in dealt if each.step_s < before_s], most=1)
        alone = planner.alone(pool)
        whole = counts[pool] % node == 0  # a part of a node has no next one
        # A pool by itself gains at most in proportion, so that most need not be planned again.
        if (
            whole
            and alone is not None
            and alone.estimate.step_s * planner.counts[pool] / counts[pool] < 1.02 * best.estimate.step_s
        ):
            more = planner.alone(pool, counts[pool])
            found += [more] if more is not None else []
        return min([best, *found], key=lambda each: each.estimate.step_s)

    def _grown(self, pool: int, counts: Counts) -> list[FoundPipeline]:
        """The pool's best pipelines for its share that more GPUs than it has make possible."""
        planner = self.planner
        old, new = (tuple(n if place == pool else 0 for place, n in enumerate(some))
                    for some in (planner.counts, counts))  # fmt: skip
        share = planner.share(counts, 1 << pool)
        limit = np.inf
        for each in planner.menu(planner.counts, 1 << pool, every=False, best_s=np.inf):
            fixed_s, each_s = each.line()
            units = share / (each.frame.dp * each.frame.mbs)
            limit = min(limit, fixed_s + units * each_s + each.total_s - each.value_s - each.fill_s)
        found: list[tuple[float, FoundPipeline]] = []
        few = len(planner.counts) <= MOST_BLOCKS  # odd numbers of many pools hardly ever add up to the batch
        for aligned in (True, False) if few else (True,):
            found += planner.pipelines(
                new, share, keep=1, whole=False, below=min([limit, *(total_s for total_s, _ in found)]), fewer=old,
                aligned=aligned,
            )  # fmt: skip
        return [each for _, each in found[-1:]]

    def _using(self, pool: int) -> Costed | None:
        """The best plan that uses a pool, wanted or not; with many pools, of those with one shape for all stages."""
        planner = self.planner
        many = len(planner.counts) >= MANY_POOLS
        found = planner.cost(planner.same_replicas(planner.counts, must=1 << pool, uniform=many), most=1)
        return found[0] if found else None
