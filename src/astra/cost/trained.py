"""How many parameters a job trains, on whatever GPUs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from astra.cost.layers import EMBEDDING, HEAD
from astra.cost.stage import gather_parts
from astra.layers import weights as weights_of
from astra.layers.kinds import LayerKind, layer_kinds
from astra.spec.job import Job
from astra.spec.model import ModelSpec


def trained_parameters(job: Job) -> float:
    """All of them, or those of the adapters."""
    return _adapters(job) if job.workload.task == "lora" else _all(job.model)


@lru_cache(maxsize=64)
def _all(model: ModelSpec) -> float:
    return float(weights_of.count(model).total)


_ADAPTERS: dict[tuple[ModelSpec, int, str], float] = {}  # by model, rank and which matrices have them


def _adapters(job: Job) -> float:
    """Parameters of the low-rank adapters."""
    key = (job.model, job.workload.lora_rank, job.workload.lora_targets)
    if key not in _ADAPTERS:
        one = {name: np.ones(1, np.int64) for name in ("tp", "cp", "ep", "etp", "mbs")}
        parts = gather_parts(job, one | {"sp": np.zeros(1, bool), "flash": np.ones(1, bool)}).parts
        keys: list[LayerKind | str] = [*layer_kinds(job.model), EMBEDDING, HEAD]
        _ADAPTERS[key] = float(sum(parts[each].adapters[0] for each in keys))
    return _ADAPTERS[key]
