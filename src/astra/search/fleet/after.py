"""What follows the pipeline in a step (gradients, optimizer, weights), of every stage there can be."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from astra.columns import distinct, take
from astra.cost import mixed as cost
from astra.cost.between import Sync, replicas, sync, with_other_groups
from astra.cost.state import Held, Holding, optimizer_s
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats, Ints
from astra.spec.job import Job
from astra.spec.model import ModelSpec

_OFF = np.array(0)
_ONE = np.array(1)

Tables = dict[int, Floats]  # by sharding


class AfterSettings(NamedTuple):
    """What all pipelines share."""

    zero: int
    overlap_grad: bool
    overlap_param: bool


class _Moved(NamedTuple):
    """Of the shardings of one cp that differ in parameters and who shares them: [sharding, stage] columns."""

    place: dict[tuple[int, int], int]  # of a tp and ep
    update_s: Floats
    sync: Sync


class After:
    """The ends of all stages of each pool, as tables that are made once for each number of replicas.

    Where layers differ there are thousands of stages, so that tables hold one micro-batch and cp, and each unlike stage
    once.
    """

    def __init__(self, pools: list[tuple[Job, cost.PoolColumns]], settings: AfterSettings) -> None:
        self.pools, self.settings = pools, settings
        self._moved = lru_cache(maxsize=64)(self._make_moved)
        self._ends = lru_cache(maxsize=128)(self._make_ends)

    def tables(self, pool: int, dp: int, rows: Iterable[int], groups: int = 1, way: cost.Wire | None = None) -> Tables:
        """By sharding: [first + 2 * last, stage] seconds; a stage is its layers, or its place where layers differ.

        With other groups of pipelines the gradients are also summed with those, over ``way``.
        """
        job, columns = self.pools[pool]
        _, place = stages_of(job)
        out = {}
        for row in set(rows):
            at, ends_s = self._ends(pool, dp, int(columns.shards.mbs[row]), int(columns.shards.cp[row]), groups, way)
            own = ends_s[at[row]]
            out[row] = own if place is None else own[:, place]
        return out

    def _make_moved(self, pool: int, dp: int, cp: int, groups: int, way: cost.Wire | None) -> _Moved:
        """What does not depend on the micro-batch."""
        job, columns = self.pools[pool]
        rows = np.flatnonzero(columns.shards.cp == cp)
        rows = rows[distinct(columns.shards.tp[rows], columns.shards.ep[rows])[0]]
        some = take(columns.shards, rows)
        held = Held(*(self._of_stages(job, column[rows]) for column in columns.held))
        replicated = (dp * some.cp)[:, None]
        expert_ranks, expert_stride = (column[:, None] for column in some.expert_groups(dp))
        how = Holding(np.array(self.settings.zero), _OFF, replicated, expert_ranks)
        update_s, _ = optimizer_s(job, held, how)
        moved = sync(
            job, held, ranks=replicated, stride=some.tp[:, None], expert_ranks=expert_ranks,
            expert_stride=expert_stride,
        )  # fmt: skip
        place = {pair: at for at, pair in enumerate(zip(some.tp.tolist(), some.ep.tolist(), strict=True))}
        return _Moved(
            place,
            update_s,
            with_other_groups(job, moved, held, replicated, expert_ranks, cost.beside(job, groups, way)),
        )

    def _make_ends(
        self, pool: int, dp: int, mbs: int, cp: int, groups: int, way: cost.Wire | None
    ) -> tuple[dict[int, int], Floats]:
        """Where each sharding is, and [sharding, first + 2 * last, unlike stage] seconds."""
        job, columns = self.pools[pool]
        shards, (mixes, _) = columns.shards, stages_of(job)
        moved = self._moved(pool, dp, cp, groups, way)
        rows = np.flatnonzero((shards.mbs == mbs) & (shards.cp == cp))
        same = np.array([moved.place[int(shards.tp[row]), int(shards.ep[row])] for row in rows], np.int64)
        forward_s = self._of_stages(job, columns.forward_s[rows])
        between = replicas(
            job,
            take(moved.sync, same),
            how=Holding(np.array(self.settings.zero), _OFF, _ONE, _ONE),  # who shares them is in what is moved
            overlap_grad=np.array(self.settings.overlap_grad),
            overlap_param=np.array(self.settings.overlap_param),
            layers=np.tile(mixes.sum(axis=1), 4).astype(np.float64),
            microbatches=np.array(1),
            forward_s=forward_s,
            backward_s=self._of_stages(job, columns.work_s[rows]) - forward_s,
        )
        ends_s: Floats = (moved.update_s[same] + between.exposed_s).reshape(len(rows), 4, len(mixes))
        return {row: at for at, row in enumerate(rows.tolist())}, ends_s

    def _of_stages(self, job: Job, by_sort: Floats) -> Floats:
        """Columns of each kind of layer, embedding and head, summed over every stage there can be."""
        mixes, _ = stages_of(job)
        ends = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
        sums = np.concatenate((np.tile(mixes, (4, 1)), np.repeat(ends, len(mixes), axis=0)), axis=1).T  # [sort, stage]
        return np.asarray(by_sort[:, : mixes.shape[1] + 2] @ sums)


def _mixes(pattern: tuple[int, ...], stage_kinds: int) -> tuple[Ints, Ints | None]:
    depth = len(pattern)
    if stage_kinds == 1:
        return np.arange(depth + 1)[:, None], None
    steps = np.eye(stage_kinds, dtype=np.int64)[list(reversed(pattern))]
    sums = np.concatenate((np.zeros((1, stage_kinds), np.int64), np.cumsum(steps, axis=0)))
    gaps = np.maximum(sums[:, None] - sums[None], 0)  # [left at the front, at the back, kind]
    mixes, place = np.unique(gaps.reshape(-1, stage_kinds), axis=0, return_inverse=True)
    return mixes, place.reshape(depth + 1, depth + 1)


def stages_of(job: Job) -> tuple[Ints, Ints | None]:
    """[stage, kind] how many layers of each kind a stage can hold, and [front, back] which stage lies between."""
    return _stages(job.model)


@lru_cache(maxsize=16)
def _stages(model: ModelSpec) -> tuple[Ints, Ints | None]:
    order = {kind: place for place, kind in enumerate(kinds(model))}
    return _mixes(tuple(order[kind] for kind in layer_kinds(model)), len(order))
