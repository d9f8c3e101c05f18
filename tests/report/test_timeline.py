"""Pictures of a step show what its record says; a Chrome trace adds up in whole nanoseconds."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from functools import lru_cache
from html import unescape

import pytest
from msgspec.structs import replace

from astra.report.pictures import flattened
from astra.report.timeline import chrome_trace, column_shares, thinned, ticks, timeline_page, timeline_svg, windows
from astra.report.timeline_text import timeline_text
from astra.search.timeline import Lane, Moment, Span, StepTimeline, timeline_of
from astra.search.world import World
from astra.spec.request import PlanRequest

SVG = "{http://www.w3.org/2000/svg}"


@lru_cache
def simulated(batch: int) -> StepTimeline:
    request = PlanRequest(model="llama-2-13b", gpus=("16xA100-80",), batch=batch, seq=2048)
    return timeline_of(World.of(request), "tp1 pp8 dp2 mbs1 zero1")


def by_hand() -> StepTimeline:
    """Two stages, three micro-batches, forward 1 s and backward 2 s, one second of optimizer."""
    orders = (
        "F0 0 1,F1 1 2,bubble 2 4,B0 4 6,F2 6 7,B1 7 9,bubble 9 10,B2 10 12,optimizer 12 13",
        "bubble 0 1,F0 1 2,B0 2 4,F1 4 5,B1 5 7,F2 7 8,B2 8 10,bubble 10 12,optimizer 12 13",
    )
    lanes = [Lane(group=0, stage=place, layers=4, gpu="H100", gpus=8, spans=[_span(text) for text in order.split(",")],
                  sends=[], memory=[Moment(start_s=0.0, allocated_gib=30.0)], memory_limit_gib=60.0)
             for place, order in enumerate(orders)]  # fmt: skip
    return StepTimeline(model="m", gpus="16xH100", strategy="pp2", schedule="1f1b", microbatches=3, chunks=1,
                        step_s=13.0, pipeline_s=12.0, lanes=lanes)  # fmt: skip


def _span(text: str) -> Span:
    name, start, end = text.split()
    kind = {"F": "forward", "B": "backward"}.get(name[0], name)
    about = {"microbatch": int(name[1:]), "chunk": 0} if name[0] in "FB" else {}
    return Span(kind=kind, start_s=float(start), end_s=float(end), **about)


def test_letters_by_hand() -> None:
    assert timeline_text(by_hand(), 9 + 13) == ["stage 0 AB..aaCbb.cc=", "stage 1 .AaaBbbCcc..="]


def test_the_terminal_shows_letters_and_seconds_that_add_up() -> None:
    shown = by_hand().draw(90)
    assert "stage 0 " in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("1 "))
    *parts, total = map(float, row.split()[1:])
    assert sum(parts) == total == 13.0


@pytest.mark.parametrize("batch", [64, 2048])
def test_the_picture_is_xml_with_every_stage_kind_and_title(batch: int) -> None:
    step = simulated(batch)
    root = ET.fromstring(timeline_svg(step))
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {f"stage {number}" for number in range(8)} <= set(words)
    assert {"forward", "backward", "bubble", "optimizer"} <= set(words)
    assert next(root.iter(f"{SVG}title")).text == f"Timeline of {step.model} on {step.gpus}: {step.strategy}"


def test_a_short_step_is_drawn_span_by_span_to_scale() -> None:
    step = simulated(64)
    assert len(windows(step)) == 1
    root = ET.fromstring(timeline_svg(step))
    bars = [bar for bar in root.iter(f"{SVG}rect") if bar.find(f"{SVG}title") is not None]
    assert len(bars) == sum(len(lane.spans) for lane in step.lanes)
    numbers = {text.text for text in root.iter(f"{SVG}text")}
    assert {str(number) for number in range(8, 32)} <= numbers, "micro-batches can be read at 8 stages of 32"
    drawn = sum(float(bar.get("width", 0)) for bar in bars if bar.get("class") == "backward")
    wide = 1200 - 92 - 18
    told = sum(lane.seconds()["backward"] for lane in step.lanes) / step.step_s * wide
    assert drawn == pytest.approx(told, rel=0.05)


def test_a_long_step_has_its_beginning_its_end_and_the_whole_and_stays_small() -> None:
    step = simulated(2048)
    begin, end, whole = windows(step)
    assert (begin.start_s, whole.start_s, whole.end_s) == (0.0, 0.0, step.step_s)
    assert end.start_s < step.pipeline_s < end.end_s
    assert len(timeline_svg(step)) < 1_200_000


def test_shares_of_every_column_add_up_to_one() -> None:
    for lane in simulated(2048).lanes:
        shares = column_shares(lane, simulated(2048).step_s)
        assert [sum(column) for column in zip(*shares.values(), strict=True)] == pytest.approx([1.0] * 220)


def test_a_thinned_curve_keeps_its_highest_and_lowest_points() -> None:
    points = [(place / 10, float((37 * place) % 101)) for place in range(1000)]
    kept = thinned(points, 4)
    assert set(kept) <= set(points)
    assert len(kept) < 200
    assert {max(y for _, y in kept), min(y for _, y in kept)} == {100.0, 0.0}


@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.0, 114.3), (112.3, 113.1), (0.0, 0.0049), (3.0, 3.0)])
def test_ticks_are_few_round_numbers_inside(start: float, end: float) -> None:
    found = ticks(start, end)
    assert 1 <= len(found) <= 10
    assert all(start <= tick <= end for tick in found)
    assert all(len(f"{tick:.10g}".replace(".", "").strip("0")) <= 4 for tick in found)


def test_names_are_never_markup() -> None:
    hostile = '"><script>alert(1)</script>\u202e&\x1b['
    step = replace(by_hand(), model=hostile, gpus=hostile, strategy=hostile, notes=(hostile,))
    for text in (timeline_svg(step), timeline_page(step)):
        assert "<script" not in text
        assert "\u202e" not in text
        assert "\x1b" not in text
    ET.fromstring(timeline_svg(step))


def test_the_page_fetches_nothing() -> None:
    text = unescape(timeline_page(by_hand()))
    assert "default-src 'none'" in text
    assert "src=" not in text.replace("-src", "")
    assert "href=" not in text
    assert "url(" not in text


def test_a_trace_adds_up_in_whole_nanoseconds() -> None:
    step = simulated(2048)
    record = json.loads(json.dumps(chrome_trace(step)))
    spans = [event for event in record["traceEvents"] if event["ph"] == "X"]
    for lane in step.lanes:
        own = [event for event in spans if event["tid"] == lane.stage + 1]
        assert len(own) == len(lane.spans)
        nanoseconds = sum(round(1000 * event["dur"]) for event in own)
        assert nanoseconds == round(1e9 * step.step_s)
        assert all(abs(1000 * event["ts"] - round(1000 * event["ts"])) < 1e-4 for event in own)
    assert {event["name"] for event in record["traceEvents"] if event["ph"] == "C"} == {
        f"memory of stage {place}" for place in range(8)
    }


def test_a_picture_without_variables_has_the_light_colours() -> None:
    flat = flattened(timeline_svg(by_hand()))
    assert "var(" not in flat
    assert ":root" not in flat
    assert ".forward{fill:#4c8fd6}" in flat
    ET.fromstring(flat)
