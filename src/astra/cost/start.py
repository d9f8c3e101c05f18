"""The start of a job: what a rank holds while weights that ZeRO shards are made, before the first step.

Counted in Megatron-FSDP's ``_init_distributed_params`` (megatron-core 0.19.2). The model is built without memory; then,
unit by unit, the unit's weights are made whole, module by module, beside a buffer of the whole unit, and cut into the
rank's shards and their fp32 copies. Units are the layers, and all the rest (embedding and output) is one. There are no
gradients and no moments yet. A model that cannot be built so is first held whole by every rank.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from astra.columns import each
from astra.cost import effects
from astra.cost.memory import Sharding, holding
from astra.cost.stage import StageCosts
from astra.cost.state import MASTER_BYTES, weight_bytes
from astra.provenance import Bools, Floats
from astra.spec.job import Job
from astra.spec.model import ModelSpec

AT_START: Final = (
    "memory is at its peak at the start, before the first step: the weights of a whole unit are made on every rank, "
    "then sharded"
)


class Highest(NamedTuple):
    """The most a rank holds, [rank], and whether that is at the start and not in a step."""

    nbytes: Floats
    at_start: Bools


def built_without_memory(model: ModelSpec) -> bool:
    """Whether every module can fill its own weights: a gate of shared experts has no ``reset_parameters``."""
    return model.moe is None or not model.moe.shared_gate


def start_bytes(job: Job, costs: StageCosts, shardings: Sharding) -> Floats:
    """Bytes allocated at the worst moment of the start, [mesh, sharding, sort]; 0 where no weights are sharded."""
    if not effects.starts_by_unit(job.runtime) or shardings.zero.max() < 2:
        return np.zeros((1, 1, 1))
    held, how = each(costs.held, lambda column: column[:, None, :]), holding(job, costs, shardings)
    width = float(job.workload.element_bytes)
    copies = MASTER_BYTES * (held.trained_dense / how.ranks + held.trained_expert / how.expert_ranks)
    if built_without_memory(job.model):
        layer, head = (column[:, None, :] for column in costs.units)
        rest = head if job.model.tied_embeddings else 2 * head
        made = width * np.maximum(rest + head, 2 * layer)
    else:
        made = width * (held.dense + held.expert)
    return np.where(how.zero >= 2, weight_bytes(job, held, how) + copies + made, 0.0)


def highest_of(job: Job, costs: StageCosts, shardings: Sharding, in_step: Floats) -> Highest:
    """The peak of each rank of one strategy, whose steps hold so much."""
    start = np.broadcast_to(start_bytes(job, costs, shardings), (1, 1, len(in_step)))[0, 0]
    return Highest(np.maximum(in_step, start), start > in_step)
