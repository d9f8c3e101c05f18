"""The quick bound holds for any unequal pipeline of every schedule, and is the simulation for equal stages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astra.provenance import Floats
from astra.schedule.base import Schedule
from astra.schedule.registry import find
from astra.schedule.screen import Ends, Ranks, interleaved_s, paths
from astra.schedule.simulator import StageSeconds, simulate
from astra.schedule.steady import steps_s
from astra.spec.strategy_fields import SCHEDULES as NAMES
from tests.schedule import pipelines


def paths_s(schedule: Schedule, pipeline: pipelines.Pipeline) -> Floats:
    """Seconds of every path of every rank; sends are all alike."""
    p, v, m, forward_s, backward_s, weight_s, send_s, blocking = pipeline
    weight = weight_s if schedule.splits_backward else np.zeros_like(weight_s)
    whole_s = backward_s + weight_s
    ranks = [times[schedule.place(p, v)].sum(axis=0) for times in (forward_s, whole_s, weight)]
    before = [np.cumsum(times[:p]) - times[:p] for times in (forward_s, whole_s - weight)]
    over_s = (forward_s + whole_s - weight).sum()
    rank, send = np.arange(p), float(send_s[0]) if len(send_s) else 0.0
    columns = [np.asarray(number) for number in (p, v, m)]
    ahead = schedule.in_flight(columns[0], columns[1], columns[2], rank)
    hops = schedule.hops(p, v).astype(int)
    sends = (np.append(hops, 0) + np.append(0, hops))[schedule.place(p, v)].sum(axis=0)
    rest = (rank, sends, ahead, *ranks, *before, over_s, np.asarray(send), np.asarray(blocking))
    found = paths(Ranks._make((*columns, *rest)))
    seconds = [path.seconds for path in found]
    if schedule.name == "interleaved":
        own = [np.asarray(number) for number in (ranks[0][-1], ranks[1][-1], forward_s[-1], whole_s[-1], send)]
        seconds.append(interleaved_s(Ends._make((*columns, over_s, *own, np.asarray(blocking)))))
    return np.concatenate([np.atleast_1d(each) for each in seconds])


def alike_sends(pipeline: pipelines.Pipeline) -> pipelines.Pipeline:
    return pipeline._replace(send_s=np.full_like(pipeline.send_s, pipeline.send_s.mean() if pipeline.p > 1 else 0.0))


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_path_is_longer_than_the_simulation(name: str, data: st.DataObject) -> None:
    pipeline = alike_sends(data.draw(pipelines.unequal(find(name))))
    total_s = simulate(name, **pipeline._asdict()).total_s
    assert paths_s(find(name), pipeline).max() <= total_s * (1 + 1e-12)


@pytest.mark.parametrize("name", ["1f1b", "interleaved"])
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_the_longest_is_the_simulation_of_equal_stages(name: str, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines.equal(find(name), longest_send=0.0))
    total_s = simulate(name, **pipeline._asdict()).total_s
    assert paths_s(find(name), pipeline).max() == pytest.approx(total_s, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(pipelines.equal(find("1f1b"), longest_send=5.0))
def test_and_of_blocking_sends(pipeline: pipelines.Pipeline) -> None:
    blocking = pipeline._replace(blocking_p2p=True)
    total_s = simulate("1f1b", **blocking._asdict()).total_s
    assert paths_s(find("1f1b"), blocking).max() == pytest.approx(total_s, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_many_pipelines_are_simulated_as_one(name: str, data: st.DataObject) -> None:
    """In waves of slots, with and without a cycle to stop at."""
    one = data.draw(pipelines.unequal(find(name), most_p=4, most_m=12))
    m = one.m * data.draw(st.sampled_from((1, one.p, 6 * one.p)))
    one = one._replace(m=m if pipelines.is_legal(find(name), one.p, one.v, m) else one.m)
    rng = np.random.default_rng(7)
    rows = [one, *(one._replace(forward_s=one.forward_s * rng.uniform(0.5, 2, one.p * one.v)) for _ in range(4))]
    sends = [row.send_s * (row.p > 1) for row in rows]
    columns = [np.stack([getattr(row, field) for row in rows]) for field in ("forward_s", "backward_s", "weight_s")]
    found = steps_s(
        name,
        p=one.p,
        v=one.v,
        m=one.m,
        stages=StageSeconds._make((*columns, np.stack(sends))),
        blocking_p2p=one.blocking_p2p,
    )
    for total_s, row in zip(found, rows, strict=True):
        assert total_s == pytest.approx(simulate(name, **row._asdict()).total_s, rel=1e-11)
