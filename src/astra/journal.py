"""A file that only grows: a line for each thing that is done, kept whatever happens to the process that wrote it.

A process that is killed leaves at most one line half written, the last, which the next one to open the file drops. One
process writes at a time; the lock goes with it, however it ends.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from astra.errors import OutputError

_SETTLE_S: Final = 1.0  # a machine that loses its power loses at most this much
_BLOCK: Final = 1 << 20


class JournalPlace(NamedTuple):
    """Where a line stands."""

    offset: int
    size: int  # without its line break


class Journal:
    """An open journal. Lines are bytes without a line break."""

    def __init__(self, path: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._clock, self._settled_s = path, clock, clock()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise OutputError(f"{path}: {error.strerror or error}.") from None
        if not stat.S_ISREG(os.fstat(self._file).st_mode):  # a device may have no end, a pipe no beginning
            os.close(self._file)
            raise OutputError(f"{path}: it is not a regular file.")
        self._lock()
        self._end = 0
        self.places = list(self._whole_lines())
        os.ftruncate(self._file, self._end)

    def _lock(self) -> None:
        try:
            import fcntl  # noqa: PLC0415 - POSIX alone
        except ImportError:  # pragma: no cover
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
            raise OutputError(f"{self.path}: another process is writing in it; wait for that one to end.") from None

    def _whole_lines(self) -> Iterator[JournalPlace]:
        """Every line that has its line break; ``_end`` is behind the last of them."""
        at, begun = 0, 0
        while block := self._read(at, _BLOCK):
            before = -1
            while (found := block.find(b"\n", before + 1)) >= 0:
                yield JournalPlace(begun, at + found - begun)
                begun = self._end = at + found + 1
                before = found
            at += len(block)

    def _read(self, offset: int, size: int) -> bytes:
        os.lseek(self._file, offset, os.SEEK_SET)
        return os.read(self._file, size)

    def line(self, place: JournalPlace) -> bytes:
        """One of its lines."""
        parts, at, left = [], place.offset, place.size
        while left:
            part = self._read(at, left)
            if not part:
                raise OutputError(f"{self.path}: it was cut short while it was open.")
            parts.append(part)
            at, left = at + len(part), left - len(part)
        return b"".join(parts)

    def append(self, line: bytes) -> JournalPlace:
        """Add a line, whole or not at all."""
        assert b"\n" not in line, "a line is one line"
        whole, written = line + b"\n", 0
        try:
            os.lseek(self._file, self._end, os.SEEK_SET)
            while written < len(whole):
                written += os.write(self._file, whole[written:])
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._end)
            raise OutputError(f"{self.path}: {error.strerror or error}; what is in it stays.") from None
        place = JournalPlace(self._end, len(line))
        self._end += len(whole)
        self.places.append(place)
        if self._clock() - self._settled_s >= _SETTLE_S:
            self.settle()
        return place

    def settle(self) -> None:
        """Have all of it on disk, where the system can."""
        with contextlib.suppress(OSError):
            os.fsync(self._file)
        self._settled_s = self._clock()

    def close(self) -> None:
        """Have all of it on disk, and let others write."""
        self.settle()
        os.close(self._file)
