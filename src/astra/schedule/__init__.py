"""Pipeline schedules as data, their closed forms and the one simulator; pictures and the slow bound are their own."""

from __future__ import annotations

from astra.schedule.base import PipelineShape, Schedule, Slot, readable
from astra.schedule.in_flight import in_flight_by_chunk, peak_activation_bytes
from astra.schedule.interleaved import group_size
from astra.schedule.registry import SCHEDULES, by_name, find, in_flight_chunks, legal, makespan_s, register
from astra.schedule.simulator import Timeline, simulate
from astra.schedule.steady import step_s, steps_s

__all__ = [
    "SCHEDULES",
    "PipelineShape",
    "Schedule",
    "Slot",
    "Timeline",
    "by_name",
    "find",
    "group_size",
    "in_flight_by_chunk",
    "in_flight_chunks",
    "legal",
    "makespan_s",
    "peak_activation_bytes",
    "readable",
    "register",
    "simulate",
    "step_s",
    "steps_s",
]
