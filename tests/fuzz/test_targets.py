"""The fuzz targets do read what they are given: else fuzzing them would prove nothing."""

from __future__ import annotations

from random import Random

import pytest

from tests.files.odd import damaged
from tests.fuzz.crossed import crossed
from tests.fuzz.seeds import MOST_BYTES
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_most_of_its_seeds(name: str) -> None:
    seeds = TARGETS[name].seeds()
    assert max(len(seed.encode("utf-8", "surrogatepass")) for seed in seeds) <= MOST_BYTES, "a seed would be cut"
    refused = [TARGETS[name].refusal(seed) for seed in seeds]
    assert refused.count(None) > len(refused) / 2


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_seeds_are_read_or_refused(name: str) -> None:
    seeds, draw = TARGETS[name].seeds(), Random(name)
    for _ in range(15):
        seed = draw.choice(seeds)
        text = damaged(seed, "x.json" if seed[:1] == "{" else "x", draw).decode("utf-8", "replace")
        assert TARGETS[name].refusal(text[:20_000]) != ""


@pytest.mark.parametrize("name", TARGETS)
def test_crossed_seeds_are_read_or_refused(name: str) -> None:
    seeds, draw = TARGETS[name].seeds(), Random(name)
    for _ in range(15):
        text = crossed(draw.choice(seeds), draw.choice(seeds), draw)
        assert TARGETS[name].refusal(text[:MOST_BYTES]) != ""
