"""How much a search may still do, in work done and not in seconds: the same request has the same answer anywhere.

A unit is one stage placed on a path (``partition.paths``), some 60 microseconds of one core of 2024; other work
is charged by what it takes in such units.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import inf


class Effort:
    """Units to spend, and what is spent."""

    def __init__(self, most: float = inf) -> None:
        self.spent = 0.0
        self.most = most

    @property
    def over(self) -> bool:
        """Whether nothing is left."""
        return self.spent >= self.most

    @property
    def left(self) -> float:
        """Units not spent yet."""
        return max(self.most - self.spent, 0.0)

    def spend(self, units: float) -> None:
        """Account for some work."""
        self.spent += units

    @contextmanager
    def part(self, share: float) -> Iterator[None]:
        """Spend at most a share of what is left in here; what remains of it is there afterwards."""
        most = self.most
        self.most = min(most, self.spent + share * self.left)
        try:
            yield
        finally:
            self.most = most
