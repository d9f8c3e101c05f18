"""Blocking sends against the calls Megatron-LM makes in 1F1B, each a meeting of two neighbours.

Warm-up: receive, forward, send. Steady state: forward, exchange with the next rank, backward, exchange with the
previous one. Drain: receive, backward, send. Both ranks of a call leave it together, ``send_s`` after the later came.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from astra.provenance import Floats
from astra.schedule import find, simulate
from tests.schedule import pipelines

MEET = "meet"
Step = tuple[str, float]


def calls(rank: int, p: int, m: int, forward_s: float, backward_s: float) -> list[Step]:
    """What one rank does: work, or meet over link i (between ranks i and i+1)."""
    before = [(MEET, rank - 1)] if rank > 0 else []
    after = [(MEET, rank)] if rank < p - 1 else []
    forward, backward = [("work", forward_s)], [("work", backward_s)]
    ahead = min(p - rank - 1, m)
    steady = m - ahead
    warm_up = (before + forward + after) * ahead
    drain = (after + backward + before) * ahead
    first = before if steady else []
    return warm_up + first + (forward + after + backward + before) * steady + drain


def meeting_total_s(p: int, m: int, forward_s: Floats, backward_s: Floats, send_s: Floats) -> float:
    programs = [calls(rank, p, m, forward_s[rank], backward_s[rank]) for rank in range(p)]
    clocks, place = [0.0] * p, [0] * p
    waiting: dict[float, int] = {}
    while any(place[rank] < len(programs[rank]) for rank in range(p)):
        for rank in range(p):
            while place[rank] < len(programs[rank]):
                what, value = programs[rank][place[rank]]
                if what == MEET:
                    partner = waiting.setdefault(value, rank)
                    if partner == rank:
                        break
                    del waiting[value]
                    clocks[rank] = clocks[partner] = max(clocks[rank], clocks[partner]) + send_s[int(value)]
                    place[partner] += 1
                else:
                    clocks[rank] += value
                place[rank] += 1
    return max(clocks)


@settings(max_examples=80, deadline=None)
@given(pipelines.unequal(find("1f1b")))
def test_blocking_sends_take_what_the_meetings_take(pipeline: pipelines.Pipeline) -> None:
    """Exactly when stages are equal; a little less when they are very unequal, since a sender need not wait."""
    p, _, m, forward_s, backward_s, weight_s, send_s, _ = pipeline
    m = max(m, p)
    blocking = pipeline._replace(m=m, blocking_p2p=True)
    total_s = simulate("1f1b", **blocking._asdict()).total_s
    meetings_s = meeting_total_s(p, m, forward_s, backward_s + weight_s, send_s)
    assert total_s <= meetings_s * (1 + 1e-9)
    if np.ptp(forward_s) == np.ptp(backward_s) == np.ptp(weight_s) == np.ptp([*send_s, *send_s[:1], 0.0][:-1]) == 0:
        assert total_s == pytest.approx(meetings_s, rel=1e-9)
