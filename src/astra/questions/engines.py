"""The engines that answer questions: processes of this machine, or a Ray cluster. Their answers are the same.

An engine takes questions as it has room for them, and gives a line for each in the order they are done. A worker that
ends before it has answered is replaced and the question asked again, a few times.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, Protocol

from astra.questions.declared import Question
from astra.spec.request import PlanRequest

MOST_TRIES: Final = 3  # of a question, where its worker ends

Answering = Callable[[str, PlanRequest], bytes]  # key, request -> the line of the journal


class Given(NamedTuple):
    """A line, and how often its question was asked."""

    line: bytes
    tries: int


class Engine(Protocol):
    """What answers questions."""

    workers: int

    @property
    def name(self) -> str:
        """Its word on the command line."""
        ...

    def answers(self, questions: Iterable[Question]) -> Iterator[Given]:
        """A line for each question, as they are done."""
        ...

    def close(self) -> None:
        """End what was started, whatever it does."""
        ...


def engine_of(name: str, workers: int | None, address: str | None) -> Engine:
    """The engine of a name; what it needs is looked for now."""
    if name == "ray":
        from astra.questions.on_ray import OnRay  # noqa: PLC0415 - an extra

        return OnRay(workers, address)
    from astra.questions.local import Local  # noqa: PLC0415 - as above

    return Local(workers or usable_cores())


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
