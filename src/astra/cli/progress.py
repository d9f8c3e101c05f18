"""A progress bar that appears on stderr only when a search is slow and somebody is watching."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S: Final = 1.0


class SearchProgress:
    """Called with the fraction done; draws nothing before ``PATIENCE_S`` seconds have passed."""

    def __init__(
        self, stream: TextIO, *, title: str = "searching", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream, self._title, self._clock, self._began_s = stream, title, clock, clock()
        self._bar: Progress | None = None

    def __call__(self, fraction: float) -> None:
        """Report the fraction of the search that is done."""
        if self._bar is None:
            if self._clock() - self._began_s < PATIENCE_S:
                return
            self._bar = self._start()
        self._bar.update(self._bar.task_ids[0], completed=min(max(fraction, 0.0), 1.0))

    def _start(self) -> Progress:
        from rich.console import Console  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(file=self._stream), transient=True)
        bar.add_task(self._title, total=1.0)
        bar.start()
        return bar

    @property
    def shown(self) -> bool:
        """Whether the bar has appeared."""
        return self._bar is not None

    def __enter__(self) -> SearchProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()


def watched() -> bool:
    """Whether a person can see stderr."""
    return sys.stderr is not None and sys.stderr.isatty()
