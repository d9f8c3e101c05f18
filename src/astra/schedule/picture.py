"""A simulated step to look at: a Chrome trace, or a drawing for the terminal."""

from __future__ import annotations

import string
from typing import Any, Final

import numpy as np

from astra.errors import InputError
from astra.schedule.base import BACKWARD, FORWARD, KINDS
from astra.schedule.simulator import Timeline
from astra.units import US

IDLE: Final = "."
SENDING: Final = "-"
WEIGHT_MARK: Final = "+"


def trace(timeline: Timeline) -> dict[str, Any]:
    """Chrome trace events (open in ui.perfetto.dev): one row per rank, times in microseconds."""
    events: list[dict[str, Any]] = [
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": rank, "args": {"name": f"rank {rank}"}}
        for rank in range(timeline.p)
    ]
    for rank in range(timeline.p):
        columns = (
            timeline.kind,
            timeline.microbatch,
            timeline.chunk,
            timeline.stage,
            timeline.start_s,
            timeline.end_s,
            timeline.freed_s,
        )
        for kind, microbatch, chunk, stage, start_s, end_s, freed_s in zip(
            *(c[rank].tolist() for c in columns), strict=True
        ):
            where = {"microbatch": microbatch, "chunk": chunk, "virtual_stage": stage}
            name = f"{KINDS[kind]}{microbatch}" + (f".{chunk}" if timeline.v > 1 else "")
            events.append(_event(name, KINDS[kind], rank, start_s, end_s, where))
            if freed_s > end_s:
                events.append(_event(f"send {name}", "send", rank, end_s, freed_s, where))
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"schedule": timeline.schedule}}


def _event(name: str, category: str, rank: int, start_s: float, end_s: float, where: dict[str, int]) -> dict[str, Any]:
    span = {"ts": start_s / US, "dur": (end_s - start_s) / US}
    return {"name": name, "cat": category, "ph": "X", "pid": 0, "tid": rank, **span, "args": where}


def draw(timeline: Timeline, width: int = 100) -> str:
    """One line per rank, ``width`` moments each.

    F is upper case and B lower case (A and a are micro-batch 0, then 26, ...), W ``+``, a blocking send ``-``,
    idle ``.``.
    """
    if width < 1:
        raise InputError("width", width, want="1 character or more")
    moments_s = [(cell + 0.5) * timeline.total_s / width for cell in range(width)]
    margin = len(str(timeline.p - 1))
    return "\n".join(f"rank {rank:>{margin}} {_line(timeline, rank, moments_s)}" for rank in range(timeline.p))


def _line(timeline: Timeline, rank: int, moments_s: list[float]) -> str:
    slots = np.searchsorted(timeline.start_s[rank], moments_s, side="right") - 1
    return "".join(_mark(timeline, rank, slot, now_s) for slot, now_s in zip(slots.tolist(), moments_s, strict=True))


def _mark(timeline: Timeline, rank: int, slot: int, now_s: float) -> str:
    if slot < 0 or now_s >= timeline.freed_s[rank, slot]:
        return IDLE
    if now_s >= timeline.end_s[rank, slot]:
        return SENDING
    kind, microbatch = int(timeline.kind[rank, slot]), int(timeline.microbatch[rank, slot])
    if kind == FORWARD:
        return string.ascii_uppercase[microbatch % 26]
    return string.ascii_lowercase[microbatch % 26] if kind == BACKWARD else WEIGHT_MARK
