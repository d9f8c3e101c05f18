"""Ctrl-C at a bad moment: what must not break off ends first, and processes of ours are ended by who started them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back until the end of the block, on POSIX."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start(process: BaseProcess) -> None:
    """Start a process which no interrupt reaches, nor the server that forks it, also while they load their modules."""
    if hasattr(signal, "pthread_sigmask"):
        from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415

        ensure_running()  # started below, it would let interrupts in again
    with uninterrupted():  # what is started inherits it
        process.start()
