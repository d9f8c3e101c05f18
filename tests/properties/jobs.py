"""Small jobs and strategies to state laws about."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus
from astra.rules.restrictions import Restrictions
from astra.search.detail import estimate
from astra.search.engine import search
from astra.spec.cluster import Cluster, Pool
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload
from tests.oracle import requests
from tests.tiers import TIMES

FIRST = int(os.environ.get("ASTRA_SEED") or 0)  # of the numbered requests; ``make explore`` takes the clock's
FREE = Restrictions()
GROUPS = 10_000  # more than there are
POOLS = (
    "1xH100",
    "2xH100",
    "4xA100",
    "8xH100",
    "8xA100",
    "16xH100",
    "8xMI300X",
    "4xL40S",
    "8xB200",
    "2xV100-SXM2-32GB",
)
SEEDS = 120 * TIMES


def law(examples: int) -> settings:
    """The same examples in every run, unless more are asked for."""
    return settings(max_examples=examples * TIMES, deadline=None)


@cache
def job(seed: int) -> Job:
    """Made-up GPUs that tiny models keep busy, or (every second one) a tiny model on real GPUs."""
    made = requests.random_request(FIRST + seed).job
    if seed % 2:
        return made
    pool = parse_gpus(POOLS[seed // 2 % len(POOLS)])
    precision = "bf16" if "bf16" in pool.device.flops_per_s else "fp16"
    workload = msgspec.structs.replace(made.workload, precision=precision)
    return msgspec.structs.replace(made, pool=pool, workload=workload, runtime=runtimes.runtime("megatron"))


@cache
def leaders(seed: int) -> list[Strategy]:
    """The best strategy of every group."""
    return [candidate.strategy for candidate in search(job(seed), FREE, keep=GROUPS).candidates]


seeds = st.integers(0, SEEDS - 1)
jobs = seeds.map(job)
choices = seeds.filter(lambda seed: bool(leaders(seed))).flatmap(
    lambda seed: st.tuples(st.just(job(seed)), st.sampled_from(leaders(seed)))
)


def best_s(job: Job) -> float:
    """The best simulated step; infinite if nothing fits."""
    found = search(job, FREE, keep=1).candidates
    return found[0].step_s if found else float(np.inf)


def step_s(job: Job, strategy: Strategy) -> float:
    """The simulated step of one strategy."""
    return estimate(job, [strategy])[0].step_s


def with_device(job: Job, **factors: Any) -> Job:
    """The same job on GPUs with some quantities multiplied."""
    device = job.pool.device
    changes: dict[str, Any] = {}
    for name, factor in factors.items():
        value = getattr(device, name)
        changes[name] = {k: v * factor for k, v in value.items()} if isinstance(value, dict) else value * factor
    device = msgspec.structs.replace(device, **changes)
    return msgspec.structs.replace(job, pool=msgspec.structs.replace(job.pool, device=device))


def with_links(job: Job, factor: float) -> Job:
    """The same job on faster links."""
    node = job.pool.node
    links = tuple(msgspec.structs.replace(link, bytes_per_s=link.bytes_per_s * factor) for link in node.links)
    pool = msgspec.structs.replace(job.pool, node=msgspec.structs.replace(node, links=links))
    return msgspec.structs.replace(job, pool=pool)


def with_work(job: Job, **changes: Any) -> Job:
    """The same job with another workload."""
    workload: Workload = msgspec.structs.replace(job.workload, **changes)
    return msgspec.structs.replace(job, workload=workload)


def cluster(pool: Pool) -> Cluster:
    """One pool, as the public functions take it."""
    return Cluster(pools=(pool,))


def assert_same(first: Any, second: Any, path: str = "") -> None:
    """Equal records; figures up to the last digits, which depend on what is timed together."""
    if isinstance(first, dict):
        assert first.keys() == second.keys(), path
        for key in first:
            assert_same(first[key], second[key], f"{path}.{key}")
    elif isinstance(first, list):
        assert len(first) == len(second), path
        for place, pair in enumerate(zip(first, second, strict=True)):
            assert_same(*pair, f"{path}[{place}]")
    elif isinstance(first, float):
        assert second == pytest.approx(first, rel=1e-12, abs=1e-15), path
    else:
        assert first == second, path
