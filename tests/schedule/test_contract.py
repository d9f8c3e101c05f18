"""What every registered schedule owes; a new one is found by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.errors import InputError, UnknownName
from astra.provenance import Ints
from astra.schedule.base import Schedule, in_turn, one_chunk
from astra.schedule.registry import SCHEDULES, find, register
from astra.schedule.simulator import simulate
from astra.spec.names import by_name
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines
from tests.schedule.alive import readable
from tests.schedule.closed_forms import CLOSED_FORMS

EVERY = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)


@EVERY
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_contract(schedule: Schedule, data: st.DataObject) -> None:
    pipelines.check_contract(schedule, data.draw(pipelines.unequal(schedule)))


@EVERY
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_closed_form_never_exceeds_equal_stages(schedule: Schedule, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.equal(schedule, longest_send=5.0))
    total_s = simulate(schedule, **pipeline._asdict()).total_s
    assert CLOSED_FORMS[schedule.name](pipelines.as_shape(schedule, pipeline)) <= total_s * (1 + 1e-9)


@EVERY
def test_says_where_it_comes_from_and_what_it_wants(schedule: Schedule) -> None:
    assert schedule.source
    assert schedule.want
    with pytest.raises(InputError):
        schedule.slots(2, 1, 0, 0)
    with pytest.raises(InputError, match="rank"):
        schedule.slots(2, 1, 4, 2)


def test_every_schedule_of_a_strategy_is_registered() -> None:
    assert tuple(SCHEDULES) == NAMES


def test_unknown_names_are_answered_with_near_ones() -> None:
    with pytest.raises(UnknownName, match="interleaved"):
        find("interleave")


@pytest.mark.parametrize("name", ["1f1b", "gpipe", "zb"])
def test_one_chunk_schedules_refuse_more(name: str) -> None:
    with pytest.raises(InputError, match="one chunk"):
        find(name).slots(2, 2, 4, 0)


def test_interleaved_runs_fewer_microbatches_than_stages_in_one_round() -> None:
    """As PyTorch does: all pass the first chunk of a rank, then all the second."""
    first = readable(find("interleaved").slots(4, 2, 3, 0))
    assert [(slot.microbatch, slot.chunk) for slot in first if slot.kind == "F"] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1),
    ]  # fmt: skip


def _one_at_a_time(p: int, v: int, m: int, rank: int) -> Ints:
    del p, v, rank
    turns = np.repeat(in_turn(m), 2, axis=0)
    return np.concatenate((np.tile([0, 1], m)[:, None], turns), axis=1)


TOY = Schedule(
    name="toy",
    source="this test",
    splits_backward=False,
    want="one chunk",
    legal=one_chunk,
    order=_one_at_a_time,
    in_flight=lambda p, v, m, rank: np.ones_like(rank),
    period=lambda p, m: 1,
)


@pytest.fixture
def toy() -> Iterator[Schedule]:
    register(TOY)
    yield SCHEDULES["toy"]
    del SCHEDULES["toy"]


def test_a_schedule_can_be_added_at_run_time(toy: Schedule) -> None:
    assert find("toy") is toy
    times = {"forward_s": np.ones(3), "backward_s": np.full(3, 2.0), "weight_s": np.zeros(3)}
    pipeline = pipelines.Pipeline(3, 1, 40, **times, send_s=np.full(2, 0.5), blocking_p2p=False)
    pipelines.check_contract(toy, pipeline)
    round_trips_s = 40 * (3 * (1 + 2) + 2 * 2 * 0.5)
    assert simulate("toy", **pipeline._asdict()).total_s == pytest.approx(round_trips_s)


def test_a_name_in_use_is_refused(toy: Schedule) -> None:
    with pytest.raises(ValueError, match="toy"):
        register(toy)
    with pytest.raises(ValueError, match="toy"):
        by_name(toy, toy)
