"""What is known of frames before any is solved: seconds that no pipeline of theirs can beat, and what follows it.

Bounds are made of the rates of pools. What follows a pipeline (gradients, optimizer, weights) is tabulated for every
stage there can be.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from astra.columns import distinct, take
from astra.cost import mixed as cost
from astra.cost.between import Sync, replicas, sync, with_other_groups
from astra.cost.state import Held, Holding, optimizer_s
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats, Ints
from astra.spec.job import Job
from astra.spec.model import ModelSpec

_ROUNDS: Final = 14
_QUICK: Final = 9  # rounds of bounds that only give an order
_CLOSER: Final = 64  # frames bounded closely at a time
LONG: Final = 1e30  # seconds of what is not possible
_LOOSE: Final = 1 - 1e-9  # bounds must not pass the true value by rounding
_BLOCK: Final = 4096
_OFF, _ONE = np.array(0), np.array(1)

Tables = dict[int, Floats]  # by sharding


class Frames(NamedTuple):
    """What all stages of a group share, as columns."""

    dp: Ints
    mbs: Ints
    cp: Ints
    vp: Ints
    stages: Ints  # 0: any number
    microbatches: Floats
    setting: Ints  # the tp and ep that all stages must have, as a place in the table; -1: any
    recompute: Ints  # that all stages must have, as a code; -1: any

    def take(self, rows: Ints) -> Frames:
        """Some of them."""
        return take(self, rows)

    @property
    def rows(self) -> int:
        """How many there are; a tuple's own length is that of its fields."""
        return len(self.dp)


class Rates(NamedTuple):
    """What one pool's ways to hold layers cost, [mbs and cp, way]; a way is a (tp, ep) without and with recompute.

    Where layers differ they are weighed, and figures are the least of any layer per weight.
    """

    layer_s: Floats  # cheapest layer; very long where not legal
    head_s: Floats
    stay_bytes: Floats  # of a layer, whatever the replicas
    shared_bytes: Floats  # of a layer, spread over the replicas
    kept_bytes: Floats  # of a layer and micro-batch in flight
    room_bytes: Floats  # for layers
    tp: Ints  # [way]
    setting: Ints  # [way] place of its (tp, ep)
    recompute: Ints  # [way] code
    lightest: float  # layer, where an average one weighs 1; exactly 1 where all are alike


def best_first(
    frames: Frames, place: Ints, pools: list[Rates], counts: tuple[int, ...], depth: int, below: float = np.inf
) -> Iterator[tuple[float, int]]:
    """Frames by seconds no pipeline of theirs can beat, shortest first, as far as ``below``.

    ``place`` is that of a frame's (mbs, cp). A quick bound orders them, a closer one is worked out where it matters.
    """
    free = frames._replace(stages=np.zeros_like(frames.stages))
    quick = bounds(free, frames.stages, place, pools, counts, depth, rounds=_QUICK)
    order = np.argsort(quick, kind="stable")
    order = order[quick[order] < below]
    heap: list[tuple[float, int]] = []
    done = 0
    while heap or done < len(order):
        if done < len(order) and (not heap or quick[order[done]] <= heap[0][0]):
            rows = order[done : done + _CLOSER]
            done += len(rows)
            closer = bounds(frames.take(rows), frames.stages[rows], place[rows], pools, counts, depth)
            for row, seconds in zip(rows.tolist(), np.maximum(closer, quick[rows]).tolist(), strict=True):
                if seconds < below:
                    heapq.heappush(heap, (seconds, row))
            continue
        yield heapq.heappop(heap)


def bounds(
    frames: Frames,
    in_flight: Ints,
    place: Ints,
    pools: list[Rates],
    counts: tuple[int, ...],
    depth: int,
    rounds: int = _ROUNDS,
) -> Floats:
    """Seconds no pipeline of each frame can beat; infinite where none exists. More rounds come closer."""
    out = np.full(frames.rows, np.inf)
    for start in range(0, frames.rows, _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, frames.rows))
        out[rows] = _block(frames.take(rows), in_flight[rows], place[rows], pools, counts, depth, rounds)
    return out


