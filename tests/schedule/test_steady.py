"""The shortcut gives the simulated total, and is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.provenance import Floats
from astra.schedule import simulator, steady
from astra.schedule.registry import find
from astra.schedule.simulator import simulate
from astra.schedule.steady import step_s
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_equals_the_simulation(name: str, data: st.DataObject) -> None:
    schedule = find(name)
    pipeline = data.draw(pipelines.unequal(schedule, most_p=5, most_m=20))
    many = pipeline._replace(m=pipeline.m * pipeline.p * data.draw(st.integers(1, 3)) + data.draw(st.integers(0, 1)))
    if not pipelines.is_legal(schedule, many.p, many.v, many.m):
        many = pipeline
    total_s = simulate(name, **many._asdict()).total_s
    assert step_s(name, **many._asdict()) == pytest.approx(total_s, rel=1e-9)


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 3), ("zb", 1), ("zbv", 2)])
@pytest.mark.parametrize("blocking", [False, True])
def test_few_microbatches_stand_for_many(name: str, v: int, blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []
    real = simulator.run

    def counting(way: simulator.Walk, held_s: Floats, latency_s: Floats) -> Floats:
        simulated.append(held_s.size)
        return real(way, held_s, latency_s)

    monkeypatch.setattr(steady, "run", counting)
    forward_s = np.ones(4 * v)
    forward_s[-1] = 1.2
    pipeline: dict[str, Any] = {
        "p": 4,
        "v": v,
        "m": 256,
        "forward_s": forward_s,
        "backward_s": 2 * forward_s,
        "send_s": 0.01,
    }
    total_s = step_s(name, **pipeline, blocking_p2p=blocking)
    timeline = simulate(name, **pipeline, blocking_p2p=blocking)
    assert total_s == pytest.approx(timeline.total_s, rel=1e-12)
    assert sum(simulated) < timeline.kind.size / 3


def test_a_slow_transient_is_not_mistaken_for_the_steady_state() -> None:
    """The first rank is barely the slowest: for hundreds of micro-batches others still set the pace of the total."""
    forward_s = np.array([1.0002, 1.0001, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    pipeline: dict[str, Any] = {
        "p": 4,
        "v": 2,
        "m": 400,
        "forward_s": forward_s,
        "backward_s": 2 * forward_s,
        "send_s": 0.1,
    }
    for blocking in (False, True):
        total_s = simulate("interleaved", **pipeline, blocking_p2p=blocking).total_s
        assert step_s("interleaved", **pipeline, blocking_p2p=blocking) == pytest.approx(total_s, rel=1e-9)


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 3), ("zb", 1), ("zbv", 2)])
def test_slot_by_slot_and_in_waves_are_the_same_to_the_last_bit(name: str, v: int) -> None:
    schedule, rng = find(name), np.random.default_rng(7)
    source = simulator.inputs(schedule.orders(5, v, 20), m=20)
    held_s, latency_s = rng.random((2, source.size, 3))
    way = simulator.walk(source)
    alone = np.stack([simulator.run(way, held_s[:, row], latency_s[:, row]) for row in range(3)], axis=1)
    assert np.array_equal(alone, simulator.run_rows(simulator.waves(source), held_s, latency_s))


def test_slots_that_wait_for_one_another_are_told() -> None:
    with pytest.raises(RuntimeError, match=r"deadlocks: ranks \[0, 1\]"):
        simulator.walk(np.array([[2, 4], [0, 4]]))


@pytest.mark.parametrize("second", [0.999, 1.0])
def test_a_rhythm_that_comes_late_is_found(second: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first stage that is longer by little takes long to set the pace."""
    forward_s = np.tile([1.0, second], 4)
    forward_s[0] = 1.02
    pipeline: dict[str, Any] = {"p": 2, "v": 4, "m": 4096, "forward_s": forward_s, "backward_s": 2 * forward_s}
    whole_s = simulate("interleaved", **pipeline, send_s=0.01).total_s
    monkeypatch.setattr(steady, "_total_s", _not_all_of(4096, steady._total_s))
    assert step_s("interleaved", **pipeline, send_s=0.01) == pytest.approx(whole_s, rel=1e-12)


def _not_all_of(most: int, total_s: Any) -> Any:
    def few_s(plan: Any, p: int, v: int, m: int, *rest: Any) -> Floats:
        assert m < most, "every micro-batch is run"
        return np.asarray(total_s(plan, p, v, m, *rest))

    return few_s
