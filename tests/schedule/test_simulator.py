"""The simulator: its accounts balance, and it notices schedules that cannot run."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.errors import InputError
from astra.schedule.registry import SCHEDULES, find
from astra.schedule.simulator import simulate
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines
from tests.schedule.alive import peak_activation_bytes


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_second_of_every_rank_is_accounted_for(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.unequal(find(name)))
    p, v, m, forward_s, backward_s, weight_s, send_s, blocking = pipeline
    timeline = simulate(name, **pipeline._asdict())
    np.testing.assert_allclose(timeline.busy_s + timeline.sending_s + timeline.idle_s, timeline.total_s)
    np.testing.assert_allclose(
        timeline.busy_s, m * (forward_s + backward_s + weight_s)[find(name).place(p, v)].sum(axis=0)
    )
    sent_s = 2 * m * (send_s * find(name).hops(p, v)).sum() if blocking else 0.0
    np.testing.assert_allclose(timeline.sending_s.sum(), sent_s)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_faster_stages_never_take_longer(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.unequal(find(name)))
    quicker = pipeline._replace(forward_s=pipeline.forward_s * 0.9, send_s=pipeline.send_s * 0.5)
    before_s = simulate(name, **pipeline._asdict()).total_s
    assert simulate(name, **quicker._asdict()).total_s <= before_s * (1 + 1e-9)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_weighted_peak_is_the_walk_over_the_slots(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.unequal(find(name)))
    p, v, m = pipeline[:3]
    place, frees = find(name).place(p, v), 2 if find(name).splits_backward else 1
    weights = pipeline.forward_s
    timeline = simulate(name, **pipeline._asdict())
    for rank in range(p):
        alive, most = 0.0, 0.0
        for kind, chunk in zip(timeline.kind[rank], timeline.chunk[rank], strict=True):
            alive += weights[place[chunk, rank]] * (kind == 0)
            most = max(most, alive)
            alive -= weights[place[chunk, rank]] * (kind == frees)
        own = peak_activation_bytes(name, p=p, v=v, m=m, rank=rank, chunk_bytes=weights[place[:, rank]])
        assert own == pytest.approx(most)


def test_a_lone_rank_sends_nothing() -> None:
    timeline = simulate("interleaved", p=1, v=3, m=4, forward_s=1, backward_s=2, send_s=5.0, blocking_p2p=True)
    assert timeline.total_s == 36
    assert timeline.sending_s.tolist() == [0]


def test_blocking_sends_hold_the_sender() -> None:
    held = simulate("1f1b", p=2, v=1, m=1, forward_s=1, backward_s=2, send_s=0.5, blocking_p2p=True)
    free = simulate("1f1b", p=2, v=1, m=1, forward_s=1, backward_s=2, send_s=0.5)
    assert held.total_s == free.total_s == 7
    assert held.sending_s.tolist() == [0.5, 0.5]
    assert free.sending_s.tolist() == [0, 0]
    assert held.freed_s[0, 0] == 1.5
    assert held.end_s[0, 0] == 1


def test_weight_gradients_are_part_of_the_backward_unless_split() -> None:
    whole = simulate("1f1b", p=3, v=1, m=6, forward_s=1, backward_s=2)
    parts = simulate("1f1b", p=3, v=1, m=6, forward_s=1, backward_s=1, weight_s=1)
    split = simulate("zb", p=3, v=1, m=6, forward_s=1, backward_s=1, weight_s=1)
    assert parts.total_s == whole.total_s
    assert split.total_s < whole.total_s


def test_a_deadlock_is_an_internal_error() -> None:
    backward_first = dataclasses.replace(
        find("1f1b"), order=lambda p, v, m, rank: find("1f1b").order(p, v, m, rank)[::-1].copy()
    )
    with pytest.raises(RuntimeError, match="deadlock"):
        simulate(backward_first, p=2, v=1, m=2, forward_s=1, backward_s=2)


def test_a_missing_slot_is_an_internal_error() -> None:
    shortened = dataclasses.replace(
        find("gpipe"), order=lambda p, v, m, rank: SCHEDULES["gpipe"].order(p, v, m, rank)[1:]
    )
    with pytest.raises(RuntimeError, match="lacks a slot"):
        simulate(shortened, p=2, v=1, m=2, forward_s=1, backward_s=2)


@pytest.mark.parametrize(
    ("given_s", "where"),
    [([1.0, 2.0], "forward_s"), ([1.0, -1.0, 1.0], "forward_s"), ([1.0, float("nan"), 1.0], "forward_s")],
)
def test_bad_times_are_refused(given_s: list[float], where: str) -> None:
    with pytest.raises(InputError, match=where):
        simulate("1f1b", p=3, v=1, m=4, forward_s=given_s, backward_s=1)


def test_a_wrong_number_of_sends_is_refused() -> None:
    with pytest.raises(InputError, match="send_s"):
        simulate("1f1b", p=3, v=1, m=4, forward_s=1, backward_s=1, send_s=[0.1, 0.1, 0.1, 0.1])
