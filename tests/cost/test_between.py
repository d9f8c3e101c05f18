"""Communication between stages and replicas: what overlap hides, and what it cannot."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog.clusters import parse_gpus
from astra.cost.between import Replicas, Sync, p2p, replicas, sync
from astra.cost.state import Held, Holding
from astra.spec.job import Job, Words
from astra.spec.runtime import changed
from tests.properties.jobs import job, law

times = st.floats(1e-6, 10.0)
moves = st.tuples(times, times, times)


USUAL: dict[str, Any] = {
    "overlap_grad": True,
    "overlap_param": True,
    "layers": 8.0,
    "microbatches": 4,
    "forward_s": 1.0,
    "backward_s": 2.0,
}


def exchanged(moved: tuple[float, float, float], zero: int = 1, **more: Any) -> Replicas:
    held: dict[str, Any] = {name: np.array([more.pop(name)]) for name in ("reshard", "pipelined") if name in more}
    columns = {name: np.array([value]) for name, value in {**USUAL, **more}.items()}
    reduce, scatter, gather = (np.array([value]) for value in moved)
    one = np.ones(1, np.int64)
    how = Holding(zero * one, 0 * one, one, one, **held)
    moved_s = Sync(reduce, scatter, gather, np.zeros(1, np.int8), np.zeros(1), np.zeros(1))
    return replicas(job(2), moved_s, how=how, **columns)


@law(80)
@given(
    st.tuples(times, times, times), st.integers(0, 3), times, times, st.booleans(), st.booleans(), st.integers(1, 64)
)
def test_exposed_is_at_most_busy(
    moved: tuple[float, float, float],
    zero: int,
    forward_s: float,
    backward_s: float,
    grad: bool,
    param: bool,
    microbatches: int,
) -> None:
    found = exchanged(
        moved, zero, forward_s=forward_s, backward_s=backward_s, overlap_grad=grad, overlap_param=param,
        microbatches=microbatches,
    )  # fmt: skip
    shown = float(found.exposed_s[0] + microbatches * found.per_microbatch_s[0])
    assert 0 < shown <= float(found.busy_s[0]) * (1 + 1e-12)
    if not grad and not param:
        assert shown == pytest.approx(float(found.busy_s[0]))


@law(60)
@given(moves, st.integers(0, 3), times, times, st.floats(1.0, 10.0))
def test_a_longer_pass_hides_more(
    moved: tuple[float, float, float], zero: int, forward_s: float, backward_s: float, longer: float
) -> None:
    short, long = (
        exchanged(moved, zero, forward_s=forward_s * factor, backward_s=backward_s * factor) for factor in (1.0, longer)
    )
    # The kernels beside a collective run slower, so that a little more than nothing is left.
    slack = 0.2 * (longer - 1) * (forward_s + backward_s) + 1e-12
    assert long.exposed_s[0] <= short.exposed_s[0] + slack
    assert long.per_microbatch_s[0] <= short.per_microbatch_s[0] + slack


def test_what_each_stage_sends() -> None:
    """All-reduce; reduce-scatter and all-gather; those in every micro-batch; and the weights twice."""
    moved, off = (8.0, 5.0, 3.0), {"overlap_grad": False, "overlap_param": False}
    found = [exchanged(moved, zero, **off) for zero in range(4)]
    assert [float(some.busy_s[0]) for some in found] == [8, 8, 4 * 5 + 3, 4 * 5 + 2 * 4 * 3]
    assert [float(some.exposed_s[0]) for some in found] == [8, 8, 3, 0]
    assert [float(some.per_microbatch_s[0]) for some in found] == [0, 0, 5, 11]


def test_weights_that_stay_are_gathered_once() -> None:
    """Without resharding ZeRO-3 gathers once a micro-batch; in a pipeline it gathers and reduces once a step."""
    moved, off = (8.0, 5.0, 3.0), {"overlap_grad": False, "overlap_param": False, "reshard": 1}
    alone, piped = (exchanged(moved, 3, pipelined=pipelined, **off) for pipelined in (False, True))
    assert (float(alone.busy_s[0]), float(alone.exposed_s[0])) == (4 * 5 + 4 * 3, 0)
    assert (float(piped.busy_s[0]), float(piped.exposed_s[0]), float(piped.per_microbatch_s[0])) == (5 + 3, 5 + 3, 0)


def test_groups_of_shards() -> None:
    """HSDP: inside a node everything is as on one node alone; outside, what a rank owns is reduced over the nodes."""
    asked, some, none = msgspec.structs.replace(job(2), pool=parse_gpus("64xH100")), np.array([1e9]), np.zeros(1)
    held, one = Held(some, none, some, none, none), np.array([1])

    def found(ranks: int, shards: int) -> Sync:
        return sync(
            asked, held, ranks=np.array([ranks]), stride=one, expert_ranks=one, expert_stride=one,
            shards=np.array([shards]), expert_shards=one,
        )  # fmt: skip

    whole, node, groups = found(64, 64), found(8, 8), found(64, 8)
    assert groups.all_gather_s[0] == node.all_gather_s[0] < whole.all_gather_s[0]
    assert groups.all_reduce_s[0] == whole.all_reduce_s[0]
    outside = sync(
        asked, Held(some / 8, none, some / 8, none, none), ranks=np.array([8]), stride=np.array([8]), expert_ranks=one,
        expert_stride=one,
    )  # fmt: skip
    assert groups.reduce_scatter_s[0] == pytest.approx(node.reduce_scatter_s[0] + outside.all_reduce_s[0], rel=1e-12)


def test_narrow_gradients_and_weights_are_half_the_bytes() -> None:
    """Large messages: half the bytes take half the time, but for what every message costs."""
    some, none, one = np.array([1e10]), np.zeros(1), np.array([1])
    asked = msgspec.structs.replace(job(2), pool=parse_gpus("64xH100"))
    low = msgspec.structs.replace(asked, workload=msgspec.structs.replace(asked.workload, precision="fp8"))

    def found(of: Job, **words: Any) -> Sync:
        said = msgspec.structs.replace(of, settled=Words(**words))
        return sync(
            said, Held(some, none, some, none, none), ranks=np.array([64]), stride=one, expert_ranks=one,
            expert_stride=one,
        )  # fmt: skip

    wide, narrow = found(asked), found(asked, grads="bf16")
    assert narrow.reduce_scatter_s[0] == pytest.approx(wide.reduce_scatter_s[0] / 2, rel=0.05)
    assert narrow.all_gather_s[0] == wide.all_gather_s[0]
    assert found(low, params="fp8").all_gather_s[0] == pytest.approx(found(low).all_gather_s[0] / 2, rel=0.05)
    assert found(asked, params="fp8").all_gather_s[0] == wide.all_gather_s[0]  # of a job in bf16 it means nothing


def test_adapters_and_frozen_weights_are_gathered_as_all_weights_are() -> None:
    """Large messages: whatever part of the weights is trained, gathers of both parts take as long as that of all."""
    asked, one = msgspec.structs.replace(job(2), pool=parse_gpus("64xH100")), np.array([1])
    lora = msgspec.structs.replace(asked, workload=msgspec.structs.replace(asked.workload, task="lora"))

    def gathered_s(of: Job, trained: float, experts: float) -> float:
        dense, expert = np.array([1e10 * (1 - experts)]), np.array([1e10 * experts])
        held = Held(dense, expert, dense * trained, expert * trained, np.zeros(1))
        found = sync(of, held, ranks=np.array([64]), stride=one, expert_ranks=np.array([64]), expert_stride=one)
        return float(found.all_gather_s[0] + found.frozen_gather_s[0])

    for experts in (0.0, 0.5, 1.0):
        whole_s = gathered_s(asked, 1.0, experts)
        for trained in (0.1, 0.5, 0.9):
            assert gathered_s(lora, trained, experts) == pytest.approx(whole_s, rel=0.05)


def test_the_first_layer_is_never_hidden() -> None:
    found = exchanged((0.8, 0.8, 0.8), zero=0, forward_s=100.0, backward_s=100.0)
    assert 0.8 / 8 <= float(found.exposed_s[0]) < 0.5 * 0.8


def test_nothing_to_exchange_takes_no_time() -> None:
    nothing, some = np.zeros(1), np.array([1e8])
    two, one = np.array([2]), np.array([1])
    empty = Held(some, some, nothing, nothing, nothing)
    found = sync(job(2), empty, ranks=two, stride=one, expert_ranks=two, expert_stride=one)
    assert float(found.all_reduce_s[0] + found.reduce_scatter_s[0] + found.all_gather_s[0]) == 0
    alone = sync(
        job(2), Held(some, some, some, some, nothing), ranks=one, stride=one, expert_ranks=one, expert_stride=one
    )
    assert float(alone.all_reduce_s[0] + alone.reduce_scatter_s[0] + alone.all_gather_s[0]) == 0
    # A rank without parameters takes no part, also beside one that has some.
    mixed = Held(np.array([1e8, 0.0]), np.zeros(2), np.array([1e8, 0.0]), np.zeros(2), np.zeros(2))
    both = sync(job(2), mixed, ranks=two, stride=one, expert_ranks=two, expert_stride=one)
    assert both.all_reduce_s[0] > 0 == both.all_reduce_s[1]


def test_buckets_take_longer_than_one_reduction_and_zero_may_reduce_whole() -> None:
    some, none = np.array([1e9]), np.zeros(1)
    groups = {"ranks": np.array([64]), "stride": np.array([1]), "expert_ranks": np.array([1])}
    asked = msgspec.structs.replace(job(2), pool=parse_gpus("64xH100"))

    def found(**habits: Any) -> Sync:
        other = msgspec.structs.replace(asked, runtime=changed(asked.runtime, **habits))
        return sync(other, Held(some, none, some, none, none), expert_stride=np.array([1]), **groups)

    usual, bucketed, whole = found(), found(bucket_bytes=5e7), found(zero_reduces_whole=True)
    assert bucketed.all_reduce_s[0] > 1.5 * usual.all_reduce_s[0]  # latency of 80 pieces
    assert bucketed.reduce_scatter_s[0] == usual.reduce_scatter_s[0]
    assert whole.reduce_scatter_s[0] == whole.all_reduce_s[0] > usual.reduce_scatter_s[0]
    assert found(bucket_bytes=1e12).all_reduce_s[0] == usual.all_reduce_s[0]


def test_neighbours_far_away_take_longer() -> None:
    asked = msgspec.structs.replace(job(2), pool=parse_gpus("16xH100"))
    tokens, stages = np.full(2, 4096.0), np.array([2, 2])
    seconds, _ = p2p(asked, tokens, np.array([1, 8]), stages)
    assert 0 < seconds[0] < seconds[1]
    # A pipeline that starts inside a server but leaves it is as slow as its slowest hop.
    within, across = (p2p(asked, tokens[:1], np.array([2]), np.array([pp]))[0][0] for pp in (4, 8))
    assert within < across
