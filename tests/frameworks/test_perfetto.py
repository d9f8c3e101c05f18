"""Traces in Perfetto's own trace processor: they load without a complaint, and spans add up to the step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import astra
from astra.report.timeline import chrome_trace
from astra.search.timeline import timeline_of
from astra.search.world import World
from astra.spec.request import PlanRequest
from tests.frameworks.conftest import Harness

QUERIES = {
    "spans": "select thread.name as stage, upid, count(*) as spans, sum(dur) as ns, max(depth) as depth from slice "
    "join thread_track on slice.track_id = thread_track.id join thread using (utid) group by utid",
    "kinds": "select distinct category as kind from slice order by 1",
    "memory": "select t.name as name, max(value) as gib from counter c join counter_track t on c.track_id = t.id "
    "group by t.id order by 1",
    "complaints": "select name, value from stats where value > 0 and severity <> 'info'",
    "sends": "select count(*) as sends from slice where track_id not in (select id from thread_track)",
}
REQUESTS = [
    (("64xH100",), 1024, "tp8 pp4 vp5 dp2 mbs1 sp zero1"),
    (("64xH100",), 64, "tp4 pp8 dp2 mbs1 sp zero1"),
    (("32xH100", "32xA100-80"), 256, ""),
]


@pytest.fixture(scope="module")
def perfetto() -> Iterator[Harness]:
    harness = Harness("perfetto", "perfetto_harness.py")
    if "missing" in harness.versions:
        pytest.skip("Perfetto's engine for web pages runs on node, which is not installed")
    yield harness
    harness.close()


@pytest.mark.parametrize(("gpus", "batch", "strategy"), REQUESTS)
def test_a_trace_loads_and_its_spans_add_up(
    perfetto: Harness, tmp_path: Path, gpus: tuple[str, ...], batch: int, strategy: str
) -> None:
    request = PlanRequest(model="llama-2-70b", gpus=gpus, batch=batch, seq=4096)
    planned = strategy or astra.plan(request).best.strategy
    step = timeline_of(World.of(request), planned)
    trace = tmp_path / "step.json"
    trace.write_text(json.dumps(chrome_trace(step)), encoding="utf-8")
    found = perfetto.ask(trace=str(trace), queries=QUERIES)["ok"]
    reported_s = astra.estimate(request, strategy=planned).step_s
    assert found["complaints"] == []
    assert len(found["spans"]) == len(step.lanes)
    for track in found["spans"]:
        assert track["ns"] * 1e-9 == pytest.approx(reported_s, rel=1e-9)
        assert track["depth"] == 0, "spans of a stage do not overlap"
    assert sum(track["spans"] for track in found["spans"]) == sum(len(lane.spans) for lane in step.lanes)
    assert found["sends"] == [{"sends": sum(len(lane.sends) for lane in step.lanes)}]
    assert {row["kind"] for row in found["kinds"]} >= {"forward", "backward", "bubble", "optimizer"}
    peaks = sorted(max(moment.allocated_gib for moment in lane.memory) for lane in step.lanes)
    assert sorted(row["gib"] for row in found["memory"]) == pytest.approx(peaks, rel=1e-6)
