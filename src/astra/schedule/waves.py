"""The simulator for many pipelines of one shape: their slots become ready in the same waves, whatever they take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from astra.provenance import Floats, Ints
from astra.schedule.simulator import run


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
    chain = run(source_of, np.ones((ranks, count)), np.zeros((ranks, count))).ravel().astype(np.int64)
    order = np.argsort(chain, kind="stable")
    place = np.empty(nobody + 1, dtype=np.int64)
    place[order], place[nobody] = np.arange(nobody), nobody
    previous = np.arange(nobody).reshape(ranks, count) - 1
    previous[:, 0] = nobody
    return Waves(
        order, place, place[source_of.ravel()[order]], place[previous.ravel()[order]], np.cumsum(np.bincount(chain)[1:])
    )


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
