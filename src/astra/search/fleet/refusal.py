"""Why nothing fits on a pool."""

from __future__ import annotations

import numpy as np

from astra.cost import mixed as cost
from astra.cost.constants import WORKSPACE_BYTES
from astra.cost.memory import reserved_bytes
from astra.search.fleet.space import FrameSpace
from astra.units import GIB


def why_not(space: FrameSpace, pool: int) -> str:
    """Why no stage fits on a pool; empty if one does."""
    job, columns, _ = space.ways[pool]
    if not len(columns.shards.tp):
        return "no tensor-parallel degree is legal for the model here, or allowed."
    stage_kinds = columns.checkpoint.shape[1] - 2
    working = columns.working + columns.layer_whole + columns.ends_bytes + WORKSPACE_BYTES
    least = np.inf
    for tp in set(columns.shards.tp.tolist()):  # with as many replicas as the pool has room for
        replicas = max(min(job.pool.gpus // tp, space.batch), 1)
        resident = cost.resident_bytes(job, columns, replicas, space.zero)[:, :stage_kinds].min(axis=1)
        need = reserved_bytes(job, resident + columns.checkpoint[:, :stage_kinds].min(axis=1) + working)
        least = min(least, float(need[columns.shards.tp == tp].min()))
    limit = job.limit_bytes
    if least <= limit:
        return ""
    return f"a stage with a single layer needs {least / GIB:.1f} GiB of the {limit / GIB:.1f} GiB a GPU may use."
