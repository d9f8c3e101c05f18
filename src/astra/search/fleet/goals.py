"""Goals of time and money over several pools: how many nodes of each to use.

Numbers of nodes are tried best first by a bound: no plan on some GPUs is faster than their best layers in a row, and
none costs less than those GPUs for that long. What cannot beat the best plan found is never planned; then the numbers
next to the best one are tried. A pool by itself is planned as ``astra plan`` plans it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Final, NamedTuple

import numpy as np

import astra
from astra.answer import Plan, PriceTag, Reject, Search
from astra.catalog.hardware import catalog_hash
from astra.errors import InputError, NoCoverage, NoFeasiblePlan
from astra.money.bill import against
from astra.money.front import front
from astra.money.objectives import Goal, is_green
from astra.money.tags import tag_of
from astra.partition.problem import Effort
from astra.search.fleet.bill import judged, with_run
from astra.search.fleet.frames import Counts
from astra.search.fleet.plan import estimate_fleet, fleet_in, nothing_fits, record
from astra.search.fleet.pools import Fleet, Limits, in_order
from astra.search.fleet.records import MixedEstimate, MixedPlanSet
from astra.search.fleet.search import MOST_EFFORT, Costed, Planner
from astra.search.fleet.summary import STARTED_BY
from astra.search.ledger import able, lost_by, no_coverage
from astra.search.world import World
from astra.spec.cluster import Pool
from astra.spec.money import Money
from astra.units import show_dollars, show_seconds

MOST_PLANNED: Final = 24  # numbers of nodes that are planned, and a third more next to the best
PART: Final = 2_000.0  # effort of one of them
LOOKED_AT: Final = 3  # plans that are planned again with all the effort of a search
FINER: Final = 4  # nodes up to which every number is tried


class FleetChoice(NamedTuple):
    """A plan on some nodes, with what it is judged by."""

    counts: Counts
    costed: Costed
    result: MixedEstimate  # with its bill
    time_s: float
    usd: float
    middle_s: float  # as expected, where it is judged by the upper end of its step's interval
    middle_usd: float


class GoalSearch(NamedTuple):
    """Plans by a goal, best first, and an account of the search."""

    choices: list[FleetChoice]
    considered: int
    planned: int
    open: int  # numbers of nodes that could be better and were not planned
    met: list[FleetChoice]  # whatever the goal allows


def choose(planner: Planner, goal: Goal, money: Money, *, exact: bool) -> GoalSearch:
    """The plans of a goal over how many nodes of each pool to use."""
    if is_green(goal):
        raise InputError("objective", goal.objective.name, want="one pool of GPUs for this", fix="Plan each by itself.")
    search = _Met(planner, goal, money)
    whole = planner.counts
    tried = (
        [whole] if exact else [counts for counts in product(*map(_sizes, planner.fleet.cluster.pools)) if any(counts)]
    )
    for counts in sorted(tried, key=search.order):
        if len(search.planned) >= MOST_PLANNED:
            break
        search.plan(counts)
    for counts in () if exact else search.next_to_best(whole):
        search.plan(counts)
    if not search.allowed():  # so that it can be told what would be possible
        for counts in (whole, *(tuple(n * (at == place) for at, n in enumerate(whole)) for place in range(len(whole)))):
            search.plan(counts, MOST_EFFORT)
    for counts in list(dict.fromkeys(one.counts for one in search.ranked()))[:LOOKED_AT]:
        search.plan(counts, MOST_EFFORT)
    left = sum(counts not in search.planned and search.may_win(counts) for counts in tried)
    return GoalSearch(search.ranked(), len(tried), len(search.planned), left, search.allowed())


class _Met:
    """The plans met so far."""

    def __init__(self, planner: Planner, goal: Goal, money: Money) -> None:
        self.planner, self.goal, self.money = planner, goal, money
        self.fleet = planner.fleet
        self._usd_per_h = [tag.usd_per_gpu_h for tag in _prices(self.fleet, money)]
        self.planned: dict[Counts, list[FleetChoice]] = {}  # all that was met: the cheapest may come too late

    def least(self, counts: Counts) -> tuple[float, float]:
        """Seconds and dollars of the run that no plan on so many GPUs can beat."""
        job = self.fleet.job
        rate = sum(self.planner.frame_space.rates_of(counts))
        if not rate or job.workload.tokens is None:
            return np.inf, np.inf
        step_s = job.workload.global_batch / rate + self.planner.host_s
        time_s = job.workload.tokens / job.workload.tokens_per_step * step_s
        return time_s, sum(map(_product, counts, self._usd_per_h)) / 3600 * time_s

    def order(self, counts: Counts) -> tuple[float, ...]:
        """By what the goal makes small, as it could be at best; then by the other."""
        time_s, usd = self.least(counts)
        return (time_s, usd) if self.goal.objective.columns[0] == "time_s" else (usd, time_s)

    def may_win(self, counts: Counts) -> bool:
        """Whether a plan on so many GPUs could be shown first, or on the front."""
        time_s, usd = self.least(counts)
        most = {"usd": min(self.goal.most_usd, self._cap("usd")), "time_s": min(self.goal.most_s, self._cap("time_s"))}
        if not np.isfinite(time_s) or usd > most["usd"] or time_s > most["time_s"]:
            return False
        met = self.allowed()
        if self.goal.objective.direction == "front":
            return not any(one.time_s <= time_s and one.usd <= usd for one in met)
        best = self.ranked()[:1]
        return not best or self.order(counts) < self._value(best[0])

    def _cap(self, column: str) -> float:
        return self.goal.cap if self.goal.objective.cap == column else np.inf

    def _value(self, one: FleetChoice) -> tuple[float, ...]:
        first = self.goal.objective.columns[0] == "time_s"
        return (one.time_s, one.usd) if first else (one.usd, one.time_s)

    def plan(self, counts: Counts, effort: float = PART) -> None:
        """Plan for so many GPUs, unless that cannot win; with more effort again."""
        if effort == PART and (counts in self.planned or not self.may_win(counts)):
            return
        places = [place for place, gpus in enumerate(counts) if gpus]
        if len(places) == 1:
            alone = self.planner.alone(places[0], counts[places[0]])
            found = [] if alone is None else [alone]
        else:
            self.planner.use(Effort(effort))
            found = self.planner.best(counts, every=False)
        found = [self._or_alone(each) for each in found]
        self.planned[counts] = [*self.planned.get(counts, ()), *(self._judged(counts, each) for each in found)]

    def _or_alone(self, each: Costed) -> Costed:
        """Of a plan that uses one pool what is first there."""
        if len(each.estimate.used) > 1:
            return each
        ((name, gpus),) = each.estimate.used.items()
        return self.planner.alone(self.fleet.names.index(name), gpus) or each

    def _judged(self, counts: Counts, each: Costed) -> FleetChoice:
        result = with_run(self.fleet, each.estimate, self.money)
        ends = [judged(self.fleet, each.estimate, self.money, upper=end) for end in (self.planner.upper, False)]
        return FleetChoice(counts, each, result, *ends[0], *ends[1])

    def next_to_best(self, whole: Counts) -> Iterator[Counts]:
        """Numbers of nodes next to those of the best plan, as long as a better one turns up."""
        for _ in range(MOST_PLANNED // 3):
            best = self.ranked()[:1]
            near = [] if not best else [counts for counts in self._near(best[0].counts, whole)
                                        if counts not in self.planned and self.may_win(counts)]  # fmt: skip
            if not near:
                return
            yield min(near, key=self.order)

    def _near(self, counts: Counts, whole: Counts) -> Iterator[Counts]:
        for place, pool in enumerate(self.fleet.cluster.pools):
            for change in (-pool.gpus_per_node, pool.gpus_per_node):
                gpus = counts[place] + change
                if 0 <= gpus <= whole[place]:
                    near = (*counts[:place], gpus, *counts[place + 1 :])
                    if any(near):
                        yield near

    def allowed(self) -> list[FleetChoice]:
        """Plans met, each strategy once."""
        return list({one.result.strategy: one for some in self.planned.values() for one in some}.values())

    def ranked(self) -> list[FleetChoice]:
        """Plans that the goal allows, best first; where none keeps its limits as judged, those expected to."""
        met = self.allowed()
        middle = [one._replace(time_s=one.middle_s, usd=one.middle_usd) for one in met]
        return self._ranked(met) or self._ranked(middle)

    def _ranked(self, met: Sequence[FleetChoice]) -> list[FleetChoice]:
        table = {name: np.array([getattr(one, name) for one in met]) for name in ("time_s", "usd")}
        if self.goal.objective.direction == "front":
            return [met[place] for place in front(table["time_s"], table["usd"])]
        table["usd_per_token"] = table["usd"]
        rows = self.goal.objective.rank(table, self.goal.cap)
        return [met[row] for row in rows if met[row].usd <= self.goal.most_usd and met[row].time_s <= self.goal.most_s]


def _product(gpus: int, usd_per_h: float) -> float:
    return gpus * usd_per_h


def _sizes(pool: Pool) -> list[int]:
    """GPUs of a pool to try: none, and whole nodes by halves, every number of them where there are few."""
    nodes = max(pool.gpus // pool.node.gpus, 1)
    if nodes <= FINER:
        counts = set(range(nodes + 1))
    else:
        counts = {0, *(nodes >> shift for shift in range(nodes.bit_length())), 3 * nodes // 4}
    return sorted(count * pool.gpus_per_node for count in counts)


def _prices(fleet: Fleet, money: Money) -> Sequence[PriceTag]:
    """The price of each pool, without which no goal of money can be weighed."""
    found = []
    for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True):
        tag = tag_of(money, pool)
        if tag is None:
            fix = "Give --price GPU=USD, --prices FILE, or usd_per_gpu_h in the cluster file."
            raise InputError("price", None, want=f"a price of {name}", fix=fix)
        found.append(tag)
    return found


def nothing_allowed(goal: Goal, met: Sequence[FleetChoice]) -> NoFeasiblePlan:
    """What would be possible, where the goal allows nothing."""
    cheap, quick = min(met, key=lambda one: one.middle_usd), min(met, key=lambda one: one.middle_s)
    return NoFeasiblePlan(
        f"No plan met keeps the limits of {goal.objective.sentence}. The cheapest costs "
        f"{show_dollars(cheap.middle_usd)} and takes {show_seconds(cheap.middle_s)}; the fastest takes "
        f"{show_seconds(quick.middle_s)} and costs {show_dollars(quick.middle_usd)}."
    )


def plan_goal(world: World) -> MixedPlanSet:
    """The best plans by a goal, over how many nodes of each pool to use; of a front all of them."""
    started, wanted, goal = time.perf_counter(), world.request, world.goal
    fleet, left_out = fleet_in(world)
    able(fleet.job, several=True)
    exact = wanted.counts == "exact"
    limits = Limits(fleet.job, world.restrictions, world.rules)
    planner = Planner(in_order(fleet), exact=exact, limits=limits, upper=world.upper)
    now = None if wanted.baseline is None else estimate_fleet(world, wanted.baseline)
    found = choose(planner, goal, world.money, exact=exact)
    if not found.choices:
        raise nothing_allowed(goal, found.met) if found.met else nothing_fits(planner)
    starts = STARTED_BY.get(fleet.job.runtime.exports_to, "Megatron-LM")
    launched = [one for one in found.choices if starts in one.result.runs_on]
    shown = launched if wanted.launchable and launched else found.choices
    shown = shown if goal.objective.direction == "front" else shown[: wanted.top]
    if wanted.strict and shown[0].result.provenance_worst == "assumed":
        raise NoCoverage(no_coverage(shown[0].result))
    plans = [_plan(rank, one, shown[0]) for rank, one in enumerate(shown, start=1)]
    seconds = time.perf_counter() - started
    return MixedPlanSet(
        version=astra.__version__,
        fingerprint={"version": astra.__version__, "catalog": catalog_hash()},
        request=record(world, fleet) | goal.record(),
        asked=world.resolved.plain("plan"),
        plans=plans,
        search=Search(
            considered=found.considered, evaluated=found.planned, feasible=len(found.met), seconds=seconds,
            strategies_per_s=found.considered / seconds,
        ),
        rejects=_rejects(found),
        notes=[f"runtime {fleet.job.runtime.title}", *_notes(world.goal, fleet, found), *world.notes],
        objective=goal.objective.name,
        baseline=None if now is None else against(plans[0].estimate, now),
        alone=[],
        without=[],
        marginal=[],
        launchable=_plan(1, launched[0], shown[0]) if launched else None,
        conceivable=_plan(1, found.choices[0], shown[0]),
        left_out=left_out,
    )  # fmt: skip


def _plan(rank: int, one: FleetChoice, best: FleetChoice) -> Plan:
    return Plan(rank=rank, strategy=one.result.strategy, estimate=one.result, lost_by=lost_by(best.result, one.result))


def _rejects(found: GoalSearch) -> list[Reject]:
    sentence = "numbers of nodes proven worse by a lower bound"
    count = found.considered - found.planned - found.open
    return [Reject(reason="bound", sentence=sentence, strategies=count)] if count > 0 else []


def _notes(goal: Goal, fleet: Fleet, found: GoalSearch) -> list[str]:
    """Which nodes the first plan uses, and what was not looked at."""
    used = found.choices[0].result.used
    parts = [f"{used.get(name, 0)} of {pool.gpus} GPUs of {name}"
             for name, pool in zip(fleet.names, fleet.cluster.pools, strict=True)]  # fmt: skip
    notes = [f"{goal.objective.sentence}: {', '.join(parts)}"]
    if found.open:
        notes.append(f"{found.open} of {found.considered} numbers of nodes could be better and were not planned")
    return notes
