"""Run commands in one process with little memory: JSON of the commands in, JSON of what became of each out."""

from __future__ import annotations

import contextlib
import io
import json
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from astra.cli import main

MOST_BYTES = 1200 * 2**20  # of addresses; numpy's threads take a good part of them
MOST_S = 8


class Late(BaseException):
    """No answer."""


def _late(number: int, frame: FrameType | None) -> None:
    raise Late


def _held_mib() -> int:
    """The most memory this process has held, of its own: what `getrusage` tells starts with its parent's."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) // 1024


def _run(command: list[str]) -> dict[str, object]:
    said, started = io.StringIO(), time.process_time()
    signal.alarm(MOST_S)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code: object = main(command)
    except BaseException as error:  # whatever it is, it is told
        code = type(error).__name__
    finally:
        signal.alarm(0)
    return {"code": code, "said": said.getvalue()[:2000], "s": time.process_time() - started, "mib": _held_mib()}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, _late)
    json.dump([_run(command) for command in json.load(sys.stdin)], sys.stdout)
