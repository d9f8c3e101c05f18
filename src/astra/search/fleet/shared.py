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
from astra.cost.shares import GATHERS, shared_sync, state_bytes
from astra.cost.state import Held
from astra.cost.trained import trained_parameters
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats, Ints
from astra.search.fleet.frames import MOST_TOKENS, Counts, again_s
from astra.search.fleet.pools import Fleet, Limits
from astra.search.fleet.records import MixedEstimate
from astra.spec.mixed import Group, MixedStrategy, plain_group
from astra.spec.shares import WHOLE
from astra.spec.strategy import Strategy, parse_strategy

MOST_POOLS: Final = 3  # that share a state
MOST_SAMPLES: Final = 32  # of a micro-batch
TRIED: Final = 6  # ways to deal the batch that are estimated in full,
KEPT: Final = 2  # until so many of them fit
ROUNDS: Final = 5  # of dealing the state: what is gathered grows with the largest part
STATE: Final = ("weights", "gradients", "optimizer")  # kinds of memory that are sharded

Estimated = Callable[[MixedStrategy], MixedEstimate]


class _Options(NamedTuple):
    """What a GPU of a pool can do at a time, as columns."""

    mbs: Ints
    full: Ints  # 1: every layer is computed again
    seconds: Floats  # of one micro-batch
    kept_bytes: Floats  # of its activations, at least


def sharing_state(
    fleet: Fleet, limits: Limits, counts: Counts, estimated: Estimated, *, every: bool, below_s: float
) -> list[MixedStrategy]:
    """The best strategies found whose steps could end in time and that fit, with all GPUs of two or three pools."""
    if not _possible(fleet, limits):
        return []
    used = [pool for pool, gpus in enumerate(counts) if gpus]
    options = cache(partial(_options, fleet, limits))
    dealt = [
        one
        for size in range(2, MOST_POOLS + 1)
        for some in combinations(used, size)
        if (size == len(used) or not every) and (exchange_s := _exchange_s(fleet, counts, some)) < below_s
        for one in _dealt(fleet, counts, {pool: options(pool) for pool in some}, exchange_s, below_s)
    ]
    found: list[MixedStrategy] = []
    for _, groups in sorted(dealt, key=lambda one: one[0])[:TRIED]:
        fitting = with_room(groups, estimated) if _allowed(limits, groups) else None
        found += [fitting] if fitting is not None else []
        if len(found) == KEPT:
            break
    return found


