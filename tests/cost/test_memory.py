"""Peak memory: its parts add up to it, its bound forms are below it, and a V holds both ends on one rank."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given

import astra
from astra.api import make_job
from astra.catalog import runtimes
from astra.cost import memory
from astra.cost.stage import gather_parts, stage_costs
from astra.search.attempts import roomiest
from astra.search.detail import as_row, estimate, legality
from astra.search.space import Space
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.request import read_request
from astra.spec.strategy import Strategy, replace
from astra.units import GIB
from tests.properties.jobs import FREE, choices
from tests.properties.test_best_laws import sampled
from tests.tiers import drawn

GPT2_HEAD_GIB = 2 * 50257 * 768 / GIB  # bf16; the model ties it to the embedding


@drawn(40, few=14)
@given(choices)
def test_the_bounds_are_below_the_peak_which_is_the_sum_of_its_kinds(choice: tuple[Job, Strategy]) -> None:
    job, strategy = choice
    row = as_row(job, strategy)
    costs = stage_costs(job, row.meshes, gather_parts(job, row.meshes.columns))
    vp = row.meshes.columns["vp"]
    told = estimate(job, [strategy])[0]
    for stage in told.stages:
        assert stage.peak_allocated_gib == pytest.approx(sum(stage.memory.values()), rel=1e-12)
    peak = told.peak_allocated_gib * GIB * (1 + 1e-12)
    zero, offload = np.array([strategy.zero, 0, 3]), np.array([int(row.shardings.offload[0]), 0, 0])
    others = memory.Sharding(zero, offload, 0 * zero, 0 * zero)
    least = memory.least_peak(memory.states(job, costs, others), costs, vp)
    assert least[0, 0] <= peak
    assert memory.least_peak_of_any(job, costs, vp, others)[0] <= least.min() * (1 + 1e-12)
    room = np.asarray(memory.room_bytes(job))
    assert memory.fits(job, 0.999 * room)
    assert not memory.fits(job, 1.001 * room)


@pytest.mark.parametrize(
    ("runtime", "task"),
    [
        ("megatron", "pretrain"),
        ("nemo", "lora"),
        ("megatron-bridge", "lora"),
        ("fsdp", "lora"),
        ("deepspeed", "finetune"),
    ],
)
@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "llama-3.1-8b"])
def test_no_strategy_of_a_space_is_below_its_least(model: str, runtime: str, task: str) -> None:
    """Also of frozen weights in fp8, of which ZeRO-3 may hold more than whole ones."""
    asked = {"model": model, "gpus": ["8xH20-96GB"], "batch": 8, "seq": 128, "task": task, "runtime": runtime}
    precision = "fp8" if "fp8" in runtimes.runtime(runtime).can.precision else "bf16"
    job = roomiest(World.of(read_request("plan", asked | {"precision": precision})).job, FREE)
    shardings, draw = Space(job, FREE).shardings, Random(1)
    words = {name: getattr(job.words, name) for name in ("params", "grads", "graphs")}
    tried = [replace(strategy, **words) for strategy in (sampled(job, draw) for _ in range(400)) if strategy]
    some = [strategy for strategy in tried if not legality(job, strategy)][:20]
    assert some
    for strategy, told in zip(some, estimate(job, some), strict=True):
        row = as_row(job, strategy)
        costs = stage_costs(job, row.meshes, gather_parts(job, row.meshes.columns))
        least = memory.least_peak_of_any(job, costs, row.meshes.columns["vp"], shardings, offload=True)
        assert least[0] <= told.peak_allocated_gib * GIB * (1 + 1e-12), strategy


@pytest.mark.parametrize("runtime", ["fsdp", "torchtitan", "megatron", "composer"])
def test_a_full_gpu_gives_back_what_its_allocator_only_keeps(runtime: str) -> None:
    """What is reserved grows with what is allocated; with memory kept free, nothing need be given back."""
    full, kept_free = (
        make_job("llama-3-8b", gpus="8xH100", batch=64, seq=4096, runtime=runtime, headroom=headroom)
        for headroom in (0.0, 0.08)
    )
    allocated = np.linspace(1e9, 1.2 * full.usable_bytes, 400)
    for job in (full, kept_free):
        reserved = memory.reserved_bytes(job, allocated)
        assert (np.diff(reserved) >= 0).all()
        assert (reserved >= allocated).all()
        most = allocated[memory.fits(job, allocated)].max()
        assert most == pytest.approx(memory.room_bytes(job), rel=0.004)
    shares = [memory.room_bytes(job) / job.limit_bytes for job in (full, kept_free)]
    several_pools = runtime in ("fsdp", "torchtitan")
    assert (shares[0] > shares[1] + 0.05) == several_pools


def weights_gib(schedule: str) -> list[float]:
    asked = f"pp2 vp2 dp2 mbs1 zero0 overlap=grad schedule={schedule}"
    told = astra.estimate("gpt-2", gpus="4xH100", batch=32, seq=1024, strategy=asked)
    return [stage.memory["weights"] for stage in told.stages]


def test_a_v_needs_no_second_copy_of_a_tied_head() -> None:
    loop, there_and_back = weights_gib("interleaved"), weights_gib("zbv")
    assert sum(loop) - sum(there_and_back) == pytest.approx(GPT2_HEAD_GIB, rel=1e-6)
    assert loop[0] == pytest.approx(there_and_back[0], rel=2e-2)  # embedding and half the layers, with another norm


def test_a_v_beats_a_loop_of_as_many_chunks_and_splits_its_backward() -> None:
    """The bubble of ZB-V is a share of interleaved's; memory is even over its ranks."""
    asked = "tp2 pp4 vp2 dp4 mbs1 sp zero2 overlap=grad,param,p2p schedule="
    v, loop = (
        astra.estimate("llama-3.1-8b", gpus="32xH100", batch=64, seq=4096, strategy=asked + name)
        for name in ("zbv", "interleaved")
    )
    assert v.step_s < loop.step_s
    assert v.bubble_fraction < loop.bubble_fraction / 2
    assert [stage.in_flight for stage in v.stages] == [4] * 4
    assert [stage.layers for stage in v.stages] == [8] * 4
