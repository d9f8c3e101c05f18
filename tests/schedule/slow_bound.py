"""A lower bound of the simulated time for unequal stages, over many rows at once.

For each rank: no earlier than the first micro-batch can reach a slot of it (its first forward, or its first backward),
plus the rank's own work up to a later slot (its last forward, its last backward, or its end), plus what must follow
that slot elsewhere (the rest of the way up the pipeline and back to any rank, and the work held back there).
Each of these is a path through the simulation, so their maximum never exceeds it.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from astra.errors import InputError
from astra.provenance import Floats, Ints
from astra.schedule.base import BACKWARD, FORWARD, WEIGHT, Schedule
from astra.schedule.registry import find

_END: Final = 2


class _Ways(NamedTuple):
    """Stretches of a rank's order, one per row: from an entry slot to an exit slot, both included."""

    rank: Ints
    entry: Ints  # FORWARD: its first forward; BACKWARD: its first backward
    entry_stage: Ints  # virtual stage of that slot
    exit: Ints  # FORWARD: its last forward; BACKWARD: its last backward; _END: its last slot
    exit_stage: Ints
    counts: Ints  # [way, kind, chunk] of the slots


class _Pipe(NamedTuple):
    """Times along the pipeline, ``[row, virtual stage]``, with hops."""

    held_s: Floats  # [kind, row, stage]: time a slot keeps its rank
    forward_at_s: Floats  # earliest start of a forward
    backward_at_s: Floats  # earliest start of a backward
    rise_s: Floats  # from the end of a forward to the end of the backward at the last stage
    tail_s: Floats  # from the end of a backward to the end of the step


def lower_bound_s(
    schedule: str | Schedule,
    *,
    p: int,
    v: int,
    m: npt.ArrayLike,
    forward_s: npt.ArrayLike,
    backward_s: npt.ArrayLike,
    weight_s: npt.ArrayLike = 0.0,
    send_s: npt.ArrayLike = 0.0,
    blocking_p2p: bool = False,
) -> Floats:
    """At most what ``simulate`` answers, for rows that share p and v.

    Args:
        schedule: a name or a Schedule.
        p: ranks.
        v: chunks per rank.
        m: micro-batches, one number or one per row.
        forward_s: by virtual stage, ``[p*v]`` or ``[row, p*v]`` (a scalar stands for all), as for ``simulate``.
        backward_s: likewise.
        weight_s: likewise.
        send_s: likewise, from k to k+1; the last entry may be left out.
        blocking_p2p: as for ``simulate``.
    """
    plan = find(schedule)
    given = [np.asarray(times, dtype=np.float64) for times in (forward_s, backward_s, weight_s, send_s)]
    counts = np.atleast_1d(np.asarray(m, dtype=np.int64))
    if given[3].ndim and given[3].shape[-1] == p * v - 1:
        given[3] = np.append(given[3], np.zeros((*given[3].shape[:-1], 1)), axis=-1)
    if any(times.ndim and times.shape[-1] != p * v for times in given):
        raise InputError("stages", [times.shape for times in given], want=f"{p * v} numbers per row, one per stage")
    num_rows = max([len(counts), *(len(times) for times in given if times.ndim == 2)])
    times = np.stack([np.broadcast_to(column, (num_rows, p * v)) for column in given])
    if not plan.splits_backward:
        times[1] += times[2]
    counts = np.broadcast_to(counts, (num_rows,))
    bound_s = np.empty(num_rows)
    for microbatches in np.unique(counts):
        rows = counts == microbatches
        bound_s[rows] = _bound_s(plan, p, v, int(microbatches), times[:, rows], blocking_p2p)
    return bound_s


