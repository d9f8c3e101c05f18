"""The planner for several pools: pipelines over pools, pools apart that share the batch, or both; what each is worth.

Frames are visited best first by a lower bound and each is solved exactly (``partition.solve``), so the best pipeline
over pools is the best there is within the model. The plans shown are costed in full and simulated; the ranking is the
simulation's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from itertools import combinations
from typing import Final, Literal, NamedTuple

import numpy as np

from astra.cost.timed import PartTables
from astra.partition.problem import Effort
from astra.search.fleet.dealing import Dealt
from astra.search.fleet.detail import CostedGroups, estimate, without_even
from astra.search.fleet.frames import Counts, FoundPipeline, Frame
from astra.search.fleet.menus import Menus
from astra.search.fleet.pools import Fleet, Limits
from astra.search.fleet.records import MixedEstimate
from astra.search.fleet.shared import sharing_state
from astra.search.fleet.sharing import GroupSearch
from astra.search.fleet.space import FrameSpace
from astra.search.fleet.summary import best_alone, estimate_alone
from astra.spec.cluster import Cluster
from astra.spec.mixed import Group, MixedStrategy, OnePool

SPREAD: Final = 1.02  # pipelines whose closed form is this close may be quicker by the simulator
FEW_SPREAD: Final = 1.1  # the same in a small fleet, where pipelines have few micro-batches
SHOWN: Final = 1.01  # pipelines over pools are shown beside pools apart if they are this close
NEAR: Final = 1.06  # of the best plan: pipelines that may pass it when they are polished
FEW: Final = 6  # micro-batches for each stage: with more the closed form is the simulator's time
FEW_GPUS: Final = 16  # of a fleet so small, with few samples, that there is time to look at more plans
FEW_SAMPLES: Final = 64
KEPT: Final = 6  # pipelines of each kind costed in full
MANY_POOLS: Final = 4  # from here on frames are bounded closely before any is solved
BOUNDING: Final = 1 / 2  # of the effort, so that some of the frames with the best bounds are solved at any rate
CLOSE: Final = 0.999  # a pipeline this near its bound counts as the frame's best there
MENU: Final = 2  # pipelines over some pools that may become a group
FULL: Final = 100.0  # effort of costing one strategy in full
MOST_EFFORT: Final = 32_000.0  # of a search, two to three seconds at most
ALONE: Final = 0.4  # of the work of a search, about
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


class FleetCandidates(NamedTuple):
    """What a search found."""

    alone: dict[int, Costed | None]  # by pool; none are planned where every GPU must be used
    candidates: list[Costed]  # the fastest first


class Planner:
    """One fleet, planned for different numbers of GPUs."""

    def __init__(
        self, fleet: Fleet, *, exact: bool, limits: Limits | None = None, local: int = 1, upper: bool = False
    ) -> None:
        self.exact, self.limits, self.local = exact, limits or Limits(fleet.job), local
        self.upper = upper  # whether plans will be ranked by the upper ends of their steps' intervals
        self.user_rules = self.limits.user_rules
        self.frame_space = FrameSpace(fleet, self.limits)
        columns, tables = (way.columns for way in self.frame_space.ways), (PartTables() for _ in fleet.jobs)
        self.fleet = fleet._replace(columns=tuple(columns), tables=tuple(tables))
        self.counts: Counts = tuple(pool.gpus for pool in fleet.cluster.pools)
        self._costed: dict[str, Costed] = {}
        self._groups: CostedGroups = {}
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
        other._costed, other._groups, other._menus = {}, {}, {}
        other.menus = self.menus.over(other.fleet, local)
        other.groups = GroupSearch(other.menus)
        other.use(self.effort.afresh())
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
        spread: float = 1.0,
    ) -> list[tuple[float, FoundPipeline]]:
        """The best pipelines over pools, alike in all replicas: the optimum, then those of other frames.

        ``spread``: frames that may come that close to the best are solved too.
        """
        if self.limits.unsearched:
            return []
        frames: Iterable[tuple[float, Frame]] = self.frame_space.bounded_frames(
            counts, samples, whole=whole, uniform=uniform, below=spread * below
        )
        found: list[tuple[float, FoundPipeline]] = []
        limit = below
        kind: Kind = "groups" if not whole else "one shape" if uniform else "pipelines"
        many = sum(gpus > 0 for gpus in counts) >= MANY_POOLS
        if many and self.frame_space.uniform:
            with self.effort.part(BOUNDING):
                frames, found = self._closer(counts, frames, kind, below, every=every, must=must)
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
        self,
        counts: Counts,
        frames: Iterable[tuple[float, Frame]],
        kind: Kind,
        below: float,
        *,
        every: bool,
        must: int,
    ) -> tuple[Iterable[tuple[float, Frame]], list[tuple[float, FoundPipeline]]]:
        """Frames with bounds that leave only the order of pools out, best first, and pipelines met on the way."""
        found: list[tuple[float, FoundPipeline]] = []
        close: list[tuple[float, Frame]] = []
        limit = below
        for bound_s, frame in frames:
            if bound_s >= limit:
                break
            if self.effort.over:
                self._leave_open(kind, bound_s)
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
        costed = self.full_estimate(self.strategy((found, int(found.frame.microbatches))))
        return max(found.total_s, self.before_s(costed))

    def strategy(self, *parts: tuple[FoundPipeline, int]) -> MixedStrategy:
        """Groups with their micro-batches as a strategy."""
        return self._of(tuple(found.group(self.fleet.names, m) for found, m in parts))

    def _of(self, groups: tuple[Group, ...]) -> MixedStrategy:
        local = self.local if len(groups) > 1 else 1
        return MixedStrategy(groups=groups, zero=self.frame_space.zero, overlap=self.limits.overlap, local=local)

    def same_replicas(self, counts: Counts, **how: bool | float | int) -> list[FleetCandidate]:
        """Strategies whose replicas are all the same pipeline."""
        found = self.pipelines(counts, self.frame_space.batch, keep=KEPT, **how)  # type: ignore[arg-type]
        return [FleetCandidate(total, self.strategy((each, int(each.frame.microbatches)))) for total, each in found]

    def share(self, counts: Counts, mask: int) -> float:
        """Samples of the batch that fall to some pools by rate."""
        rates = self.frame_space.rates_of(counts)
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

    def sharing(self, counts: Counts, *, every: bool, limit: float) -> list[FleetCandidate]:
        """Strategies of groups on one pool each."""
        found = self.groups.best(counts, every=every, limit=limit)
        if self.groups.left_open:
            self._leave_open("groups", 0.0)
        return self.shared(one.dealt for one in found)

    def joined(self, counts: Counts, *, every: bool, limit: float) -> list[FleetCandidate]:
        """Strategies of groups below a limit in which some pools are joined in pipelines and others by themselves."""
        used = [pool for pool, gpus in enumerate(counts) if gpus]
        largest = len(used) - 1 if len(used) <= MOST_BLOCKS else 2
        masks = [sum(1 << pool for pool in some) for size in range(2, largest + 1) for some in combinations(used, size)]
        found = [each for mask in masks for each in self.menu(counts, mask, every=every, best_s=limit)]
        if not found:
            return []
        blocks = [each.opened(self.fleet.names, self.frame_space.ends) for each in found]
        return self.shared(one.dealt for one in self.groups.dealt(counts, blocks, every=every, limit=limit))

    def shared(self, found: Iterable[Dealt]) -> list[FleetCandidate]:
        """Groups with their micro-batches as strategies; of one shape where groups of others are forbidden."""
        some = [FleetCandidate(seconds, self._of(groups)) for seconds, groups in found]
        return [one for one in some if not self.limits.restrictions.equal_replicas or len(one.strategy.shapes) == 1]

    def cost(self, candidates: Sequence[FleetCandidate], most: int = KEPT) -> list[Costed]:
        """The best in full, ranked by their simulated step; those that do not fit after all are dropped."""
        best = sorted(candidates, key=lambda entry: entry.step_s)[:most]
        costed = [self.full_estimate(one.strategy) for one in best]
        fitting = [each for each in costed if each.estimate.fits and each.estimate.legal]
        return sorted(fitting, key=lambda each: (each.estimate.step_s, str(each.strategy)))

    def full_estimate(self, strategy: MixedStrategy) -> Costed:
        """A strategy in full, once."""
        group, whole = strategy.groups[0], strategy.samples == self.frame_space.batch
        plan: MixedStrategy | OnePool = strategy
        if len(strategy.groups) == 1 and group.plain is not None:
            plan = OnePool(pool=group.segments[0].pool, strategy=without_even(group.plain))
        if (text := str(plan)) in self._costed:
            return self._costed[text]
        if isinstance(plan, OnePool):
            costed = Costed(plan, estimate_alone(self.fleet, plan, user_rules=self.user_rules))
        else:
            self.effort.spend(FULL)
            costed = Costed(plan, estimate(self.fleet, plan, user_rules=self.user_rules, known=self._groups))
        if whole:  # not a share that is costed by itself
            self._costed[text] = costed
        return costed

    def search(self, *, better: bool = False, progress: Progress | None = None) -> FleetCandidates:
        """The plans of the fleet, none worse than the best pool alone; ``better``: only those that beat that."""
        alone = {} if self.exact else self._each_alone(progress)
        known = {self.fleet.names[place]: each for place, each in alone.items() if each is not None}
        known_s = min((self.before_s(each) for each in known.values()), default=np.inf)
        found = self.best(self.counts, every=self.exact, known_s=known_s, below_s=known_s if better else np.inf)
        if progress is not None:
            progress(1.0)
        found = [each for each in found if not _shown_alone(each, known)]
        return FleetCandidates(alone, sorted([*found, *known.values()], key=lambda each: each.estimate.step_s))

    def _each_alone(self, progress: Progress | None) -> dict[int, Costed | None]:
        """The plan of each pool by itself, the quickest pool first: once time is up a plan is enough."""
        rates, found = self.frame_space.rates_of(self.counts), dict[int, Costed | None]()
        for done, place in enumerate(sorted(range(len(rates)), key=lambda place: -rates[place])):
            if self.effort.late and any(found.values()):
                break
            found[place] = self.alone(place)
            if progress is not None:
                progress(ALONE * (done + 1) / len(rates))
        return {place: found[place] for place in sorted(found)}

    def best(self, counts: Counts, *, every: bool, known_s: float = np.inf, below_s: float = np.inf) -> list[Costed]:
        """Plans for some GPUs, best first; some with one shape for all stages, as most runtimes want.

        The quick searches come first: what they find is the limit that pipelines with degrees of their own must beat,
        and so is ``known_s``, the pipeline and end of a plan that is known otherwise. Whatever does not end before
        ``below_s`` is of no interest.
        """
        groups = self.sharing(counts, every=every, limit=below_s)
        if self.effort.late and (groups or known_s < np.inf):
            return self.cost(groups, most=1)
        limit = min([known_s, *(self.before_s(each) for each in self.cost(groups[:3]))])
        with self.effort.part(1 / 4):
            # Of what is slower, a pool alone is as good and simpler.
            plain = self.same_replicas(counts, every=every, uniform=True, below=min(below_s, SHOWN * known_s))
        small = sum(counts) <= FEW_GPUS and self.frame_space.batch <= FEW_SAMPLES
        shown, spread = (FEW_SPREAD, FEW_SPREAD) if small else (SHOWN, SPREAD)
        limit = min([limit, *(candidate.step_s for candidate in plain[:1])])
        with self.effort.part(2 / 3):
            same_replicas = self.same_replicas(counts, every=every, below=shown * limit, spread=spread)
        limit = min([limit, *(candidate.step_s for candidate in same_replicas[:1])])
        joined = [] if self.limits.restrictions.equal_replicas else self.joined(counts, every=every, limit=limit)
        same_cut = [] if every else self.shared(one.dealt for one in self.groups.of_same_cut(counts))
        kinds = [same_replicas[: KEPT if small else 3], groups[:3], joined[:2], plain[:2]]
        kinds += [[one for one in same_cut if one.step_s < limit]]
        if small and not every:
            kinds += self._more_of_few(counts, limit)
        if self.upper:  # plans that are slower as expected and doubted less
            trusted = self.groups.trusted(counts, every=every)
            kinds += [self.shared(one.dealt for one in trusted), same_cut, plain[2:4]]
        most = 1 if self.effort.late else KEPT
        costed = {str(each.strategy): each for some in kinds for each in self.cost(some, most)}
        ranked = sorted(costed.values(), key=lambda each: each.estimate.step_s)
        near = [each for each in ranked if each.estimate.step_s < NEAR * ranked[0].estimate.step_s and _few(each)]
        if near:
            from astra.search.fleet.few import polished  # noqa: PLC0415 - many micro-batches are the rule

            ranked += [each for each in polished(self, counts, near) if str(each.strategy) not in costed]
        ranked += self._sharing_state(counts, known_s, ranked, every=every)
        whole = [each for each in ranked if not every or sum(each.estimate.used.values()) == sum(counts)]
        return sorted(whole, key=lambda each: each.estimate.step_s)

    def _more_of_few(self, counts: Counts, limit_s: float) -> list[list[FleetCandidate]]:
        """What only a small fleet is asked for: every pipeline in its simulated time, and replicas dealt one by one."""
        from astra.search.fleet.few import dealt_together  # noqa: PLC0415 - few fleets are small
        from astra.search.fleet.small import FEW_GPUS as EVERY_PART  # noqa: PLC0415
        from astra.search.fleet.small import SmallFleet  # noqa: PLC0415

        small = SmallFleet(self, counts, SPREAD * limit_s)
        apart = small.apart() if sum(counts) <= EVERY_PART else []
        dealt = [small.one_group(), dealt_together(self.frame_space, counts, limit_s), *apart]
        return [self.shared(some) for some in dealt]

    def _sharing_state(self, counts: Counts, known_s: float, known: Sequence[Costed], *, every: bool) -> list[Costed]:
        """Plans whose groups share one copy of the state, where they may be quicker than those known."""
        if self.local > 1 or self.effort.late:
            return []
        below_s = min([known_s, *(self.before_s(each) for each in known)])
        full = self.full_estimate
        found = sharing_state(
            self.fleet, self.limits, counts, lambda one: full(one).estimate, every=every, below_s=below_s
        )
        return [full(one) for one in found]

    def alone(self, pool: int, gpus: int | None = None) -> Costed | None:
        """The best plan on one pool: what the planner for one GPU type says; on a part of it if none uses it all."""
        have = self.counts[pool] if gpus is None else gpus
        if (pool, have) not in self._alone:
            lone = best_alone(self.fleet, pool, self.menus.whole(pool, have))
            found = [Costed(*lone)] if lone is not None else []
            self._costed |= {str(each.strategy): each for each in found}
            if not found:
                counts = tuple(have if place == pool else 0 for place in range(len(self.counts)))
                found = self.cost(self.sharing(counts, every=False, limit=np.inf), most=1)
            self._alone[pool, have] = min(found, key=lambda each: each.estimate.step_s, default=None)
        return self._alone[pool, have]

    def before_s(self, costed: Costed) -> float:
        """Pipeline and end of a plan: what the search compares, without the host's work and stragglers."""
        around = (costed.estimate.breakdown.get(name, 0.0) for name in ("host", "stragglers"))
        return costed.estimate.step_s - sum(around)


def _few(each: Costed) -> bool:
    """Whether a plan is pipelines over pools of so few micro-batches that moves may help."""
    if not isinstance(each.strategy, MixedStrategy) or not each.strategy.over_pools:
        return False
    group = each.strategy.groups[0]
    return group.microbatches <= FEW * group.stages


def _shown_alone(each: Costed, alone: Mapping[str, Costed]) -> bool:
    """Whether a plan uses one pool and is no faster than that pool's own plan, which is told anyway."""
    used = list(each.estimate.used)
    own = alone.get(used[0])
    return len(used) == 1 and own is not None and own.estimate.step_s <= each.estimate.step_s * (1 + 1e-6)
