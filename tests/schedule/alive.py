"""Slots of a rank as named records, and the activations alive on it, by walking them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from astra.errors import InputError
from astra.provenance import Ints
from astra.schedule.base import KINDS, Schedule
from astra.schedule.registry import find
from astra.schedule.simulator import alive


class Slot(NamedTuple):
    """One piece of work of a rank: one chunk for one micro-batch."""

    kind: str  # F, B or W
    microbatch: int
    chunk: int


def readable(order: Ints) -> list[Slot]:
    """An order as named records."""
    return [Slot(KINDS[kind], microbatch, chunk) for kind, microbatch, chunk in order.tolist()]


def peak_activation_bytes(
    schedule: str | Schedule, *, p: int, v: int, m: int, rank: int, chunk_bytes: npt.ArrayLike
) -> float:
    """The most bytes alive at once on a rank whose chunks keep ``chunk_bytes`` per micro-batch."""
    weights = np.asarray(chunk_bytes, dtype=np.float64)
    if weights.shape != (v,):
        raise InputError("chunk_bytes", weights.shape, want=f"{v} numbers, one per chunk of the rank")
    return float(alive(find(schedule).slots(p, v, m, rank), weights).max())


def in_flight_by_chunk(schedule: str | Schedule, *, p: int, v: int, m: int, rank: int) -> Ints:
    """Micro-batches of each chunk alive at the (first) moment when most are, all chunks counting alike."""
    order = find(schedule).slots(p, v, m, rank)
    peak = int(np.argmax(alive(order, np.ones(v))))
    counts = [alive(order, np.eye(v)[chunk])[peak] for chunk in range(v)]
    return np.array(counts).round().astype(np.int64)
