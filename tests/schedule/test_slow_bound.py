"""The bound holds, and is tight where it should be."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.errors import InputError
from astra.schedule.registry import find
from astra.schedule.simulator import simulate
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines
from tests.schedule.slow_bound import lower_bound_s


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_never_above_the_simulation(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.unequal(find(name)))
    total_s = simulate(name, **pipeline._asdict()).total_s
    assert lower_bound_s(name, **pipeline._asdict())[0] <= total_s * (1 + 1e-9)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "zbv"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_tight_for_equal_stages_without_sends(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.equal(find(name), longest_send=0.0))
    total_s = simulate(name, **pipeline._asdict()).total_s
    assert lower_bound_s(name, **pipeline._asdict())[0] == pytest.approx(total_s, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(pipelines.equal(find("zbv"), longest_send=0.0))
def test_tight_for_zbv_where_its_slots_are_alike(pipeline: pipelines.Pipeline) -> None:
    fields = pipeline._replace(backward_s=pipeline.forward_s, weight_s=pipeline.forward_s)._asdict()
    assert lower_bound_s("zbv", **fields)[0] == pytest.approx(simulate("zbv", **fields).total_s, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(pipelines.equal(find("1f1b"), longest_send=5.0))
def test_tight_for_1f1b_with_blocking_sends(pipeline: pipelines.Pipeline) -> None:
    fields = pipeline._replace(blocking_p2p=True)._asdict()
    assert lower_bound_s("1f1b", **fields)[0] == pytest.approx(simulate("1f1b", **fields).total_s, rel=1e-9)


@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 2), ("gpipe", 1), ("zb", 1), ("zbv", 2)])
def test_many_rows_equal_one_at_a_time(name: str, v: int) -> None:
    rng = np.random.default_rng(3)
    rows, p = 20, 4
    m = rng.choice([4, 8, 12], rows)
    forward_s, backward_s, send_s = rng.uniform(1, 2, (3, rows, p * v))
    together = lower_bound_s(
        name, p=p, v=v, m=m, forward_s=forward_s, backward_s=backward_s, weight_s=0.3, send_s=send_s
    )
    for row in range(rows):
        times = {"forward_s": forward_s[row], "backward_s": backward_s[row], "send_s": send_s[row, :-1]}
        alone = lower_bound_s(name, p=p, v=v, m=m[row], **times, weight_s=0.3)
        assert together[row] == pytest.approx(alone[0])


def test_a_wrong_number_of_stages_is_refused() -> None:
    with pytest.raises(InputError, match="one per stage"):
        lower_bound_s("1f1b", p=4, v=1, m=8, forward_s=np.ones(3), backward_s=np.ones(4))
