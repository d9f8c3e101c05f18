"""What follows the pipeline in a step (gradients, optimizer, weights), of every stage there can be."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from astra.columns import distinct, take
from astra.cost import mixed as cost
from astra.cost.between import replicas, sync
from astra.cost.state import Held, Holding, optimizer_s
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Floats, Ints
from astra.spec.job import Job

_OFF = np.array(0)


class Settings(NamedTuple):
    """What all pipelines share."""

    zero: int
    overlap_grad: bool
    overlap_param: bool


class After:
    """The ends of all stages of each pool, as tables that are made once for each number of replicas."""

    def __init__(self, pools: list[tuple[Job, cost.PoolColumns]], settings: Settings) -> None:
        self.pools, self.settings = pools, settings
        self.table = lru_cache(maxsize=1024)(self._table)

    def _table(self, pool: int, dp: int, groups: int = 1, way: cost.Wire | None = None) -> Floats:
        """[sharding, first + 2 * last, stage] seconds; a stage is its layers, or its place where layers differ.

        With other groups of pipelines the gradients are also summed with those, over ``way``.
        """
        job, columns = self.pools[pool]
        mixes, place = stages_of(job)
        count = len(kinds(job.model))
        ends = np.array([[0, 0], [1, 0], [0, 1], [1, 1]])
        sums = np.concatenate((np.tile(mixes, (4, 1)), np.repeat(ends, len(mixes), axis=0)), axis=1).T  # [sort, stage]

        def of_stages(by_sort: Floats) -> Floats:
            return np.asarray(by_sort[:, : count + 2] @ sums)

        shards = columns.shards
        # Parameters and who shares them do not depend on the micro-batch.
        first, alike = distinct(shards.tp, shards.cp, shards.ep)
        some = take(shards, first)
        held = Held(*(of_stages(column[first]) for column in columns.held))
        replicated = (dp * some.cp)[:, None]
        expert_ranks, expert_stride = (column[:, None] for column in some.expert_groups(dp))
        how = Holding(np.array(self.settings.zero), _OFF, replicated, expert_ranks)
        update_s, _ = optimizer_s(job, held, how)
        moved = sync(
            job, held, ranks=replicated, stride=some.tp[:, None], expert_ranks=expert_ranks,
            expert_stride=expert_stride,
        )  # fmt: skip
        moved = take(cost.with_other_groups(job, moved, held, replicated, groups, way), alike)
        forward_s = of_stages(columns.forward_s)
        between = replicas(
            job,
            moved,
            how=how,
            overlap_grad=np.array(self.settings.overlap_grad),
            overlap_param=np.array(self.settings.overlap_param),
            layers=np.tile(mixes.sum(axis=1), 4).astype(np.float64),
            microbatches=np.array(1),
            forward_s=forward_s,
            backward_s=of_stages(columns.work_s) - forward_s,
        )
        table: Floats = (update_s[alike] + between.exposed_s).reshape(len(shards.tp), 4, len(mixes))
        return table if place is None else table[:, :, place]


@lru_cache(maxsize=16)
def _mixes(pattern: tuple[int, ...], sorts: int) -> tuple[Ints, Ints | None]:
    depth = len(pattern)
    if sorts == 1:
        return np.arange(depth + 1)[:, None], None
    steps = np.eye(sorts, dtype=np.int64)[list(reversed(pattern))]
    sums = np.concatenate((np.zeros((1, sorts), np.int64), np.cumsum(steps, axis=0)))
    gaps = np.maximum(sums[:, None] - sums[None], 0)  # [left at the front, at the back, kind]
    mixes, place = np.unique(gaps.reshape(-1, sorts), axis=0, return_inverse=True)
    return mixes, place.reshape(depth + 1, depth + 1)


def stages_of(job: Job) -> tuple[Ints, Ints | None]:
    """[stage, kind] how many layers of each kind a stage can hold, and [front, back] which stage lies between."""
    order = {kind: place for place, kind in enumerate(kinds(job.model))}
    return _mixes(tuple(order[kind] for kind in layer_kinds(job.model)), len(order))
