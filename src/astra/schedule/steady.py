"""The simulated total for many micro-batches, from a few of them; for many pipelines of one shape at once.

Between warm-up and drain the order repeats every ``period`` micro-batches, so slot times obey a max-plus recursion
``x(n+1) = A x(n)`` and, after a transient, repeat up to a constant. Once all slots of one period, on every rank, lie
the same time after those of an earlier period, they do so for ever: the recursion is deterministic and commutes with
adding a constant. The drain commutes likewise, so adding periods adds that constant to the total. The test is on the
whole state, not on totals, which can look regular while a slower rank is still catching up.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from astra.errors import InputError
from astra.provenance import Floats, Ints
from astra.schedule.base import FORWARD, Schedule
from astra.schedule.registry import find
from astra.schedule.simulator import (
    StageSeconds,
    Walk,
    Waves,
    as_stages,
    inputs,
    run,
    run_rows,
    slot_times,
    walk,
    waves,
)

_SAME: Final = 1e-13  # of the time elapsed: what rounding may add
_ATTEMPTS: Final = (2, 6, 48, 384, 3072)  # look after this many micro-batches per rank past the warm-up
_NARROW: Final = 40  # ranks of all pipelines that are run slot by slot rather than in waves
_SHORT: Final = 16_384  # slots whose order is remembered
_CELLS: Final = 1_000_000  # slots of all pipelines that are run at once


class _Slots(NamedTuple):
    """The slots of a schedule with m micro-batches, [rank, slot], and where to look for its cycle."""

    m: int
    orders: Ints  # with (kind, micro-batch, chunk, virtual stage)
    source: Ints
    window: Ints  # flat places of the last period whose slots run alike whatever follows; empty if there is none
    periods: Ints  # [period]: how far before the window lie those that could be like it


def step_s(
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
) -> float:
    """``simulate(...).total_s``, faster. Arguments are the same."""
    stages = as_stages(find(schedule), p, v, forward_s, backward_s, weight_s, send_s)
    return float(
        steps_s(schedule, p=p, v=v, m=m, stages=StageSeconds(*(t[None] for t in stages)), blocking_p2p=blocking_p2p)[0]
    )


def steps_s(schedule: str | Schedule, *, p: int, v: int, m: int, stages: StageSeconds, blocking_p2p: bool) -> Floats:
    """The same for several pipelines of one shape, ``[row, virtual stage]``."""
    plan = find(schedule)
    plan.check(p, v, m)
    if any(times.shape[1] not in (p * v, p * v - 1) for times in stages):
        raise InputError("stages", [times.shape for times in stages], want=f"{p * v} numbers per row, one per stage")
    stages = stages._replace(send_s=stages.send_s[:, : p * v - 1] * plan.hops(p, v))
    if plan.exact_s is not None:
        backward_s = stages.backward_s if plan.splits_backward else stages.backward_s + stages.weight_s
        return plan.exact_s(m, stages.forward_s, backward_s, stages.send_s, blocking_p2p)
    total_s, left = np.zeros(len(stages.forward_s)), np.arange(len(stages.forward_s))
    period = plan.period(p, m)
    for rounds in _ATTEMPTS if period else ():
        fewer = _fewer(plan, p, v, m, rounds * p, period)
        if 2 * fewer > m or not len(left):
            break
        found_s = _extrapolated_s(plan, p, v, m, fewer, period, _rows(stages, left), blocking_p2p)
        total_s[left] = found_s
        left = left[np.isnan(found_s)]
    if len(left):
        total_s[left] = _total_s(plan, p, v, m, _rows(stages, left), blocking_p2p)
    return total_s


def _rows(stages: StageSeconds, rows: Ints) -> StageSeconds:
    return StageSeconds(*(times[rows] for times in stages))


def _fewer(plan: Schedule, p: int, v: int, m: int, steady: int, period: int) -> int:
    """Enough micro-batches for the longest warm-up and ``steady`` more, and a whole number of periods fewer than m."""
    one = np.asarray(p), np.asarray(v), np.asarray(m)
    warm_up = -(-int(plan.in_flight(*one, np.asarray(0))) // v)
    return m - (m - warm_up - steady) // period * period


def _extrapolated_s(
    plan: Schedule, p: int, v: int, m: int, fewer: int, period: int, stages: StageSeconds, blocking: bool
) -> Floats:
    """The totals of pipelines whose slots have entered a cycle after ``fewer`` micro-batches; NaN for the others."""
    slots = _slots(plan, p, v, fewer, period)
    total_s = np.full(len(stages.forward_s), np.nan)
    if not len(slots.periods):
        return total_s
    freed_s = _freed_s(plan, slots, v, stages, blocking)
    reached_s, now_s, left = freed_s.max(axis=0), freed_s[slots.window], np.arange(len(total_s))
    for periods, back in enumerate(slots.periods.tolist(), start=1):
        gap_s = now_s[:, left] - freed_s[slots.window - back][:, left]
        same = gap_s.max(axis=0) - gap_s.min(axis=0) <= _SAME * reached_s[left]
        rest = (m - fewer) % (periods * period)
        if same.any():
            rows = left[same]
            start_s = _total_s(plan, p, v, fewer + rest, _rows(stages, rows), blocking) if rest else reached_s[rows]
            total_s[rows] = start_s + (m - fewer - rest) // (periods * period) * gap_s[:, same].mean(axis=0)
            left = left[~same]
        if not len(left):
            break
    return total_s


def _total_s(plan: Schedule, p: int, v: int, m: int, stages: StageSeconds, blocking: bool) -> Floats:
    """Every micro-batch."""
    slots = _slots(plan, p, v, m, 0)
    few = max(_CELLS // slots.source.size, 1)
    rows = np.arange(len(stages.forward_s))
    some = [rows[start : start + few] for start in range(0, len(rows), few)]
    return np.concatenate([_freed_s(plan, slots, v, _rows(stages, part), blocking).max(axis=0) for part in some])


def _freed_s(plan: Schedule, slots: _Slots, v: int, stages: StageSeconds, blocking: bool) -> Floats:
    """When each slot frees its rank, [flat place, row]."""
    compute_s, sending_s, latency_s = slot_times(slots.orders, stages, plan.splits_backward, blocking)
    held_s, shape = compute_s + sending_s, slots.source.shape
    if shape[0] * held_s.shape[1] > _NARROW:
        return run_rows(_waves(plan, shape[0], v, slots.m), held_s, latency_s)
    way = _walk(plan, shape[0], v, slots.m) if slots.source.size <= _SHORT else walk(slots.source)
    return np.stack([run(way, *pair) for pair in zip(held_s.T, latency_s.T, strict=True)], axis=1)


@lru_cache(maxsize=64)
def _walk(plan: Schedule, p: int, v: int, m: int) -> Walk:
    return walk(_order(plan, p, v, m)[1])


@lru_cache(maxsize=128)
def _waves(plan: Schedule, p: int, v: int, m: int) -> Waves:
    return waves(_order(plan, p, v, m)[1])


@lru_cache(maxsize=64)
def _order(plan: Schedule, p: int, v: int, m: int) -> tuple[Ints, Ints]:
    """The slots of all ranks, and the slot that each waits for."""
    orders = plan.orders(p, v, m)
    return orders, inputs(orders, m=m)


@lru_cache(maxsize=256)
def _slots(plan: Schedule, p: int, v: int, m: int, period: int) -> _Slots:
    """The slots of a pipeline; without a period no cycle is looked for."""
    orders, source = _order(plan, p, v, m)
    nothing = np.zeros(0, dtype=np.int64)
    if not period:
        return _Slots(m, orders, source, nothing, nothing)
    count = orders.shape[1]
    slots = count // m * period
    last_forward = count - 1 - np.argmax(orders[:, ::-1, 0] == FORWARD, axis=1)
    last = _closed(np.minimum(last_forward, _common(orders, plan.orders(p, v, m + period)) - 1), source)
    window = last[:, None] - np.arange(slots)
    row = np.arange(p)[:, None]
    if window.min() < slots or not _remembered(source[row, window], last - 2 * slots, count):
        return _Slots(m, orders, source, nothing, nothing)
    periods = []
    for number in range(1, int(window.min()) // slots + 1):
        shift = orders[row, window] - orders[row, window - number * slots]
        if shift[:, :, ::2].any() or (shift[:, :, 1] != number * period).any():
            break  # still warming up
        periods.append(number * slots)
    return _Slots(m, orders, source, (row * count + window).ravel(), np.array(periods, dtype=np.int64))


def _common(orders: Ints, longer: Ints) -> Ints:
    """How many slots of each rank, from the first, are the same in both orders."""
    differ = (orders != longer[:, : orders.shape[1]]).any(axis=2)
    return np.asarray(np.where(differ.any(axis=1), np.argmax(differ, axis=1), orders.shape[1]))


def _closed(last: Ints, source: Ints) -> Ints:
    """The most slots of each rank, up to ``last``, that wait only for one another.

    These run alike whatever the number of micro-batches after them.
    """
    count = source.shape[1]
    source_rank, source_at = np.divmod(source, count)
    within = np.arange(count)
    while True:
        limit = np.append(last, count)  # slots without a source point one rank past the end
        blocked = (source_at > limit[source_rank]) & (within <= last[:, None])
        if not blocked.any():
            return last
        last = np.where(blocked.any(axis=1), np.argmax(blocked, axis=1) - 1, last)


def _remembered(source: Ints, oldest: Ints, count: int) -> bool:
    """Whether a period of slots waits for nothing on other ranks that is older than the period before it."""
    ranks = len(source)
    source_rank, source_at = np.divmod(source, count)
    own = source_rank == np.arange(ranks)[:, None]  # earlier on the same rank, so never waited for
    return bool(np.all(own | (source_at > np.append(oldest, -1)[source_rank])))
