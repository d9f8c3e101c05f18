"""Plans whose groups share one copy of the state: work by what each GPU can do, state by what it has room for.

All replicas are one GPU and come to every layer together, so that their micro-batches are as many and of unlike sizes.
Sizes and recompute are chosen by the pools' rates; the state is dealt evenly where that fits, and else each GPU holds
as much as the others up to what it has room for. That is the least largest part, which is what collectives wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import combinations
from math import floor, gcd
from typing import Any, Final, NamedTuple

import numpy as np

from astra.cost import mixed as cost
from astra.cost.memory import room_bytes
from astra.cost.mixed import GATHERS, gathered_bytes, shared_sync, state_bytes
from astra.cost.stage import trained_parameters
from astra.cost.state import WORKSPACE_BYTES, Held
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats, Ints
from astra.search.fleet.frames import MOST_TOKENS, Counts, again_s
from astra.search.fleet.pools import Fleet, Limits
from astra.search.fleet.records import MixedEstimate
from astra.spec.job import Job
from astra.spec.mixed import WHOLE, Group, MixedStrategy, plain_group
from astra.spec.strategy import Strategy, parse_strategy
from astra.units import GIB

MOST_POOLS: Final = 3  # that share a state
RECOMPUTES: Final = ("none", "full")  # by their codes
MOST_SAMPLES: Final = 32  # of a micro-batch
SLOWED: Final = 0.05  # of what runs beside something else, about
LOOKED_AT: Final = 400  # ways to deal the batch whose room is looked at
TRIED: Final = 6  # ways to deal the batch that are estimated in full,
KEPT: Final = 2  # until so many of them fit
ROUNDS: Final = 5  # of dealing the state: what is gathered grows with the largest part
LEAST: Final = 0.2  # of the state that grows with a part, in memory
STATE: Final = ("weights", "gradients", "optimizer")  # kinds of memory that are sharded

Estimated = Callable[[MixedStrategy], MixedEstimate]


class _Options(NamedTuple):
    """What a GPU of a pool can do at a time, as columns."""

    mbs: Ints
    full: Ints  # 1: every layer is computed again
    forward_s: Floats  # of one micro-batch
    backward_s: Floats
    free_bytes: Floats  # beside its activations, at most


class _Exchange(NamedTuple):
    """Collectives of one micro-batch with even parts of the state, as long as unequal ones take at least."""

    gather_s: float  # in forward and again in backward
    reduce_s: float

    @property
    def total_s(self) -> float:
        """All of them."""
        return GATHERS * self.gather_s + self.reduce_s

    def hidden(self, forward_s: Any, backward_s: Any, padding: float = 1.0) -> Any:
        """Seconds of a micro-batch that hides as much of them as it can; what is hidden slows it a little."""
        both = (forward_s, padding * self.gather_s), (backward_s, padding * (self.gather_s + self.reduce_s))
        return sum(np.maximum(*pair) + SLOWED * np.minimum(*pair) for pair in both)


def sharing_state(
    fleet: Fleet, limits: Limits, counts: Counts, estimated: Estimated, *, every: bool, below_s: float
) -> list[MixedStrategy]:
    """The best strategies found whose steps could end in time and that fit, with all GPUs of two or three pools."""
    if not _possible(fleet, limits):
        return []
    options = cache(partial(_options, fleet, limits))
    used = [pool for pool, gpus in enumerate(counts) if gpus]
    if not all(len(options(pool).mbs) for pool in used):
        return []  # the micro-batches that are allowed are larger than any looked at
    dealt = [
        one
        for size in range(2, MOST_POOLS + 1)
        for some in combinations(used, size)
        if (size == len(used) or not every) and (exchange := _exchange(fleet, counts, some)).total_s < below_s
        for one in _dealt(fleet, counts, {pool: options(pool) for pool in some}, exchange, below_s)
    ]
    found, room_gib = list[MixedStrategy](), rooms_gib(fleet)
    for _, groups in sorted(dealt, key=lambda one: one[0])[:TRIED]:
        fitting = with_room(groups, estimated, room_gib) if _allowed(limits, groups) else None
        found += [fitting] if fitting is not None else []
        if len(found) == KEPT:
            break
    return found


def _possible(fleet: Fleet, limits: Limits) -> bool:
    """Whether the runtime shards weights, and restrictions and the model leave it."""
    allowed = limits.allows("zero", 3) and limits.allows("tp", 1) and limits.allows("pp", 1)
    allowed = allowed and any(limits.allows("recompute", kind) for kind in RECOMPUTES)
    plain = fleet.job.model.moe is None and fleet.job.workload.task == "pretrain"
    return plain and allowed and not limits.restrictions.equal_replicas and 3 in fleet.job.runtime.can.zero


def _allowed(limits: Limits, groups: Sequence[Group]) -> bool:
    """Whether restrictions leave every word of the groups' strategies."""
    plain = [group.plain for group in groups if group.plain is not None]
    fields = [name for name in Strategy.__struct_fields__ if name != "layers"]
    return all(limits.allows(name, getattr(one, name)) for one in plain for name in fields)


