"""Mixes of two GPU types: which could be on the front at all, and the best plan of each that could.

The space: two types of one vendor that a provider sells in one region, each in a power of two of its instances,
together at most the GPUs allowed, neither with less than a fifth of the peak FLOP/s of both.

A mix is passed over if it is dominated even at a speed it cannot reach. Letters: n GPUs of a type, W_k the seconds one
of them needs for all work of kind k in a step (layers of a kind, embedding, head) at its best sharding, T the step.
Each piece of work is done on one type or the other, so for any u, v > 0

    T (u n_A + v n_B) >= sum over k of min(u W_Ak, v W_Bk)

and the greatest such bound has u W_Ak = v W_Bk for some k.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from astra.answer import PriceTag
from astra.answer_money import MixSearch
from astra.cost import step
from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.mixed import PoolColumns
from astra.evidence.bars import least_factor
from astra.evidence.kinds import MIXED, kind_at
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.money.bill import Hired, startup_s
from astra.money.front import first_dominated
from astra.money.offers import Offer
from astra.partition.problem import Effort
from astra.provenance import Floats, Ints
from astra.search.bounds import products_s
from astra.search.fleet.plan import fleet_of
from astra.search.fleet.records import MixedEstimate
from astra.search.fleet.search import Planner
from astra.search.fleet.summary import STARTED
from astra.search.front import OfferPart, Refined, front_of, refined_of
from astra.search.least import attention_s
from astra.search.offers import JobOf, steps_of, waiting
from astra.spec.cluster import Cluster
from astra.spec.job import STRAGGLING, Job
from astra.spec.money import Money

Which = Literal["some", "all", "none"]
MOST_EFFORT: Final = 5_000.0  # of all mixes unless all are asked for, half a second or so; the rest stays open
COLUMNS_EFFORT: Final = 250.0  # effort of the columns of a GPU type
OPENED: Final = 4_000.0  # effort of a mix, whatever is searched in it
MOST_PLANNED: Final = 48  # mixes planned unless all are asked for; of models with experts none, which take much longer
LEAST_GAIN: Final = 0.9  # unless all are asked for: what two types must be likely to save, a tenth
LEAST_SHARE: Final = 0.2  # of the peak FLOP/s, of either type
# Simulated over closed-form time before the host's work was 0.994 to 1.44 in 147 mixes of three models.
BAND: Final = 0.02


class Mix(NamedTuple):
    """Two parts, and how good they could be."""

    parts: tuple[OfferPart, OfferPart]
    least_s: float  # no plan has a shorter step
    promise: float  # that over the longest step that is not dominated


class Mixed(NamedTuple):
    """The mixes that were planned, and an account of all."""

    refined: list[Refined]
    considered: int
    planned: int
    open: int
    cut: int = 0  # of those planned, as far as the work allowed for mixes went

    def record(self, on_front: int) -> MixSearch:
        """For the answer."""
        dominated = self.considered - self.planned - self.open
        return MixSearch(
            considered=self.considered, dominated=dominated, planned=self.planned, open=self.open, on_front=on_front
        )


def mix(
    offers: Sequence[Offer], job_of: JobOf, options: Money, singles: Sequence[Refined], most: int,
    which: Which = "some", *, upper: bool, most_s: float = np.inf,
) -> Mixed:  # fmt: skip
    """Every mix of the offers against the front of single types; ``most`` GPUs in all."""
    if which == "none" or not singles:
        return Mixed([], 0, 0, 0)
    table = _Bounds(job_of, options, front_of(singles), Effort() if which == "all" else Effort(MOST_EFFORT),
                   upper=upper, most_s=most_s, likely=which == "some")  # fmt: skip
    considered, found = 0, []
    may = np.inf if which == "all" else 0 if table.experts else MOST_PLANNED
    for pair in _pairs(offers):
        columns = _sizes(*pair, most, table.precision)
        considered += len(columns[0])
        found += table.possible(*pair, *columns, closely=may > 0)
    found.sort(key=lambda one: one.promise)
    refined, planned, cut = [], 0, 0
    for one in found:
        if planned >= may or table.effort.over or (which == "some" and one.promise > LEAST_GAIN):
            break
        made, whole = table.plan(one, started=which != "all")
        planned, cut = planned + 1, cut + (not whole)
        refined += [made] if made is not None and (which == "all" or _runs(made)) else []
    return Mixed(refined, considered, planned, len(found) - planned + table.unlikely, cut)


def _runs(made: Refined) -> bool:
    """Whether something that ``astra export`` writes starts a mix as it is."""
    return isinstance(made.estimate, MixedEstimate) and not STARTED.isdisjoint(made.estimate.runs_on)


def _pairs(offers: Sequence[Offer]) -> Iterator[tuple[Offer, Offer]]:
    """Two types of one vendor from one provider in one region; instances that are rented alone cannot be joined."""
    for first, second in combinations([offer for offer in offers if len(offer.counts) > 1], 2):
        one, other = first.tag, second.tag
        together = (one.provider, one.region, one.market) == (other.provider, other.region, other.market)
        if together and first.device.name != second.device.name and first.device.vendor == second.device.vendor:
            yield first, second


def _sizes(first: Offer, second: Offer, most: int, precision: str) -> tuple[Ints, Ints]:
    """GPUs of each."""
    powers = []
    for offer in (first, second):
        instances = offer.counts // offer.counts[0]
        powers.append(offer.counts[(instances & (instances - 1)) == 0])
    one, other = (column.ravel() for column in np.meshgrid(*powers, indexing="ij"))
    peaks = [offer.device.peak(precision) for offer in (first, second)]
    share = one * peaks[0] / (one * peaks[0] + other * peaks[1])
    kept = (one + other <= most) & (share >= LEAST_SHARE) & (share <= 1 - LEAST_SHARE)
    return one[kept], other[kept]


class _Bounds:
    """The front of single types and the lower bounds of mixes."""

    def __init__(
        self, job_of: JobOf, options: Money, best: Sequence[Refined], effort: Effort, *, upper: bool, most_s: float,
        likely: bool,
    ) -> None:  # fmt: skip
        self._job_of, self._options, self.effort = job_of, options, effort
        self._upper, self._most_s = upper, most_s
        self._singles, self._likely, self.unlikely = best, likely, 0  # mixes that were left open without a plan
        self._over: dict[Callable[[Offer], Floats], tuple[Floats, Floats]] = {}
        self._times = np.array([one.time_s for one in best])
        self._dollars = np.array([one.usd for one in best]) - options.egress_usd
        self._work: dict[tuple[str, str], Floats] = {}
        self._planners: dict[tuple[tuple[str, str], ...], Planner] = {}  # by GPU and node
        job = self._job(best[0].parts[0].offer)
        self.experts, self.precision = job.model.moe is not None, job.workload.precision

    def _job(self, offer: Offer) -> Job:
        return self._job_of(offer, int(offer.counts[-1]))

    def _planner(self, *offers: Offer) -> Planner:
        names = tuple((offer.device.name, offer.node.name) for offer in offers)
        if names not in self._planners:
            cluster = Cluster(pools=tuple(offer.pool for offer in offers))
            fleet, _ = fleet_of(cluster, self._job(offers[0]), exact=False)
            if len(offers) > 1:
                fleet = fleet._replace(columns=tuple(self._planner(offer).fleet.columns[0] for offer in offers))
            else:
                self.effort.spend(COLUMNS_EFFORT)
            self._planners[names] = Planner(fleet, exact=False)
        return self._planners[names]

    def limit_s(self, first: Offer, second: Offer, one: Ints, other: Ints) -> Floats:
        """The step from which something found is no slower and no dearer."""
        job, nodes = self._job(first), -(-one // first.node.gpus) - (-other // second.node.gpus)
        usd_per_h = one * first.tag.usd_per_gpu_h + other * second.tag.usd_per_gpu_h
        usd_per_s = usd_per_h / 3600 + self._options.storage_usd_per_s
        start_s = startup_s(self._options, first.tag, nodes)
        time_s = np.minimum(first_dominated(usd_per_s, self._times, self._dollars), self._most_s)
        time_s = time_s - self._options.idle_s - start_s
        slower = waiting(job, self._options, one + other, nodes, first.tag.market)
        limit: Floats = time_s / slower / steps_of(job)
        return limit

    def possible(self, first: Offer, second: Offer, one: Ints, other: Ints, *, closely: bool) -> list[Mix]:
        """Mixes of two offers that no bound rules out; the work at peak FLOP/s is tried before the work by parts.

        Where only likely ones are wanted, those that would not save enough if they came as near their bound as choices
        of one type do are counted and left open.
        """
        limit_s = self.limit_s(first, second, one, other)
        for work in (self._at_peak, self._by_device, self._by_parts)[: 3 if closely else 1]:
            least_s = self._bound_s(first, second, one, other, work)
            kept = least_s < limit_s
            if self._likely and kept.any():
                likely = least_s * self._over_bound(work, one + other) <= LEAST_GAIN * limit_s
                self.unlikely += int((kept & ~likely).sum())
                kept &= likely
            one, other, limit_s, least_s = one[kept], other[kept], limit_s[kept], least_s[kept]
            if not len(one):
                return []
        return [
            Mix((OfferPart(first, int(a)), OfferPart(second, int(b))), float(least), float(least / limit))
            for a, b, least, limit in zip(one, other, least_s, limit_s, strict=True)
        ]

    def _over_bound(self, work: Callable[[Offer], Floats], gpus: Ints) -> Floats:
        """What choices of one type take over such a bound: the least of those whose GPUs are nearest in number."""
        if work not in self._over:
            sizes, over = [], []
            for choice in self._singles:
                offer, count = choice.parts[0].offer, np.array([choice.gpus])
                bound_s = self._bound_s(offer, offer, count, 0 * count, work)[0]
                result = choice.estimate
                sizes.append(np.log2(choice.gpus))
                over.append((result.step_s_range.high if self._upper else result.step_s) / bound_s)
            self._over[work] = np.array(sizes), np.array(over)
        sizes_of, over_of = self._over[work]
        far = np.abs(np.log2(gpus)[:, None] - sizes_of)
        near = far <= far.min(axis=1, keepdims=True)
        return np.asarray(np.where(near, over_of, np.inf).min(axis=1))

    def _bound_s(
        self, first: Offer, second: Offer, one: Ints, other: Ints, work: Callable[[Offer], Floats]
    ) -> Floats:  # fmt: skip
        """No step of a mix is shorter, by what either type takes for the work."""
        least_s = self._least_s(first, second, one, other, work(first), work(second))
        return least_s if work == self._at_peak else least_s * self._doubt(first, second, one + other)

    def _least_s(self, first: Offer, second: Offer, one: Ints, other: Ints, here: Floats, there: Floats) -> Floats:
        """The bound of the module's docstring, with the host's work and the waiting for the slowest node."""
        job = self._job(first)
        ratios = (here / there)[:, None]
        shared = np.minimum(here, ratios * there).sum(axis=-1)
        busy_s = (shared[:, None] / (one + ratios * other)).max(axis=0)
        nodes = one / first.node.gpus + other / second.node.gpus
        return step.least_seconds(job, busy_s, 1 + STRAGGLING * np.log2(np.maximum(nodes, 1)))

    def _doubt(self, first: Offer, second: Offer, gpus: Ints) -> Floats:
        """The least that any plan of a mix is doubted, by its GPUs; 1 where expected steps are ranked by."""
        if not self._upper:
            return np.ones(len(gpus))
        kinds = [kind_at(self._job(offer), 0)._replace(network=MIXED) for offer in (first, second)]
        doublings, place = np.unique(np.round(np.log2(gpus)), return_inverse=True)
        least = [min(least_factor(kind._replace(gpus=float(size))) for kind in kinds) for size in doublings]
        return np.array(least)[place]

    def _at_peak(self, offer: Offer) -> Floats:
        job, one = self._job(offer), np.array([1])
        work_s = np.concatenate([products_s(job, one), attention_s(job, one)])
        return work_s[work_s > 0]

    def _by_device(self, offer: Offer) -> Floats:
        """As ``_by_parts``, of compute alone: the same for a GPU in every server with as many of them."""
        key = offer.device.name, str(offer.node.links[0].reach if offer.node.links else 1)
        if key not in self._work:
            job, columns = self._job(offer), self._planner(offer).fleet.columns[0]
            whole: list[LayerKind | str] = [*kinds(job.model), EMBEDDING, HEAD]
            parts, place = columns.gathered.parts, columns.gathered.place
            busy = [(parts[part].forward.compute_s + parts[part].backward.compute_s)[place] for part in whole]
            self._work[key] = self._least_work(job, columns, np.stack(busy, axis=1))
        return self._work[key]

    def _by_parts(self, offer: Offer) -> Floats:
        """[kind] seconds one GPU needs for a step's work, each kind with the sharding that is best for it."""
        key = offer.device.name, offer.node.name
        if key not in self._work:
            columns = self._planner(offer).fleet.columns[0]
            self._work[key] = self._least_work(self._job(offer), columns, columns.work_s)
        return self._work[key]

    def _least_work(self, job: Job, columns: PoolColumns, work_s: Floats) -> Floats:
        """[kind] GPU-seconds of a step, from [sharding, kind] seconds of a micro-batch."""
        tp, cp, _, mbs = columns.shards
        gpu_s = work_s * (tp * cp / mbs * job.workload.global_batch)[:, None]
        layers = [layer_kinds(job.model).count(kind) for kind in kinds(job.model)]
        return np.asarray(gpu_s.min(axis=0, initial=np.inf) * np.array([*layers, 1, 1]))

    def plan(self, one: Mix, *, started: bool) -> tuple[Refined | None, bool]:
        """The better of the best pipeline over both types and the best pair of groups, as simulated.

        ``started``: one that can be started comes before a quicker one.

        And whether the effort, of which no mix takes more than a third of what is left, was enough to look at all. The
        search may stop at the longest step that is not dominated, with the band between closed form and simulation.
        """
        planner = self._planner(*(part.offer for part in one.parts))
        planner.use(self.effort)
        with self.effort.part(1 / 3):
            made = self._best(one, planner)
        self.effort.spend(OPENED)
        made.sort(key=lambda each: (started and not _runs(each), each.time_s))
        return made[0] if made else None, not planner.left_open

    def _best(self, one: Mix, planner: Planner) -> list[Refined]:
        """The best plans found for a mix, one of each kind."""
        (first, a), (second, b) = one.parts
        job = self._job(first)
        limit_s = float(self.limit_s(first, second, np.array([a]), np.array([b]))[0])
        below = max(limit_s - job.runtime.host.step_s, 0.0) * (1 + BAND)
        candidates = [
            *planner.same_replicas((a, b), below=below)[:1],
            *planner.sharing((a, b), every=False, limit=below)[:1],
        ]
        costed = planner.cost(candidates, most=len(candidates))
        tag, machines = _mean_price(one.parts), Hired(a + b, a + b, sum(part.nodes for part in one.parts))
        return [
            refined_of(job, each.estimate, self._options, tag, one.parts, machines, upper=self._upper)
            for each in costed
        ]


def _mean_price(parts: Sequence[OfferPart]) -> PriceTag:
    """What a GPU-hour costs on average, with the sources of both prices."""
    tags = [part.offer.tag for part in parts]
    ages = [tag.age_days for tag in tags if tag.age_days is not None]
    return msgspec.structs.replace(
        tags[0],
        usd_per_gpu_h=sum(part.gpus * part.offer.tag.usd_per_gpu_h for part in parts) / sum(p.gpus for p in parts),
        instance=" + ".join(dict.fromkeys(tag.instance for tag in tags)),
        date=min((tag.date for tag in tags if tag.date is not None), default=None),
        source="; ".join(dict.fromkeys(tag.source for tag in tags)),
        age_days=max(ages, default=None),
        minimum_s=max(tag.minimum_s for tag in tags),
        step_s=max(tag.step_s for tag in tags),
    )
