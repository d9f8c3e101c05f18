"""Degrees of every number of GPUs at once."""

from __future__ import annotations

import numpy as np

from astra.columns import Column
from astra.layers.kinds import layer_kinds
from astra.provenance import Ints
from astra.rules.restrictions import Restrictions
from astra.search.space import divisors, expert_candidates
from astra.spec.job import Job


def degrees(job: Job, counts: Ints, restrictions: Restrictions) -> dict[str, Column]:
    """Every tp * cp * pp * dp that is one of the counts and deals the batch."""
    choices = {
        "tp": divisors(job.model.heads),
        "cp": divisors(job.workload.seq),
        "pp": range(1, len(layer_kinds(job.model)) + 1),
        "dp": divisors(job.workload.global_batch),
    }
    most = int(counts[-1])
    tp, cp, pp, dp = (
        np.array(list(restrictions.filter(name, [n for n in some if n <= most])), np.int64)
        for name, some in choices.items()
    )
    gpus = tp[:, None, None, None] * cp[:, None, None] * pp[:, None] * dp
    rows = np.nonzero(np.isin(gpus, counts))
    return {n: c[r] for n, c, r in zip(choices, (tp, cp, pp, dp), rows, strict=True)}


def expert_degrees(job: Job, restrictions: Restrictions) -> dict[str, Column]:
    """Every ep with every etp the GPUs of the job have room for; 1 with 1 where there are no experts."""
    moe = job.model.moe
    slices = [n for n in divisors(moe.ffn) if n <= job.pool.gpus] if moe else [1]
    ep, etp = (
        np.array(list(restrictions.filter(name, some)), np.int64)
        for name, some in (("ep", expert_candidates(job, restrictions) if moe else [1]), ("etp", slices))
    )
    return {"ep": np.repeat(ep, len(etp)), "etp": np.tile(etp, len(ep))}
