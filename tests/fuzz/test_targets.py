"""The fuzz targets do read what they are given: else fuzzing them would prove nothing."""

from __future__ import annotations

from random import Random

import pytest

from astra.errors import AstraError
from tests.files.odd import damaged
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_most_of_its_seeds(name: str) -> None:
    read, refused = 0, 0
    for seed in TARGETS[name].seeds():
        try:
            TARGETS[name].read(seed)
            read += 1
        except AstraError:
            refused += 1
    assert read > refused


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_seeds_are_read_or_refused(name: str) -> None:
    seeds, draw = TARGETS[name].seeds(), Random(name)
    for _ in range(15):
        seed = draw.choice(seeds)
        text = damaged(seed, "x.json" if seed[:1] == "{" else "x", draw).decode("utf-8", "replace")
        try:
            TARGETS[name].read(text[:20_000])
        except AstraError as error:
            assert str(error)
