"""Processes of ours, which are ended by who started them: no Ctrl-C reaches them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from astra.errors import uninterrupted

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


def start(process: BaseProcess) -> None:
    """Start a process which no interrupt reaches, nor the server that forks it, also while they load their modules."""
    if hasattr(signal, "pthread_sigmask"):
        from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415

        ensure_running()  # started below, it would let interrupts in again
    with uninterrupted():  # what is started inherits it
        process.start()
