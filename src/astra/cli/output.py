"""The only module that writes: text or one JSON record to stdout, and the record to a file, whole or not at all."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TextIO

from astra.errors import InputError, OutputError, visible, visible_lines

if TYPE_CHECKING:
    from astra.answer import Result, Table

_COLOR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_HIDDEN: Final = re.compile(r"[^\n\x20-\x7e]")
PLOTS: Final = (".svg", ".html", ".png")


class VerbAnswer(NamedTuple):
    """What a verb found: drawn or encoded only when asked for."""

    text: Callable[[int | None, bool], str]  # width, colour
    record: Callable[[], str]  # JSON
    exit_code: int = 0


def answer(found: Result, args: argparse.Namespace, exit_code: int = 0) -> VerbAnswer:
    """What a verb found, where that draws itself: as much of it as is asked for."""
    amount = {"brief": args.quiet, "full": args.verbose} if "quiet" in args else {}
    return VerbAnswer(lambda width, color: found.draw(width, color, **amount), found.to_json, exit_code)


def emit(answer: VerbAnswer, args: argparse.Namespace) -> int:
    """Write the file first (it may fail), then stdout."""
    record = plain_json(answer.record()) if args.json or args.out else ""
    if args.out:
        write_file(args.out, record + "\n")
    if args.json:
        write_stdout(record + "\n")
    else:
        from astra.report.drawing import encodable  # noqa: PLC0415

        color = wants_color(sys.stdout)
        drawn = harmless(answer.text(args.width, color), color=color)
        write_stdout(encodable(drawn, getattr(sys.stdout, "encoding", None)))
    written = [path for path in (args.out, *(getattr(args, name, None) for name in ("page", "csv", "plot"))) if path]
    if not getattr(args, "quiet", False) and sys.stderr is not None:
        for path in written:
            print(f"astra: wrote {visible(path)}", file=sys.stderr)
    return answer.exit_code


def harmless(drawn: str, *, color: bool) -> str:
    """Text for a terminal: lines, colours if there are any, and nothing else that a terminal would act on."""
    if not color:
        return visible_lines(drawn)
    pieces = _COLOR.split(drawn)
    pieces[::2] = map(visible_lines, pieces[::2])
    return "".join(pieces)


def plain_json(record: str) -> str:
    """The same JSON, with characters that cannot be seen as escapes: they stand in texts alone."""
    return _HIDDEN.sub(lambda found: _json_escape(found.group()), record)


def _json_escape(letter: str) -> str:
    if letter.isprintable():
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


def wants_color(stream: TextIO | None) -> bool:
    """Colour on a capable terminal, unless NO_COLOR says otherwise."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def write_stdout(text: str) -> None:
    """Write and flush; a full disk is an OutputError, a closed pipe is left to the caller."""
    if sys.stdout is None:
        raise OutputError("standard output is closed, so the answer cannot be written.")
    flush(text)


def flush(text: str = "") -> None:
    """Write and flush stdout now, while an error can still be reported."""
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # What is still buffered would fail again, with a traceback, when the interpreter exits.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"standard output: {error.strerror or error}.") from None


def error_record(kind: str, error: Exception, exit_code: int) -> str:
    """An error for tools, as JSON."""
    import json  # noqa: PLC0415

    detail = {
        "kind": kind,
        "message": str(error),
        "where": getattr(error, "where", ""),
        "fix": getattr(error, "fix", ""),
        "exit_code": exit_code,
    }
    return plain_json(json.dumps({"schema": "astra.error/1", "error": detail}, indent=2)) + "\n"


def check_destination(path: str | None) -> None:
    """Fail before the work is done when the file clearly cannot be written."""
    if path is None:
        return
    if path in ("", "-"):
        raise InputError("--out", path, want="a file name", fix="--json prints the record on standard output.")
    from astra.atomic import resolved  # noqa: PLC0415

    target = resolved(path)
    folder = os.path.dirname(target)
    if os.path.isdir(target):
        raise OutputError(f"{path} is a folder; give a file name inside it.")
    if not os.path.isdir(folder):
        raise OutputError(f"{path}: there is no folder {folder}.")
    if not os.access(target if os.path.exists(target) else folder, os.W_OK):
        raise OutputError(f"{path}: permission denied.")


def check_page(path: str | None) -> None:
    """Say before the work is done when a page cannot be written there."""
    _check_named("--report", path, (".html", ".htm"))


def check_files(args: argparse.Namespace) -> None:
    """Say before the work is done when rows or a picture cannot be written there."""
    _check_named("--csv", args.csv, (".csv",))
    check_plot(args.plot)


def check_plot(path: str | None, endings: tuple[str, ...] = PLOTS) -> None:
    """Say before the work is done when a picture cannot be drawn, or written there."""
    _check_named("--plot", path, endings)
    if path is not None and path.lower().endswith(".png"):
        from astra.report.pictures import check_png  # noqa: PLC0415

        check_png("--plot")


def _check_named(flag: str, path: str | None, endings: tuple[str, ...]) -> None:
    if path is not None and not path.lower().endswith(endings):
        raise InputError(flag, path, want=f"a name that ends in {' or '.join(endings)}")
    check_destination(path)


def write_files(args: argparse.Namespace, answer: Table) -> None:
    """The rows and the picture of an answer, where they are asked for."""
    if args.csv is not None:
        from astra.report.frames import records, written  # noqa: PLC0415

        write_file(args.csv, written(records(answer)))
    if args.plot is not None:
        from astra.report.pictures import drawn  # noqa: PLC0415

        write_file(args.plot, drawn(answer, args.plot, "--plot"))


def write_file(path: str, content: str | bytes) -> None:
    """Write a file whole, or say why not."""
    from astra.atomic import write_file as write_whole  # noqa: PLC0415

    check_destination(path)
    write_whole(path, content)
