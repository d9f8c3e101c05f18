"""The groups a pool can make: what the planner for one GPU type finds for it, for shares of the batch.

Nothing here knows of time or memory: a strategy is searched, simulated and judged as everywhere on one pool. What is
new is that its batch is open: a pipeline's time is a line in its micro-batches, through two of its simulations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from functools import lru_cache, partial
from itertools import combinations
from math import ceil, floor, inf
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.columns import from_strategy
from astra.cost import memory, step
from astra.cost import mixed as cost
from astra.cost.between import Replicas, Sync, with_other_groups
from astra.cost.pipeline import of_one_shape_s, virtual_stages
from astra.cost.stage import Gathered, StageCosts
from astra.cost.step import exchanged, updated
from astra.partition.problem import Effort
from astra.provenance import Floats, Ints
from astra.rules.can import rules_of
from astra.rules.names import facts_of
from astra.rules.restrictions import Restrictions
from astra.rules.table import violations
from astra.search.attempts import Attempt, attempts, roomiest
from astra.search.bounds import Grids, time_together
from astra.search.detail import Row, as_row, columns_of, layers_of, legality, stages_of
from astra.search.engine import Candidate, among
from astra.search.fleet.dealing import BatchShare, OpenGroup
from astra.search.fleet.detail import replicas_of, without_even
from astra.search.fleet.pools import Fleet, Limits, part_of
from astra.search.ranked import Judged, Lone, ranked
from astra.search.space import Space
from astra.search.splits import polished
from astra.search.words import said, settled
from astra.spec.job import Job, Words
from astra.spec.mixed import plain_group
from astra.spec.strategy import Strategy, replace

KEEP: Final = 5  # strategies of a share, each with other tp, pp or ep; as many as ``astra plan`` takes by default
WITHIN: Final = 1.06  # of the best of them: a slower one may share the batch more evenly
OPENED: Final = 6_000  # grids whose search takes as long as opening one
COARSE: Final = 4  # parts of a share that is met roughly
FINE: Final = 32  # parts of the batch, at least, in which shares add up to it
LARGER: Final = 2  # times the micro-batch of a group that is known
MOST_ODD: Final = 16  # an odd part of the micro-batch above it is not looked for
MOST_TWOS: Final = 10  # factors of two of pipelines times micro-batch that are told apart


class Asked(NamedTuple):
    """What a pool is asked for."""

    pool: int
    gpus: int
    share: int  # of the batch
    wire: cost.Wire | None = None  # to another group; none where the share is all


class Found(NamedTuple):
    """What a search on some GPUs of a pool found for a share of the batch."""

    job: Job
    candidates: list[Candidate]


class Menus:
    """What each pool of a fleet can do by itself with a share of the batch."""

    effort: Effort  # of the search that asks

    def __init__(self, fleet: Fleet, limits: Limits, local: int = 1, *, upper: bool = False) -> None:
        self.fleet, self.limits, self.local = fleet, limits, local
        self.upper = upper  # whether a pool alone is judged by the upper end of its step's interval
        self.batch = fleet.job.workload.global_batch
        self.wires = self._wires()
        self._groups: dict[tuple[int, int], dict[str, OpenGroup]] = {}  # by pool and GPUs, then by strategy
        self._found: dict[Asked, Found | None] = {}
        self._whole: dict[Asked, Lone] = {}
        self._grids: dict[Asked, Grids] = {}  # of what will be looked for
        self._spaces: dict[tuple[int, int, Words], Space] = {}  # the last of some GPUs of a pool
        self.spent = 0  # grids of strategies that were searched

    def over(self, fleet: Fleet, local: int) -> Menus:
        """The same groups with other lines between the pools, and so many local steps."""
        other = copy(self)
        other.fleet, other.local = fleet, local
        other.wires = other._wires()
        # Groups that are known stay so; which share is worth a look depends on the line, but for the whole batch.
        other._groups = {key: dict(groups) for key, groups in self._groups.items()}
        other._grids = {}
        other._found = {asked: found for asked, found in self._found.items() if asked.share == self.batch}
        return other

    def between(self, pools: Sequence[int]) -> cost.Wire | None:
        """The slowest wire between some pools; groups that meet seldom have as many times the width."""
        found = cost.slowest_between(self.fleet.cluster, pools)
        return None if found is None else found.every(self.local)

    def _wires(self) -> tuple[cost.Wire, ...]:
        """The slowest and the quickest wire that groups may meet over."""
        found = [wire for pair in combinations(range(len(self.fleet.jobs)), 2) if (wire := self.between(pair))]
        ranked = sorted(found, key=lambda wire: (wire.total_bytes_per_s, wire.bytes_per_s))
        return tuple(dict.fromkeys((*ranked[:1], *ranked[-1:])))

    def known(self, pool: int, gpus: int) -> list[OpenGroup]:
        """The groups on some GPUs of a pool that were found for any share."""
        return list(self._groups.get((pool, gpus), {}).values())

    @property
    def groups(self) -> int:
        """How many were found."""
        return sum(map(len, self._groups.values()))

    def sizes(self, pool: int, most: int) -> list[int]:
        """Numbers of GPUs of a pool that something was looked for on."""
        return sorted({gpus for place, gpus in self._groups if place == pool and gpus <= most}, reverse=True)

    def met(self, asked: Asked) -> bool:
        """Whether groups were looked for."""
        return asked in self._found

    def fresh(self, pool: int, gpus: int, shares: Ints, wire: cost.Wire | None, wanted: Iterable[Asked]) -> Floats:
        """How much new each of some shares may bring: rounds of micro-batches that divide it and no like share before.

        A strategy's pipelines times its micro-batch divide its share. Those that divide a share already asked for or
        wanted, of about as many micro-batches, are met there. Small ones count most.
        """
        known = [one for one in (*self._found, *wanted) if one[:2] == (pool, gpus) and one.wire in (None, wire)]
        asked = np.array([one.share for one in known], np.int64)
        new, own, twos, asked_twos = np.zeros(len(shares)), odd_part(gpus), _twos(shares), _twos(asked)
        for odd in sorted({odd * part for odd in range(1, MOST_ODD, 2) for part in (1, own)}):
            some, before = np.flatnonzero(shares % odd == 0), np.flatnonzero(asked % odd == 0)
            one, other = shares[some, None], asked[before]
            like = (one < 2 * other) & (other < 2 * one)
            known = np.where(like, asked_twos[before], 0).max(axis=1, initial=0)
            new[some] += np.maximum(twos[some] - known, 0) / odd
        return new

    def prepare(self, wanted: Sequence[Asked], most: float) -> None:
        """Time together what will be looked for, of which ``most`` grids may be searched."""
        by_table: dict[int, list[Grids]] = {}
        for asked in wanted:
            if most > 0 and not self.met(asked):
                job, limits, *_ = self._attempts(asked)[0]
                grids = self._grids[asked] = self._grids_of(job, limits, asked.pool)
                by_table.setdefault(id(grids.table), []).append(grids)
                most -= OPENED + len(grids.space.strategies)
        for several in by_table.values():
            time_together(several)

    def look(self, asked: Asked) -> Found | None:
        """Find the best groups on some GPUs of a pool for a share of the batch; None if nothing fits."""
        pool, _, share, wire = asked
        if asked not in self._found:
            here = self._groups.setdefault(asked[:2], {})
            best_s = min((self.step_s(part, share, wire) for part in here.values()), default=inf)
            # Those that are known do it in whole rounds.
            whole_s = min((self.step_s(part, share, wire, whole=True) for part in here.values()), default=inf)
            found = self._found[asked] = self._search(asked, max(WITHIN * best_s, whole_s))
            if found is not None:
                new = [each.strategy for each in found.candidates if str(each.strategy) not in here]
                opened = open_groups(self.fleet, pool, found.job, new, self.limits)
                here |= {str(strategy): group for strategy, group in zip(new, opened, strict=True)}
        return self._found[asked]

    def step_s(self, part: OpenGroup, share: float, wire: cost.Wire | None, *, whole: bool = False) -> float:
        """A group with a share of the batch beside another, in ``whole`` micro-batches or parts of one."""
        line, host_s = part.share, self.fleet.job.runtime.host.step_s
        end_s = part.end_s(1 if wire is None else 2, wire)
        units = ceil(share / line.samples) if whole else share / line.samples
        return line.fixed_s + line.unit_s * units + end_s + host_s

    def _job(self, asked: Asked) -> Job:
        """Some GPUs of a pool with a share of the batch."""
        whole = with_batch(part_of(self.fleet.jobs[asked.pool], asked.gpus), asked.share)
        others = cost.other_groups(whole, 1 if asked.wire is None else 2, asked.wire)
        whole = msgspec.structs.replace(whole, settled=None, repeats=None, other_groups=others)
        return settled(whole, self.limits.restrictions)

    def _grids_of(self, job: Job, restrictions: Restrictions, pool: int) -> Grids:
        """The grids of a job; its pipelines are those of any share that its GPUs were looked at for."""
        same = (pool, job.pool.gpus, job.words) if restrictions is self.limits.restrictions else None
        table, like = self.fleet.tables[pool].of(job), None if same is None else self._spaces.get(same)
        grids = Grids(job, restrictions, self.limits.user_rules, table, like)
        if same is not None:
            self._spaces[same] = grids.space
        return grids

    def whole(self, pool: int, gpus: int) -> Lone:
        """What some GPUs of a pool do by themselves."""
        asked = Asked(pool, gpus, self.batch)
        if asked not in self._whole:
            known = self._grids.pop(asked, None)
            judged = Judged(self.limits.restrictions, self.limits.user_rules, self.upper)

            def grids_of(attempt: Attempt) -> Grids:
                same = known is not None and known.job == attempt.job
                grids = known if known is not None and same else self._grids_of(attempt.job, attempt.restrictions, pool)
                self.spent += OPENED + len(grids.space.strategies)
                return grids

            late = partial(getattr, self.effort, "late")
            best = ranked(self._job(asked), judged, 1, advise=False, grids_of=grids_of, late=late)
            self._whole[asked] = best.alone(WITHIN)
        return self._whole[asked]

    def _search(self, asked: Asked, below_s: float) -> Found | None:
        """What the planner for one GPU type puts first."""
        if asked.share == self.batch and asked.wire is None:
            best = self.whole(asked.pool, asked.gpus)
            return Found(best.job, best.near) if best.near else None
        grids = self._grids.pop(asked, None)
        for attempt in self._attempts(asked):
            some = grids or self._grids_of(attempt.job, attempt.restrictions, asked.pool)
            found = among(some, keep=KEEP, within=WITHIN, below_s=below_s)
            self.spent += OPENED + len(some.space.strategies)
            if found.candidates or below_s < inf:
                return Found(attempt.job, found.candidates)
            grids = None
        return None

    def _attempts(self, asked: Asked) -> list[Attempt]:
        restrictions = self.limits.restrictions
        return attempts(roomiest(self._job(asked), restrictions, self.limits.user_rules), restrictions)

    def imitated(self, pool: int, gpus: int, group: OpenGroup, share: float) -> list[OpenGroup]:
        """Groups of a pool that cut the model as one of another pool does: those that are legal and fit.

        With as many pipelines as there are GPUs and samples for, and with a number of them that more shares divide by.
        """
        plain = group.group(group.round).plain
        assert plain is not None
        shape = without_even(plain)
        each, most = shape.tp * shape.cp * shape.pp, gpus // (shape.tp * shape.cp * shape.pp)
        found, node = [], self.fleet.cluster.pools[pool].node.gpus
        most = min(most, int(share) // (shape.mbs * group.round))
        for dp in {most, 1 << most.bit_length() - 1} if most else ():
            samples = dp * shape.mbs * group.round
            samples *= round(share / samples)
            if not self.limits.allows("dp", dp) or (dp * each > node and dp * each % node):
                continue
            job = msgspec.structs.replace(self.fleet.jobs[pool], settled=None, repeats=None)
            job = settled(with_batch(part_of(job, dp * each), samples), self.limits.restrictions)
            strategy = replace(shape, dp=dp, **said(job, shape.ep))
            if not legality(job, strategy, self.limits.user_rules):
                lines = _lines(self.fleet, pool, job, [strategy])
                found += [_opened(self.fleet, pool, line, self.limits) for line in lines if line.fits]
        return found

    def resize(self, pool: int, gpus: int, group: OpenGroup, most: float) -> None:
        """Know a group with every size of micro-batch, up to so many times its own, that it has room for."""
        here, plain, rules = self._groups[pool, gpus], group.group(group.round).plain, self.limits.user_rules
        assert plain is not None
        shape, largest = without_even(plain), max(int(plain.mbs * min(most, LARGER)), 1)
        sizes = self.limits.filter("mbs", range(1, largest + 1))
        wanted = [one for mbs in sizes if str(one := replace(shape, mbs=mbs)) not in here]
        job = msgspec.structs.replace(self.fleet.jobs[pool], settled=None, repeats=None)
        job = settled(with_batch(part_of(job, gpus), shape.dp * largest), self.limits.restrictions)
        lines = [line for line in _lines(self.fleet, pool, job, wanted)
                 if line.fits and not legality(with_batch(job, line.samples), line.strategy, rules)]  # fmt: skip
        here |= {str(line.strategy): _opened(self.fleet, pool, line, self.limits) for line in lines}

    def near(self, gpus: int, wanted: float) -> list[int]:
        """Shares around one by rate that many numbers of pipelines divide; the same for whatever lies between them."""
        size = odd_part(gpus)
        while 2 * size * COARSE <= wanted:
            size *= 2
        found = {floor(wanted / size) * size, ceil(wanted / size) * size}
        return sorted(share for share in found if 0 < share <= self.batch)


def _twos(numbers: Ints) -> Ints:
    """One more than how often two divides each number, as far as it matters."""
    return np.asarray(np.minimum(np.log2(numbers & -numbers).astype(np.int64), MOST_TWOS) + 1)


def odd_part(number: int) -> int:
    """A number without its factors of two."""
    return number // (number & -number)


def exact_shares(wanted: Sequence[float], batch: int) -> list[int]:
    """Lone shares near some by rate that add up to the batch, in parts of it that many numbers divide."""
    size = odd_part(batch)
    while 2 * size * FINE <= batch:
        size *= 2
    parts = [max(floor(share / size), 1) for share in wanted]
    order = sorted(range(len(wanted)), key=lambda place: parts[place] - wanted[place] / size)
    left = batch // size - sum(parts)
    for place in (order * (left // len(order) + 1))[: max(left, 0)]:
        parts[place] += 1
    return [part * size for part in parts]


def with_batch(job: Job, samples: int) -> Job:
    """The same job with another batch."""
    return msgspec.structs.replace(job, workload=msgspec.structs.replace(job.workload, global_batch=samples))


def open_groups(fleet: Fleet, pool: int, job: Job, strategies: Sequence[Strategy], limits: Limits) -> list[OpenGroup]:
    """Strategies on one pool as groups whose share is open."""
    return [_opened(fleet, pool, line, limits) for line in _lines(fleet, pool, job, strategies)]


def _lines(fleet: Fleet, pool: int, job: Job, strategies: Sequence[Strategy]) -> list[_OpenStrategy]:
    """Strategies on one pool, each of the job itself, or of one that says something else where it does."""
    said = [job.saying(strategy) for strategy in strategies]
    found: dict[int, _OpenStrategy] = {}
    for words in {id(one): one for one in said}.values():
        places = [place for place, one in enumerate(said) if one is words]
        rows = [as_row(words, strategies[place]) for place in places]
        parts = fleet.tables[pool].of(words).rows(words, columns_of(rows))
        each = zip(places, rows, stages_of(words, rows, parts), strict=True)
        found |= {place: _OpenStrategy(words, row, parts.take(np.array([at])), costs)
                  for at, (place, row, costs) in enumerate(each)}  # fmt: skip
    return [found[place] for place in range(len(strategies))]


def _opened(fleet: Fleet, pool: int, line: _OpenStrategy, limits: Limits) -> OpenGroup:
    """A group of a line."""
    strategy, name = line.strategy, fleet.names[pool]
    split = replace(strategy, layers=layers_of(line.job, strategy))

    def better(microbatches: int) -> OpenGroup | None:
        job = with_batch(line.job, microbatches * strategy.dp * strategy.mbs)
        step_s = float(step.seconds(job, line.pipeline_s(microbatches), line.own_end_s))
        best, _ = polished(job, strategy, step_s, limits.user_rules, fleet.tables[pool].of(job).timed)
        return None if best == strategy else open_groups(fleet, pool, job, [best], limits)[0]

    return OpenGroup(1 << pool, line.round, line.share(), line.end_s, lambda m: plain_group(name, split, m), better)


class _OpenStrategy:
    """The pipeline and the end of one strategy, for any number of micro-batches and any other groups."""

    def __init__(self, job: Job, row: Row, parts: Gathered, costs: StageCosts) -> None:
        self.job, self.row, self.strategy, self.costs, self._totals_s = job, row, row.strategy, costs, parts.totals_s
        self._how = memory.holding(job, costs, row.shardings)
        self._update = updated(job, costs, self._how)
        own = self._exchanged(costs.sync)
        self.own_end_s = float(step.after_s(self._update, own).max())
        self.stages = virtual_stages(job, row.meshes, parts, row.recomputes, own.per_microbatch_s[0]).stages
        self.microbatches = job.workload.global_batch // self.samples
        self.round = self._round()
        self.end_s = lru_cache(maxsize=64)(self._end_s)

    @property
    def samples(self) -> int:
        """Of one micro-batch of every pipeline."""
        return self.strategy.dp * self.strategy.mbs

    @property
    def fits(self) -> bool:
        """Whether there is room for it with its job's batch."""
        static = memory.states(self.job, self.costs, self.row.shardings)
        held, _ = step.peaks(self.job, self.row.meshes, self.costs, self.row.recomputes, static)
        return bool(memory.fits(self.job, held).all())

    def _round(self) -> int:
        """Micro-batches that may be added and leave the strategy legal."""
        m, samples, strategy, job = self.microbatches, self.samples, self.strategy, self.job
        facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
        columns, rules = from_strategy(strategy), [one for one in rules_of(job.runtime) if "microbatches" in one.needs]
        for some in (1, strategy.pp, 2 * strategy.pp):
            if m % some == 0 and not violations(columns, facts | {"batch": (m + some) * samples}, rules=rules):
                return some
        return m

    def pipeline_s(self, microbatches: int) -> float:
        """Simulated."""
        job = with_batch(self.job, microbatches * self.samples)
        return float(of_one_shape_s(job, self.row.meshes, self.stages, self._totals_s)[0])

    def share(self) -> BatchShare:
        """Seconds by rounds, a line through the share that the strategy was found for and the next one."""
        m, samples = self.microbatches, self.samples * self.round
        here_s = self.pipeline_s(m)
        unit_s = self.pipeline_s(m + self.round) - here_s
        return BatchShare(samples, max(here_s - unit_s * (m // self.round), 0.0), unit_s)

    def _end_s(self, groups: int, way: cost.Wire | None, in_all: int = 0) -> float:
        """What follows beside others; ``in_all``: replicas of groups that cut alike, which reduce together."""
        strategy, held = self.strategy, self.costs.held
        others = cost.other_groups(self.job, groups, way)
        moved = with_other_groups(self.job, self.costs.sync, held, *replicas_of(strategy), others)
        if in_all and way is not None:
            shards = cost.Shards(*(np.array([n]) for n in (strategy.tp, strategy.cp, strategy.ep, strategy.mbs)))
            moved = cost.with_like_groups(self.job, moved, held, shards, in_all, way)
        return float(step.after_s(self._update, self._exchanged(moved)).max())

    def _exchanged(self, moved: Sync) -> Replicas:
        """What its replicas exchange."""
        return exchanged(self.job, self.row.meshes, self.costs._replace(sync=moved), self._how)