def _options(fleet: Fleet, limits: Limits, pool: int) -> _Options:
    """Sizes of micro-batches with and without recompute."""
    job = fleet.jobs[pool]
    most = max(min(MOST_SAMPLES, MOST_TOKENS // job.workload.seq, job.workload.global_batch), 1)
    mbs = np.array(limits.filter("mbs", range(1, most + 1)), np.int64)
    ones, count = np.ones_like(mbs), len(kinds(job.model))
    columns = cost.pool_columns(job, cost.Shards(ones, ones, ones, mbs))
    room = room_bytes(job) - columns.working - columns.ends_bytes - WORKSPACE_BYTES
    found = []
    for code, (name, kept) in enumerate(zip(RECOMPUTES, (columns.whole, columns.checkpoint), strict=True)):
        if limits.allows("recompute", name):
            seconds = (columns.forward_s, columns.work_s - columns.forward_s + again_s(columns, name))
            layers = (cost.from_the_end(job, each[:, :count])[:, -1] for each in (*seconds, kept))
            forward_s, backward_s, kept_bytes = layers
            ends_s = [each[:, count:].sum(axis=1) for each in (columns.forward_s, columns.work_s - columns.forward_s)]
            free = room - kept_bytes - code * columns.layer_whole
            found.append(_Options(mbs, np.full_like(mbs, code), forward_s + ends_s[0], backward_s + ends_s[1], free))
    return _Options(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _dealt(
    fleet: Fleet, counts: Counts, options: Mapping[int, _Options], exchange: _Exchange, below_s: float
) -> Iterator[tuple[float, tuple[Group, ...]]]:
    """The quickest ways to deal the batch to replicas in equally many micro-batches that may have room, and their time.

    The time is about that of the collectives and the slowest pool's work, with the least parts of the state that fit.
    """
    pools, batch = list(options), fleet.job.workload.global_batch
    replicas = [counts[pool] for pool in pools]
    rates = [counts[pool] * float((one.mbs / (one.forward_s + one.backward_s)).max()) for pool, one in options.items()]
    if batch / sum(rates) >= below_s:
        return
    sizes = (count * options[pool].mbs for pool, count in zip(pools, replicas, strict=True))
    samples = sum(np.ix_(*sizes), np.zeros((), np.int64))
    choices = np.argwhere(batch % samples == 0)
    samples = samples[tuple(choices.T)]

    def column(name: str) -> Any:
        return np.stack([getattr(options[pool], name)[choices[:, place]] for place, pool in enumerate(pools)])

    free, forward_s, backward_s = (column(name) for name in ("free_bytes", "forward_s", "backward_s"))
    least_s = batch / samples * exchange.hidden(forward_s, backward_s).max(axis=0)
    chosen = np.flatnonzero((free.min(axis=0) >= 0) & (least_s / (1 + SLOWED) < below_s))
    found = []
    for row in chosen[np.argsort(least_s[chosen], kind="stable")][:LOOKED_AT]:
        padding = _padding(fleet.job, free[:, row], replicas)
        if padding is not None:
            each_s = exchange.hidden(forward_s[:, row], backward_s[:, row], padding).max()
            found.append((float(batch // samples[row] * each_s), int(row)))
    for seconds, row in sorted(found)[:TRIED]:
        options_taken, m = zip(pools, choices[row], strict=True), int(batch // samples[row])
        yield (
            seconds,
            tuple(
                _group(fleet, pool, counts[pool], int(options[pool].mbs[at]), m, full=bool(options[pool].full[at]))
                for pool, at in options_taken
            ),
        )


def _padding(job: Job, free_bytes: Floats, replicas: Sequence[int]) -> float | None:
    """How much longer than even ones the least parts are that may fit; None if the state has no room."""
    padding, whole, gathered = 1.0, state_bytes(job), gathered_bytes(job)
    for _ in range(ROUNDS):
        level = water_level([max(free - padding * gathered, 0.0) / whole for free in free_bytes.tolist()], replicas)
        if level is None:
            return None
        if level * sum(replicas) <= padding * (1 + 1e-6):
            break
        padding = level * sum(replicas)
    return padding


def _exchange(fleet: Fleet, counts: Counts, pools: Sequence[int]) -> _Exchange:
    """Of all replicas of some pools."""
    jobs, none = [fleet.jobs[pool] for pool in pools], np.zeros((1, 1))
    every = np.full((1, 1), trained_parameters(fleet.job))
    way = cost.slowest_between(fleet.cluster, pools)
    replicas = sum(counts[pool] for pool in pools)
    moved = shared_sync(jobs, Held(every, none, every, none, none), 1, replicas, way, 1.0)
    return _Exchange(float(moved.all_gather_s.max()), float(moved.reduce_scatter_s.max()))


def _group(fleet: Fleet, pool: int, dp: int, mbs: int, microbatches: int, *, full: bool) -> Group:
    """Replicas of one GPU each."""
    name, depth = fleet.names[pool], len(layer_kinds(fleet.job.model))
    text = f"dp{dp} mbs{mbs} zero3 reshard=always recompute={'full' if full else 'none'} layers={depth}"
    return plain_group(name, parse_strategy(text, usual=partial(fleet.usual, name)), microbatches)


def rooms_gib(fleet: Fleet) -> dict[str, float]:
    """By pool, what may be allocated on a GPU."""
    return {name: room_bytes(job) / GIB for name, job in zip(fleet.names, fleet.jobs, strict=True)}


def with_room(groups: tuple[Group, ...], estimated: Estimated, room_gib: Mapping[str, float]) -> MixedStrategy | None:
    """The groups with shares of the state that fit: even ones, or the least uneven; None if there are none."""
    replicas = [group.dp for group in groups]
    parts = [1 / sum(replicas)] * len(groups)
    tried: list[tuple[tuple[float, ...], MixedEstimate]] = []
    for _ in range(ROUNDS):
        strategy = MixedStrategy(groups=groups, shares=_whole(parts, replicas))
        result = estimated(strategy)
        if result.fits or not result.legal:
            return strategy if result.legal else None
        tried.append((strategy.held, result))
        most = [_most(tried, place, room_gib[group.segments[0].pool]) for place, group in enumerate(groups)]
        level = water_level(most, replicas)
        if level is None:
            return None
        parts = [min(level, limit) for limit in most]
    return None


def _most(tried: Sequence[tuple[tuple[float, ...], MixedEstimate]], group: int, room_gib: float) -> float:
    """The largest part of the state that a replica of a group has room for, as far as what it held so far tells."""
    held, result = tried[-1]
    states_gib = [sum(stage.memory.get(kind, 0.0) for kind in STATE) for stage in result.stages]
    whole_gib = max(gib / part for gib, part in zip(states_gib, held, strict=True) if part > 0)
    part, stage = held[group], result.stages[group]
    if len(tried) > 1:  # gradients that come and go with the state, and what is gathered, are known by now
        before, other = tried[-2][0][group], tried[-2][1].stages[group]
        apart_gib = stage.peak_allocated_gib - other.peak_allocated_gib
        seen_gib = apart_gib / (part - before) if part != before else 0.0
        whole_gib = seen_gib if seen_gib > LEAST * whole_gib else whole_gib
    return max(part + (room_gib - stage.peak_allocated_gib) / whole_gib, 0.0)


def water_level(most: Sequence[float], replicas: Sequence[int]) -> float | None:
    """The least largest part with which parts up to ``most`` add up to one; None if they are too small together."""
    if sum(limit * count for limit, count in zip(most, replicas, strict=True)) < 1:
        return None
    left, open_to = 1.0, sum(replicas)
    for limit, count in sorted(zip(most, replicas, strict=True)):
        if limit * open_to >= left:
            break
        left, open_to = left - limit * count, open_to - count
    return left / open_to


def _whole(parts: Sequence[float], replicas: Sequence[int]) -> tuple[int, ...]:
    """Shares of groups as whole numbers: exact where they are even, else rounded down but for the largest part."""
    if len(set(parts)) == 1:
        return tuple(count // gcd(*replicas) for count in replicas)
    shares = [floor(WHOLE * part * count) for part, count in zip(parts, replicas, strict=True)]
    largest = parts.index(max(parts))
    shares[largest] += WHOLE - sum(shares)
    return tuple(shares)
