"""A quick lower bound of the simulated time, over millions of rows that know the sums of a few ranks.

For each rank given: the first micro-batch comes to it, it does all its work, and its last backward goes on to the first
stage. With one chunk per rank also: the first micro-batch goes to the last stage and back to the rank, which then has
all its backwards to do and those forwards that did not run before. With several: the first micro-batch goes through all
stages, the last rank works until its last forward, and that micro-batch goes all the way back. These are paths through
the simulation, so none exceeds it; ``lower_bound_s`` has more such paths, and needs the time of every stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.provenance import Bools, Floats, Ints
from astra.schedule.interleaved import group_size


class Ranks(NamedTuple):
    """Columns of ranks, each with the work of one micro-batch. Everything broadcasts; ranks lie along the last axis."""

    p: Ints
    v: Ints
    m: Ints
    rank: Ints
    ahead: Ints  # forwards up to its first backward, at most
    forward_s: Floats  # of all its chunks
    backward_s: Floats  # likewise, with weight_s
    weight_s: Floats  # what has slots of its own; zero where the schedule does not split the backward
    before_forward_s: Floats  # of the stages before its first chunk
    before_backward_s: Floats  # likewise, without weight_s
    send_s: Floats
    blocking: Bools


class Terms(NamedTuple):
    """The bound is the larger of ``through_s + m * more + more_before`` and ``back_s + (m - 1) * more + more_over``.

    ``more`` is what a backward of the rank takes in addition (recompute, exchanges), ``more_before`` the same of the
    stages before the rank, ``more_over`` of all stages. The largest over the ranks counts.
    """

    through_s: Floats
    back_s: Floats  # minus infinity where a rank has several chunks
    returns: Bools  # whether the way back from the rank is part of through_s


def terms(ranks: Ranks, over_s: Floats) -> Terms:
    """What does not depend on recompute and exchanges.

    ``over_s`` is one micro-batch over all stages, without the weight gradients that have slots of their own.
    """
    p, v, m, r, h = ranks.p, ranks.v, ranks.m, ranks.rank, ranks.send_s
    first, last, several = r == 0, r == p - 1, p > 1
    late_s = np.where(ranks.weight_s > 0, np.minimum(r + 1, m), 0) * ranks.weight_s  # after the last backward
    standing = np.where(ranks.blocking & several, 2 * v - first - last, 0)
    work_s = m * (ranks.forward_s + ranks.backward_s + standing * h)
    return_s = ranks.before_backward_s - late_s + np.where(first, 0, r - ranks.blocking) * h
    through_s = ranks.before_forward_s + r * h + work_s + np.maximum(return_s, 0.0)
    ahead_s = (ranks.ahead - 1) * ranks.forward_s
    trip_s = over_s + (m - 1) * (ranks.forward_s + ranks.backward_s) + (ranks.weight_s - late_s) - ahead_s
    stood = 2 * p - 2 - r + np.maximum(r - 1, 0) + np.where(first, 0, m) + np.where(last, 0, m - ranks.ahead)
    hops = np.where(several, np.where(ranks.blocking, stood, 2 * (p - 1)), 0)
    return Terms(through_s, np.where(v == 1, trip_s + hops * h, -np.inf), return_s > 0)


class Ends(NamedTuple):
    """An interleaved pipeline's last rank and last virtual stage; columns of one row per pipeline."""

    p: Ints
    v: Ints
    m: Ints
    over_s: Floats  # one micro-batch over all stages
    forward_s: Floats  # of the last rank
    backward_s: Floats
    final_forward_s: Floats  # of the last virtual stage
    final_backward_s: Floats
    send_s: Floats


def interleaved_s(ends: Ends) -> Floats:
    """The first micro-batch through all stages, the last rank until its last forward, the last one all the way back.

    Before its first backward the last rank runs the first group through all its chunks but the last, and one forward of
    that; after its last forward what mirrors it for the last group.
    """
    first = group_size(ends.p, ends.m)
    last = np.where(ends.m % first == 0, first, ends.m % first)
    own_s = (ends.m - first) * ends.forward_s + (ends.m - last) * ends.backward_s
    own_s = own_s + (first - 1) * ends.final_forward_s + (last - 1) * ends.final_backward_s
    hops = np.where(ends.p > 1, 2 * (ends.p * ends.v - 1), 0)
    return np.asarray(ends.over_s + own_s + hops * ends.send_s)