def _possible(fleet: Fleet, limits: Limits) -> bool:
    """Whether the runtime shards weights, and restrictions and the model leave it."""
    allowed = limits.allows("zero", 3) and limits.allows("tp", 1) and limits.allows("pp", 1)
    plain = fleet.job.model.moe is None and fleet.job.workload.task == "pretrain"
    return plain and allowed and not limits.restrictions.alike and 3 in fleet.job.runtime.can.zero


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
    found = []
    for code, (name, kept) in enumerate((("none", columns.whole), ("full", columns.checkpoint))):
        if limits.allows("recompute", name):
            seconds = columns.work_s + again_s(columns, name)
            layers_s, layers_bytes = (cost.from_the_end(job, each[:, :count])[:, -1] for each in (seconds, kept))
            ends_s = columns.work_s[:, count:].sum(axis=1)
            found.append(_Options(mbs, np.full_like(mbs, code), layers_s + ends_s, layers_bytes + columns.working))
    return _Options(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _dealt(
    fleet: Fleet, counts: Counts, options: Mapping[int, _Options], exchange_s: float, below_s: float
) -> Iterator[tuple[float, tuple[Group, ...]]]:
    """The quickest ways to deal the batch to replicas in equally many micro-batches, by a bound on their time."""
    pools, batch = list(options), fleet.job.workload.global_batch
    rates = [counts[pool] * float((one.mbs / one.seconds).max()) for pool, one in options.items()]
    if batch / sum(rates) >= below_s:
        return
    choices = np.stack(np.meshgrid(*(np.arange(len(one.mbs)) for one in options.values()), indexing="ij"), axis=-1)
    choices = choices.reshape(-1, len(pools))

    def column(name: str) -> Any:
        return [getattr(options[pool], name)[choices[:, place]] for place, pool in enumerate(pools)]

    samples = sum(counts[pool] * mbs for pool, mbs in zip(pools, column("mbs"), strict=True))
    free = [room_bytes(fleet.jobs[pool]) - kept for pool, kept in zip(pools, column("kept_bytes"), strict=True)]
    together = sum(counts[pool] * room for pool, room in zip(pools, free, strict=True))
    fits = (np.min(free, axis=0) >= 0) & (together >= state_bytes(fleet.job))
    seconds = batch / samples * np.maximum(np.max(column("seconds"), axis=0), exchange_s)
    chosen = np.flatnonzero(fits & (batch % samples == 0) & (seconds < below_s))
    for row in chosen[np.argsort(seconds[chosen], kind="stable")][:TRIED]:
        told = [(pool, options[pool], choices[row, place]) for place, pool in enumerate(pools)]
        m = int(batch // samples[row])
        yield (
            float(seconds[row]),
            tuple(
                _group(fleet, pool, counts[pool], int(one.mbs[at]), m, full=bool(one.full[at]))
                for pool, one, at in told
            ),
        )


def _exchange_s(fleet: Fleet, counts: Counts, pools: Sequence[int]) -> float:
    """Seconds of the collectives of one micro-batch with even parts: no step is shorter, hidden or not."""
    jobs, none = [fleet.jobs[pool] for pool in pools], np.zeros((1, 1))
    every = np.full((1, 1), trained_parameters(fleet.job))
    way = cost.slowest_between(fleet.cluster, pools)
    replicas = sum(counts[pool] for pool in pools)
    moved = shared_sync(jobs, Held(every, none, every, none, none), 1, replicas, way, 1.0)
    return float((GATHERS * moved.all_gather_s + moved.reduce_scatter_s).max())


def _group(fleet: Fleet, pool: int, dp: int, mbs: int, microbatches: int, *, full: bool) -> Group:
    """Replicas of one GPU each."""
    name, depth = fleet.names[pool], len(layer_kinds(fleet.job.model))
    text = f"dp{dp} mbs{mbs} zero3 reshard=always recompute={'full' if full else 'none'} layers={depth}"
    return plain_group(name, parse_strategy(text, usual=partial(fleet.usual, name)), microbatches)


def with_room(groups: tuple[Group, ...], estimated: Estimated) -> MixedStrategy | None:
    """The groups with shares of the state that fit: even ones, or the least uneven; None if there are none."""
    replicas = [group.dp for group in groups]
    parts = [1 / sum(replicas)] * len(groups)
    for _ in range(ROUNDS):
        strategy = MixedStrategy(groups=groups, shares=_whole(parts, replicas))
        result = estimated(strategy)
        if result.fits or not result.legal:
            return strategy if result.legal else None
        most = _most(strategy, result)
        level = water_level(most, replicas)
        if level is None:
            return None
        parts = [min(level, limit) for limit in most]
    return None


def _most(strategy: MixedStrategy, result: MixedEstimate) -> list[float]:
    """The largest part of the state that a replica of each group has room for, as far as what it holds now tells."""
    held_gib = [sum(stage.memory.get(kind, 0.0) for kind in STATE) for stage in result.stages]
    whole_gib = max(gib / part for gib, part in zip(held_gib, strategy.held, strict=True) if part > 0)
    free_gib = [
        ((stage.own_limit_gib or 0.0) - stage.peak_reserved_gib) * stage.peak_allocated_gib / stage.peak_reserved_gib
        for stage in result.stages
    ]
    return [max(part + gib / whole_gib, 0.0) for part, gib in zip(strategy.held, free_gib, strict=True)]


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
