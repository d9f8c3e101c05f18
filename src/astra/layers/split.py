"""How layers are dealt to virtual pipeline stages, and which stages differ.

Letters: L layers, p stages, v chunks per stage, S = p v virtual stages. A *place* says
which rank holds which of them, ``[chunk][rank]``; chunk 0 goes by the ranks' numbers (see ``Schedule.place``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np

from astra.layers import weights as weights_of
from astra.layers.block import LayerKind
from astra.layers.blocks import tower
from astra.layers.kinds import layer_kinds
from astra.provenance import Bools, Floats, Ints
from astra.spec.model import ModelSpec

EVEN_WORK: Final = 1.05  # layers whose work differs by less are dealt by number
_HALVINGS, _SLACK = 24, 1e-9  # of the search for the smallest largest stage; of its sums

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


@lru_cache(maxsize=4096)
def weighted(work: tuple[float, ...], stages: int, front: float, back: float) -> tuple[int, ...]:
    """As ``split``, of layers with work of their own: ``front`` comes before the first, ``back`` after the last."""
    sums = [0.0, *accumulate(work)]
    low, high = max(work), sums[-1] + front + back
    best = (len(work) - stages + 1, *([1] * (stages - 1)))
    for _ in range(_HALVINGS):
        limit = (low + high) / 2
        found = _filled(sums, stages, front, back, limit)
        best, low, high = (best, limit, high) if found is None else (found, low, limit)
    return best


def _filled(sums: Sequence[float], stages: int, front: float, back: float, limit: float) -> tuple[int, ...] | None:
    """Stages as full as a limit allows from the last on, a layer or more on each but the last; None if one is over."""
    end, found = len(sums) - 1, list[int]()
    for stage in range(stages - 1, 0, -1):
        room = limit - (back if stage == stages - 1 else 0.0)
        start = max(bisect_left(sums, sums[end] - room - _SLACK), stage)
        if start > end - (stage < stages - 1):
            return None
        found.append(end - start)
        end = start
    return (end, *found[::-1]) if end > 0 and sums[end] + front <= limit + _SLACK else None


def even(layers: int, stages: int) -> tuple[int, ...] | None:
    """Equal stages, or None where the layers do not divide."""
    return (layers // stages,) * stages if layers % stages == 0 else None


@lru_cache(maxsize=64)
def head_layers(model: ModelSpec, seq: int) -> float:
    """The head's forward work in units of an average layer."""
    return layer_work(model, seq)[2]


@lru_cache(maxsize=64)
def layer_work(model: ModelSpec, seq: int) -> tuple[tuple[float, ...], float, float]:
    """Forward work of each layer, of images before the first and of the head after the last, in average layers."""
    order = layer_kinds(model)
    head = (
        2.0 * weights_of.head_weights(model).sharded if not model.tied_embeddings else 2.0 * model.vocab * model.hidden
    )
    of_kind = {kind: weights_of.layer_flops_per_token(model, kind, seq) for kind in dict.fromkeys(order)}
    mean = sum(of_kind[kind] for kind in order) / len(order)
    images = tower.flops_per_token(model) if model.tower else 0.0
    if mean <= 0:
        return (1.0,) * len(order), 0.0, 0.0
    return tuple(of_kind[kind] / mean for kind in order), images / mean, head / mean


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


class _RankKinds(NamedTuple):
    """Every rank of a pipeline, as the fields of ``StageKinds``; and which kind it is, counted as they first appear."""

    counts: Ints
    first: Bools
    last: Bools
    sends: Ints
    chunk_layers: Ints
    kind: Ints


@lru_cache(maxsize=4096)
def stages(model: ModelSpec, place: Place, layers: tuple[int, ...], every_rank: bool = False) -> StageKinds:
    """Kinds of stage in a pipeline: ranks with equal layers and ends are one kind (all ranks if ``every_rank``)."""
    counts, first, last, sends, chunk_layers, kind = _ranks(model, place, layers)
    if every_rank:
        kind = np.arange(len(kind))
    count = int(kind.max()) + 1
    ranks, until = np.empty(count, np.int64), np.empty(count, np.int64)
    until[kind] = np.arange(len(kind))
    ranks[kind[::-1]] = np.arange(len(kind) - 1, -1, -1)  # of equal kinds the first rank is written last
    prefix = _kind_prefix(model)
    passed = np.array((0, *accumulate(layers)))
    before = prefix[passed[np.array(place[0])[until]]].astype(np.float64)
    final = np.repeat((prefix[-1] - prefix[passed[-2]])[None], count, axis=0).astype(np.float64)
    mine = counts[ranks].astype(np.float64)
    return StageKinds(ranks, mine, first[ranks], last[ranks], sends[ranks], chunk_layers[ranks], until, before, final)


@lru_cache(maxsize=4096)
def _ranks(model: ModelSpec, place: Place, layers: tuple[int, ...]) -> _RankKinds:
    prefix, passed, held = _kind_prefix(model), np.array((0, *accumulate(layers))), np.array(place)
    counts = (prefix[passed[1:]] - prefix[passed[:-1]])[held].sum(axis=0)
    largest = np.array(layers)[held].max(axis=0)
    first, last = (held == 0).any(axis=0), (held == len(layers) - 1).any(axis=0)
    sends = _sends(held)
    table = np.column_stack((counts, largest, first, last, sends)).tolist()
    kinds_seen: dict[tuple[int, ...], int] = {}
    kind = [kinds_seen.setdefault(tuple(row), len(kinds_seen)) for row in table]
    return _RankKinds(counts, first, last, sends, largest, np.array(kind))


def _sends(held: Ints) -> Ints:
    """By rank: how often a micro-batch leaves it for another rank, forward and backward."""
    rank_of = np.empty(held.size, dtype=np.int64)
    rank_of[held] = np.arange(held.shape[1])
    away = np.zeros(held.size + 1, dtype=np.int64)
    away[1:-1] = rank_of[1:] != rank_of[:-1]
    return np.asarray((away[1:] + away[:-1])[held].sum(axis=0))


def stage_kind_of_rank(model: ModelSpec, place: Place, layers: tuple[int, ...]) -> Ints:
    """Which of the kinds of ``stages`` each rank is."""
    return _ranks(model, place, layers).kind


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
