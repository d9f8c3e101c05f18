"""Progress on stderr: a bar that appears only when a search is slow and somebody is watching, and that of a study."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress

    from astra.questions.run import Progress as StudyProgressed

PATIENCE_S: Final = 1.0
LINES_S: Final = 30.0  # between lines where nobody watches
Found = TypeVar("Found")


class _Bar:
    """A bar that is there once it was shown, and goes away at the end."""

    _bar: Progress | None = None

    def close(self) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.stop()

    def _show(self, stream: TextIO, title: str, done: float, *, left: bool) -> None:
        """Draw how much is done, and the time that is ``left``."""
        if self._bar is None:
            from rich import progress  # noqa: PLC0415
            from rich.console import Console  # noqa: PLC0415

            columns = [progress.TextColumn("{task.description}"), progress.BarColumn()]
            columns += [progress.TaskProgressColumn(), progress.TimeRemainingColumn()] if left else []
            self._bar = progress.Progress(*columns, console=Console(file=stream), transient=True)
            self._bar.add_task("", total=1.0)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=min(max(done, 0.0), 1.0), description=title)


class SearchProgress(_Bar):
    """Called with the fraction done; draws nothing before ``PATIENCE_S`` seconds have passed."""

    def __init__(
        self, stream: TextIO, *, title: str = "searching", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._title, self._clock, self._began_s = stream, title, clock, clock()

    def __call__(self, fraction: float) -> None:
        """Report the fraction of the search that is done."""
        if self.shown or self._clock() - self._began_s >= PATIENCE_S:
            self._show(self._stream, self._title, fraction, left=True)

    @property
    def shown(self) -> bool:
        """Whether the bar has appeared."""
        return self._bar is not None


class StudyProgress(_Bar):
    """How far a study is and the time left: a bar where somebody watches, else a line now and then."""

    def __init__(self, stream: TextIO | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock, self._said_s = stream, clock, clock()

    def __call__(self, progress: StudyProgressed) -> None:
        """Tell how far it is."""
        if self._stream is None:
            return
        line = _line(progress)
        if self._stream.isatty():
            self._show(self._stream, line, progress.done / progress.questions, left=False)
        elif self._clock() - self._said_s >= LINES_S:
            self._said_s = self._clock()
            print(f"astra: {line}", file=self._stream, flush=True)


def _line(progress: StudyProgressed) -> str:
    from astra.units import show_seconds  # noqa: PLC0415

    line = f"{progress.done:,} of {progress.questions:,} questions"
    if progress.left_s is None:
        return line
    left = f", {show_seconds(progress.left_s)} left" if progress.done < progress.questions else ""
    return f"{line}, {progress.now / progress.seconds:.1f} a second{left}"


def followed(work: Callable[[SearchProgress | None], Found], title: str = "searching") -> Found:
    """What some work finds, with a bar where a person can see it."""
    if not watched():
        return work(None)
    with closing(SearchProgress(sys.stderr, title=title)) as bar:
        return work(bar)


def watched() -> bool:
    """Whether a person can see stderr."""
    return sys.stderr is not None and sys.stderr.isatty()
