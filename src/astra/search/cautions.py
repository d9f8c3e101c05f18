"""What an estimate warns of."""

from __future__ import annotations

from typing import Final

from astra.columns import from_strategy
from astra.cost.kernels import APART
from astra.rules.names import facts_of
from astra.rules.table import advice
from astra.spec.cluster import Pool
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.units import GIB

PLAUSIBLE_MFU: Final = 0.65  # above the best published large runs (about 0.60 in bf16, MLPerf and vendor tables)
HOST_SHARE: Final = 0.9  # of host memory for what is offloaded; the rest is the system's and the programs'
WAITS: Final = 1.1  # so many times as long with a slower host is worth a word


def advised(job: Job, strategy: Strategy) -> list[str]:
    """What is legal but unwise in a strategy, and what to do about it."""
    facts = facts_of(job.model, job.pool, job.workload, runtime=job.runtime.framework)
    return list(advice(from_strategy(strategy), facts))


def cautions(job: Job, strategy: Strategy, *, mfu: float, reserved_gib: float, fits: bool, slower: float) -> list[str]:
    """The same, and figures to doubt; ``slower`` is how many times as long it computes beside a slower host."""
    found = advised(job, strategy)
    if slower > WAITS:
        found.append(
            f"the GPU waits for the host: on one that is {APART:g} times slower, forward and backward take "
            f"{slower - 1:.0%} longer; astra rehearse measures a host, host_speed of a cluster file's node says it"
        )
    if mfu > PLAUSIBLE_MFU:
        found.append(
            f"MFU {mfu:.0%} is above what large runs have published ({PLAUSIBLE_MFU:.0%}): treat it as optimistic"
        )
    if not fits:
        copied = job.model.mla is None and strategy.tp > job.model.kv_heads
        found.append(
            f"needs {reserved_gib:.1f} GiB, above the {job.limit_bytes / GIB:.1f} GiB limit "
            f"({job.usable_bytes / GIB:.1f} GiB usable, {job.headroom:.0%} kept free)"
            + f"; key/value heads are copied above tp={job.model.kv_heads}"
            * copied
        )
    return found


def beyond_host(pool: Pool, rank_bytes: float) -> list[str]:
    """Where a server has no room for what its GPUs offload, so much of them at most."""
    room, needed = pool.node.host_memory_bytes, rank_bytes * min(pool.node.gpus, pool.gpus)
    if room is None or needed <= HOST_SHARE * room:
        return []
    return [
        f"offload needs up to {needed / GIB:,.0f} GiB of host memory in a server that has {room / GIB:,.0f}: use more "
        "GPUs, or offload=none with less to hold (a higher zero, tp or pp)"
    ]
