"""A process that answers one question after another, so that a search can be ended without ending the server."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Final

from astra.interrupts import start

if TYPE_CHECKING:
    from astra.serve.answers import Document

Work = Callable[[Connection, int], None]  # the life of a process: its end of the pipe, the memory it may have
_END_S: Final = 2.0
BUG: Final = (
    b'{"error":"internal error: this is a bug in Astra, and the server has written down where it happened.",'
    b'"where":"","want":"","fix":""}'
)


class WorkerDied(Exception):
    """The process ended before it answered."""


class Worker:
    """One process. ``ask`` waits for its answer and belongs in a thread."""

    def __init__(self, work: Work, memory_bytes: int) -> None:
        # Forked from a process that has loaded the planner where there are forks: a new worker is there at once.
        if "forkserver" in multiprocessing.get_all_start_methods():
            forking = multiprocessing.get_context("forkserver")
            forking.set_forkserver_preload(["astra.serve.answers"])
            self._ours, theirs = forking.Pipe()
            self._process: BaseProcess = forking.Process(target=work, args=(theirs, memory_bytes), daemon=True)
        else:
            spawning = multiprocessing.get_context("spawn")
            self._ours, theirs = spawning.Pipe()
            self._process = spawning.Process(target=work, args=(theirs, memory_bytes), daemon=True)
        start(self._process)  # the server ends it
        theirs.close()

    def ask(self, kind: str, body: bytes) -> Document:
        """The answer of the process; WorkerDied if it was ended meanwhile."""
        try:
            self._ours.send((kind, body))
            found: Document = self._ours.recv()
        except (EOFError, OSError, ValueError):
            raise WorkerDied from None
        return found

    def end(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join(_END_S)
        self._ours.close()


def work(pipe: Connection, memory_bytes: int) -> None:
    """Answer until the server goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as ``start`` does where it can
    from astra.serve.answers import JSON, Document, answered, warm_up  # noqa: PLC0415 - in the worker alone

    _bound_memory(memory_bytes)
    warm_up()
    while True:
        try:
            kind, body = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            answer = answered(kind, body)
        except Exception:
            _complain(kind)
            answer = Document(500, JSON, BUG)
        pipe.send(answer)


def _complain(kind: str) -> None:
    """For whoever runs the server; clients never see it."""
    import traceback  # noqa: PLC0415

    sys.stderr.write(f"astra serve: a bug in answering {kind}:\n{traceback.format_exc()}")
    sys.stderr.flush()


def _bound_memory(memory_bytes: int) -> None:
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415

    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
