"""The one simulator: when each slot of each rank starts and ends, for stages of any size.

A slot starts when its rank is free and its input has arrived, so the times solve a max-plus recursion; slots are
visited as they become ready. Sends: not blocking, the receiver waits ``send_s`` longer and ranks go on; blocking, the
sender stands still for ``send_s`` after the slot, which is also when the receiver gets its input. In the steady state
of 1F1B that is the exchange of Megatron-LM, in which a rank sends forward and receives backward in one call.
The slots of many pipelines of one shape become ready in the same waves, whatever they take: those run side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from astra.errors import InputError
from astra.provenance import Floats, Ints
from astra.schedule.base import BACKWARD, FORWARD, WEIGHT, Schedule
from astra.schedule.registry import find


class StageSeconds(NamedTuple):
    """Seconds of one micro-batch by virtual stage k (see ``Schedule.place``)."""

    forward_s: Floats
    backward_s: Floats  # everything but weight_s
    weight_s: Floats
    send_s: Floats  # from k to k+1, and back: one entry fewer


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A simulated step. Arrays ``[rank, slot]`` hold each rank's slots in the order they run."""

    schedule: str
    p: int
    v: int
    m: int
    total_s: float
    busy_s: Floats  # by rank: compute
    sending_s: Floats  # by rank: standing still for a send (blocking only)
    idle_s: Floats  # by rank: the rest of total_s
    kind: Ints  # index into KINDS
    microbatch: Ints
    chunk: Ints
    stage: Ints  # the virtual stage
    start_s: Floats
    end_s: Floats  # of the compute; a blocking send follows it
    freed_s: Floats  # end of that send


def simulate(
    schedule: str | Schedule,
    *,
    p: int,
    v: int,
    m: int,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    weight_s: npt.ArrayLike = 0.0,
    send_s: npt.ArrayLike = 0.0,
    blocking_p2p: bool = False,
) -> Timeline:
    """Run one step. Times are per micro-batch and virtual stage (p*v of them, or one for all).

    ``weight_s`` counts as part of the backward unless the schedule splits it. ``send_s`` has one entry per hop
    (p*v - 1, a last entry is ignored).
    """
    plan = find(schedule)
    plan.check(p, v, m)
    stages = as_stages(plan, p, v, forward_s, backward_s, weight_s, send_s)
    orders = plan.orders(p, v, m)
    one = StageSeconds(*(times[None] for times in stages))
    compute_s, sending_s, latency_s = (
        times.reshape(orders.shape[:2]) for times in slot_times(orders, one, plan.splits_backward, blocking_p2p)
    )
    way = walk(inputs(orders, m=m))
    freed_s = run(way, (compute_s + sending_s).ravel(), latency_s.ravel()).reshape(orders.shape[:2])
    total_s = float(freed_s.max())
    busy_s, stood_s = compute_s.sum(axis=1), sending_s.sum(axis=1)
    end_s = freed_s - sending_s
    return Timeline(
        schedule=plan.name,
        p=p,
        v=v,
        m=m,
        total_s=total_s,
        busy_s=busy_s,
        sending_s=stood_s,
        idle_s=np.maximum(total_s - busy_s - stood_s, 0.0),
        kind=orders[:, :, 0],
        microbatch=orders[:, :, 1],
        chunk=orders[:, :, 2],
        stage=orders[:, :, 3],
        start_s=end_s - compute_s,
        end_s=end_s,
        freed_s=freed_s,
    )


def alive(order: Ints, weight_by_chunk: Floats) -> Floats:
    """Weight of the activations alive during each slot of one rank: from the start of F to the end of B, or of W."""
    kind, weight = order[:, 0], weight_by_chunk[order[:, 2]]
    ends = kind == (WEIGHT if (kind == WEIGHT).any() else BACKWARD)
    after = np.cumsum(np.where(kind == FORWARD, weight, 0.0) - np.where(ends, weight, 0.0))
    return after + np.where(ends, weight, 0.0)


@lru_cache(maxsize=4096)
def most_alive(schedule: str, p: int, v: int, m: int, layers: tuple[int, ...]) -> Floats:
    """By rank: micro-batches through all of its chunks that are alive at the worst moment, chunks weighed by layers.

    Equal chunks weigh their count; others are walked.
    """
    plan = find(schedule)
    counts = plan.in_flight(np.asarray(p), np.asarray(v), np.asarray(m), np.arange(p))
    alive_by_rank = np.broadcast_to(counts, p) / v
    weights = np.array(layers, np.float64)[plan.place(p, v)]
    for rank in np.flatnonzero((weights != weights[0]).any(axis=0)).tolist():
        chunk, change = _changes(schedule, p, v, m, rank)
        weight = weights[:, rank]
        alive_by_rank[rank] = (weight[chunk] * change).cumsum().max() / weight.sum()
    return alive_by_rank


