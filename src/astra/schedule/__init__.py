"""Pipeline schedules as data, and the one simulator."""

from __future__ import annotations

from astra.schedule.base import Schedule, Slot, readable
from astra.schedule.interleaved import group_size
from astra.schedule.registry import SCHEDULES, by_name, find, in_flight_chunks, legal, register
from astra.schedule.simulator import Timeline, simulate
from astra.schedule.steady import step_s, steps_s

__all__ = [
    "SCHEDULES",
    "Schedule",
    "Slot",
    "Timeline",
    "by_name",
    "find",
    "group_size",
    "in_flight_chunks",
    "legal",
    "readable",
    "register",
    "simulate",
    "step_s",
    "steps_s",
]
