"""The child of the gate: asks one state of Astra every request, in one process. Needs the standard library alone.

Run as ``python answer.py SOURCE RESULTS LIMIT_S`` in a folder with the files that requests name, the requests as JSON
on standard input. Each answer is a line of JSON in RESULTS, so that a child that dies leaves what it had found.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

TIMED_OUT = "timed out"
RAISED = "raised"
OUT = Path("out")  # where requests that write files write them


class OutOfTimeError(BaseException):
    """The request took too long; not an Exception, so that nothing on the way catches it."""


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Processor time, not the clock's: a busy machine must not change the answer."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise OutOfTimeError

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def asked(main: Any, argv: list[str], limit_s: float) -> dict[str, Any]:
    """What one request gives: exit code, record, messages, and the files written under ``out``."""
    said, complained = io.StringIO(), io.StringIO()
    began = time.process_time()
    code: int | str
    try:
        with limited(limit_s), contextlib.redirect_stdout(said), contextlib.redirect_stderr(complained):
            code = main(argv)
    except OutOfTimeError:
        code = TIMED_OUT
    except (Exception, SystemExit) as error:
        code = RAISED
        complained.write(f"{type(error).__name__}: {error}")
    spent = time.process_time() - began
    written = {str(path.relative_to(OUT)): _text(path) for path in sorted(OUT.rglob("*")) if path.is_file()}
    shutil.rmtree(OUT, ignore_errors=True)
    return {
        "code": code,
        "record": _record(said.getvalue()),
        "messages": complained.getvalue(),
        "files": written,
        "cpu_s": round(spent, 3),
    }


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def _record(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def run() -> None:
    """Ask everything in turn."""
    source, results, limit_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    sys.path[0] = source  # instead of this folder
    import astra  # noqa: PLC0415
    from astra.cli import main  # noqa: PLC0415

    assert Path(astra.__file__).is_relative_to(source), f"asked {astra.__file__}, which is not in {source}"
    with results.open("a", encoding="utf-8") as stream:
        for request in json.load(sys.stdin):
            found = asked(main, request["argv"], limit_s)
            stream.write(json.dumps({"name": request["name"], **found}) + "\n")
            stream.flush()


if __name__ == "__main__":
    run()