def enough_microbatches(schedule: str, p: int, m: int) -> int:
    """As many as the most that is alive depends on: where an order repeats, no more than fill and drain a pipeline."""
    period = find(schedule).period(p, m)
    return min(m, -(-3 * p // period) * period) if period else m


@lru_cache(maxsize=4096)
def _changes(schedule: str, p: int, v: int, m: int, rank: int) -> tuple[Ints, Ints]:
    """The chunk of each slot of a rank, and whether the slot begins (1), keeps (0) or ends (-1) its activations."""
    plan = find(schedule)
    kind, _, chunk = plan.order(p, v, m, rank).T
    ends = WEIGHT if plan.splits_backward else BACKWARD
    return chunk, (kind == FORWARD).astype(np.int64) - (kind == ends)


def as_stages(
    plan: Schedule,
    p: int,
    v: int,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    weight_s: npt.ArrayLike,
    send_s: npt.ArrayLike,
) -> StageSeconds:
    """Times of every virtual stage; chunks of one rank hand over without a send."""
    count = p * v
    given = np.asarray(send_s, dtype=np.float64)
    hops = per_stage(count - 1, given[:-1] if given.shape == (count,) else given, "send_s")
    return StageSeconds(
        per_stage(count, forward_s, "forward_s"),
        per_stage(count, backward_s, "backward_s"),
        per_stage(count, weight_s, "weight_s"),
        hops * plan.hops(p, v),
    )


def per_stage(count: int, values: npt.ArrayLike, where: str) -> Floats:
    """One number per stage, finite and not negative; a scalar stands for all."""
    column = np.asarray(values, dtype=np.float64)
    if column.ndim == 0:
        column = np.full(count, float(column))
    if column.shape != (count,):
        raise InputError(where, column.shape, want=f"{count} numbers, one per virtual stage")
    if not np.all(np.isfinite(column) & (column >= 0)):
        raise InputError(where, column[~(np.isfinite(column) & (column >= 0))][0], want="finite times of 0 or more")
    return column


def slot_times(orders: Ints, stages: StageSeconds, split: bool, blocking: bool) -> tuple[Floats, Floats, Floats]:
    """Compute, blocking send and wait for the input of every slot, [flat place of the slot, row].

    ``stages`` are of several pipelines, [row, virtual stage].
    """
    kind, stage = orders[:, :, 0].ravel(), orders[:, :, 3].ravel()
    forward_s, backward_s, weight_s, send_s = (times.T for times in stages)
    backward_s = backward_s if split else backward_s + weight_s
    compute_s = np.stack((forward_s, backward_s, weight_s))[kind, stage]
    end = np.zeros((1, forward_s.shape[1]))
    up_s, down_s = np.concatenate((send_s, end)), np.concatenate((end, send_s))  # to k+1; to k-1
    nothing, none = np.zeros_like(up_s), np.zeros_like(compute_s)
    if blocking:
        return compute_s, np.stack((up_s, down_s, nothing))[kind, stage], none
    return compute_s, none, np.stack((down_s, up_s, nothing))[kind, stage]


def inputs(orders: Ints, *, m: int) -> Ints:
    """For every slot, the flat index ``rank * slots + position`` of the slot it waits for; past the end if none."""
    ranks, count = orders.shape[:2]
    kind, microbatch, stage = orders[:, :, 0], orders[:, :, 1], orders[:, :, 3]
    stages = int(stage.max()) + 1
    nobody = ranks * count
    at = np.full((3, stages, m), -1, dtype=np.int64)
    at[kind, stage, microbatch] = np.arange(nobody).reshape(ranks, count)
    above = np.minimum(stage + 1, stages - 1)
    last = stage == stages - 1
    from_forward = np.where(stage == 0, nobody, at[FORWARD, np.maximum(stage - 1, 0), microbatch])
    from_backward = np.where(last, at[FORWARD, stage, microbatch], at[BACKWARD, above, microbatch])
    from_own = at[BACKWARD, stage, microbatch]
    source: Ints = np.where(kind == FORWARD, from_forward, np.where(kind == BACKWARD, from_backward, from_own))
    if source.min() < 0:
        raise RuntimeError("the schedule lacks a slot that another one waits for")
    return source


class Walk(NamedTuple):
    """Slots in an order in which each comes after those it waits for; numbers count from 1, and 0 is nobody."""

    places: Ints  # flat places of the slots, in that order
    source: list[int]  # the number of the slot waited for
    before: list[int]  # that of the slot before on the same rank


def walk(source_of: Ints) -> Walk:
    """A rank goes on until its next input is missing and is woken when that is made; whatever the slots take."""
    ranks, count = source_of.shape
    nobody, source = ranks * count, source_of.ravel().tolist()
    done = [False] * nobody
    done.append(True)  # the input of slots that wait for nobody
    sleeper = [-1] * (nobody + 1)
    position = [rank * count for rank in range(ranks)]
    ready, order = list(range(ranks - 1, -1, -1)), list[int]()
    while ready:
        rank = ready.pop()
        slot, stop = position[rank], rank * count + count
        while slot < stop:
            if not done[source[slot]]:
                sleeper[source[slot]] = rank
                break
            done[slot] = True
            order.append(slot)
            if sleeper[slot] >= 0:
                ready.append(sleeper[slot])
            slot += 1
        position[rank] = slot
    if len(order) < nobody:
        stuck = [rank for rank in range(ranks) if position[rank] < rank * count + count]
        raise RuntimeError(f"the schedule deadlocks: ranks {stuck} wait for one another")
    places, number = np.array(order, dtype=np.int64), np.zeros(nobody + 1, dtype=np.int64)
    number[places] = np.arange(1, nobody + 1)
    before = np.where(places % count > 0, number[places - 1], 0)
    return Walk(places, number[source_of.ravel()[places]].tolist(), before.tolist())


def run(way: Walk, held_s: Floats, latency_s: Floats) -> Floats:
    """When each slot frees its rank, [flat place], from flat times: a rank waits for its input, then holds the slot."""
    held, delay = held_s[way.places].tolist(), latency_s[way.places].tolist()
    freed = [0.0]
    add = freed.append
    for source, before, hold, late in zip(way.source, way.before, held, delay, strict=True):
        arrival, free = freed[source] + late, freed[before]
        add((arrival if arrival > free else free) + hold)
    freed_s = np.empty(len(held))
    freed_s[way.places] = freed[1:]
    return freed_s


class Waves(NamedTuple):
    """Slots sorted by the longest chain of slots that leads to them; one past the end is waited for by none."""

    order: Ints  # flat places of the slots
    place: Ints  # where each flat place went
    source: Ints  # [sorted] the slot waited for, as a sorted place
    before: Ints  # [sorted] the slot before on the same rank
    ends: Ints  # of each wave


def waves(source_of: Ints) -> Waves:
    """The waves of an order, from the slot that each slot waits for."""
    ranks, count = source_of.shape
    nobody = ranks * count
    source, done = np.append(source_of.ravel(), nobody), np.zeros(nobody + 1, bool)
    done[nobody] = True
    next_slot, stop, found = np.arange(ranks) * count, np.arange(1, ranks + 1) * count, []
    while len(next_slot):
        ready = done[source[next_slot]]
        found.append(next_slot[ready])
        done[found[-1]] = True
        next_slot = next_slot + ready
        if not len(found[-1]):
            raise RuntimeError("the schedule deadlocks: its ranks wait for one another")
        if (left := next_slot < stop).all():
            continue
        next_slot, stop = next_slot[left], stop[left]
    order = np.concatenate(found)
    place = np.empty(nobody + 1, dtype=np.int64)
    place[order], place[nobody] = np.arange(nobody), nobody
    previous = np.arange(nobody).reshape(ranks, count) - 1
    previous[:, 0] = nobody
    ends = np.cumsum([len(wave) for wave in found])
    return Waves(order, place, place[source_of.ravel()[order]], place[previous.ravel()[order]], ends)


def run_rows(way: Waves, held_s: Floats, latency_s: Floats) -> Floats:
    """When each slot frees its rank, [slot, row]; as ``run`` for every column of ``[slot, row]`` times."""
    slots, rows = held_s.shape
    held_s, latency_s = held_s[way.order], latency_s[way.order]
    freed_s = np.zeros((slots + 1, rows))
    start = 0
    for end in way.ends.tolist():
        arrived_s = freed_s[way.source[start:end]]
        arrived_s += latency_s[start:end]
        np.maximum(arrived_s, freed_s[way.before[start:end]], out=arrived_s)
        np.add(arrived_s, held_s[start:end], out=freed_s[start:end])
        start = end
    return np.asarray(freed_s[way.place[:-1]])
