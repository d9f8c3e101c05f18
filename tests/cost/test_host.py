"""The host's speed: what it changes, what it leaves, how ranks tell it, and when an estimate warns of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from astra.catalog import runtimes
from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model
from astra.lab.rehearse.pace import Rank, host_speed, waited, with_host
from astra.search.detail import estimate
from astra.spec.job import Job
from astra.spec.strategy import Strategy
from astra.spec.workload import Workload


def job_with(seq: int, runtime: str = "megatron-local") -> Job:
    work = Workload(global_batch=8, seq=seq)
    return Job(model=model("llama-3.2-1b"), pool=parse_gpus("8xH200"), workload=work, runtime=runtimes.runtime(runtime))


def compute_s(job: Job, text: str = "dp8 mbs1 zero1 graphs=none") -> float:
    return estimate(job, [job.strategy(text)])[0].stages[0].compute_s


@given(first=st.floats(0.2, 5.0), second=st.floats(0.2, 5.0), seq=st.sampled_from([256, 2048, 16384]))
@settings(max_examples=20, deadline=None)
def test_a_faster_host_never_makes_a_rank_slower(first: float, second: float, seq: int) -> None:
    slow, fast = sorted((first, second))
    assert compute_s(with_host(job_with(seq), fast)) <= compute_s(with_host(job_with(seq), slow)) * (1 + 1e-12)


def test_short_kernels_follow_the_host_and_long_ones_do_not() -> None:
    short, long = job_with(128), job_with(65536)
    assert compute_s(with_host(short, 0.5)) == pytest.approx(2 * compute_s(short), rel=0.02)
    assert compute_s(with_host(long, 0.5)) == pytest.approx(compute_s(long), rel=0.01)


@pytest.mark.parametrize("runtime", ["fsdp-local", "torchtitan-local"])
def test_units_of_weights_follow_it_too(runtime: str) -> None:
    job = job_with(128, runtime)
    assert compute_s(with_host(job, 0.5), "dp8 mbs1 zero3") == pytest.approx(
        2 * compute_s(job, "dp8 mbs1 zero3"), rel=0.02
    )


def test_a_graph_of_the_step_needs_no_host() -> None:
    job, words = job_with(1024, "megatron"), "dp8 mbs1 zero1 graphs=full"
    assert compute_s(with_host(job, 0.5), words) == compute_s(job, words)


@pytest.mark.parametrize("speed", [0.6, 1.0, 2.1])
def test_a_rank_that_waited_tells_the_speed_of_its_host(speed: float) -> None:
    job = job_with(512)
    strategy: Strategy = job.strategy("dp8 mbs1 zero1")
    there = estimate(with_host(job, speed), [strategy])[0].stages[0]
    assert host_speed(Rank(job, strategy, 0, there.compute_s)) == pytest.approx(speed, rel=0.01)
    asked = with_host(job, 3.0)  # what the job says of its host does not matter
    assert host_speed(Rank(asked, strategy, 0, there.compute_s)) == pytest.approx(speed, rel=0.01)


def test_which_ranks_waited() -> None:
    assert waited({"oom": False, "compute_s": 2.0, "busy_s": 1.0})
    assert not waited({"oom": False, "compute_s": 1.1, "busy_s": 1.0})
    assert not waited({"oom": True})
    assert not waited({"error": "no"})
    assert not waited({"oom": False, "compute_s": 1.0})  # counted, not run


def test_an_estimate_warns_where_the_host_is_the_limit() -> None:
    def warned(job: Job) -> list[str]:
        found = estimate(job, [job.strategy("dp8 mbs1 zero1")])[0].warnings
        return [warning for warning in found if "waits for the host" in warning]

    (said,) = warned(job_with(128))
    assert "1.25 times slower" in said
    assert "25% longer" in said
    assert not warned(job_with(16384))
    assert not warned(with_host(job_with(2048), 8.0))


def test_a_node_says_it() -> None:
    job = job_with(512)
    node = replace(job.pool.node, host_speed=2.0)
    assert compute_s(replace(job, pool=replace(job.pool, node=node))) == compute_s(with_host(job, 2.0))
