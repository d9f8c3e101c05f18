"""What a schedule is: an order of slots for each rank, and formulas that follow from it.

Letters: p ranks (pipeline stages), v chunks per rank, m micro-batches, k virtual stage. ``Schedule.place`` says which
rank holds which virtual stage; ranks are numbered as a micro-batch first comes to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from astra.errors import InputError
from astra.provenance import Bools, Floats, Ints

FORWARD: Final = 0
BACKWARD: Final = 1  # the whole backward, or its input-gradient half where a schedule splits it
WEIGHT: Final = 2  # the weight-gradient half
KINDS: Final = "FBW"


def in_a_loop(p: int, v: int) -> Ints:
    """A micro-batch visits ranks 0..p-1, then 0..p-1 again, v times: the virtual stage by [chunk, rank]."""
    return np.arange(p * v).reshape(v, p)


def in_a_v(p: int, v: int) -> Ints:
    """A micro-batch visits ranks 0..p-1, then p-1..0, and so on: the virtual stage by [chunk, rank]."""
    stages = in_a_loop(p, v)
    stages[1::2] = stages[1::2, ::-1]
    return stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline schedule. ``order`` is the definition; every formula is tested against its simulation."""

    name: str
    source: str  # who described it
    splits_backward: bool  # whether weight gradients have slots of their own
    want: str  # the sentence for pipelines that ``legal`` refuses
    legal: Callable[[Ints, Ints, Ints], Bools]  # p, v, m
    order: Callable[[int, int, int, int], Ints]  # p, v, m, rank -> rows of (kind, micro-batch, chunk)
    in_flight: Callable[[Ints, Ints, Ints, Ints], Ints]  # p, v, m, rank -> peak (micro-batch, chunk) pairs alive
    least_chunks: int = 1  # with fewer it is another schedule
    place: Callable[[int, int], Ints] = in_a_loop  # p, v -> the virtual stage of [chunk, rank]
    period: Callable[[int, int], int] = lambda p, m: 0  # p, m -> micro-batches after which the order repeats; 0: never
    # Exact for unequal stages too: m, forward, backward, send [..., stage], blocking.
    exact_s: Callable[[int, Floats, Floats, Floats, bool], Floats] | None = None

    def takes(self, v: int) -> bool:
        """Whether ranks with v chunks are run by this schedule."""
        one = np.asarray(1)
        return v >= self.least_chunks and bool(self.legal(one, np.asarray(v), one))

    def slots(self, p: int, v: int, m: int, rank: int) -> Ints:
        """The order of one rank: rows of (kind, micro-batch, chunk), kinds as indices into ``KINDS``."""
        self.check(p, v, m)
        if not 0 <= rank < p:
            raise InputError("rank", rank, want=f"between 0 and {p - 1}")
        return self.order(p, v, m, rank)

    def orders(self, p: int, v: int, m: int) -> Ints:
        """The orders of all ranks, [rank, slot] rows of (kind, micro-batch, chunk, virtual stage)."""
        stages = self.place(p, v)
        every = [self.order(p, v, m, rank) for rank in range(p)]
        return np.stack([np.column_stack((order, stages[order[:, 2], rank])) for rank, order in enumerate(every)])

    def rank_of(self, p: int, v: int) -> Ints:
        """Which rank holds each virtual stage."""
        ranks = np.empty(p * v, dtype=np.int64)
        ranks[self.place(p, v)] = np.arange(p)
        return ranks

    def hops(self, p: int, v: int) -> Bools:
        """Whether each virtual stage but the last hands over to another rank."""
        ranks = self.rank_of(p, v)
        return np.asarray(ranks[1:] != ranks[:-1])

    def check(self, p: int, v: int, m: int) -> None:
        """Raise InputError if the schedule is not defined for this pipeline."""
        if min(p, v, m) < 1:
            raise InputError("pipeline", (p, v, m), want="stages, chunks and micro-batches of 1 or more")
        if not bool(np.all(self.legal(np.asarray(p), np.asarray(v), np.asarray(m)))):
            raise InputError(f"schedule {self.name}", f"pp{p} vp{v} and {m} micro-batches", want=self.want)


def one_forward_one_backward(forward: Ints, backward: Ints, warm_up: int) -> Ints:
    """``warm_up`` forwards, then forward and backward in turn, then the backwards that are left.

    ``forward`` and ``backward`` are rows of (micro-batch, chunk) in the order they run.
    """
    count = len(forward)
    warm_up = min(warm_up, count)
    steady = count - warm_up
    order = np.empty((2 * count, 3), dtype=np.int64)
    order[:, 0] = BACKWARD
    at_forward = np.concatenate((np.arange(warm_up), warm_up + 2 * np.arange(steady)))
    at_backward = np.concatenate((warm_up + 2 * np.arange(steady) + 1, np.arange(2 * count - warm_up, 2 * count)))
    order[at_forward, 0] = FORWARD
    order[at_forward, 1:] = forward
    order[at_backward, 1:] = backward
    return order


def in_turn(m: int) -> Ints:
    """Micro-batches 0..m-1 of a single chunk."""
    return np.stack((np.arange(m), np.zeros(m, dtype=np.int64)), axis=1)


def one_chunk(p: Ints, v: Ints, m: Ints) -> Bools:
    """Legal when a rank holds one chunk."""
    return np.asarray((v == 1) & (p >= 1) & (m >= 1))
