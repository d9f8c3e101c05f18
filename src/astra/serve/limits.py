"""What one client may ask of the server."""

from __future__ import annotations

from typing import Final, NamedTuple

KIB: Final = 1024
MIB: Final = 1024**2


class ServeLimits(NamedTuple):
    """How much of everything there may be; tests ask for less."""

    workers: int = 2  # searches at the same time
    seconds: float = 30.0  # of one answer, then its worker is ended
    outdated_s: float = 0.5  # a search that nobody waits for any more may go on for so long
    waiting: int = 64  # answers being worked on or waited for; more are told to come back
    body_bytes: int = MIB  # of a request, a dropped config.json among it
    body_s: float = 10.0  # until all of a request has come
    memory_bytes: int = 6 * 1024 * MIB  # addresses of a worker
    kept_bytes: int = 48 * MIB  # of answers that are given again without a search
    connections: int = 256


USUAL: Final = ServeLimits()
