"""How fast the host here issues operators, told by ranks that waited for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from astra.search.detail import estimate
from astra.spec.job import Job
from astra.spec.strategy import Strategy

HOST_BOUND: Final = 1.25  # a step this much longer than its kernels waited for the host
_FASTEST: Final = 8.0  # and as many times slower at most
_HALVINGS: Final = 12


class Rank(NamedTuple):
    """A rank that ran: what it was one of, and the seconds of its forward and backward in all micro-batches."""

    job: Job
    strategy: Strategy
    stage: int
    compute_s: float


def waited(row: Mapping[str, Any]) -> bool:
    """Whether a measured rank waited for the host."""
    ran = not row.get("oom") and "error" not in row and row.get("busy_s")
    return bool(ran and row["compute_s"] > HOST_BOUND * row["busy_s"])


def with_host(job: Job, speed: float) -> Job:
    """The job on servers whose hosts issue operators at another speed."""
    return replace(job, pool=replace(job.pool, node=replace(job.pool.node, host_speed=speed)))


def host_speed(rank: Rank) -> float:
    """The ``host_speed`` of a node with which a rank that waited takes as long as measured."""
    slow, fast = -math.log(_FASTEST), math.log(_FASTEST)
    for _ in range(_HALVINGS):
        speed = (slow + fast) / 2
        job = with_host(rank.job, math.exp(speed))
        stage = estimate(job, [rank.strategy])[0].stages[rank.stage]
        slow, fast = (speed, fast) if stage.compute_s > rank.compute_s else (slow, speed)
    return math.exp((slow + fast) / 2)
