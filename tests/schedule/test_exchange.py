"""Blocking sends against the calls Megatron-LM makes in 1F1B, each a meeting of two neighbours.

Warm-up: receive, forward, send. Steady state: forward, exchange with the next rank, backward, exchange with the
previous one. Drain: receive, backward, send. Both ranks of a call leave it together, ``send_s`` after the later came.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from astra.provenance import Floats
from astra.schedule.registry import find
from astra.schedule.simulator import simulate
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


def both_totals_s(pipeline: pipelines.Pipeline) -> tuple[float, float]:
    enough = pipeline._replace(m=max(pipeline.m, pipeline.p), blocking_p2p=True)
    backward_s = enough.backward_s + enough.weight_s
    meetings_s = meeting_total_s(enough.p, enough.m, enough.forward_s, backward_s, enough.send_s)
    return simulate("1f1b", **enough._asdict()).total_s, meetings_s


@settings(max_examples=80, deadline=None)
@given(pipelines.equal(find("1f1b"), longest_send=0.5))
def test_equal_stages_take_what_the_meetings_take(pipeline: pipelines.Pipeline) -> None:
    """While a send takes at most half of the shortest slot; warm-up calls follow one another, and show beyond that."""
    total_s, meetings_s = both_totals_s(pipeline)
    assert total_s == pytest.approx(meetings_s, rel=1e-9)


@settings(max_examples=80, deadline=None)
@given(pipelines.unequal(find("1f1b")))
def test_unequal_stages_never_take_longer_than_the_meetings(pipeline: pipelines.Pipeline) -> None:
    """A little less when stages are very unequal: a sender does not wait for a late receiver."""
    total_s, meetings_s = both_totals_s(pipeline)
    assert total_s <= meetings_s * (1 + 1e-9)
