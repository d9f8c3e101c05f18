"""Words of a strategy that a search chooses by a bound or a proof rather than by costing them all."""

from __future__ import annotations

import random
from typing import Any

import pytest

import astra
from astra.api import make_job
from astra.search.attempts import LEAST_BETTER
from astra.search.detail import estimate
from astra.spec.strategy import replace

REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("mixtral-8x7b", "64xH100", {}),
    ("qwen3-30b-a3b", "32xH100", {"runtime": "megatron-bridge"}),
    ("deepseek-v3", "512xH800", {"precision": "fp8"}),
    ("gpt-oss-120b", "64xB200", {"runtime": "megatron-bridge", "precision": "mxfp8"}),
    ("qwen3-235b-a22b", "256xGB200", {"runtime": "megatron-bridge"}),
]


def strategies_like(job: Any, texts: list[str], rng: random.Random) -> list[Any]:
    """Plans and what is near them: other micro-batches, recompute and overlaps."""
    found = []
    for text in texts:
        plain = job.strategy(text)
        for _ in range(6):
            mbs = rng.choice([1, 2, 4])
            overlap = tuple(name for name in plain.overlap if rng.random() < 0.7)
            found.append(replace(plain, mbs=mbs, overlap=overlap, recompute=rng.choice(["none", "full"]), modules=()))
    return found


@pytest.mark.parametrize(("model", "gpus", "more"), REQUESTS)
def test_a_token_sent_once_takes_no_longer_and_the_same_room(model: str, gpus: str, more: dict[str, Any]) -> None:
    asked = {"batch": 2048, "seq": 4096, **more}
    job, rng = make_job(model, gpus=gpus, **asked), random.Random(model)
    texts = [plan.strategy for plan in astra.plan(model, gpus=gpus, **asked).plans]
    spread = [one for one in strategies_like(job, texts, rng) if one.ep > 1]
    assert spread
    each, once = (estimate(job, [replace(one, dispatch=word) for one in spread]) for word in ("alltoall", "hybridep"))
    for slow, quick in zip(each, once, strict=True):
        assert quick.step_s <= slow.step_s * (1 + 1e-9), quick.strategy
        assert quick.peak_reserved_gib == pytest.approx(slow.peak_reserved_gib, rel=1e-9)


@pytest.mark.parametrize("model", ["llama-3-70b", "deepseek-v3"])
def test_weights_in_fp8_take_no_longer_and_no_more_room(model: str) -> None:
    asked: dict[str, Any] = {"gpus": "512xH100", "batch": 2048, "seq": 4096, "precision": "fp8"}
    job, rng = make_job(model, **asked), random.Random(model)
    texts = [plan.strategy for plan in astra.plan(model, **asked).plans]
    some = [replace(one, zero=zero) for one in strategies_like(job, texts, rng) for zero in (1, 2, 3)]
    wide, narrow = (estimate(job, [replace(one, params=word) for one in some]) for word in ("bf16", "fp8"))
    for large, small in zip(wide, narrow, strict=True):
        assert small.step_s <= large.step_s * (1 + 1e-9), small.strategy
        assert small.peak_reserved_gib <= large.peak_reserved_gib * (1 + 1e-9), small.strategy


@pytest.mark.parametrize(("model", "gpus", "more"), [*REQUESTS[:3], ("mixtral-8x7b", "64xA100", {})])
def test_no_other_dispatcher_or_weights_are_better(model: str, gpus: str, more: dict[str, Any]) -> None:
    asked = {"gpus": gpus, "batch": 1024, "seq": 4096, "top": 1, **more}
    best = astra.plan(model, **asked).best.estimate.step_s_range.high
    for word in ("dispatch=alltoall", "dispatch=deepep", "dispatch=hybridep", "params=bf16", "params=fp8"):
        if word.startswith("dispatch") or "precision" in more:
            try:
                other = astra.plan(model, **asked, fix=[word]).best.estimate.step_s_range.high
            except astra.AstraError:
                continue  # not on such GPUs
            assert best <= other * (1 + LEAST_BETTER) * (1 + 1e-9), word


def test_a_plan_over_a_network_that_deepep_cannot_use_sends_copies() -> None:
    asked: dict[str, Any] = {"batch": 1024, "seq": 4096, "top": 1, "runtime": "megatron-bridge"}
    plan = astra.plan("qwen3-235b-a22b", gpus="128xH100", node="aws-p5.48xlarge", **asked).best
    strategy = astra.parse_strategy(plan.strategy)
    assert strategy.dispatch == "alltoall" or strategy.ep * strategy.etp <= 8
    assert plan.estimate.legal


def test_a_graph_of_the_whole_step_takes_the_dispatcher_it_needs() -> None:
    asked: dict[str, Any] = {"batch": 256, "seq": 4096, "fix": ["graphs=full", "ep=8"]}
    plan = astra.plan("mixtral-8x7b", gpus="64xB200", precision="mxfp8", **asked).best
    assert "dispatch=hybridep" in plan.strategy
