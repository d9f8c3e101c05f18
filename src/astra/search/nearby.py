"""Numbers that do not divide: a batch or a number of GPUs near the one asked for that runs, or runs better.

Replicas share a batch evenly, so that 24 GPUs and 512 samples leave few ways to deal them, where 480 leave many. These
are remarks beside the answer: a few numbers near those asked for are screened, by lower bounds and by a search for
anything that beats the answer by enough to be told; the best of them is planned. All of it shares an effort of its own,
so that it never delays the answer for long; whoever asks for numbers that divide pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import gcd, inf
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from astra.answer import Estimate, Nearby
from astra.columns import Columns
from astra.errors import NoFeasiblePlan
from astra.partition.problem import Effort
from astra.provenance import Bools, Ints
from astra.search.counts import CountSpace, CountTable, least_by_count, search_counts, tabulate
from astra.search.words import settled
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.strategy import parse_strategy
from astra.units import show_seconds

WORTH_TELLING: Final = 0.03  # of the GPU-seconds a token takes
MOST_EFFORT: Final = 8_000.0  # of all remarks on one answer, less than a second
NEAR_BATCH: Final = 1 / 8  # how far a batch may be from the one asked for,
NEAR_GPUS: Final = 1 / 20  # and how many of the GPUs may be left idle
_WIDEST: Final = 1 << 15  # numbers looked at on either side
_FEW: Final = 3  # numbers of each kind that are looked at
# Units of effort: of a table of bounds and of each of its grids, of a search and of each strategy it costs.
_TABLE_UNITS, _GRID_UNITS, _SEARCH_UNITS, _STRATEGY_UNITS = 300.0, 0.05, 300.0, 0.04
_PLAN: Final = 2.0  # what planning numbers takes, over what screening them took

Ask = Callable[[World], Estimate]  # the first plan of a request; NoFeasiblePlan where there is none


class Other(NamedTuple):
    """Numbers to ask for instead."""

    gpus: int
    batch: int


class _Screened(NamedTuple):
    """Numbers that something runs better with, if nobody doubts it."""

    per_token_s: float
    other: Other
    units: float  # of effort that it took to know


def remarks(world: World, best: Estimate | None, ask: Ask) -> list[Nearby]:
    """Another batch, and another number of GPUs, that save some of what a token takes; ``best`` is what was found."""
    asked = _asked(world)
    if best is not None and _divide(asked, best):
        return []
    effort = Effort(MOST_EFFORT)
    before_s = inf if best is None else _per_token_s(asked, best.step_s)
    found = [_best(world, before_s, others, ask, effort) for others in (batches(asked), counts(asked, _node(world)))]
    return [remark for remark in found if remark is not None]


def _divide(asked: Other, best: Estimate) -> bool:
    """Whether only as many replicas as GPUs have no even share, and the best plan is far from as many."""
    return 2 * gcd(*asked) >= asked.gpus and 4 * parse_strategy(best.strategy).dp <= asked.gpus


def advice(world: World, ask: Ask) -> str:
    """What near numbers could be run, where those asked for can be dealt in no way at all; else nothing."""
    asked = _asked(world)
    space = CountSpace(_job(world, asked), np.array([asked.gpus]), world.restrictions)
    fixed = min(len(space.flash_settings), len(space.shardings), len(space.recomputes)) == 0  # whatever the numbers are
    return "" if fixed or len(space.strategies) else " ".join(near.sentence for near in remarks(world, None, ask))


def batches(asked: Other) -> list[Other]:
    """Batches near the one asked for, those that leave most ways to deal them first.

    What counts is the divisor they share with the GPUs, or with the odd part of them, which no other degree takes; then
    how often the rest is even (micro-batches of several samples), then how near they are.
    """
    reach = min(int(asked.batch * NEAR_BATCH), _WIDEST)
    near = np.arange(max(asked.batch - reach, 1), asked.batch + reach + 1)
    shared, odd = np.gcd(near, asked.gpus), asked.gpus // (asked.gpus & -asked.gpus)
    more = (shared > gcd(*asked)) | (np.gcd(near, odd) > gcd(asked.batch, odd))
    near, shared = near[more], shared[more]
    rest = near // shared
    even = np.gcd(rest, 8)
    order = np.lexsort((np.abs(near - asked.batch), -even, -shared))
    return [Other(asked.gpus, int(batch)) for batch in near[order][:_FEW]]


def counts(asked: Other, node_gpus: int) -> list[Other]:
    """Numbers of whole nodes just below the one asked for, those that share most with the batch first."""
    least = max(asked.gpus - min(int(asked.gpus * NEAR_GPUS), _WIDEST * node_gpus), node_gpus)
    near: Ints = np.arange(-(-least // node_gpus) * node_gpus, asked.gpus, node_gpus)
    shared = np.gcd(near, asked.batch)
    near, shared = near[shared > gcd(*asked)], shared[shared > gcd(*asked)]
    order = np.lexsort((-near, -shared))
    return [Other(int(gpus), asked.batch) for gpus in near[order][:_FEW]]


def _best(world: World, before_s: float, others: list[Other], ask: Ask, effort: Effort) -> Nearby | None:
    """The best of some numbers where it is worth telling, or the nearest of those that are as good to a percent.

    Where the numbers asked for cannot be run, it is the nearest batch that can.
    """
    asked, limit_s = _asked(world), (1 - WORTH_TELLING) * before_s
    screened = _screened(world, limit_s, others, effort)
    if not screened:
        return None
    nearest = before_s == inf and others[0].gpus == asked.gpus
    enough_s = inf if nearest else 1.01 * min(each.per_token_s for each in screened)
    good_enough = [each for each in screened if each.per_token_s <= enough_s]
    for each in sorted(good_enough, key=lambda each: sum(abs(a - b) for a, b in zip(each.other, asked, strict=True))):
        if _PLAN * each.units <= effort.left:
            effort.spend(_PLAN * each.units)
            try:
                found = ask(_world(world, each.other))
            except NoFeasiblePlan:
                continue
            per_token_s = _per_token_s(each.other, found.step_s)
            if per_token_s <= limit_s:
                return _remark(asked, each.other, found, None if before_s == inf else before_s / per_token_s - 1)
    return None


def _screened(world: World, limit_s: float, others: list[Other], effort: Effort) -> list[_Screened]:
    """Numbers with a strategy that takes less than so much a token; those with the lowest bounds first."""
    tables = []
    for other in others:
        if not effort.over:
            before = effort.spent
            table = _table(world, other, effort)
            bound_s = _per_token_s(other, float(least_by_count(table, table.bound_s)[0]))
            tables += [(bound_s, other, table, effort.spent - before)] if bound_s < limit_s else []
    found = []
    for _, other, table, units in sorted(tables, key=lambda each: each[0]):
        if not effort.over:
            step_s = limit_s * other.batch / other.gpus
            by_count = search_counts(_job(world, other), table, partial(np.full_like, fill_value=step_s))
            search_units = _SEARCH_UNITS + _STRATEGY_UNITS * by_count.evaluated
            effort.spend(search_units)
            if by_count.strategies[0] is not None:
                found.append(_Screened(_per_token_s(other, float(by_count.step_s[0])), other, units + search_units))
    return found


def _table(world: World, other: Other, effort: Effort) -> CountTable:
    """Bounds of every strategy for other numbers; for another batch, of those that the one asked for does not allow."""
    asked = _asked(world)

    def newly_dealt(columns: Columns) -> Bools:
        share, rest = np.divmod(asked.batch, columns["dp"])
        # Or micro-batches of several samples do not divide it, or rounds of a pipeline of several chunks.
        return np.asarray((rest != 0) | (share % 4 != 0) | (share % columns["pp"] != 0))

    job = _job(world, other)
    hopeful = newly_dealt if other.gpus == asked.gpus else None
    space = CountSpace(job, np.array([other.gpus]), world.restrictions, hopeful)
    effort.spend(_TABLE_UNITS + _GRID_UNITS * len(space.strategies))
    return tabulate(job, space)


def _asked(world: World) -> Other:
    return Other(world.job.pool.gpus, world.workload.global_batch)


def _node(world: World) -> int:
    """GPUs are taken away by whole nodes."""
    return min(world.job.pool.node.gpus, world.job.pool.gpus)


def _world(world: World, other: Other) -> World:
    """The request with other numbers."""
    pool = replace(world.cluster.pools[0], gpus=other.gpus)
    cluster = replace(world.cluster, pools=(pool,))
    return world._replace(cluster=cluster, workload=replace(world.workload, global_batch=other.batch))


def _job(world: World, other: Other) -> Job:
    """The work with other numbers, as it is searched."""
    return settled(_world(world, other).job, world.restrictions)


def _per_token_s(other: Other, step_s: float) -> float:
    """GPU-seconds for each sample, which are those of a token but for the length of a sample."""
    return other.gpus * step_s / other.batch


def _remark(asked: Other, other: Other, estimate: Estimate, gain: float | None) -> Nearby:
    figures = f"{show_seconds(estimate.step_s)} a step, {estimate.tokens_per_s:,.0f} tokens/s with {estimate.strategy}"
    if other.gpus == asked.gpus:
        what = f"batch {other.batch:,} instead of {asked.batch:,}"
        better = "can be trained" if gain is None else f"trains {gain:.0%} more tokens per second"
    else:
        what = f"{other.gpus:,} of the {asked.gpus:,} GPUs"
        better = "can train it" if gain is None else f"train {gain:.0%} more tokens per GPU-second"
    sentence = f"{what.capitalize() if what[0].isalpha() else what} {better}: {figures}."
    return Nearby(
        batch=other.batch,
        gpus=other.gpus,
        strategy=estimate.strategy,
        step_s=estimate.step_s,
        tokens_per_s=estimate.tokens_per_s,
        gain=gain,
        sentence=sentence,
    )
