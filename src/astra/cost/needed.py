"""What must be recomputed at least for activations to have room, and the time that takes.

One number of layers holds for every rank, so the rank that is shortest of room decides for all of them. Three ways are
known: keep all, some modules again, or the first layers of each chunk. Where activations may wait in host memory,
nothing need be run again; a recompute of another kind needs its line here.
"""

from __future__ import annotations

import numpy as np

from astra.columns import largest
from astra.cost import memory, step
from astra.cost.bound import paths_of
from astra.cost.memory import Sharding
from astra.cost.recompute import Recomputes, module_sets
from astra.cost.stage import Meshes, StageCosts
from astra.cost.state import Bytes
from astra.provenance import Floats
from astra.spec.job import Job

_LOOSE = 1 - 1e-9


def needed_bound_s(
    job: Job,
    meshes: Meshes,
    costs: StageCosts,
    recomputes: Recomputes,
    shardings: Sharding,
    waits: Floats | None = None,
) -> Floats:
    """[mesh, sharding] a lower bound of the step with every recompute that fits; ``waits`` as for ``seconds``."""
    static, update, between = step.states(job, meshes, costs, shardings)
    again_s, over_s = _least_again_s(job, meshes, costs, recomputes, static)
    through, back, _ = paths_of(meshes, costs)
    added_s = again_s + between.per_microbatch_s
    pipeline_s = largest(through.seconds[:, None, :] + through.times[:, None, :] * added_s)
    turned_s = largest(back.seconds[:, None, :] + back.times[:, None, :] * added_s) + over_s
    pipeline_s = np.maximum(pipeline_s, np.where((meshes.columns["pp"] > 1)[:, None], turned_s, 0.0))
    last_s = largest(step.after_s(update, between))
    return _LOOSE * step.seconds(job, pipeline_s, last_s, None if waits is None else waits[:, None])


def _least_again_s(
    job: Job, meshes: Meshes, costs: StageCosts, recomputes: Recomputes, static: Bytes
) -> tuple[Floats, Floats]:
    """The least that must run again of a micro-batch, on each kind of rank [mesh, sharding, stage] and on all."""
    if recomputes.offload_layers.any():
        return np.zeros_like(static.weights), np.zeros(static.weights.shape[:2])
    vp = meshes.columns["vp"][:, None]
    nothing = memory.Activations(np.zeros(1), costs.layer_working[:, None, :], costs.head_bytes[:, None, :])
    room = memory.room_bytes(job) * (1 + 1e-9) - memory.peak(static, nothing, costs.buffer_bytes)[:, 0]
    alive = costs.in_flight / vp
    whole, least = ((kept * alive)[:, None, :] for kept in (costs.kept_whole, costs.kept_checkpoint))
    share = np.clip((whole - room) / np.maximum(whole - least, 1.0), 0.0, 1.0)
    layers = np.ceil(largest(share * (costs.layers / vp)[:, None, :]) * _LOOSE)
    again_s = np.minimum(layers[:, :, None] / np.maximum(costs.chunk_layers, 1)[:, None, :], 1.0)
    again_s = again_s * costs.recompute_s[:, None, :]
    deepest = np.maximum(costs.chunk_layers.max(axis=1, initial=1), 1)[:, None]
    over_s = np.minimum(layers / deepest, 1.0) * costs.over.recompute_s[:, None]
    by_module = (costs.kept_modules, costs.modules_s, costs.over.modules_s)
    for (_, saved), (_, rank_s), (_, all_s) in zip(*(module_sets(recomputes, one) for one in by_module), strict=True):
        does = (whole - (saved * alive)[:, None, :] <= room).all(axis=2)
        again_s = np.minimum(again_s, np.where(does[:, :, None], rank_s[:, None, :], np.inf))
        over_s = np.minimum(over_s, np.where(does, all_s[:, None], np.inf))
    return again_s, over_s
