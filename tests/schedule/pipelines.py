"""Pipelines to draw from, a second simulator written plainly, and the contract every schedule keeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import strategies as st

from astra.provenance import Floats
from astra.schedule.base import BACKWARD, FORWARD, KINDS, Schedule
from astra.schedule.simulator import Timeline, simulate
from astra.schedule.steady import step_s
from tests.schedule.alive import in_flight_by_chunk, peak_activation_bytes, readable
from tests.schedule.closed_forms import PipelineShape


class Pipeline(NamedTuple):
    """A shape with the times of each virtual stage."""

    p: int
    v: int
    m: int
    forward_s: Floats
    backward_s: Floats
    weight_s: Floats
    send_s: Floats
    blocking_p2p: bool


def is_legal(schedule: Schedule, p: int, v: int, m: int) -> bool:
    return bool(schedule.legal(np.asarray(p), np.asarray(v), np.asarray(m)))


def shapes(schedule: Schedule, most_p: int = 7, most_m: int = 24) -> st.SearchStrategy[tuple[int, int, int]]:
    chunks = st.sampled_from([v for v in range(1, 5) if is_legal(schedule, 1, v, 1)])
    every = st.tuples(st.integers(1, most_p), chunks, st.integers(1, most_m))
    return every.filter(lambda shape: is_legal(schedule, *shape))


@st.composite
def unequal(draw: st.DrawFn, schedule: Schedule, most_p: int = 7, most_m: int = 24) -> Pipeline:
    """Stages that differ by little, much or nothing."""
    p, v, m = draw(shapes(schedule, most_p, most_m))
    spread = draw(st.sampled_from((0.0, 0.01, 0.3, 1.0)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    forward_s, backward_s, weight_s = (
        scale * (1 + spread * rng.uniform(-1, 1, p * v)) for scale in draw(st.permutations((1.0, 0.7, 2.0)))
    )
    send_s = draw(st.sampled_from((0.0, 0.02, 0.5))) * rng.uniform(0.5, 1, p * v - 1)
    return Pipeline(p, v, m, forward_s, backward_s, weight_s, send_s, draw(st.booleans()))


@st.composite
def equal(draw: st.DrawFn, schedule: Schedule, longest_send: float = 1.0) -> Pipeline:
    """Equal stages; sends of at most ``longest_send`` times the shortest slot."""
    p, v, m = draw(shapes(schedule))
    forward, backward, weight = (draw(st.integers(1, 9)) for _ in range(3))
    send = draw(st.sampled_from((0.0, 0.05, 0.5, 1.0))) * longest_send * min(forward, backward, weight)
    every = np.ones(p * v)
    send_s = send * every[:-1]
    return Pipeline(p, v, m, forward * every, backward * every, weight * every, send_s, draw(st.booleans()))


def as_shape(schedule: Schedule, pipeline: Pipeline) -> PipelineShape:
    """The sums a closed form is given."""
    p, v, m, forward_s, backward_s, weight_s, send_s, blocking = pipeline
    ranks_s = (forward_s + backward_s + weight_s)[schedule.place(p, v)].sum(axis=0)
    send = send_s[0] if len(send_s) else 0.0
    sums = (forward_s.sum(), backward_s.sum(), weight_s.sum(), ranks_s.max(), send)
    return PipelineShape._make(np.asarray(number) for number in (p, v, m, *sums, blocking))


def plain_total_s(schedule: Schedule, pipeline: Pipeline) -> float:
    """The definition, slot by slot: a rank takes its slots in order, each when its input is there."""
    p, v, m, forward_s, backward_s, weight_s, send_s, blocking = pipeline
    last, place = p * v - 1, schedule.place(p, v).tolist()
    rank_of = {k: rank for held in place for rank, k in enumerate(held)}
    send_s = np.array([s if rank_of[k] != rank_of[k + 1] else 0.0 for k, s in enumerate(send_s)])
    orders = [readable(schedule.slots(p, v, m, rank)) for rank in range(p)]
    made: dict[tuple[str, int, int], float] = {}
    clocks, taken = [0.0] * p, [0] * p
    while any(taken[rank] < len(orders[rank]) for rank in range(p)):
        before = list(taken)
        for rank in range(p):
            while taken[rank] < len(orders[rank]):
                kind, microbatch, chunk = orders[rank][taken[rank]]
                k = place[chunk][rank]
                if kind == "F":
                    needs, hop_s = (("F", microbatch, k - 1), send_s[k - 1]) if k else (None, 0.0)
                    work_s, leaves_s = forward_s[k], send_s[k] if k < last else 0.0
                elif kind == "B":
                    needs, hop_s = (("B", microbatch, k + 1), send_s[k]) if k < last else (("F", microbatch, k), 0.0)
                    work_s = backward_s[k] + (0.0 if schedule.splits_backward else weight_s[k])
                    leaves_s = send_s[k - 1] if k else 0.0
                else:
                    needs, hop_s, work_s, leaves_s = ("B", microbatch, k), 0.0, weight_s[k], 0.0
                if needs is not None and needs not in made:
                    break
                arrival_s = 0.0 if needs is None else made[needs] + (0.0 if blocking else hop_s)
                clocks[rank] = max(clocks[rank], arrival_s) + work_s + (leaves_s if blocking else 0.0)
                made[kind, microbatch, k] = clocks[rank]
                taken[rank] += 1
        assert taken != before, "deadlock"
    return max(clocks)


def check_slots(schedule: Schedule, p: int, v: int, m: int) -> None:
    """Each (micro-batch, chunk) once per kind on every rank, F before B before W."""
    kinds = KINDS if schedule.splits_backward else KINDS[:2]
    for rank in range(p):
        slots = readable(schedule.slots(p, v, m, rank))
        place = {slot: index for index, slot in enumerate(slots)}
        assert set(place) == {(kind, j, chunk) for kind in kinds for j in range(m) for chunk in range(v)}
        assert len(place) == len(slots)
        for _, j, chunk in place:
            order = [place[kind, j, chunk] for kind in kinds]  # type: ignore[index]
            assert order == sorted(order)


def check_place(schedule: Schedule, p: int, v: int) -> None:
    """Every virtual stage has one rank, every rank v of them; ranks are numbered as a micro-batch comes to them."""
    place = schedule.place(p, v)
    assert place.shape == (v, p)
    assert sorted(place.ravel().tolist()) == list(range(p * v))
    assert place[0].tolist() == list(range(p))
    assert [int(rank) for rank in schedule.rank_of(p, v)[place[-1]]] == list(range(p))


def check_dependencies(schedule: Schedule, timeline: Timeline, send_s: Floats, blocking: bool) -> None:
    """No slot starts before its rank is free or before its input has arrived."""
    tiny_s = 1e-9 * timeline.total_s
    start_s, freed_s, at = {}, {}, {}
    place = schedule.place(timeline.p, timeline.v)
    for rank in range(timeline.p):
        assert np.all(timeline.start_s[rank, 1:] >= timeline.freed_s[rank, :-1] - tiny_s)
        for slot in range(timeline.kind.shape[1]):
            k = int(place[timeline.chunk[rank, slot], rank])
            at[k] = rank
            key = (int(timeline.kind[rank, slot]), int(timeline.microbatch[rank, slot]), k)
            start_s[key], freed_s[key] = timeline.start_s[rank, slot], timeline.freed_s[rank, slot]
    for (kind, j, k), begun_s in start_s.items():
        if kind == FORWARD and k > 0:
            hop_s = 0.0 if blocking or at[k] == at[k - 1] else send_s[k - 1]
            assert begun_s >= freed_s[FORWARD, j, k - 1] + hop_s - tiny_s
        elif kind == BACKWARD:
            assert begun_s >= freed_s[FORWARD, j, k] - tiny_s
            if k + 1 < timeline.p * timeline.v:
                hop_s = 0.0 if blocking or at[k] == at[k + 1] else send_s[k]
                assert begun_s >= freed_s[BACKWARD, j, k + 1] + hop_s - tiny_s


def check_contract(schedule: Schedule, pipeline: Pipeline) -> None:
    """Everything a schedule owes: data that runs, and formulas that agree with the run."""
    p, v, m = pipeline[:3]
    check_place(schedule, p, v)
    check_slots(schedule, p, v, m)
    fields = pipeline._asdict()
    timeline = simulate(schedule, **fields)
    check_dependencies(schedule, timeline, pipeline.send_s, pipeline.blocking_p2p)
    assert timeline.total_s == pytest.approx(plain_total_s(schedule, pipeline), rel=1e-9)
    assert step_s(schedule, **fields) == pytest.approx(timeline.total_s, rel=1e-9)
    counts = schedule.in_flight(np.asarray(p), np.asarray(v), np.asarray(m), np.arange(p))
    most = [peak_activation_bytes(schedule, p=p, v=v, m=m, rank=rank, chunk_bytes=np.ones(v)) for rank in range(p)]
    assert np.broadcast_to(counts, p).tolist() == most
    rising = np.diff(np.broadcast_to(counts, p))
    assert (rising <= 0).all() or (rising >= 0).all()  # so the first or the last of some ranks is the fullest
    for rank in range(p):
        assert in_flight_by_chunk(schedule, p=p, v=v, m=m, rank=rank).sum() == most[rank]
