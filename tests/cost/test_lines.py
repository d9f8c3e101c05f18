"""What lines between pools carry."""

from __future__ import annotations

from itertools import permutations

import pytest

from astra.cost.lines import Crossing, busiest_s
from astra.spec.cluster import Link

BYTES = {"near": (8e9, 1.25e9), "far": (1e9, 1.25e8), "wide": (3e10, 1.25e10)}  # of activations, and per second


@pytest.mark.parametrize("order", list(permutations(BYTES)))
def test_no_line_carries_more_in_a_step_than_it_can(order: tuple[str, ...]) -> None:
    crossed = []
    for nbytes, rate in (BYTES[name] for name in order):
        line = Link(kind="tcp", reach=16, bytes_per_s=rate, total_bytes_per_s=rate, latency_s=1e-3, source="a test")
        crossed.append(Crossing(line, ("here", "there"), nbytes, 0.0))
    assert busiest_s(crossed) >= max(nbytes / rate for nbytes, rate in BYTES.values())
    assert busiest_s(crossed[:1]) <= busiest_s(crossed[:2]) <= busiest_s(crossed)
    assert busiest_s([]) == 0.0
