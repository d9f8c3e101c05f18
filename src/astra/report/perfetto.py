"""A simulated step as a Chrome trace, for ui.perfetto.dev: a track for each stage, and its memory as a counter."""

from __future__ import annotations

from typing import Any, Final

from astra.search.timeline import Lane, Span, StepTimeline

NS: Final = 1e-9
_STATES: Final = {"forward": "F", "backward": "B", "weight gradient": "W"}


def chrome_trace(step: StepTimeline) -> dict[str, Any]:
    """Trace events in whole nanoseconds; the spans of a stage's track add up to the step.

    Each group of pipelines is a process and each stage a thread. Transfers that no stage waits for are events beside
    the tracks, because they run while the stage computes.
    """
    events: list[dict[str, Any]] = []
    for group in sorted({lane.group for lane in step.lanes}):
        name = step.strategy if group == 0 else f"group {group}"
        events.append({"name": "process_name", "ph": "M", "pid": group + 1, "args": {"name": name}})
    for lane in step.lanes:
        events += _lane(lane, len(events))
    other = {name: getattr(step, name) for name in ("schema", "model", "gpus", "strategy", "schedule", "step_s")}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _lane(lane: Lane, first: int) -> list[dict[str, Any]]:
    track = {"pid": lane.group + 1, "tid": lane.stage + 1}
    title = f"{lane.name}: {lane.layers} layers on {lane.gpus} {lane.gpu}"
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", **track, "args": {"name": title}},
        {"name": "thread_sort_index", "ph": "M", **track, "args": {"sort_index": lane.stage}},
    ]
    for span in lane.spans:
        start, end = _us(span.start_s), _us(span.end_s)
        timed = {"ts": start, "dur": round(end - start, 3)}
        events.append({"name": _name(span), "cat": span.kind, "ph": "X", **track, **timed, "args": _about(span)})
    for number, span in enumerate(lane.sends):
        whose = {"cat": "p2p", "name": f"send {lane.name}", "id": first + number, **track}
        events.append({**whose, "ph": "b", "ts": _us(span.start_s), "args": _about(span)})
        events.append({**whose, "ph": "e", "ts": _us(span.end_s)})
    for moment in lane.memory:
        value = {"GiB": round(moment.allocated_gib, 6)}
        counter = {"name": f"memory of {lane.name}", "ph": "C", **track}
        events.append({**counter, "ts": _us(moment.start_s), "args": value})
    return events


def _us(seconds: float) -> float:
    """Microseconds, rounded to a whole nanosecond: both ends of a span round alike, so that sums do not drift."""
    return round(seconds / NS) / 1000


def _name(span: Span) -> str:
    return f"{_STATES[span.kind]}{span.microbatch}" if span.kind in _STATES else span.kind


def _about(span: Span) -> dict[str, int]:
    return {} if span.microbatch < 0 else {"microbatch": span.microbatch, "chunk": span.chunk}