def _bound_s(plan: Schedule, p: int, v: int, m: int, times: Floats, blocking: bool) -> Floats:
    plan.check(p, v, m)
    if plan.exact_s is not None:
        return plan.exact_s(m, times[0], times[1], times[3, :, :-1] * plan.hops(p, v), blocking)
    ways, late = _ways(plan, p, v, m)
    place = plan.place(p, v)
    times[3] *= np.append(plan.hops(p, v), False)
    pipe = _pipe(place, times, late, blocking)
    held_s = pipe.held_s[:, :, place[:, ways.rank]]
    own_s = np.einsum("wkc,krcw->rw", ways.counts, held_s)
    entry_s = np.where(
        ways.entry == FORWARD, pipe.forward_at_s[:, ways.entry_stage], pipe.backward_at_s[:, ways.entry_stage]
    )
    after_forward_s = pipe.rise_s[:, ways.exit_stage] + pipe.tail_s[:, -1:]
    after_backward_s = np.where(ways.exit == BACKWARD, pipe.tail_s[:, ways.exit_stage], 0.0)
    exit_s = np.where(ways.exit == FORWARD, after_forward_s, after_backward_s)
    longest_s: Floats = (entry_s + own_s + exit_s).max(axis=1)
    return longest_s


def _pipe(place: Ints, times: Floats, late: Ints, blocking: bool) -> _Pipe:
    """``late`` counts the slots [rank, kind, chunk] after a rank's last backward."""
    p, hop_s = place.shape[1], times[3]
    hop_down_s = np.roll(hop_s, 1, axis=1)  # the hop between stage k-1 and k, seen from k
    held_s = times[:3].copy()
    if blocking:
        held_s[FORWARD] += hop_s
        held_s[BACKWARD] += hop_down_s
        hop_s, hop_down_s = np.zeros_like(hop_s), np.zeros_like(hop_s)
    through_s = np.cumsum(held_s[FORWARD] + hop_s, axis=1)
    rise_s = through_s[:, -1:] - through_s + hop_s + held_s[BACKWARD][:, -1:]
    # From the arrival of a gradient at stage k to its arrival at stage 0.
    return_s = np.cumsum(held_s[BACKWARD] + hop_down_s, axis=1) - held_s[BACKWARD][:, :1]
    backward_at_s = through_s[:, -1:] + return_s[:, -1:] - return_s
    left_s = return_s - held_s[BACKWARD]  # likewise from the end of the backward at k, but for a constant
    late_s = np.einsum("pkc,krcp->rp", late, held_s[:, :, place])
    # A gradient passes stages j < p on its way to 0; whichever rank has most left after it ends the step.
    best_s = np.maximum.accumulate(late_s - left_s[:, :p], axis=1)
    stages = np.minimum(np.arange(times.shape[2]), p - 1)
    forward_at_s = through_s - held_s[FORWARD] - hop_s
    return _Pipe(held_s, forward_at_s, backward_at_s, rise_s, left_s + best_s[:, stages])


@lru_cache(maxsize=256)
def _ways(plan: Schedule, p: int, v: int, m: int) -> tuple[_Ways, Ints]:
    """The stretches of every rank, and the slots [rank, kind, chunk] that follow its last backward."""
    ways, late = [], np.zeros((p, 3, v), dtype=np.int64)
    for rank, order in enumerate(plan.orders(p, v, m)):
        kind, stage = order[:, 0], order[:, 3]
        forwards, backwards = np.flatnonzero(kind == FORWARD), np.flatnonzero(kind == BACKWARD)
        entries = {FORWARD: int(forwards[0]), BACKWARD: int(backwards[0])}
        exits = {FORWARD: int(forwards[-1]), BACKWARD: int(backwards[-1]), _END: len(order) - 1}
        late[rank] = _count(order[exits[BACKWARD] + 1 :], v)
        for (entry, first), (leave, last) in product(entries.items(), exits.items()):
            if first <= last:
                ways.append((rank, entry, stage[first], leave, stage[last], _count(order[first : last + 1], v)))
    return _Ways(*(np.array(column) for column in zip(*ways, strict=True))), late


def _count(order: Ints, v: int) -> Ints:
    return np.bincount(order[:, 0] * v + order[:, 2], minlength=(WEIGHT + 1) * v).reshape(-1, v)
