"""Two tiers: ``make test`` runs a sample of what is long, ``make test-exhaustive`` all of it.

A test that goes through everything (all examples of the documentation, all published runs, all small problems) is
marked ``exhaustive``, or some of its cases are; what ``make test`` leaves out is run by the other target, in CI too.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pytest
from hypothesis import settings

EXHAUSTIVE = bool(os.environ.get("ASTRA_EXHAUSTIVE"))  # set by ``make test-exhaustive``
TIMES = int(os.environ.get("ASTRA_EXPLORE") or 1)  # ASTRA_EXPLORE=20: examples never drawn before, 20 times as many
EXPLORE = "ASTRA_EXPLORE" in os.environ  # ``make explore`` draws all of them
Test = TypeVar("Test", bound=Callable[..., Any])


def sampled(cases: Iterable[Any], every: int, first: int = 0, *, rows: bool = False) -> list[Any]:
    """Values of a parameter (``rows``: of several): one of ``every`` so many in the default run, others exhaustive."""
    return [
        case
        if EXPLORE or place % every == first
        else pytest.param(*(case if rows else (case,)), marks=pytest.mark.exhaustive)
        for place, case in enumerate(cases)
    ]


def drawn(examples: int, few: int, **more: Any) -> Callable[[Test], Test]:
    """A property test that draws ``few`` examples in the default run, and all of them in the other."""

    def decorate(test: Test) -> Test:
        made = settings(max_examples=examples * TIMES if EXHAUSTIVE or EXPLORE else few, deadline=None, **more)(test)
        return pytest.mark.exhaustive(made) if EXHAUSTIVE else made

    return decorate
