"""What must be recomputed at least for activations to have room, and the time that takes.

One number of layers holds for every rank, so the rank that is shortest of room decides for all of them. Three ways are
known: keep all, attention alone again, or the first layers of each chunk; a saver of another kind needs its line here.
"""

from __future__ import annotations

import numpy as np

from astra.columns import largest
from astra.cost import memory, step
from astra.cost.bound import paths_of
from astra.cost.memory import Holders
from astra.cost.stage import Meshes, StageCosts
from astra.provenance import Floats
from astra.spec.job import Job

_LOOSE = 1 - 1e-9


def needed_bound_s(
    job: Job, meshes: Meshes, costs: StageCosts, holders: Holders, waits: Floats | None = None
) -> Floats:
    """[mesh, holder] a lower bound of the step of every saver with which a mesh fits; ``waits`` as for ``seconds``."""
    static, update, between = step.states(job, meshes, costs, holders)
    layers, attention = _least_repeats(job, meshes, costs, sum(static[1:], start=static[0]))
    share = np.minimum(layers[:, :, None] / np.maximum(costs.chunk_layers, 1)[:, None, :], 1.0)
    again_s = _either(share, costs.recompute_s[:, None, :], attention[:, :, None], costs.recompute_attention_s)
    deepest = np.maximum(costs.chunk_layers.max(axis=1, initial=1), 1)[:, None]
    over_s = _either(
        np.minimum(layers / deepest, 1.0), costs.over.recompute_s[:, None], attention, costs.over.attention_s
    )
    through, back, _ = paths_of(meshes, costs)
    added_s = again_s + between.per_microbatch_s
    pipeline_s = largest(through.seconds[:, None, :] + through.times[:, None, :] * added_s)
    turned_s = largest(back.seconds[:, None, :] + back.times[:, None, :] * added_s) + over_s
    pipeline_s = np.maximum(pipeline_s, np.where((meshes.columns["pp"] > 1)[:, None], turned_s, 0.0))
    last_s = largest(step.after_s(update, between))
    return _LOOSE * step.seconds(job, pipeline_s, last_s, None if waits is None else waits[:, None])


def _least_repeats(job: Job, meshes: Meshes, costs: StageCosts, resident: Floats) -> tuple[Floats, Floats]:
    """[mesh, holder] the least layers of a chunk that must run again, and whether attention alone would do."""
    vp = meshes.columns["vp"][:, None]
    working = np.maximum(costs.layer_working, costs.head_bytes) + costs.buffer_bytes
    room = memory.room_bytes(job) * (1 + 1e-9) - working[:, None, :] - resident
    alive = costs.in_flight / vp
    whole, selective, least = (
        (kept * alive)[:, None, :] for kept in (costs.kept_whole, costs.kept_selective, costs.kept_checkpoint)
    )
    share = np.clip((whole - room) / np.maximum(whole - least, 1.0), 0.0, 1.0)
    layers = np.ceil(largest(share * (costs.layers / vp)[:, None, :]) * _LOOSE)
    return layers, np.asarray((selective <= room).all(axis=2))


def _either(share: Floats, all_s: Floats, attention: Floats, attention_s: Floats) -> Floats:
    """Some of the layers again, or attention alone where that does."""
    alone_s = attention_s[:, None] if attention_s.ndim < all_s.ndim else attention_s
    return np.minimum(share * all_s, np.where(attention, alone_s, np.inf))
