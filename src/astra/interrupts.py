"""Processes of ours, which are ended by who started them: no Ctrl-C reaches them."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from astra.errors import uninterrupted

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

_MOST_STARTS: Final = 3
_BETWEEN_S: Final = 0.05


def start(process: BaseProcess) -> None:
    """Start a process which no interrupt reaches, nor the server that forks it, also while they load their modules.

    Where that server is killed meanwhile, as when memory runs out, another takes its place.
    """
    if hasattr(signal, "pthread_sigmask"):
        from multiprocessing.resource_tracker import ensure_running  # noqa: PLC0415

        ensure_running()  # started below, it would let interrupts in again
    for left in reversed(range(_MOST_STARTS)):
        try:
            with uninterrupted():  # what is started inherits it
                process.start()
        except (EOFError, OSError):  # noqa: PERF203 - a few at most
            if not left:
                raise
            time.sleep(_BETWEEN_S)
        else:
            return
