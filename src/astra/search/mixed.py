"""The planner for several pools: pipelines over pools, pools apart with shares of the batch, or both; and what each pool
is worth.

Frames are visited best first by a lower bound and each is solved exactly (``space.partition``), so the best pipeline
over pools is the best there is within the model. The plans shown are costed in full and simulated; the ranking is the
simulation's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import combinations, product
from typing import Final, NamedTuple

import numpy as np

from astra.errors import NoFeasiblePlan
from astra.search.mixed_after import After
from astra.search.mixed_detail import Fleet, estimate
from astra.search.mixed_records import MixedEstimate
from astra.search.mixed_shares import Share, deal
from astra.search.mixed_space import Bench, Counts, Found
from astra.space.rules import Rule
from astra.spec.mixed import MixedStrategy
from astra.units import GIB

SHOWN: Final = 1.05  # pipelines over pools are shown beside pools apart if they are this close
KEPT: Final = 6  # pipelines of each kind costed in full
MENU: Final = 2  # pipelines of a pool that may become a group
MOST_BLOCKS: Final = 4  # pools up to which every mixed part of "both" is tried; beyond, pairs

Progress = Callable[[float], None]


class Candidate(NamedTuple):
    """A strategy and its closed-form step time."""

    step_s: float
    strategy: MixedStrategy


class Costed(NamedTuple):
    """A strategy in full."""

    strategy: MixedStrategy
    estimate: MixedEstimate


class Planner:
    """One fleet, planned for different numbers of GPUs."""

    def __init__(self, fleet: Fleet, *, exact: bool, user_rules: Sequence[Rule] = ()) -> None:
        self.fleet, self.exact, self.user_rules = fleet, exact, user_rules
        stages = fleet.job.runtime.zero_stages
        self.bench = Bench(fleet, zero=1 if 1 in stages else 0)
        self.fleet = fleet._replace(columns=tuple(way.columns for way in self.bench.ways))
        self.after = After(self.bench)
        self.counts: Counts = tuple(pool.gpus for pool in fleet.cluster.pools)
        self._costed: dict[str, Costed] = {}

    @property
    def host_s(self) -> float:
        """Host work per step."""
        return self.fleet.job.runtime.step_host_s

    def pipelines(
        self,
        counts: Counts,
        samples: float,
        *,
        keep: int,
        whole: bool = True,
        uniform: bool = False,
        every: bool = False,
        below: float = np.inf,
        must: int = 0,
        fewer: Counts | None = None,
        aligned: bool = True,
    ) -> list[tuple[float, Found]]:
        """The best pipelines over pools, alike in all replicas; the first is optimal, the others are of other frames."""
        found: list[tuple[float, Found]] = []
        limit = below
        frames = self.bench.bounded_frames(counts, samples, whole=whole, uniform=uniform, fewer=fewer, aligned=aligned)
        for bound_s, frame in frames:
            if bound_s >= limit:
                break
            after_s = self.after.least_s(counts, frame.dp, frame.cp)
            if bound_s + after_s >= limit:
                continue
            solved = self.bench.solve(counts, frame, every=every, below=limit - after_s, must=must)
            if solved is None:
                continue
            total_s = solved.value_s + self.after.seconds(solved)
            found.append((total_s, solved))
            limit = min(limit, total_s)
        return sorted(found, key=lambda entry: entry[0])[:keep]

    def strategy(self, *parts: tuple[Found, int]) -> MixedStrategy:
        """Groups with their micro-batches as a strategy."""
        groups = tuple(found.group(self.fleet.names, m) for found, m in parts)
        return MixedStrategy(groups=groups, zero=self.bench.zero)

    def alike(self, counts: Counts, **how: bool | float | int | Counts) -> list[Candidate]:
        """Strategies whose replicas are all the same pipeline."""
        found = self.pipelines(counts, self.bench.batch, keep=KEPT, **how)  # type: ignore[arg-type]
        return [Candidate(total, self.strategy((each, int(each.frame.microbatches)))) for total, each in found]

    def rates(self, counts: Counts) -> list[float]:
        """Samples per second of each pool at best, for first shares."""
        out = []
        for gpus, way in zip(counts, self.bench.ways, strict=True):
            shards = way.columns.shards
            each = shards.mbs / (shards.tp * shards.cp * way.layer_s * self.bench.depth)
            out.append(float(each.max()) * gpus if len(each) else 0.0)
        return out

    def sharing(self, counts: Counts, *, every: bool, limit: float) -> list[Candidate]:
        """Strategies with several groups: each pool by itself, or some pools mixed and the others by themselves."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        if len(used) < 2:
            return []
        rates = self.rates(counts)
        menus: dict[int, list[tuple[float, Found]]] = {}

        def menu(mask: int, best_s: float) -> list[tuple[float, Found]]:
            if mask not in menus:
                inside = tuple(gpus if mask >> pool & 1 else 0 for pool, gpus in enumerate(counts))
                total = sum(rates[pool] for pool in used)
                share = self.bench.batch * sum(rates[pool] for pool in used if mask >> pool & 1) / total
                # A mixed block must beat what is known; a pool by itself is part of every partition.
                below = best_s if mask & (mask - 1) else np.inf
                found = self.pipelines(inside, share, keep=MENU, whole=False, every=every, below=below)
                if not mask & (mask - 1):
                    limit_s = found[0][0] if found else below
                    found += self.pipelines(
                        inside, share, keep=1, whole=False, every=every, below=limit_s, aligned=False
                    )
                menus[mask] = found
            return menus[mask]

        out: list[Candidate] = []
        for blocks in self._partitions(used):
            best_s = min([limit, *(candidate.step_s for candidate in out)])
            menus_of = [menu(block, best_s) for block in blocks]
            for chosen in product(*(entries if len(blocks) <= 4 else entries[:1] for entries in menus_of)):
                candidate = self._dealt([found for _, found in chosen])
                if candidate is not None:
                    out.append(candidate)
        return sorted(out, key=lambda entry: entry.step_s)[:KEPT]

    @staticmethod
    def _partitions(used: list[int]) -> list[list[int]]:
        """Blocks of pools as masks: all apart, and one mixed block with the others apart."""
        out = [[1 << pool for pool in used]]
        largest = len(used) - 1 if len(used) <= MOST_BLOCKS else 2
        for size in range(2, largest + 1):
            for block in combinations(used, size):
                mask = sum(1 << pool for pool in block)
                out.append([mask, *(1 << pool for pool in used if pool not in block)])
        return out

    def _dealt(self, groups: Sequence[Found]) -> Candidate | None:
        """Groups with the micro-batches that let the last one end soonest."""
        shares, rounds = [], []
        for found in groups:
            fixed_s, each_s = found.line()
            units = found.frame.stages or 1
            rounds.append(units)
            shares.append(Share(found.frame.dp * found.frame.mbs * units, fixed_s, each_s * units))
        dealt = deal(shares, self.bench.batch)
        if dealt is None:
            return None
        seconds, units = dealt
        after_s = max(self.after.seconds(found) for found in groups)
        parts = [(found, count * size) for found, count, size in zip(groups, units, rounds, strict=True)]
        return Candidate(seconds + after_s, self.strategy(*parts))

    def cost(self, candidates: Sequence[Candidate], most: int = KEPT) -> list[Costed]:
        """The best in full, ranked by their simulated step; those that do not fit after all are dropped."""
        out = []
        for candidate in sorted(candidates, key=lambda entry: entry.step_s)[:most]:
            text = str(candidate.strategy)
            if text not in self._costed:
                result = estimate(self.fleet, candidate.strategy, user_rules=self.user_rules)
                self._costed[text] = Costed(candidate.strategy, result)
            out.append(self._costed[text])
        fitting = [each for each in out if each.estimate.fits and each.estimate.legal]
        return sorted(fitting, key=lambda each: (each.estimate.step_s, str(each.strategy)))

    def best(self, counts: Counts, *, every: bool) -> tuple[list[Costed], list[Costed]]:
        """Plans for some GPUs, best first, and those that Megatron-LM can run as they are.

        The quick searches come first: what they find is the limit that pipelines with degrees of their own must beat.
        """
        plain = self.alike(counts, every=every, uniform=True)
        groups = self.sharing(counts, every=every, limit=plain[0].step_s if plain else np.inf)
        limit = min([np.inf, *(SHOWN * candidate.step_s for candidate in (*plain[:1], *groups[:1]))])
        alike = self.alike(counts, every=every, below=limit)
        launchable = self.cost(plain, most=2)
        return self.cost([*alike[:2], *groups[:2], *plain[:1]], most=4), launchable

    def alone(self, pool: int) -> Costed | None:
        """The best plan on one pool."""
        counts = tuple(gpus if place == pool else 0 for place, gpus in enumerate(self.counts))
        found = self.cost(self.alike(counts), most=1)
        return found[0] if found else None

    def without(self, pool: int, below: float = np.inf) -> Costed | None:
        """The best plan on all other pools."""
        counts = tuple(0 if place == pool else gpus for place, gpus in enumerate(self.counts))
        found = self.cost(self.alike(counts, below=below), most=2)
        return found[0] if found else None

    def with_one_more(self, pool: int, best: Costed) -> Costed:
        """The best plan with one more node of a pool, which is the best plan itself where that brings nothing."""
        node = self.fleet.cluster.pools[pool].node.gpus
        counts = tuple(gpus + (node if place == pool else 0) for place, gpus in enumerate(self.counts))
        after = best.estimate.step_s - sum(best.estimate.breakdown.get(k, 0.0) for k in ("host", "stragglers"))
        found = self.cost(self.alike(counts, below=after, fewer=self.counts), most=1)
        return min([best, *found], key=lambda each: each.estimate.step_s)

    def with_pool(self, pool: int) -> Costed | None:
        """The best plan that uses a pool, wanted or not."""
        found = self.cost(self.alike(self.counts, must=1 << pool), most=1)
        return found[0] if found else None

    def nothing_fits(self) -> NoFeasiblePlan:
        """Why no plan was found, pool by pool."""
        job = self.fleet.job
        asked = " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in self.fleet.cluster.pools)
        reasons = [
            f"{name}: {self.why_not(place)}" for place, name in enumerate(self.fleet.names) if self.why_not(place)
        ]
        fix = (
            "With --exact every GPU must have a place; drop it to use what helps."
            if self.exact
            else "Try more GPUs, GPUs with more memory, a shorter sequence or another batch."
        )
        return NoFeasiblePlan(f"{job.model.name} on {asked}: no plan over these pools fits. {' '.join(reasons)} {fix}")

    def why_not(self, pool: int) -> str:
        """Why no stage fits on a pool; empty if one does."""
        job, columns, _ = self.bench.ways[pool]
        if not len(columns.shards.tp):
            return "no tensor-parallel degree is legal for the model here."
        least = np.inf
        for dp in (1, self.bench.batch):
            for mbs, cp in product(self.bench.mbs[:1], self.bench.cp):
                made, _ = self.bench.choices(pool, dp, mbs, cp, True)
                for choice in made:
                    one = choice.stay_bytes[1] + choice.kept_bytes[1] + choice.fixed_bytes
                    least = min(least, float(one))
        limit = job.limit_bytes
        if least <= limit:
            return ""
        shown = f"{least / GIB:.1f} GiB" if np.isfinite(least) else "more than there is"
        return f"a stage with a single layer needs {shown} of the {limit / GIB:.1f} GiB a GPU may use."


def timed(started: float) -> float:
    """Seconds since."""
    return time.perf_counter() - started
