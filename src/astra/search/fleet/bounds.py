"""Lower bounds of the pipeline time of many frames at once, [frame] columns.

For a bottleneck T a stage of a choice holds at most floor(T / layer time) layers; the frame's stages over its pools
must hold all layers. The least such T, without memory, transfers and embedding, bounds the longest stage from below.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from astra.columns import take
from astra.provenance import Floats, Ints

_ROUNDS: Final = 14
_QUICK: Final = 9  # rounds of bounds that only give an order
_CLOSER: Final = 64  # frames bounded closely at a time
LONG: Final = 1e30  # seconds of what is not possible
_LOOSE: Final = 1 - 1e-9  # bounds must not pass the true value by rounding
_BLOCK: Final = 4096


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


class _Pool(NamedTuple):
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


def _table(frames: Frames, in_flight: Ints, place: Ints, rates: Rates, gpus: int, depth: int) -> _Pool:
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
    return _Pool(seconds, rate, rates.head_s[at], stages, lost, units, rates.lightest == 1)


def _held(bottleneck: Floats, frames: Frames, tables: list[_Pool]) -> Floats:
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
