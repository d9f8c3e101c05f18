"""A quick lower bound of the simulated time, over millions of rows that know the sums of a few ranks.

Each rank stands for some paths through the simulation, none of which can exceed it:

- through: the first micro-batch comes to the rank, which does all its work, and its last backward goes on to stage 0;
- back, one chunk per rank: the first micro-batch goes to the last stage and back to the rank, which then does all its
  backwards and the forwards that are left, and its last backward goes on to stage 0;
- again, one chunk per rank: the same up to the rank's last forward, which goes to the last stage and all the way back.

An interleaved pipeline has the third path by its last rank.
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
    sends: Ints  # of a micro-batch to other ranks, there and back
    ahead: Ints  # forwards up to its first backward, at most
    forward_s: Floats  # of all its chunks
    backward_s: Floats  # likewise, with weight_s
    weight_s: Floats  # what has slots of its own; zero where the schedule does not split the backward
    before_forward_s: Floats  # of the stages before its first chunk
    before_backward_s: Floats  # likewise, without weight_s
    over_s: Floats  # forward and backward of all stages, without weight_s
    send_s: Floats
    blocking: Bools


class Path(NamedTuple):
    """Seconds along a path, and what on it a longer backward would add to; columns as in ``Ranks``."""

    seconds: Floats  # minus infinity where there is no such path
    times: Ints  # backwards of the rank
    before: Bools  # whether those of the stages before the rank are on it, once
    over: int  # how often those of all stages are
    after: int  # how often those of the stages after the rank are


def paths(ranks: Ranks) -> tuple[Path, Path, Path]:
    """The three paths of each rank."""
    p, m, r, n, h = ranks.p, ranks.m, ranks.rank, ranks.ahead, ranks.send_s
    first, last, several, one_chunk = r == 0, r == p - 1, p > 1, ranks.v == 1
    own_s, short_s = ranks.forward_s + ranks.backward_s, ranks.forward_s + ranks.backward_s - ranks.weight_s
    # Weight gradients after the last backward: as ZB-H1 has them, all of them where there are several chunks.
    late = np.where(ranks.weight_s > 0, np.where(one_chunk, np.minimum(r + 1, m), m), 0)
    standing = np.where(ranks.blocking, ranks.sends, 0)
    return_s = ranks.before_backward_s - late * ranks.weight_s + np.where(first, 0, r - ranks.blocking) * h
    through_s = ranks.before_forward_s + r * h + m * (own_s + standing * h) + np.maximum(return_s, 0.0)
    back_s = ranks.over_s + (m - 1) * own_s + (1 - late) * ranks.weight_s - (n - 1) * ranks.forward_s
    stood = 2 * p - 2 - r + np.maximum(r - 1, 0) + np.where(first, 0, m) + np.where(last, 0, m - n)
    back_s = back_s + np.where(several, np.where(ranks.blocking, stood, 2 * (p - 1)), 0) * h
    after_s = ranks.over_s - ranks.before_forward_s - ranks.before_backward_s - short_s
    again_s = ranks.over_s + after_s + (m - n) * short_s
    stood = 3 * (p - 1) - r + np.maximum(p - 2 - r, 0) + (m - n) * (2 - first - last)
    again_s = again_s + np.where(several, np.where(ranks.blocking, stood, 4 * (p - 1) - 2 * r), 0) * h
    return (
        Path(through_s, m, return_s > 0, 0, 0),
        Path(np.where(one_chunk, back_s, -np.inf), m - 1, np.zeros_like(first), 1, 0),
        Path(np.where(one_chunk & (n < m), again_s, -np.inf), m - n, np.zeros_like(first), 1, 1),
    )


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
    blocking: Bools


def interleaved_s(ends: Ends) -> Floats:
    """The first micro-batch through all stages, the last rank until its last forward, the last one all the way back.

    Before its first backward the last rank runs the first group through all its chunks but the last, and one forward of
    that; after its last forward what mirrors it for the last group.
    """
    first = group_size(ends.p, ends.m)
    last = np.where(ends.m % first == 0, first, ends.m % first)
    own_s = (ends.m - first) * ends.forward_s + (ends.m - last) * ends.backward_s
    own_s = own_s + (first - 1) * ends.final_forward_s + (last - 1) * ends.final_backward_s
    # Its own sends: every backward's, and those of the forwards that are not of the last virtual stage.
    standing = (ends.v - 1) * (ends.m - first) + ends.m * ends.v - (ends.v - 1) * last - 1
    hops = 2 * (ends.p * ends.v - 1) + np.where(ends.blocking, standing, 0)
    return np.asarray(ends.over_s + own_s + np.where(ends.p > 1, hops * ends.send_s, 0.0))
