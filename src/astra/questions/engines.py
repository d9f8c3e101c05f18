"""The engines that answer questions: processes of this machine, or a Ray cluster. Their answers are the same.

An engine takes questions as it has room for them, and gives a line for each in the order they are done. A worker that
ends before it has answered is replaced and the question asked again, a few times.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Final, NamedTuple, Protocol

from astra.interrupts import start
from astra.questions.answering import answered, lost
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
    return Local(workers or usable_cores())


def usable_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_END_S: Final = 5.0
_THREADS: Final = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class _Attempted(NamedTuple):
    question: Question
    tries: int


class _Process:
    """A process and the question it is at."""

    def __init__(self, answering: Answering) -> None:
        # Forked from a process that has loaded the planner, where there are forks: a new worker is there at once, and
        # holds no pipe of another, so that it sees the end of the study however that comes.
        method = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["astra.questions.answering"])
        for name in _THREADS:  # a process each: threads of numpy would only be in each other's way
            os.environ.setdefault(name, "1")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs, answering), daemon=True)  # type: ignore[attr-defined]
        start(self.process)  # the study ends it
        theirs.close()
        self.asked: _Attempted | None = None

    def ask(self, asked: _Attempted) -> None:
        """Give it a question; a worker that is gone is noticed when its answer is waited for."""
        self.asked = asked
        with suppress(OSError):
            self.pipe.send((asked.question.key, asked.question.request))

    def end(self) -> int | None:
        """End the process; its exit code, negative for the signal that ended it."""
        self.process.kill()
        self.process.join(_END_S)
        self.pipe.close()
        code: int | None = self.process.exitcode
        return code


class Local:
    """As many processes as there are workers."""

    name: Final = "local"

    def __init__(self, workers: int, answering: Answering = answered) -> None:
        self.workers, self._answering = workers, answering
        self._all: list[_Process] = []

    def answers(self, questions: Iterable[Question]) -> Iterator[Given]:
        """A line for each question, as they are done."""
        waiting, again = iter(questions), deque[_Attempted]()
        while True:
            self._hand_out(waiting, again)
            busy = {worker.pipe: worker for worker in self._all if worker.asked is not None}
            if not busy:
                return
            for pipe in wait(list(busy)):
                worker = busy[pipe]  # type: ignore[index]
                given = self._take(worker, again)
                if given is not None:
                    yield given

    def _hand_out(self, waiting: Iterator[Question], again: deque[_Attempted]) -> None:
        """A question for everybody who has none."""
        idle = [worker for worker in self._all if worker.asked is None]
        while idle or len(self._all) < self.workers:
            asked = again.popleft() if again else None
            if asked is None:
                question = next(waiting, None)
                if question is None:
                    return
                asked = _Attempted(question, 1)
            if not idle:
                self._all.append(_Process(self._answering))
                idle.append(self._all[-1])
            idle.pop().ask(asked)

    def _take(self, worker: _Process, again: deque[_Attempted]) -> Given | None:
        """The answer of a worker; None if it is gone and its question is to be asked again."""
        asked = worker.asked
        assert asked is not None
        try:
            line: bytes = worker.pipe.recv_bytes()
        except (EOFError, OSError):
            self._all.remove(worker)
            code = worker.end()
            if asked.tries < MOST_TRIES:
                again.append(_Attempted(asked.question, asked.tries + 1))
                return None
            return Given(lost(asked.question.key, asked.tries, _ending(code)), asked.tries)
        worker.asked = None
        return Given(line, asked.tries)

    def close(self) -> None:
        """End all processes."""
        for worker in self._all:
            worker.end()
        self._all.clear()


def _ending(code: int | None) -> str:
    named = {-each.value: each.name for each in signal.Signals}
    if code not in named:
        return f"exit code {code}"
    return f"by {named[code]}" + (", as when memory runs out" if code == -9 else "")


def _work(pipe: Connection, answering: Answering) -> None:
    """Answer until the study goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as ``start`` does where it can
    with suppress(EOFError, OSError):
        while True:
            key, request = pipe.recv()
            pipe.send_bytes(answering(key, request))
