"""Pictures show what the timeline says."""

from __future__ import annotations

import json

import pytest

from astra.errors import InputError
from astra.schedule import simulate
from astra.schedule.picture import draw, trace


def test_drawing_of_1f1b() -> None:
    timeline = simulate("1f1b", p=2, v=1, m=3, forward_s=1, backward_s=2)
    assert draw(timeline, 12).splitlines() == ["rank 0 AB..aaCbb.cc", "rank 1 .AaaBbbCcc.."]


def test_drawing_marks_weight_gradients_and_sends() -> None:
    split = simulate("zb", p=2, v=1, m=2, forward_s=1, backward_s=1, weight_s=1)
    assert draw(split, 7).splitlines() == ["rank 0 AB.a+b+", "rank 1 .AaBb++"]
    sends = simulate("1f1b", p=2, v=1, m=1, forward_s=1, backward_s=1, send_s=1, blocking_p2p=True)
    assert draw(sends, 6).splitlines() == ["rank 0 A-...a", "rank 1 ..Aa-."]


def test_trace_is_json_with_every_slot() -> None:
    timeline = simulate("interleaved", p=2, v=2, m=4, forward_s=1e-3, backward_s=2e-3)
    record = json.loads(json.dumps(trace(timeline)))
    spans = [event for event in record["traceEvents"] if event["ph"] == "X"]
    assert len(spans) == timeline.kind.size
    assert sum(event["dur"] for event in spans) == pytest.approx(1e6 * timeline.busy_s.sum())
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(1e6 * timeline.total_s)
    assert {event["args"]["virtual_stage"] % 2 for event in spans if event["tid"] == 1} == {1}
    assert spans[0]["name"] == "F0.0"


def test_trace_shows_blocking_sends() -> None:
    timeline = simulate("1f1b", p=2, v=1, m=2, forward_s=1, backward_s=2, send_s=0.5, blocking_p2p=True)
    sends = [event for event in trace(timeline)["traceEvents"] if event.get("cat") == "send"]
    assert len(sends) == 4
    assert sends[0]["dur"] == pytest.approx(0.5e6)


def test_width_must_leave_room() -> None:
    with pytest.raises(InputError, match="width"):
        draw(simulate("gpipe", p=1, v=1, m=1, forward_s=1, backward_s=1), 0)
