"""The command line: one verb per file. ``main`` is the only way in, and every way out has its own exit code.

0 an answer; 2 bad input; 3 no feasible plan; 4 no coverage under --strict; 5 the output could not be written;
1 a bug in Astra; 130 interrupted; 141 the reader went away.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

from astra.errors import AstraError, visible_lines

INTERRUPTED: Final = 130
READER_GONE: Final = 141
BUG: Final = 1
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        _drop_stdout()
        return READER_GONE


def program() -> int:
    """The program itself: ``main``, and out at once. To take a plan's modules down takes longer than to draw it."""
    try:
        _keep_memory()
        code = main()
    except KeyboardInterrupt:
        code = _interrupted()
    threads = sys.modules.get("threading")
    if threads is not None and threads.active_count() > 1:
        return code  # somebody still works: the interpreter waits for them
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # it is closed, and what failed has been said
            stream.flush()
    os._exit(code)


def _keep_memory() -> None:
    """Memory of one table is kept for the next: to hand it back and ask anew took a tenth of a search's time."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # of the GNU C library alone
        from ctypes import CDLL  # noqa: PLC0415

        for what, most_bytes in ((_M_TRIM_THRESHOLD, 1 << 28), (_M_MMAP_THRESHOLD, 1 << 25)):
            CDLL(None).mallopt(what, most_bytes)


def _run(arguments: list[str]) -> int:
    # NumPy starts a thread for each core when it is loaded, and nothing here multiplies matrices that are worth one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from astra.cli import output, parser  # noqa: PLC0415

    try:
        args = parser.parse(arguments)
        if args is None:  # help or version was asked for and shown
            output.flush()
            return 0
        output.check_destination(args.out)
        return output.emit(args.run(args), args)
    except AstraError as error:
        _say(f"{error}")
        _error_record(arguments, type(error).__name__, error, error.exit_code)
        return error.exit_code
    except (KeyboardInterrupt, BrokenPipeError):
        raise
    except Exception as error:
        if "--debug" in arguments:
            raise
        name = type(error).__name__
        _say(f"internal error: {name}: {error}. This is a bug in Astra: please report it with the command; --debug "
             "shows where it happened.")  # fmt: skip
        _error_record(arguments, "internal", error, BUG)
        return BUG


def _error_record(arguments: list[str], kind: str, error: Exception, exit_code: int) -> None:
    if "--json" not in arguments:
        return
    from astra.cli import output  # noqa: PLC0415

    try:
        output.write_stdout(output.error_record(kind, error, exit_code))
    except AstraError:
        return  # The stream itself is what failed; the message is already on stderr.


def _interrupted() -> int:
    _say("interrupted.")
    return INTERRUPTED


def _say(message: str) -> None:
    with contextlib.suppress(OSError):  # nobody can be told, but for the exit code
        if sys.stderr is not None:
            print(f"astra: {visible_lines(message)}", file=sys.stderr, flush=True)


def _drop_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's own flush at exit stays quiet."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        return
