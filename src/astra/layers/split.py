"""How layers are dealt to virtual pipeline stages, and which stages differ.

Letters: L layers, p stages, v chunks per stage, S = p v virtual stages. A *place* says
which rank holds which of them, ``[chunk][rank]``; chunk 0 goes by the ranks' numbers (see ``Schedule.place``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from astra.layers.kinds import LayerKind, layer_kinds
from astra.provenance import Bools, Floats, Ints
from astra.spec.model import ModelSpec

EVEN: Final = 0
BALANCED: Final = 1

Place = tuple[tuple[int, ...], ...]


def split(layers: int, stages: int, head_layers: float) -> tuple[int, ...]:
    """Layers per virtual stage with the smallest largest stage, the last one also carrying the head.

    ``head_layers`` is the head's work in units of a layer. Ties go to fewer layers on early stages, which hold the
    most micro-batches in flight.
    """
    if stages == 1:
        return (layers,)
    last = min(range(layers // stages + 2), key=lambda n: (max(-(-(layers - n) // (stages - 1)), n + head_layers), -n))
    base, extra = divmod(layers - last, stages - 1)
    return (*([base] * (stages - 1 - extra)), *([base + 1] * extra), last)


def even(layers: int, stages: int) -> tuple[int, ...] | None:
    """Equal stages, or None where the layers do not divide."""
    return (layers // stages,) * stages if layers % stages == 0 else None


class StageKinds(NamedTuple):
    """The ranks of a pipeline that differ, as arrays over them."""

    rank: Ints  # the first (most loaded with in-flight micro-batches) rank of each kind
    counts: Floats  # [stage, kind] layers of each kind
    first: Bools  # whether it holds the first virtual stage
    last: Bools  # and the last
    sends: Ints  # of a micro-batch to other ranks, there and back
    chunk_layers: Ints  # the largest chunk of the rank
    until: Ints  # the last rank of each kind
    before: Floats  # [stage, kind] layers that a micro-batch passes before it first comes to that rank
    final: Floats  # [stage, kind] layers of the last virtual stage, whichever the kind


@lru_cache(maxsize=4096)
def stages(model: ModelSpec, place: Place, layers: tuple[int, ...], every_rank: bool = False) -> StageKinds:
    """Kinds of stage in a pipeline: ranks with equal layers and ends are one kind (all ranks if ``every_rank``)."""
    ends = np.concatenate(([0], np.cumsum(layers)))
    prefix = _kind_prefix(model)
    held = np.array(place)
    counts = (prefix[ends[1:]] - prefix[ends[:-1]])[held].sum(axis=0)
    largest = np.asarray(layers)[held].max(axis=0)
    first, last = (held == 0).any(axis=0), (held == held.max()).any(axis=0)
    sends = _sends(held)
    chosen: dict[object, list[int]] = {}
    for rank, row in enumerate(zip(map(tuple, counts.tolist()), largest.tolist(), first, last, sends, strict=True)):
        chosen.setdefault(rank if every_rank else row, []).append(rank)
    ranks, until = (np.array([some[place] for some in chosen.values()], dtype=np.int64) for place in (0, -1))
    before = prefix[ends[held[0, until]]].astype(np.float64)
    final = np.repeat((prefix[-1] - prefix[ends[-2]])[None], len(ranks), axis=0).astype(np.float64)
    mine = counts[ranks].astype(np.float64)
    return StageKinds(ranks, mine, first[ranks], last[ranks], sends[ranks], largest[ranks], until, before, final)


def _sends(held: Ints) -> Ints:
    """By rank: how often a micro-batch leaves it for another rank, forward and backward."""
    rank_of = np.empty(held.size, dtype=np.int64)
    rank_of[held] = np.arange(held.shape[1])
    leaves = rank_of[1:] != rank_of[:-1]
    away = np.append(leaves, False).astype(np.int64) + np.append(False, leaves)
    return np.asarray(away[held].sum(axis=0))


@lru_cache(maxsize=4096)
def stage_kind_of_rank(model: ModelSpec, place: Place, layers: tuple[int, ...]) -> Ints:
    """Which of the kinds of ``stages`` each rank is."""
    each, stage_kinds = stages(model, place, layers, every_rank=True), stages(model, place, layers)
    same = (each.counts[:, None] == stage_kinds.counts).all(axis=2) & (
        each.chunk_layers[:, None] == stage_kinds.chunk_layers
    )
    same &= (each.first[:, None] == stage_kinds.first) & (each.last[:, None] == stage_kinds.last)
    same &= each.sends[:, None] == stage_kinds.sends
    return np.asarray(same.argmax(axis=1))


@lru_cache(maxsize=64)
def _kind_prefix(model: ModelSpec) -> Ints:
    """Number of layers of each kind before each position: [L + 1, kinds]."""
    order = kinds(model)
    one_hot = np.array([[kind == other for other in order] for kind in layer_kinds(model)], dtype=np.int64)
    return np.concatenate((np.zeros((1, len(order)), np.int64), np.cumsum(one_hot, axis=0)))


@lru_cache(maxsize=64)
def kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """The distinct kinds of layer, in order of first appearance."""
    return tuple(dict.fromkeys(layer_kinds(model)))


def stack(tables: Sequence[StageKinds]) -> StageKinds:
    """Several pipelines side by side, [pipeline, stage]; missing kinds repeat the first one."""
    sizes = np.array([len(table.rank) for table in tables])
    place = np.arange(sizes.max())
    rows = (np.cumsum(sizes) - sizes)[:, None] + np.where(place < sizes[:, None], place, 0)
    return StageKinds(*(np.concatenate(columns)[rows] for columns in zip(*tables, strict=True)))