class _PoolRates(NamedTuple):
    layer_s: Floats  # [frame, way]
    rate: Floats  # layers of every chunk in a second, rounded up
    head_s: Floats
    stages: Ints  # the most
    lost: Floats  # 0, or very many layers where there is no stage
    units: Floats  # the most on a stage, by memory at the end of the pipeline
    uniform_layers: bool

    def whole(self, units: Floats) -> Floats:
        """Whole layers, where they are alike."""
        return np.floor(units) if self.uniform_layers else units


def _block(
    frames: Frames, in_flight: Ints, place: Ints, pools: list[Rates], counts: tuple[int, ...], depth: int, rounds: int
) -> Floats:
    tables = [
        _table(frames, in_flight, place, rates, gpus, depth) for rates, gpus in zip(pools, counts, strict=True) if gpus
    ]
    tables = [table for table in tables if (table.stages > 0).any()]
    if not tables:
        return np.full(frames.rows, np.inf)
    rate = np.sum([np.max(table.stages / table.layer_s, axis=1) for table in tables], axis=0)
    fastest = np.min([np.where(table.stages > 0, table.layer_s, LONG).min(axis=1) for table in tables], axis=0)
    head = np.min([np.where(table.stages > 0, table.head_s, LONG).min(axis=1) for table in tables], axis=0)
    low = depth / np.maximum(rate, 1 / LONG) * _LOOSE
    high = np.maximum(16 * (depth * fastest + head), low)
    possible = (rate > 0) & (_held(high, frames, tables) >= depth)
    low, high = np.where(possible, low, 1.0), np.where(possible, high, 1.0)
    for _ in range(rounds):
        middle = np.sqrt(low * high)
        enough = _held(middle, frames, tables) >= depth
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    ramp = np.maximum(depth * fastest + head - low, 0.0) / frames.vp
    return np.where(possible, (ramp + frames.microbatches * low) * _LOOSE, np.inf)


