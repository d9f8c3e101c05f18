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
from astra.cost.state import Held
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
    columns = {name: np.array([value]) for name, value in {**USUAL, **more, "zero": zero}.items()}
    reduce, scatter, gather = (np.array([value]) for value in moved)
    return replicas(job(2), Sync(reduce, scatter, gather, np.zeros(1, np.int8)), **columns)


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
