"""What a change would bring is what planning the changed request gives."""

from __future__ import annotations

from functools import lru_cache

import pytest

import astra
from astra.answer import PlanSet
from astra.catalog import hardware
from astra.report.explanation import explained
from astra.search.world import World
from astra.spec.request import PlanRequest
from astra.study.changes import better_gpus, changes, tried
from astra.study.hardware import has_links, with_links, with_memory
from astra.study.records import Changed

REQUEST = PlanRequest(model="llama-2-13b", gpus=("16xA100-80",), batch=64, seq=4096, rank="expected", tokens=1e11)
EXPERTS = PlanRequest(model="mixtral-8x7b", gpus=("16xH100",), batch=64, seq=4096, runtime="megatron")


@lru_cache
def answered() -> tuple[PlanSet, tuple[Changed, ...]]:
    planset = astra.plan(REQUEST)
    found, skipped = tried(World.of(REQUEST), planset.best.estimate, seconds=600)
    assert skipped == []
    return planset, tuple(found)


def test_each_change_is_a_real_plan() -> None:
    planset, found = answered()
    by_key = {change.key: change for change in found}
    assert {"memory", "batch", "cluster-links", "node-links", "gpu"} <= set(by_key)
    batch = by_key["batch"]
    again = astra.plan(REQUEST, batch=128, top=1).best.estimate
    assert (batch.strategy, batch.tokens_per_s) == (again.strategy, again.tokens_per_s)
    assert batch.gain == pytest.approx(again.tokens_per_s / planset.best.estimate.tokens_per_s - 1)


def test_more_of_a_thing_never_hurts() -> None:
    for change in answered()[1]:
        if change.key in ("memory", "node-links", "cluster-links"):
            assert change.gain is not None
            assert change.gain >= -1e-9, change.change


def test_what_brings_most_comes_first() -> None:
    gains = [change.gain for change in answered()[1] if change.gain is not None]
    assert gains == sorted(gains, reverse=True)


def test_without_time_every_change_is_named_and_none_is_planned() -> None:
    planset = answered()[0]
    found, skipped = tried(World.of(REQUEST), planset.best.estimate, seconds=0)
    assert found == []
    assert len(skipped) == len(list(changes(World.of(REQUEST))))


def test_restrictions_that_cost_something_are_told_to_bind() -> None:
    request = PlanRequest(model="llama-2-13b", gpus=("16xA100-80",), batch=64, seq=4096, fix=("tp=1", "zero=0", "pp=8"))
    planset = astra.plan(request)
    first = next(change for change in changes(World.of(request)) if change.key == "restrictions")
    assert (first.request.fix, first.request.rules) == ((), None)
    found, _ = tried(World.of(request), planset.best.estimate, seconds=0.001)
    assert [change.key for change in found] == ["restrictions"]
    told = explained(planset, 1, found, [], name="plan.json")
    assert told.binds[0].startswith("The restrictions of the request bind: without the restrictions")


def test_models_with_experts_are_asked_about_their_dispatcher() -> None:
    words = [change.words for change in changes(World.of(EXPERTS))]
    assert any(word.startswith("dispatch=") for word in words)
    assert not any(change.key == "dispatch" for change in changes(World.of(REQUEST)))


def test_hardware_changes_touch_one_thing() -> None:
    cluster = World.of(REQUEST).cluster
    pool, roomier = cluster.pools[0], with_memory(cluster, 1.5).pools[0]
    assert roomier.device.memory_bytes == 1.5 * pool.device.memory_bytes
    assert roomier.node == pool.node
    inside, outside = (with_links(cluster, 2.0, where).pools[0].node.links for where in ("node", "cluster"))
    for before, near, far in zip(pool.node.links, inside, outside, strict=True):
        assert {near.bytes_per_s / before.bytes_per_s, far.bytes_per_s / before.bytes_per_s} == {1.0, 2.0}
    assert not has_links(World.of(PlanRequest(model="llama-2-7b", gpus=("8xH100",))).cluster, "cluster")


@pytest.mark.parametrize(
    "name", ["A100-SXM4-80GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "L40S", "V100-SXM2-16GB", "T4"]
)
def test_better_gpus_are_faster_or_roomier(name: str) -> None:
    own = hardware.device(name)
    found = better_gpus(own)
    assert found
    for other in map(hardware.device, found):
        assert other.memory_bytes >= own.memory_bytes
        assert other.flops_per_s["bf16"] > 0.95 * own.flops_per_s.get("bf16", own.flops_per_s["fp16"])


def test_an_explanation_says_how_sure_every_large_term_is() -> None:
    planset, found = answered()
    told = explained(planset, 1, found, [], name="plan.json")
    estimate = planset.best.estimate
    large = [term for term, seconds in estimate.breakdown.items() if seconds >= 0.01 * estimate.step_s]
    assert len(told.known) == 3 + len(large), "step, memory and cost besides the terms"
    assert all(known.how for known in told.known)
    assert told.next is not None
    assert told.next.second.estimate.strategy == planset.plans[1].strategy


def test_a_later_plan_is_set_against_the_first() -> None:
    planset, _ = answered()
    told = explained(planset, 2, [], [], name="plan.json")
    assert told.next is not None
    assert told.next.second.estimate.strategy == planset.plans[0].strategy
    assert told.next.second.name == "plan.json #1"
