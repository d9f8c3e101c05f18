"""The simulated total for many micro-batches, from a few of them.

Between warm-up and drain the order repeats every ``period`` micro-batches, so slot times obey a max-plus recursion
``x(n+1) = A x(n)`` and, after a transient, repeat up to a constant. Once all slots of one period, on every rank, lie
the same time after those of an earlier period, they do so for ever: the recursion is deterministic and commutes with
adding a constant. The drain commutes likewise, so adding periods adds that constant to the total. The test is on the
whole state, not on totals, which can look regular while a slower rank is still catching up.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from astra.provenance import Floats, Ints
from astra.schedule.base import FORWARD, Schedule
from astra.schedule.registry import find
from astra.schedule.simulator import Stages, as_stages, inputs, run, slot_times

_SAME: Final = 1e-13  # of the time elapsed: what rounding may add
_ATTEMPTS: Final = (2, 6)  # look after this many micro-batches per rank past the warm-up


class _Run(NamedTuple):
    """A simulation of m micro-batches."""

    m: int
    orders: Ints
    source: Ints
    freed_s: Floats

    @property
    def total_s(self) -> float:
        return float(self.freed_s.max())


class _Cycle(NamedTuple):
    """From some point on, ``microbatches`` more take ``seconds`` more."""

    microbatches: int
    seconds: float


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
    plan = find(schedule)
    plan.check(p, v, m)
    stages = as_stages(p, v, forward_s, backward_s, weight_s, send_s)
    if plan.exact_s is not None:
        backward = stages.backward_s if plan.splits_backward else stages.backward_s + stages.weight_s
        return float(plan.exact_s(m, stages.forward_s, backward, stages.send_s, blocking_p2p))
    period = plan.period(p, m)
    for rounds in _ATTEMPTS if period else ():
        fewer = _fewer(plan, p, v, m, rounds * p, period)
        if 2 * fewer > m:
            break
        sample = _run(plan, p, v, fewer, stages, blocking_p2p)
        cycle = _cycle(sample, period)
        if cycle is not None:
            rest = (m - fewer) % cycle.microbatches
            sample = _run(plan, p, v, fewer + rest, stages, blocking_p2p) if rest else sample
            return sample.total_s + (m - sample.m) // cycle.microbatches * cycle.seconds
    return _run(plan, p, v, m, stages, blocking_p2p).total_s


def _fewer(plan: Schedule, p: int, v: int, m: int, steady: int, period: int) -> int:
    """Enough micro-batches for the longest warm-up and ``steady`` more, and a whole number of periods fewer than m."""
    one = np.asarray(p), np.asarray(v), np.asarray(m)
    warm_up = -(-int(plan.in_flight(*one, np.asarray(0))) // v)
    return m - (m - warm_up - steady) // period * period


def _run(plan: Schedule, p: int, v: int, m: int, stages: Stages, blocking: bool) -> _Run:
    orders = np.stack([plan.order(p, v, m, rank) for rank in range(p)])
    compute_s, sending_s, latency_s = slot_times(orders, stages, plan.splits_backward, blocking)
    source = inputs(orders, m=m)
    return _Run(m, orders, source, run(source, compute_s + sending_s, latency_s))


def _cycle(sample: _Run, period: int) -> _Cycle | None:
    """The cycle that the slot times have entered, if they have."""
    ranks, count = sample.freed_s.shape
    slots = count // sample.m * period
    last_forward = count - 1 - np.argmax(sample.orders[:, ::-1, 0] == FORWARD, axis=1)
    last = _closed(last_forward, sample.source)
    window = last[:, None] - np.arange(slots)
    row = np.arange(ranks)[:, None]
    if window.min() < slots or not _remembered(sample.source[row, window], last - 2 * slots, count):
        return None
    now_s, now = sample.freed_s[row, window], sample.orders[row, window]
    for periods in range(1, int(window.min()) // slots + 1):
        before = window - periods * slots
        shift = now - sample.orders[row, before]
        if shift[:, :, ::2].any() or (shift[:, :, 1] != periods * period).any():
            return None  # still warming up
        gap_s = now_s - sample.freed_s[row, before]
        if gap_s.max() - gap_s.min() <= _SAME * sample.total_s:
            return _Cycle(periods * period, float(gap_s.mean()))
    return None


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
