"""Known faults of what Astra needs, as PyPI tells them. Run: python -m tools.audit [LOCK ...].

Each package of a lock file is asked about in its version. An index that answers for whole projects alone tells faults
of the newest version only: an older one is then said to be unaudited, never to be clean.
Exit code: 1 if a fault is known, 2 if nothing could be asked, 0 otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

INDEX: Final = "https://pypi.org/pypi"
PATIENCE_S: Final = 30
PINNED: Final = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)", re.MULTILINE)


class Audited(NamedTuple):
    """A version of a package and its known faults; ``faults`` is None where nobody told."""

    name: str
    version: str
    faults: tuple[str, ...] | None

    def __str__(self) -> str:
        said = "not audited" if self.faults is None else ", ".join(self.faults) or "no known fault"
        return f"{self.name} {self.version}: {said}"


def pinned(lock: str) -> list[tuple[str, str]]:
    """Names and versions that a lock file pins."""
    return sorted(set(PINNED.findall(lock)))


def record(*path: str) -> dict[str, Any] | None:
    """What the index has under a path; None if it has nothing there."""
    try:
        with urllib.request.urlopen("/".join((INDEX, *path, "json")), timeout=PATIENCE_S) as answer:
            told: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):  # no such address, no answer, or not an answer of the index
        return None
    return told


def audited(package: tuple[str, str]) -> Audited:
    """The known faults of one version."""
    name, version = package
    told = record(name, version) or record(name)
    if told is None or told["info"]["version"] != version:
        return Audited(name, version, None)
    standing = (fault for fault in told["vulnerabilities"] if not fault.get("withdrawn"))
    return Audited(name, version, tuple(fault["id"] for fault in standing))


def main() -> int:
    """Ask about every package, print what is told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("locks", nargs="*", type=Path, default=[Path("requirements.lock")], metavar="LOCK")
    locks: list[Path] = parser.parse_args().locks
    packages = sorted({package for lock in locks for package in pinned(lock.read_text(encoding="utf-8"))})
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(audited, packages))
    for one in found:
        print(one)
    asked = [one for one in found if one.faults is not None]
    faulty = sum(bool(one.faults) for one in asked)
    print(f"{len(asked)} of {len(found)} versions audited, {faulty} with known faults")
    return 1 if faulty else 0 if asked else 2


if __name__ == "__main__":
    sys.exit(main())
