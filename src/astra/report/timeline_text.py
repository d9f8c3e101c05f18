"""A simulated step for the terminal: a line of letters for each stage, and where its seconds go."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Final

from astra.report import drawing
from astra.report.explain import show_step
from astra.report.layout import Part
from astra.report.timeline import lane_name, used_kinds, windows
from astra.search.timeline import Lane, Span, StepTimeline

IDLE: Final = "."
SENDING: Final = "-"
WEIGHT_MARK: Final = "+"
AFTER: Final = "="
_SHORT: Final = {"weight gradient": "weights", "gradient reduction": "reduction", "slowest node": "slowest"}
_KEY: Final = (
    "A, B, ... forward of micro-batches 0, 1, ... (again after 26), a, b, ... backward, + weight gradient, - a send, "
    ". bubble, = after the pipeline"
)


def timeline_text(step: StepTimeline, width: int = 100) -> list[str]:
    """One line per stage, a mark for each moment.

    F is upper case and B lower case (A and a are micro-batch 0, then 26, ...), a weight gradient ``+``, a send that is
    waited for ``-``, what follows the pipeline ``=``, a bubble ``.``.
    """
    window = windows(step)[0]
    names = [lane_name(step, lane) for lane in step.lanes]
    margin = max(map(len, names))
    cells = max(width - margin - 8, 10)
    wide_s = (window.end_s - window.start_s) / cells
    moments_s = [window.start_s + (cell + 0.5) * wide_s for cell in range(cells)]
    return [
        f"stage {name:>{margin}} {''.join(_marks(lane, moments_s))}"
        for name, lane in zip(names, step.lanes, strict=True)
    ]


def _marks(lane: Lane, moments_s: Sequence[float]) -> Iterator[str]:
    at = 0
    for now_s in moments_s:
        while lane.spans[at].end_s <= now_s and at + 1 < len(lane.spans):
            at += 1
        yield _mark(lane.spans[at])


def _mark(span: Span) -> str:
    if span.kind in ("forward", "backward"):
        letters = string.ascii_uppercase if span.kind == "forward" else string.ascii_lowercase
        return letters[span.microbatch % 26]
    return {"bubble": IDLE, "p2p": SENDING, "weight gradient": WEIGHT_MARK}.get(span.kind, AFTER)


def step_parts(step: StepTimeline, columns: int) -> list[Part]:
    """The first window of the step as letters, and a table of seconds by stage."""
    kinds = used_kinds(step)
    heads = (("stage", "right"), *((_SHORT.get(kind, kind), "right") for kind in kinds), ("step", "right"))
    spent = ((lane, lane.seconds()) for lane in step.lanes)
    rows = (
        (lane_name(step, lane), *(f"{each.get(kind, 0.0):.3f}" for kind in kinds), f"{sum(each.values()):.3f}")
        for lane, each in spent
    )
    return [
        drawing.text((f"{step.model} on {step.gpus}", "bold"), f", {step.schedule}, {show_step(step.step_s)}"),
        drawing.prose((step.strategy, "dim")),
        drawing.blank(),
        drawing.heading("Stages by time", windows(step)[0].title),
        *(drawing.text(line) for line in timeline_text(step, columns)),
        drawing.prose((_KEY, "dim")),
        drawing.blank(),
        drawing.heading("Seconds of every stage", "each row adds up to the step"),
        drawing.table(*heads, rows=rows),
        *drawing.closing(step.notes, []),
    ]
