"""Closed forms equal the simulation for equal stages, and dispatch by code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from astra.schedule.base import Schedule
from astra.schedule.registry import find, in_flight_chunks, legal
from astra.schedule.simulator import simulate
from astra.schedule.steady import step_s
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines
from tests.schedule.closed_forms import CLOSED_FORMS, makespan_s
from tests.schedule.pipelines import Pipeline

CODE = {name: code for code, name in enumerate(NAMES)}


def assert_exact(schedule: Schedule, pipeline: Pipeline) -> None:
    formula_s = float(CLOSED_FORMS[schedule.name](pipelines.as_shape(schedule, pipeline)))
    assert formula_s == pytest.approx(simulate(schedule, **pipeline._asdict()).total_s, rel=1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "zbv"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_exact_without_sends(name: str, data: st.DataObject) -> None:
    assert_exact(find(name), data.draw(pipelines.equal(find(name), longest_send=0.0)))


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_exact_with_any_sends(name: str, data: st.DataObject) -> None:
    assert_exact(find(name), data.draw(pipelines.equal(find(name), longest_send=20.0)))


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_zero_bubble_is_exact_when_sends_do_not_block(data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.equal(find("zb"), longest_send=20.0))
    assert_exact(find("zb"), pipeline._replace(blocking_p2p=False))


@settings(max_examples=60, deadline=None)
@given(pipelines.equal(find("zbv"), longest_send=0.0))
def test_zbv_has_no_bubble_where_its_slots_are_alike(pipeline: Pipeline) -> None:
    """Qi et al.: with 2p-1 micro-batches or more a rank that has begun never waits."""
    alike = pipeline._replace(
        m=max(pipeline.m, 2 * pipeline.p - 1), backward_s=pipeline.forward_s, weight_s=pipeline.forward_s
    )
    assert_exact(find("zbv"), alike)
    timeline = simulate("zbv", **alike._asdict())
    np.testing.assert_allclose(timeline.end_s[:, -1] - timeline.start_s[:, 0], timeline.busy_s)


@settings(max_examples=200, deadline=None)
@given(pipelines.equal(find("interleaved"), longest_send=1.0))
def test_interleaved_is_exact_for_sends_within_a_chunk(pipeline: Pipeline) -> None:
    assume(pipeline.m >= pipeline.p and (not pipeline.blocking_p2p or pipeline.m % pipeline.p == 0))
    assert_exact(find("interleaved"), pipeline)


@pytest.mark.parametrize(
    ("name", "p", "v", "m", "times", "total_s"),
    [
        ("1f1b", 4, 1, 8, (1.0, 2.0, 0.0), 33.0),  # (m + p - 1)(f + b)
        ("gpipe", 4, 1, 8, (1.0, 2.0, 0.0), 33.0),
        ("interleaved", 4, 2, 8, (0.5, 1.0, 0.0), 28.5),  # m t + (p - 1) t / v, t = 3
        ("zb", 4, 1, 8, (1.0, 1.0, 1.0), 27.0),  # m t + (p - 1)(f + b - w)
        ("zbv", 4, 2, 8, (0.5, 0.5, 0.5), 25.5),  # m t + (p - 1) f / 2
    ],
)
def test_textbook_values(name: str, p: int, v: int, m: int, times: tuple[float, float, float], total_s: float) -> None:
    f, b, w = times
    sums = {"forward_s": p * v * f, "backward_s": p * v * b, "weight_s": p * v * w}
    assert makespan_s(name, p=p, v=v, m=m, **sums) == pytest.approx(total_s)
    assert simulate(name, p=p, v=v, m=m, forward_s=f, backward_s=b, weight_s=w).total_s == pytest.approx(total_s)


def test_unequal_stages_use_the_screening_form() -> None:
    """Sum of the stages + (m - 1) of the slowest."""
    stages_s = np.array([3.0, 4.0, 6.0, 3.5])
    total_s = makespan_s("1f1b", p=4, v=1, m=10, forward_s=16.5 / 3, backward_s=16.5 / 1.5, slowest_s=6.0)
    assert total_s == pytest.approx(stages_s.sum() + 9 * stages_s.max())


@settings(max_examples=100, deadline=None)
@given(pipelines.unequal(find("gpipe")))
def test_gpipe_is_exact_for_unequal_stages(pipeline: Pipeline) -> None:
    fields = pipeline._asdict()
    assert step_s("gpipe", **fields) == pytest.approx(simulate("gpipe", **fields).total_s, rel=1e-12)


def test_mixed_codes_equal_one_code_at_a_time() -> None:
    rng = np.random.default_rng(7)
    rows = 400
    codes = rng.integers(0, len(NAMES), rows)
    p, v, m = rng.integers(1, 9, rows), rng.integers(1, 4, rows), rng.integers(1, 40, rows)
    alive = in_flight_chunks(codes, p=p, v=v, m=m, rank=0)
    allowed = legal(codes, p=p, v=v, m=m)
    for row in range(rows):
        one = {"p": p[row], "v": v[row], "m": m[row]}
        assert alive[row] == in_flight_chunks(codes[row], **one, rank=0)
        assert allowed[row] == legal(codes[row], **one)
    assert 0 < allowed.sum() < rows


def test_in_flight_counts() -> None:
    ranks = np.arange(4)
    assert in_flight_chunks(CODE["1f1b"], p=4, v=1, m=8, rank=ranks).tolist() == [4, 3, 2, 1]
    assert in_flight_chunks(CODE["interleaved"], p=4, v=2, m=8, rank=ranks).tolist() == [11, 9, 7, 5]
    assert in_flight_chunks(CODE["gpipe"], p=4, v=1, m=8, rank=ranks).tolist() == [8, 8, 8, 8]
    assert in_flight_chunks(CODE["zb"], p=4, v=1, m=8, rank=ranks).tolist() == [4, 4, 4, 4]