def _table(frames: Frames, in_flight: Ints, place: Ints, rates: Rates, gpus: int, depth: int) -> _PoolRates:
    """The ways of a pool in each frame; where a frame leaves no choice, the one it asks for."""
    at: tuple[Ints, Ints | slice] = (place, slice(None))
    tp = rates.tp[None, :]
    if (frames.setting >= 0).all():
        uniform_layers = (frames.setting[:, None] == rates.setting) & (frames.recompute[:, None] == rates.recompute)
        way = uniform_layers.argmax(axis=1)[
            :, None
        ]  # every pair is among a pool's ways, if only as one that is not legal
        at, tp = (place[:, None], way), rates.tp[way]
    seconds = rates.layer_s[at]
    stages = gpus // ((frames.dp * frames.cp)[:, None] * tp)
    alive = np.minimum(((frames.vp - 1) * in_flight + 1) / frames.vp, frames.microbatches)[:, None]
    layer = rates.stay_bytes[at] + rates.shared_bytes[at] / frames.dp[:, None] + rates.kept_bytes[at] * alive
    units = rates.room_bytes[at] / np.maximum(layer, 1.0) / _LOOSE / frames.vp[:, None]
    units = np.floor(units) if rates.lightest == 1 else units
    stages = np.where(
        (seconds < LONG) & (units >= rates.lightest), np.minimum(stages, (depth // frames.vp)[:, None]), 0
    )
    rate, lost = 1 / (frames.vp[:, None] * seconds * _LOOSE), np.where(stages > 0, 0.0, LONG)
    units = np.where(stages > 0, np.maximum(units, 0.0), 0.0)
    return _PoolRates(seconds, rate, rates.head_s[at], stages, lost, units, rates.lightest == 1)


def _held(bottleneck: Floats, frames: Frames, tables: list[_PoolRates]) -> Floats:
    """The most layers a frame's stages hold under its bottleneck."""
    chunks, most = frames.vp, int(frames.stages.max(initial=0))
    free = np.zeros(frames.rows)
    lost = np.full(frames.rows, LONG)
    rooms: list[Floats] = []
    for table in tables:
        units = np.minimum(table.whole(bottleneck[:, None] * table.rate), table.units)
        below = np.minimum(table.whole((bottleneck[:, None] - table.head_s) * table.rate), table.units)
        lost = np.minimum(lost, (units - np.maximum(below, 0.0) + table.lost).min(axis=1))
        free += (table.stages * units).max(axis=1)
        if most:
            counts = np.minimum(table.stages[:, :, None], np.arange(most + 1))
            rooms.append((counts * units[:, :, None]).max(axis=1))
    held = np.where(frames.stages > 0, _joined(rooms, frames.stages), free) if most else free
    # The stage with the head has less room for layers, whichever it is.
    layers: Floats = np.maximum(held - np.where(lost < LONG, lost, 0.0), 0.0) * chunks
    return layers


def _joined(rooms: list[Floats], stages: Ints) -> Floats:
    """The most units that pools hold in a frame's stages, from what each holds in at most q of them, [frame, q]."""
    held, *others = rooms
    rows, most = np.arange(len(stages)), held.shape[1] - 1
    if not others:
        return np.asarray(held[rows, stages])
    for room in others[:-1]:
        wider = held.copy()
        for count in range(1, most + 1):
            np.maximum(wider[:, count:], held[:, : most + 1 - count] + room[:, count : count + 1], out=wider[:, count:])
        held = wider
    left = stages[:, None] - np.arange(most + 1)
    sums = np.where(left >= 0, held[rows[:, None], np.maximum(left, 0)] + others[-1], 0.0)
    return np.asarray(sums.max(axis=1))


class AfterSettings(NamedTuple):
    """What all pipelines share."""

    zero: int
    overlap_grad: bool
    overlap_param: bool


class _Shared(NamedTuple):
    """Of the shardings of one cp that differ in parameters and who shares them: [sharding, stage] columns."""

    place: dict[tuple[int, int], int]  # of a tp and ep
    update_s: Floats
    sync: Sync


class After:
    """The ends of all stages of each pool, as tables that are made once for each number of replicas.

    Where layers differ there are thousands of stages, so that tables hold one micro-batch and cp, and each unlike stage
    once.
    """

    def __init__(self, pools: list[tuple[Job, cost.PoolColumns]], settings: AfterSettings) -> None:
        self.pools, self.settings = pools, settings
        self._moved = lru_cache(maxsize=64)(self._make_moved)
        self._ends = lru_cache(maxsize=128)(self._make_ends)

    def tables(
        self,
        pool: int,
        dp: int,
        rows: Iterable[int],
        groups: int = 1,
        way: cost.Wire | None = None,
        in_all: int = 0,
    ) -> Tables:
        """By sharding: [first + 2 * last, stage] seconds; a stage is its layers, or its place where layers differ.

        With other groups of pipelines the gradients are also summed with those, over ``way``; ``in_all`` replicas of
        groups that cut the model alike reduce together.
        """
        job, columns = self.pools[pool]
        _, place = stages_of(job)
        out = {}
        for row in set(rows):
            at, ends_s = self._ends(
                pool, dp, int(columns.shards.mbs[row]), int(columns.shards.cp[row]), groups, way, in_all
            )
            own = ends_s[at[row]]
            out[row] = own if place is None else own[:, place]
        return out

    def _make_moved(self, pool: int, dp: int, cp: int, groups: int, way: cost.Wire | None, in_all: int) -> _Shared:
        """What does not depend on the micro-batch."""
        job, columns = self.pools[pool]
        rows = np.flatnonzero(columns.shards.cp == cp)
        rows = rows[distinct(columns.shards.tp[rows], columns.shards.ep[rows])[0]]
        some = take(columns.shards, rows)
        held = Held(*(self._of_stages(job, column[rows]) for column in columns.held))
        replicated = (dp * some.cp)[:, None]
        expert_ranks, expert_stride = (column[:, None] for column in some.expert_groups(dp))
        how = Holding(np.array(self.settings.zero), _OFF, replicated, expert_ranks)
        update_s, _ = optimizer_s(job, held, how)
        moved = sync(
            job, held, ranks=replicated, stride=some.tp[:, None], expert_ranks=expert_ranks,
            expert_stride=expert_stride,
        )  # fmt: skip
        place = {pair: at for at, pair in enumerate(zip(some.tp.tolist(), some.ep.tolist(), strict=True))}
        moved = with_other_groups(job, moved, held, replicated, expert_ranks, cost.other_groups(job, groups, way))
        if in_all and way is not None:
            moved = cost.with_like_groups(job, moved, held, some, in_all, way)
        return _Shared(place, update_s, moved)

    def _make_ends(
        self, pool: int, dp: int, mbs: int, cp: int, groups: int, way: cost.Wire | None, in_all: int
    ) -> tuple[dict[int, int], Floats]:
        """Where each sharding is, and [sharding, first + 2 * last, unlike stage] seconds."""
        job, columns = self.pools[pool]
        shards, (mixes, _) = columns.shards, stages_of(job)
        moved = self._moved(pool, dp, cp, groups, way, in_all)
        rows = np.flatnonzero((shards.mbs == mbs) & (shards.cp == cp))
        same = np.array([moved.place[int(shards.tp[row]), int(shards.ep[row])] for row in rows], np.int64)
        forward_s = self._of_stages(job, columns.forward_s[rows])
        between = replicas(
            job,
            take(moved.sync, same),
            how=Holding(np.array(self.settings.zero), _OFF, _ONE, _ONE),  # who shares them is in what is moved
            overlap_grad=np.array(self.settings.overlap_grad),
            overlap_param=np.array(self.settings.overlap_param),
            layers=np.tile(mixes.sum(axis=1), 4).astype(np.float64),
            microbatches=np.array(1),
            forward_s=forward_s,
            backward_s=self._of_stages(job, columns.work_s[rows]) - forward_s,
        )
        ends_s: Floats = (moved.update_s[same] + between.exposed_s).reshape(len(rows), 4, len(mixes))
        return {row: at for at, row in enumerate(rows.tolist())}, ends_s

    def _of_stages(self, job: Job, by_kind: Floats) -> Floats:
        """Columns of each kind of layer, embedding and head, summed over every stage there can be."""
        mixes, _ = stages_of(job)
        ends = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
        sums = np.concatenate((np.tile(mixes, (4, 1)), np.repeat(ends, len(mixes), axis=0)), axis=1).T  # [kind, stage]
        return np.asarray(by_kind[:, : mixes.shape[1] + 2] @ sums)


def _mixes(pattern: tuple[int, ...], stage_kinds: int) -> tuple[Ints, Ints | None]:
    depth = len(pattern)
    if stage_kinds == 1:
        return np.arange(depth + 1)[:, None], None
    steps = np.eye(stage_kinds, dtype=np.int64)[list(reversed(pattern))]
    sums = np.concatenate((np.zeros((1, stage_kinds), np.int64), np.cumsum(steps, axis=0)))
    gaps = np.maximum(sums[:, None] - sums[None], 0)  # [left at the front, at the back, kind]
    mixes, place = np.unique(gaps.reshape(-1, stage_kinds), axis=0, return_inverse=True)
    return mixes, place.reshape(depth + 1, depth + 1)


def stages_of(job: Job) -> tuple[Ints, Ints | None]:
    """[stage, kind] how many layers of each kind a stage can hold, and [front, back] which stage lies between."""
    return _stages(job.model)


@lru_cache(maxsize=16)
def _stages(model: ModelSpec) -> tuple[Ints, Ints | None]:
    order = {kind: place for place, kind in enumerate(kinds(model))}
    return _mixes(tuple(order[kind] for kind in layer_kinds(model)), len(order))
