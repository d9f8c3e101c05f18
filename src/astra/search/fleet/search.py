"""The planner for several pools: pipelines over pools, pools apart that share the batch, or both; what each is worth.

Frames are visited best first by a lower bound and each is solved exactly (``partition.solve``), so the best pipeline
over pools is the best there is within the model. The plans shown are costed in full and simulated; the ranking is the
simulation's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from itertools import combinations
from typing import Final, Literal, NamedTuple

import numpy as np

from astra.cost import mixed as cost
from astra.errors import NoFeasiblePlan
from astra.partition.problem import Effort
from astra.partition.solve import end_times
from astra.search.fleet.dealing import BatchShare, OpenGroup, Sharing
from astra.search.fleet.detail import estimate, without_even
from astra.search.fleet.frames import Counts, FoundPipeline, Frame
from astra.search.fleet.lone import best_alone, estimate_alone
from astra.search.fleet.menus import Menus
from astra.search.fleet.polish import over_pools, polished
from astra.search.fleet.pools import Fleet, Limits
from astra.search.fleet.records import MixedEstimate
from astra.search.fleet.refusal import why_not
from astra.search.fleet.replicas import dealt_alike, small
from astra.search.fleet.sharing import MOST_GRIDS, GroupSearch
from astra.search.fleet.space import FrameSpace
from astra.spec.cluster import Cluster
from astra.spec.mixed import Group, MixedStrategy, OnePool

SPREAD: Final = 1.02  # pipelines whose closed form is this close may be quicker by the simulator
FEW_SPREAD: Final = 1.1  # the same in a small fleet, where pipelines have few micro-batches
SHOWN: Final = 1.01  # pipelines over pools are shown beside pools apart if they are this close
NEAR: Final = 1.06  # of the best plan: pipelines that may pass it when they are polished
POLISHED: Final = 2  # of them
KEPT: Final = 6  # pipelines of each kind costed in full
MANY_POOLS: Final = 4  # from here on frames are bounded closely before any is solved
CLOSE: Final = 0.999  # a pipeline this near its bound counts as the frame's best there
MENU: Final = 2  # pipelines over some pools that may become a group
FULL: Final = 100.0  # effort of costing one strategy in full
MOST_EFFORT: Final = 16_000.0  # of a search, less than two seconds
MOST_BLOCKS: Final = 4  # pools up to which every set of pools is tried as groups; beyond, all, all but one, and pairs

Progress = Callable[[float], None]
Kind = Literal["one shape", "groups", "pipelines"]  # what a search looks for


class FleetCandidate(NamedTuple):
    """A strategy and its closed-form step time."""

    step_s: float
    strategy: MixedStrategy


class Costed(NamedTuple):
    """A strategy in full."""

    strategy: MixedStrategy | OnePool
    estimate: MixedEstimate


class Planner:
    """One fleet, planned for different numbers of GPUs."""

    def __init__(
        self, fleet: Fleet, *, exact: bool, limits: Limits | None = None, local: int = 1, upper: bool = False
    ) -> None:
        self.exact, self.limits, self.local = exact, limits or Limits(fleet.job), local
        self.upper = upper  # whether plans will be ranked by the upper ends of their steps' intervals
        self.user_rules = self.limits.user_rules
        self.frame_space = FrameSpace(fleet, self.limits)
        self.fleet = fleet._replace(columns=tuple(way.columns for way in self.frame_space.ways))
        self.counts: Counts = tuple(pool.gpus for pool in fleet.cluster.pools)
        self._costed: dict[str, Costed] = {}
        self._menus: dict[tuple[Counts, int], list[FoundPipeline]] = {}
        self.menus = Menus(self.fleet, self.limits, local, upper=upper)
        self.groups = GroupSearch(self.menus)
        self._alone: dict[tuple[int, int], Costed | None] = {}
        self.use(Effort(MOST_EFFORT))

    def over(self, cluster: Cluster, local: int) -> Planner:
        """The same pools with other lines between them, and so many local steps; what a pool costs is kept."""
        other = copy(self)
        other.fleet, other.local = self.fleet._replace(cluster=cluster), local
        other.frame_space = self.frame_space.over(cluster)
        other._costed, other._menus = {}, {}
        other.menus = self.menus.over(other.fleet, local)
        other.groups = GroupSearch(other.menus)
        other.use(Effort(MOST_EFFORT))
        return other

    def use(self, effort: Effort) -> None:
        """From here on spend this; what is left open is counted anew."""
        self.effort = self.frame_space.effort = self.menus.effort = effort
        self.left_open: dict[Kind, float] = {}  # seconds that no pipeline of a kind not looked at can beat

    def _leave_open(self, kind: Kind, bound_s: float) -> None:
        """Remember that the effort was spent before all that may beat a bound was looked at."""
        self.left_open[kind] = min(bound_s, self.left_open.get(kind, np.inf))

    @property
    def host_s(self) -> float:
        """Host work per step."""
        return self.fleet.job.runtime.host.step_s

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
        spread: float = 1.0,
    ) -> list[tuple[float, FoundPipeline]]:
        """The best pipelines over pools, alike in all replicas: the optimum, then those of other frames.

        ``spread``: frames that may come that close to the best are solved too.
        """
        if self.limits.unsearched:
            return []
        frames: Iterable[tuple[float, Frame]] = self.frame_space.bounded_frames(
            counts, samples, whole=whole, uniform=uniform, fewer=fewer, aligned=aligned, below=spread * below
        )
        found: list[tuple[float, FoundPipeline]] = []
        limit = below
        kind: Kind = "groups" if not whole else "one shape" if uniform else "pipelines"
        many = sum(gpus > 0 for gpus in counts) >= MANY_POOLS
        if many and self.frame_space.uniform:
            frames, found = self._closer(counts, frames, below, every=every, must=must)
            limit = min([below, *(total_s for total_s, _ in found)])
        for bound_s, frame in frames:
            if bound_s >= spread * limit:
                break
            if self.effort.over:
                self._leave_open(kind, bound_s)
                break
            # A share will still be rounded, so that the last of its end is not worth the search; nor is it with many.
            quick = many or not whole
            solved = self.frame_space.solve(counts, frame, every=every, below=spread * limit, must=must, quick=quick)
            if not self.effort.left:
                self._leave_open(kind, bound_s)
            if solved is None:
                continue
            total_s = self._reported_s(solved, spread * limit) if whole else solved.total_s
            found.append((total_s, solved))
            limit = min(limit, total_s)
        return sorted(found, key=lambda entry: entry[0])[:keep]

    def _closer(
        self, counts: Counts, frames: Iterable[tuple[float, Frame]], below: float, *, every: bool, must: int
    ) -> tuple[Iterable[tuple[float, Frame]], list[tuple[float, FoundPipeline]]]:
        """Frames with bounds that leave only the order of pools out, best first, and pipelines met on the way."""
        found: list[tuple[float, FoundPipeline]] = []
        close: list[tuple[float, Frame]] = []
        limit = below
        for bound_s, frame in frames:
            if bound_s >= limit:
                break
            if self.effort.over:
                close.append((bound_s, frame))
                break
            least_s, end_s, met = self.frame_space.bound(counts, frame, every=every, below=limit, must=must)
            if least_s + end_s >= limit:
                continue
            if met is not None:
                total_s = self._reported_s(met)
                found.append((total_s, met))
                limit = min(limit, total_s)
            if met is None or least_s < CLOSE * met.value_s:
                close.append((max(least_s, bound_s) + end_s, frame))
        return sorted(close, key=lambda entry: entry[0]), found

    def _reported_s(self, found: FoundPipeline, below: float = np.inf) -> float:
        """A pipeline's time in the search; simulated where transfers stall it, which no closed form knows."""
        if not found.late or found.total_s >= below or found.frame.microbatches != int(found.frame.microbatches):
            return found.total_s
        costed = self._full_estimate(self.strategy((found, int(found.frame.microbatches))))
        return max(found.total_s, self.before_s(costed))

    def strategy(self, *parts: tuple[FoundPipeline, int]) -> MixedStrategy:
        """Groups with their micro-batches as a strategy."""
        return self._of(tuple(found.group(self.fleet.names, m) for found, m in parts))

    def _of(self, groups: tuple[Group, ...]) -> MixedStrategy:
        local = self.local if len(groups) > 1 else 1
        return MixedStrategy(groups=groups, zero=self.frame_space.zero, overlap=self.limits.overlap, local=local)

    def same_replicas(self, counts: Counts, **how: bool | float | int | Counts | None) -> list[FleetCandidate]:
        """Strategies whose replicas are all the same pipeline."""
        found = self.pipelines(counts, self.frame_space.batch, keep=KEPT, **how)  # type: ignore[arg-type]
        return [FleetCandidate(total, self.strategy((each, int(each.frame.microbatches)))) for total, each in found]

    def rates(self, counts: Counts) -> list[float]:
        """Samples per second of each pool at best, for first shares."""
        out = []
        for gpus, way in zip(counts, self.frame_space.ways, strict=True):
            shards = way.columns.shards
            each = shards.mbs / (shards.tp * shards.cp * way.layer_s * self.frame_space.depth)
            out.append(float(each.max()) * gpus if len(each) else 0.0)
        return out

    def share(self, counts: Counts, mask: int) -> float:
        """Samples of the batch that fall to some pools by rate."""
        rates = self.rates(counts)
        inside = sum(rate for pool, rate in enumerate(rates) if mask >> pool & 1)
        return self.frame_space.batch * inside / sum(rates) if inside else 0.0

    def menu(self, counts: Counts, mask: int, *, every: bool, best_s: float) -> list[FoundPipeline]:
        """Pipelines over some pools that may become a group, for their share of the batch by rate."""
        key = (counts, mask)
        if key not in self._menus:
            if not (share := self.share(counts, mask)):
                return []
            inside = tuple(gpus if mask >> pool & 1 else 0 for pool, gpus in enumerate(counts))
            with self.effort.part(1 / 3):
                found = self.pipelines(inside, share, keep=MENU, whole=False, every=every, below=best_s)
            self._menus[key] = [each for _, each in found]
        return self._menus[key]

    def sharing(
        self, counts: Counts, *, every: bool, limit: float, most: int = MOST_GRIDS, fewer: Counts | None = None
    ) -> list[FleetCandidate]:
        """Strategies of groups on one pool each, looked for in ``most`` grids of strategies."""
        found = self.groups.best(counts, every=every, limit=limit, most=most, fewer=fewer)
        if self.groups.left_open:
            self._leave_open("groups", 0.0)
        return [self._shared(one) for one in found]

    def known(self, counts: Counts) -> list[FleetCandidate]:
        """The best strategies of groups that were looked for already."""
        return [self._shared(one) for one in self.groups.dealt(counts, (), every=False, limit=np.inf)]

    def joined(self, counts: Counts, *, every: bool, limit: float) -> list[FleetCandidate]:
        """Strategies of groups below a limit in which some pools are joined in pipelines and others by themselves."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        largest = len(used) - 1 if len(used) <= MOST_BLOCKS else 2
        masks = [sum(1 << pool for pool in some) for size in range(2, largest + 1) for some in combinations(used, size)]
        found = [each for mask in masks for each in self.menu(counts, mask, every=every, best_s=limit)]
        if not found:
            return []
        blocks = [self._open(each) for each in found]
        return [self._shared(one) for one in self.groups.dealt(counts, blocks, every=every, limit=limit)]

    def _open(self, found: FoundPipeline) -> OpenGroup:
        """A pipeline over pools as a group whose share of the batch is open."""
        fixed_s, each_s = found.line()
        pools = sum(1 << pool for pool in {run.pool for run in found.pipeline.runs})

        def end_s(groups: int, way: cost.Wire | None) -> float:
            return max(end_times(self.frame_space.ends(found.frame, found.shapes, groups, way), found.pipeline.runs))

        return OpenGroup(
            pools, found.round, BatchShare(found.samples, fixed_s, each_s * found.round), end_s,
            lambda m: found.group(self.fleet.names, m), lambda _: None,
        )  # fmt: skip

    def _shared(self, sharing: Sharing) -> FleetCandidate:
        groups = tuple(part.group(microbatches) for part, microbatches in sharing.groups)
        return FleetCandidate(sharing.seconds, self._of(groups))

    def cost(self, candidates: Sequence[FleetCandidate], most: int = KEPT) -> list[Costed]:
        """The best in full, ranked by their simulated step; those that do not fit after all are dropped."""
        best = sorted(candidates, key=lambda entry: entry.step_s)[:most]
        costed = [self._full_estimate(one.strategy) for one in best]
        fitting = [each for each in costed if each.estimate.fits and each.estimate.legal]
        return sorted(fitting, key=lambda each: (each.estimate.step_s, str(each.strategy)))

    def _full_estimate(self, strategy: MixedStrategy) -> Costed:
        text, plain = str(strategy), strategy.groups[0].plain
        if len(strategy.groups) == 1 and plain is not None:
            alone = OnePool(pool=strategy.groups[0].segments[0].pool, strategy=without_even(plain))
            return Costed(alone, estimate_alone(self.fleet, alone, user_rules=self.user_rules))
        if text not in self._costed:
            self.effort.spend(FULL)
            if strategy.samples != self.frame_space.batch:  # a share that is costed by itself
                return Costed(strategy, estimate(self.fleet, strategy, user_rules=self.user_rules))
            self._costed[text] = Costed(strategy, estimate(self.fleet, strategy, user_rules=self.user_rules))
        return self._costed[text]

    def best(self, counts: Counts, *, every: bool, known_s: float = np.inf, below_s: float = np.inf) -> list[Costed]:
        """Plans for some GPUs, best first; some with one shape for all stages, as most runtimes want.

        The quick searches come first: what they find is the limit that pipelines with degrees of their own must beat,
        and so is ``known_s``, the pipeline and end of a plan that is known otherwise. Whatever does not end before
        ``below_s`` is of no interest.
        """
        groups = self._allowed(self.sharing(counts, every=every, limit=below_s))
        limit = min([known_s, *(candidate.step_s for candidate in groups[:1])])
        with self.effort.part(1 / 4):
            # Of what is slower, a pool alone is as good and simpler.
            plain = self.same_replicas(counts, every=every, uniform=True, below=min(below_s, SHOWN * known_s))
        few_gpus = small(self.frame_space, counts)
        shown, spread = (FEW_SPREAD, FEW_SPREAD) if few_gpus else (SHOWN, SPREAD)
        limit = min([limit, *(candidate.step_s for candidate in plain[:1])])
        with self.effort.part(2 / 3):
            same_replicas = self.same_replicas(counts, every=every, below=shown * limit, spread=spread)
        limit = min([limit, *(candidate.step_s for candidate in same_replicas[:1])])
        joined = [] if self.limits.restrictions.alike else self.joined(counts, every=every, limit=limit)
        alike = [] if every else self._allowed([self._shared(one) for one in self.groups.alike(counts)])
        few = [] if every else dealt_alike(self.frame_space, counts, limit)
        dealt = self._allowed([FleetCandidate(one.seconds, self._of(one.groups)) for one in few])
        kinds = [same_replicas[: KEPT if few_gpus else 3], groups[:3], joined[:2], plain[:2], dealt]
        kinds.append([one for one in alike if one.step_s < limit])
        if self.upper:  # plans that are slower as expected and doubted less
            trusted = [self._shared(one) for one in self.groups.trusted(counts, every=every)]
            kinds += [self._allowed(trusted), alike, plain[2:4]]
        most = 1 if self.effort.late else KEPT
        costed = {str(each.strategy): each for some in kinds for each in self.cost(some, most)}
        costed |= {str(each.strategy): each for each in self._polished(counts, list(costed.values()))}
        whole = [each for each in costed.values() if not every or sum(each.estimate.used.values()) == sum(counts)]
        return sorted(whole, key=lambda each: each.estimate.step_s)

    def _polished(self, counts: Counts, costed: Sequence[Costed]) -> list[Costed]:
        """The best pipelines over pools in a better order or split, where the simulator finds one."""
        ranked = sorted(costed, key=lambda each: each.estimate.step_s)
        gpus = dict(zip(self.fleet.names, counts, strict=True))
        best = [each for each in ranked if isinstance(each.strategy, MixedStrategy) and over_pools(each.strategy)]
        found = []
        for each in [one for one in best[:POLISHED] if one.estimate.step_s < NEAR * ranked[0].estimate.step_s]:
            assert isinstance(each.strategy, MixedStrategy)
            moved = polished(each.strategy, each.estimate.step_s, self._timed, gpus)
            found += [self._full_estimate(moved)] if moved != each.strategy else []
        return found

    def _timed(self, strategy: MixedStrategy) -> float:
        """The step of a strategy; infinite where it is not legal, does not fit or nothing may be spent any more."""
        segments, stages = strategy.groups[0].segments, strategy.groups[0].stages
        allowed = self.limits.allows("pp", stages) and all(self.limits.allows("tp", one.tp) for one in segments)
        allowed = allowed and self.limits.allows("mbs", strategy.groups[0].mbs)
        if self.effort.over or not allowed:
            return np.inf
        result = self._full_estimate(strategy).estimate
        return result.step_s if result.fits and result.legal else np.inf

    def _allowed(self, groups: list[FleetCandidate]) -> list[FleetCandidate]:
        """Those of one shape where groups of others are forbidden."""
        return [one for one in groups if not self.limits.restrictions.alike or len(one.strategy.shapes) == 1]

    def alone(self, pool: int, gpus: int | None = None) -> Costed | None:
        """The best plan on one pool: what the planner for one GPU type says; on a part of it if none uses it all."""
        have = self.counts[pool] if gpus is None else gpus
        if (pool, have) not in self._alone:
            met = self.menus.look(pool, have, self.frame_space.batch)
            lone = None if met is None else best_alone(self.fleet, pool, met, self.user_rules, upper=self.upper)
            found = [Costed(*lone)] if lone is not None else []
            if not found:
                counts = tuple(have if place == pool else 0 for place in range(len(self.counts)))
                found = self.cost(self.sharing(counts, every=False, limit=np.inf), most=1)
            self._alone[pool, have] = min(found, key=lambda each: each.estimate.step_s, default=None)
        return self._alone[pool, have]

    def before_s(self, costed: Costed) -> float:
        """Pipeline and end of a plan: what the search compares, without the host's work and stragglers."""
        around = (costed.estimate.breakdown.get(name, 0.0) for name in ("host", "stragglers"))
        return costed.estimate.step_s - sum(around)

    def nothing_fits(self) -> NoFeasiblePlan:
        """Why no plan was found, pool by pool."""
        job = self.fleet.job
        asked = " + ".join(f"{pool.gpus}x{pool.device.name}" for pool in self.fleet.cluster.pools)
        reasons = [
            f"{name}: {self.why_not(place)}" for place, name in enumerate(self.fleet.names) if self.why_not(place)
        ]
        if self.limits:
            reasons.append("The restrictions and rules may leave nothing to choose from: drop one of them.")
        fix = (
            "With --exact every GPU must have a place; drop it to use what helps."
            if self.exact
            else "Try more GPUs, GPUs with more memory, a shorter sequence or another batch."
        )
        if self.left_open:
            reasons.append("The search stopped at the work allowed for it, so that one may have been missed.")
        found = "no plan over these pools was found" if self.left_open else "no plan over these pools fits"
        return NoFeasiblePlan(f"{job.model.name} on {asked}: {found}. {' '.join([*reasons, fix])}")

    def why_not(self, pool: int) -> str:
        """Why no stage fits on a pool; empty if one does."""
        return why_not(self.frame_space, pool)
