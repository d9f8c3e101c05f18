"""The simulated step, span by span: it is the step that is reported, nothing more and nothing less."""

from __future__ import annotations

import numpy as np
import pytest

import astra
from astra.answer import Estimate
from astra.errors import InputError
from astra.search.timeline import Lane, StepTimeline, timeline_of
from astra.search.world import World
from astra.spec.request import PlanRequest

REQUESTS = {
    "1f1b": ("llama-2-13b", "16xA100-80", "tp2 pp4 dp2 mbs1 sp zero1"),
    "blocking sends over nodes": ("llama-2-13b", "32xA100-80", "tp4 pp4 dp2 mbs1 sp zero1 overlap=grad"),
    "interleaved": ("llama-2-70b", "32xH100", "tp4 pp4 vp5 dp2 mbs1 sp zero1"),
    "zero bubble": ("llama-2-13b", "16xA100-80", "tp2 pp4 dp2 mbs1 sp zero1 schedule=zb"),
    "one stage": ("llama-2-7b", "8xH100", "tp1 pp1 dp8 mbs1 zero1 recompute=full"),
    "experts": ("mixtral-8x7b", "32xH100", "tp2 pp4 ep4 dp4 mbs1 sp zero1"),
    "several pools": ("llama-2-13b", "8xH100 + 8xA100-80", ""),
}


def asked(name: str) -> tuple[PlanRequest, str]:
    model, gpus, strategy = REQUESTS[name]
    request = PlanRequest(model=model, gpus=tuple(gpus.split(" + ")), batch=64, seq=2048)
    return request, strategy or astra.plan(request).best.strategy


def drawn(name: str) -> tuple[StepTimeline, Estimate]:
    request, strategy = asked(name)
    return timeline_of(World.of(request), strategy), astra.estimate(request, strategy=strategy)


@pytest.mark.parametrize("name", REQUESTS)
def test_spans_of_every_stage_follow_one_another_and_add_up_to_the_step_reported(name: str) -> None:
    step, estimate = drawn(name)
    assert step.step_s == pytest.approx(estimate.step_s, rel=1e-12)
    assert len(step.lanes) == len(estimate.stages)
    for lane in step.lanes:
        assert lane.spans[0].start_s == 0.0
        assert all(one.end_s == two.start_s for one, two in zip(lane.spans, lane.spans[1:], strict=False))
        assert sum(lane.seconds().values()) == pytest.approx(estimate.step_s, rel=1e-9)


@pytest.mark.parametrize("name", REQUESTS)
def test_spans_are_what_the_estimate_says_of_its_parts(name: str) -> None:
    """The last span must not be what makes the sum right: host and slowest node are as in the breakdown."""
    step, estimate = drawn(name)
    for lane, stage in zip(step.lanes, estimate.stages, strict=True):
        spent = lane.seconds()
        assert spent.get("host", 0.0) == pytest.approx(estimate.breakdown["host"], rel=1e-6)
        assert spent.get("slowest node", 0.0) == pytest.approx(estimate.breakdown["stragglers"], rel=1e-6, abs=1e-12)
        assert spent["optimizer"] == pytest.approx(stage.optimizer_s, rel=1e-6)
        inside = sum(seconds for kind, seconds in stage.exposed_s.items() if kind not in ("dp", "pp"))
        worked = spent["forward"] + spent["backward"] + spent.get("weight gradient", 0.0)
        assert worked >= (stage.compute_s + inside) * (1 - 1e-9)


@pytest.mark.parametrize("name", REQUESTS)
def test_memory_rises_to_the_peak_reported_and_falls_to_what_stays(name: str) -> None:
    step, estimate = drawn(name)
    for lane, stage in zip(step.lanes, estimate.stages, strict=True):
        held = [moment.allocated_gib for moment in lane.memory]
        assert max(held) == pytest.approx(stage.peak_allocated_gib, rel=1e-12)
        assert held[-1] == pytest.approx(stage.peak_allocated_gib - stage.memory["activations"])
        assert [moment.start_s for moment in lane.memory] == sorted(moment.start_s for moment in lane.memory)
        assert (lane.memory_limit_gib >= max(held)) == stage.fits


def test_every_micro_batch_passes_every_chunk_once_in_each_direction() -> None:
    step, _ = drawn("interleaved")
    assert step.chunks == 5
    for lane in step.lanes:
        for kind in ("forward", "backward"):
            done = [(span.microbatch, span.chunk) for span in lane.spans if span.kind == kind]
            assert sorted(done) == [(m, c) for m in range(step.microbatches) for c in range(5)]


def test_a_stage_starts_a_micro_batch_after_the_stage_before_has_ended_it() -> None:
    step, _ = drawn("blocking sends over nodes")
    for before, after in zip(step.lanes, step.lanes[1:], strict=False):
        assert np.all(_times(after, "forward", end=False) >= _times(before, "forward", end=True) - 1e-12)
        assert np.all(_times(before, "backward", end=False) >= _times(after, "backward", end=True) - 1e-12)


def _times(lane: Lane, kind: str, *, end: bool) -> np.ndarray:
    spans = sorted((span.microbatch, span.end_s if end else span.start_s) for span in lane.spans if span.kind == kind)
    return np.array([at_s for _, at_s in spans])


def test_sends_that_are_waited_for_are_spans_and_others_stand_beside() -> None:
    blocking, beside = drawn("blocking sends over nodes")[0], drawn("interleaved")[0]
    assert all("p2p" in lane.seconds() and not lane.sends for lane in blocking.lanes[1:-1])
    assert all("p2p" not in lane.seconds() and lane.sends for lane in beside.lanes)


def test_a_step_of_too_many_pieces_is_refused() -> None:
    request = PlanRequest(model="llama-2-7b", gpus=("8xH100",), batch=4_000_000, seq=128)
    with pytest.raises(InputError, match="pieces of work"):
        timeline_of(World.of(request), "tp1 pp8 dp1 mbs1")
