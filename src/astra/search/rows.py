"""Rows of a search in blocks, groups and entries of the contest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from astra.columns import Columns, unique
from astra.cost.memory import Sharding
from astra.cost.recompute import Recomputes
from astra.cost.stage import Gathered, Meshes, StageCosts
from astra.cost.step import Evaluated
from astra.provenance import Bools, Floats, Ints
from astra.search.settle import Entries, least_recomputes

GROUP: Final = ("tp", "pp", "ep")  # plans that differ here are different plans; the rest are variants of one
_FEWER: Final = 1_000_000  # than this many GPUs along one dimension
CELLS: Final = 200_000  # entries of one block: large enough for NumPy, small enough for the cache
FIRST_GRIDS: Final = 256
MOST_GRIDS: Final = 4096


def growing(order: Ints, first: int = FIRST_GRIDS) -> Iterator[Ints]:
    """Rows in blocks that double, so that an easy search stops early and a hard one runs at full width."""
    start, size = 0, first
    while start < len(order):
        yield order[start : start + size]
        start, size = start + size, min(2 * size, MOST_GRIDS)


def group_of(columns: Columns) -> Ints:
    """A number for each group."""
    numbers = np.zeros(len(columns[GROUP[0]]), np.int64)
    for name in GROUP:
        numbers = numbers * _FEWER + columns[name]
    return numbers


def entries_of(
    result: Evaluated, fits: Bools, meshes: Meshes, parts: Gathered, recomputes: Recomputes, shardings: Sharding,
    group: Ints, waits: Floats, *, first: bool,
) -> Entries:  # fmt: skip
    """What fits and may win, as rows of the contest; the quickest recompute enters the first time only."""
    mesh, recompute, sharding = least_recomputes(result, recomputes, fits)
    if not first:
        mesh, recompute, sharding = (column[recompute > 0] for column in (mesh, recompute, sharding))
    return Entries(
        result.bound_s[mesh, recompute, sharding],
        result.exchanged_s[mesh, sharding],
        result.after_s[mesh, sharding],
        group[mesh],
        waits[mesh, sharding],
        meshes.take(mesh),
        parts.place[mesh],
        recomputes.take(recompute),
        Sharding(*(column[sharding] for column in shardings)),
    )


def join_parts(several: Sequence[Gathered]) -> Gathered:
    """The places of several tables that share their parts."""
    return several[0]._replace(place=np.concatenate([some.place for some in several]))


def blocks(rows: Ints, width: int) -> list[Ints]:
    """Rows in blocks whose arrays, ``width`` entries a row, have a good size."""
    size = max(CELLS // width, 8)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def by_depth(rows: Ints, costs: StageCosts, shardings: int) -> Iterator[Ints]:
    """Rows with chunks of like depth together: a shallow chunk has few layers to choose for recompute."""
    depth = np.log2(np.maximum(costs.chunk_layers[rows].max(axis=1), 1)).astype(np.int64) // 2
    for level in unique(depth):
        recomputes = 2 + 2 * 4 ** (int(level) + 1)
        yield from blocks(rows[depth == level], recomputes * shardings * costs.forward_s.shape[1])
