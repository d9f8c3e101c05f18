"""A simulated step as a picture: stages by time, what each does, and the memory it holds.

Short steps are drawn span by span. Of long ones the whole is drawn in columns, each with the shares of what is done in
it, and above that the beginning and the end span by span.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from astra.report.explain import show_step
from astra.report.markup import keys, label, picture, quoted, tag
from astra.report.page import bullets, page, section, table, wide
from astra.search.timeline import KINDS, Lane, Span, StepTimeline
from astra.units import show_seconds

WIDTH: Final = 1200.0
LEFT: Final = 92.0
RIGHT: Final = 18.0
ROW: Final = 24.0
CURVE: Final = 20.0  # the memory of a lane, under its row
GAP: Final = 8.0
MOST_SPANS: Final = 420  # of one lane, drawn one by one
MOST_TICKS: Final = 9
WINDOW: Final = 44  # spans of the first lane in a window of a long step
COLUMNS: Final = 220  # of a long step as a whole
MEANING: Final = {
    "forward": "forward",
    "backward": "backward",
    "weight gradient": "weight gradient",
    "p2p": "waits for a send",
    "bubble": "bubble",
    "gradient reduction": "gradients and weights between replicas",
    "optimizer": "optimizer",
    "host": "host",
    "slowest node": "waits for the slowest node",
}
_ABOUT: Final = 150  # letters of the small print that fit the width
NS: Final = 1e-9
_STATES: Final = {"forward": "F", "backward": "B", "weight gradient": "W"}


class Window(NamedTuple):
    """A part of the step."""

    title: str
    start_s: float
    end_s: float
    whole: bool  # drawn in columns

    def x(self, at_s: float) -> float:
        """Where a moment is drawn."""
        share = (at_s - self.start_s) / (self.end_s - self.start_s)
        return LEFT + min(max(share, 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def windows(step: StepTimeline) -> list[Window]:
    """The whole step, or its beginning, its end and the whole."""
    most = max(len(lane.spans) for lane in step.lanes)
    whole = f"the whole step, {show_step(step.step_s)}"
    if most <= MOST_SPANS:
        return [Window(whole, 0.0, step.step_s, whole=False)]
    first = min(step.lanes, key=lambda lane: len(lane.spans))
    begin_s = max(lane.spans[WINDOW].end_s for lane in step.lanes if len(lane.spans) > WINDOW)
    tail_s = first.spans[-min(WINDOW, len(first.spans) - 1)].start_s
    # The wait for the slowest node is a share of the step, and longer than all that is to be seen here.
    waits_s = min(lane.spans[-1].start_s for lane in step.lanes)
    end_s = min(step.step_s, waits_s + 0.08 * (waits_s - tail_s))
    return [
        Window(f"the first {show_seconds(begin_s)}", 0.0, begin_s, whole=False),
        Window(f"the end, {show_seconds(end_s - tail_s)} of it", tail_s, end_s, whole=False),
        Window(f"{whole}: shares of what is done in each moment", 0.0, step.step_s, whole=True),
    ]


def timeline_svg(step: StepTimeline) -> str:
    """The step as one picture."""
    y, parts = 52.0, [
        label(f"{step.model} on {step.gpus}", 12, 20, class_="bold", font_size=14),
        label(_about(step), 12, 38, class_="faint"),
    ]  # fmt: skip
    for window in windows(step):
        drawn, y = _panel(step, window, y)
        parts += drawn
    entries = [(MEANING[kind], kind.replace(" ", "-")) for kind in used_kinds(step)]
    entries.append(("memory allocated, and what is allowed of it", "held"))
    drawn, y = keys(entries, y + 4, WIDTH - RIGHT, box=14, letter=6.8)
    words = "Numbers are micro-batches; communication inside a layer is part of forward and backward."
    parts += [*drawn, label(words, 12, y + 30, class_="small faint")]
    return picture(WIDTH, y + 40, f"Timeline of {step.model} on {step.gpus}: {step.strategy}", *parts)


def _about(step: StepTimeline) -> str:
    chunks = f" of {step.chunks} chunks each" if step.chunks > 1 else ""
    about = f"{step.schedule}, {len(step.lanes)} stages{chunks}, {step.microbatches} micro-batches, {step.strategy}"
    return about if len(about) <= _ABOUT else about[: about.rindex(" ", 0, _ABOUT)] + " ..."


def _panel(step: StepTimeline, window: Window, top: float) -> tuple[list[str], float]:
    y, high = top + 26, len(step.lanes) * (ROW + CURVE + GAP)
    parts = [label(window.title, 12, top + 14, class_="bold"), *_axis(window, y, y + high)]
    for lane in step.lanes:
        parts.append(label(f"stage {lane_name(step, lane)}", 12, y + 16))
        parts += _columns(lane, window, y) if window.whole else _drawn_spans(lane, window, y)
        parts += _memory(lane, window, y + ROW + 1)
        y += ROW + CURVE + GAP
    return parts, y + 22


def _drawn_spans(lane: Lane, window: Window, y: float) -> Iterator[str]:
    for span in lane.spans:
        if span.end_s <= window.start_s or span.start_s >= window.end_s:
            continue
        x, end = window.x(span.start_s), window.x(span.end_s)
        name = span.kind.replace(" ", "-") + (" odd" if span.chunk > 0 and span.chunk % 2 else "")
        hover = tag("title", quoted(_hover_words(span)))
        yield tag("rect", hover, x=x, y=y, width=max(end - x - 0.4, 0.4), height=ROW, class_=name)
        if span.microbatch >= 0 and span.kind != "p2p" and end - x > 5 + 6 * len(str(span.microbatch)):
            yield label(span.microbatch, (x + end) / 2, y + 16, class_="small mid on")


def _hover_words(span: Span) -> str:
    about = f" of micro-batch {span.microbatch}" if span.microbatch >= 0 else ""
    about += f", chunk {span.chunk}" if span.chunk > 0 else ""
    return f"{MEANING[span.kind]}{about}: {show_seconds(span.end_s - span.start_s)}, from {show_seconds(span.start_s)}"


def _columns(lane: Lane, window: Window, y: float) -> Iterator[str]:
    """Shares of each column, stacked in the order of the kinds; neighbours of a kind are one area."""
    shares, floor = column_shares(lane, window.end_s), [0.0] * COLUMNS
    wide, total_s = (WIDTH - LEFT - RIGHT) / COLUMNS, lane.seconds()
    for kind in KINDS:
        row = shares.get(kind, [])
        for first, last in runs(row):
            tops, feet = [], []
            for at in range(first, last):
                ends = (LEFT + at * wide, LEFT + (at + 1) * wide)
                tops += [(x, y + ROW * (1 - floor[at] - row[at])) for x in ends]
                feet += [(x, y + ROW * (1 - floor[at])) for x in ends]
            hover = tag("title", quoted(f"{MEANING[kind]}: {show_seconds(total_s[kind])} of the step"))
            points = " ".join(f"{px:.1f},{py:.1f}" for px, py in [*tops, *reversed(feet)])
            yield tag("polygon", hover, points=points, class_=kind.replace(" ", "-"))
        floor = [low + share for low, share in zip(floor, row or [0.0] * COLUMNS, strict=True)]


def runs(row: Sequence[float]) -> Iterator[tuple[int, int]]:
    """Where a row is above nothing: from a column to one before which it ends."""
    start = None
    for at, share in enumerate([*row, 0.0]):
        if share > 0 and start is None:
            start = at
        elif share <= 0 and start is not None:
            yield start, at
            start = None


def column_shares(lane: Lane, step_s: float) -> dict[str, list[float]]:
    """Of every column of the step, the share that each kind takes; they add up to one."""
    found: dict[str, list[float]] = {}
    wide_s = step_s / COLUMNS
    for span in lane.spans:
        row = found.setdefault(span.kind, [0.0] * COLUMNS)
        first, last = int(span.start_s / wide_s), min(int(span.end_s / wide_s), COLUMNS - 1)
        for at in range(min(first, COLUMNS - 1), last + 1):
            inside = min(span.end_s, (at + 1) * wide_s) - max(span.start_s, at * wide_s)
            row[at] += max(inside, 0.0) / wide_s
    return found


def _memory(lane: Lane, window: Window, y: float) -> Iterator[str]:
    """A curve that is full at the limit."""
    peak = max(moment.allocated_gib for moment in lane.memory)
    most = max(peak, lane.memory_limit_gib)
    points: list[tuple[float, float]] = []
    before = lane.memory[0].allocated_gib

    def height(gib: float) -> float:
        return y + CURVE * (1 - gib / most)

    for moment in lane.memory:
        if moment.start_s > window.end_s:
            break
        if moment.start_s >= window.start_s:
            points = points or [(window.x(window.start_s), height(before))]
            x = window.x(moment.start_s)
            points += [(x, height(before)), (x, height(moment.allocated_gib))]
        before = moment.allocated_gib
    points = thinned([*points, (window.x(window.end_s), height(before))], 4 if window.whole else 1)
    area = [(points[0][0], y + CURVE), *points, (points[-1][0], y + CURVE)]
    hover = tag("title", quoted(f"memory: at most {peak:.1f} GiB allocated, {lane.memory_limit_gib:.1f} allowed"))
    drawn = " ".join(f"{px:.1f},{py:.1f}" for px, py in area)
    yield tag("polygon", hover, points=drawn, class_="held")
    limit = height(lane.memory_limit_gib)
    yield tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=limit, y2=limit, class_="limit", stroke_width=0.7)
    yield label(f"{peak:.0f} of {lane.memory_limit_gib:.0f} GiB", LEFT - 6, y + 14, class_="small end faint")


def thinned(points: Sequence[tuple[float, float]], pixels: int) -> list[tuple[float, float]]:
    """A curve with its ends and its highest and lowest point in every so many pixels."""
    found: list[tuple[float, float]] = []
    cell: list[tuple[float, float]] = []
    for point in points:
        if cell and point[0] // pixels != cell[0][0] // pixels:
            found += _ends(cell)
            cell = []
        cell.append(point)
    return found + _ends(cell)


def _ends(cell: list[tuple[float, float]]) -> list[tuple[float, float]]:
    if len(cell) <= 4:
        return cell
    low, high = max(cell, key=lambda at: at[1]), min(cell, key=lambda at: at[1])
    return [cell[0], low, high, cell[-1]]


def _axis(window: Window, top: float, bottom: float) -> Iterator[str]:
    for at_s in ticks(window.start_s, window.end_s):
        x = window.x(at_s)
        yield tag("line", x1=x, x2=x, y1=top - 4, y2=bottom, class_="rule", stroke_opacity=0.5)
        yield label(_clock(at_s, window), x, bottom + 11, class_="small mid faint")


def _clock(at_s: float, window: Window) -> str:
    """A moment in the unit of its window."""
    if window.end_s < 1:
        return f"{at_s * 1e3:g} ms"
    return f"{at_s:.10g} s" if window.end_s - window.start_s < 1 else f"{at_s:g} s"


def ticks(start: float, end: float) -> list[float]:
    """Round numbers between two ends, at most ``MOST_TICKS`` of them."""
    span = end - start
    if span <= 0:
        return [start]
    unit = 10.0 ** len(str(int(span))) if span >= 1 else 1.0
    while unit > span:
        unit /= 10
    step = next(unit * times for times in (0.1, 0.2, 0.5, 1, 2, 5, 10) if span / (unit * times) <= MOST_TICKS)
    first = int(start / step) + (start > 0 and start % step > 1e-9 * step)
    found = []
    while first * step <= end * (1 + 1e-12):
        found.append(round(first * step, 12))
        first += 1
    return found


def timeline_page(step: StepTimeline) -> str:
    """The picture with the seconds of every stage, as a page of its own."""
    title = f"One step of {step.model} on {step.gpus}"
    return page(
        title,
        tag("h1", quoted(title)),
        tag("p", tag("code", quoted(step.strategy))),
        bullets(step.notes, "warn"),
        wide(timeline_svg(step)),
        section("Seconds of every stage", seconds_table(step)),
    )


def seconds_table(step: StepTimeline) -> str:
    """Seconds by kind; every row adds up to the step."""
    kinds = used_kinds(step)
    rows = []
    for lane in step.lanes:
        spent = lane.seconds()
        figures = [f"{spent.get(kind, 0.0):.4f}" for kind in kinds]
        rows.append([lane_name(step, lane), lane.gpu, str(lane.layers), *figures, f"{sum(spent.values()):.4f}"])
    return table(("stage", "GPU", "layers", *kinds, "step"), rows, left=(0, 1))


def used_kinds(step: StepTimeline) -> list[str]:
    """The kinds of span that occur."""
    used = {span.kind for lane in step.lanes for span in lane.spans}
    return [kind for kind in KINDS if kind in used]


def lane_name(step: StepTimeline, lane: Lane) -> str:
    """The stage's number, with its group's where there are several."""
    return f"{lane.group}.{lane.stage}" if any(other.group for other in step.lanes) else f"{lane.stage}"


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
        events += _lane_events(lane, len(events))
    other = {name: getattr(step, name) for name in ("schema", "model", "gpus", "strategy", "schedule", "step_s")}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _lane_events(lane: Lane, first: int) -> list[dict[str, Any]]:
    track = {"pid": lane.group + 1, "tid": lane.stage + 1}
    title = f"{lane.name}: {lane.layers} layers on {lane.gpus} {lane.gpu}"
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", **track, "args": {"name": title}},
        {"name": "thread_sort_index", "ph": "M", **track, "args": {"sort_index": lane.stage}},
    ]
    for span in lane.spans:
        start, end = _us(span.start_s), _us(span.end_s)
        timed = {"ts": start, "dur": round(end - start, 3)}
        name = f"{_STATES[span.kind]}{span.microbatch}" if span.kind in _STATES else span.kind
        whose = {"name": name, "cat": span.kind, "ph": "X", **track}
        events.append({**whose, **timed, "args": _about_span(span)})
    for number, span in enumerate(lane.sends):
        whose = {"cat": "p2p", "name": f"send {lane.name}", "id": first + number, **track}
        events.append({**whose, "ph": "b", "ts": _us(span.start_s), "args": _about_span(span)})
        events.append({**whose, "ph": "e", "ts": _us(span.end_s)})
    for moment in lane.memory:
        value = {"GiB": round(moment.allocated_gib, 6)}
        counter = {"name": f"memory of {lane.name}", "ph": "C", **track}
        events.append({**counter, "ts": _us(moment.start_s), "args": value})
    return events


def _us(seconds: float) -> float:
    """Microseconds, rounded to a whole nanosecond: both ends of a span round alike, so that sums do not drift."""
    return round(seconds / NS) / 1000


def _about_span(span: Span) -> dict[str, int]:
    return {} if span.microbatch < 0 else {"microbatch": span.microbatch, "chunk": span.chunk}
