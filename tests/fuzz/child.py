"""One target under Atheris: ``python -m tests.fuzz.child TARGET REPORT FOUND CORPUS [libFuzzer's flags]``.

A fault is written down once by its place in the source, and fuzzing goes on; an input that takes too long is one too. A
hang of the interpreter or too much memory ends it.
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["astra"]):
    from astra.errors import AstraError
    from tests.files.odd import damaged
    from tests.fuzz.crossed import crossed
    from tests.fuzz.seeds import MOST_BYTES
    from tests.fuzz.targets import TARGETS

# Of the new inputs so many are made by the ways that damage files, and of two that are read; the others by libFuzzer.
DAMAGED, CROSSED = 0.3, 0.5
EVERY_S = 2.0
SLOWEST_S = 20.0  # of processor time for one input, instrumented: a busy machine makes nothing slow


class Fuzzed:
    """A target with its counts and the faults seen so far."""

    def __init__(self, name: str, report: Path, found: Path) -> None:
        self.name, self.report, self.found = name, report, found
        self.read = TARGETS[name].read
        self.inputs = self.refused = 0
        self.places: set[str] = set()
        self.saved_s = 0.0

    def once(self, data: bytes) -> None:
        """Read one input."""
        self.inputs += 1
        try:
            text = data.decode("utf-8", "surrogateescape")
            signal.setitimer(signal.ITIMER_PROF, SLOWEST_S)
            self.read(text)
        except AstraError as error:
            self.refused += 1
            str(error)
        except Exception as error:  # whatever it is, it is told
            self._fault(data, error)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0.0)
        if time.monotonic() - self.saved_s > EVERY_S:
            self.saved_s = time.monotonic()
            self.report.write_text(json.dumps({"inputs": self.inputs, "refused": self.refused}), encoding="utf-8")

    def _fault(self, data: bytes, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        last = next((frame for frame in reversed(frames) if "astra" in frame.filename), frames[-1])
        place = f"{type(error).__name__} {last.filename}:{last.lineno}"
        if place in self.places:
            return
        self.places.add(place)
        path = self.found / f"{self.name}-{hashlib.sha256(place.encode()).hexdigest()[:8]}"
        path.write_bytes(data)
        told = "".join(traceback.format_exception(error))
        path.with_suffix(".txt").write_text(told, encoding="utf-8", errors="replace")


def mutate(others: Sequence[str], data: bytes, most: int, seed: int) -> bytes:
    """Another input: damaged as files are, crossed with one of others, or by libFuzzer."""
    draw = Random(seed)
    way, text = draw.random(), data.decode("utf-8", "replace")
    if way < DAMAGED:
        return damaged(text, "x.json" if data[:1] in b"{[" else "x", draw)[:most]
    if way < DAMAGED + CROSSED:
        return crossed(text, draw.choice(others), draw).encode("utf-8", "surrogatepass")[:most]
    return bytes(atheris.Mutate(data, most))


def too_long(*_: object) -> None:
    """What the timer of an input that takes too long does."""
    raise TimeoutError(f"an input takes more than {SLOWEST_S:.0f} s of processor time")


def main() -> None:
    """Fuzz until the time is over."""
    name, report, found = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    assert MOST_BYTES > 0
    fuzzed = Fuzzed(name, report, found)
    signal.signal(signal.SIGPROF, too_long)
    atheris.Setup([sys.argv[0], *sys.argv[4:]], fuzzed.once, custom_mutator=partial(mutate, TARGETS[name].seeds()))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
