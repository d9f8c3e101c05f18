"""Plans by the upper end of their interval, and the fastest if it works."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.api import make_job
from astra.evidence.bars import Doubt
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.search.detail import estimate
from astra.search.engine import search
from astra.search.world import World
from astra.spec.request import read_request

TRODDEN = [
    ("llama-3-70b", "64xH100", 1024, 8192),
    ("llama-3-70b", "512xH100", 1024, 8192),
    ("mixtral-8x7b", "64xH100", 1024, 4096),
    ("llama-3.1-405b", "512xH100", 1024, 8192),
    ("llama-3.1-405b", "16384xH100", 2048, 8192),
]


@pytest.mark.parametrize(("model", "gpus", "batch", "seq"), TRODDEN)
def test_on_well_trodden_ground_the_first_plan_has_no_warning(model: str, gpus: str, batch: int, seq: int) -> None:
    found = astra.plan(model, gpus=gpus, batch=batch, seq=seq, top=3)
    assert found.best.estimate.warnings == []
    assert "published run" in found.best.estimate.evidence
    upper_s = [plan.estimate.step_s_range.high for plan in found.plans]
    assert upper_s == sorted(upper_s)
    if found.daring is not None:
        assert found.daring.estimate.step_s < found.best.estimate.step_s
        assert found.daring.estimate.step_s_range.high >= found.best.estimate.step_s_range.high
        assert found.daring.doubt
        assert "trial of" in found.daring.settled_by


@pytest.mark.parametrize(("model", "gpus"), [("llama-2-7b", "16xA100"), ("mixtral-8x7b", "8xH200")])
def test_the_search_by_doubt_finds_what_trying_every_kind_finds(model: str, gpus: str) -> None:
    """The least upper end over all kinds, each searched by itself in the expected order."""
    job = make_job(model, gpus=gpus, batch=64, seq=4096)
    best = search(job, Restrictions(), keep=1, doubt=Doubt(job)).candidates[0]
    upper_s = estimate(job, [best.strategy])[0].step_s_range.high
    tried = []
    for zero in (1, 2, 3):
        for pp in (1, 2, 4):
            for cp in (1, 2):
                fixed = parse_restrictions([f"zero={zero}", f"pp={pp}", f"cp={cp}"], [], [], [])
                for one in search(job, fixed, keep=20).candidates:
                    tried += [found.step_s_range.high for found in estimate(job, [one.strategy]) if found.fits]
    assert upper_s <= min(tried) * (1 + 1e-9)


def test_expected_is_the_old_order() -> None:
    asked = {"gpus": "64xH100", "batch": 1024, "seq": 8192}
    found = astra.plan("llama-3-70b", rank="expected", **asked)  # type: ignore[arg-type]
    steps = [plan.estimate.step_s for plan in found.plans]
    assert steps == sorted(steps)
    assert found.daring is None
    certain = astra.plan("llama-3-70b", **asked)  # type: ignore[arg-type]
    assert certain.daring is not None
    assert certain.daring.estimate.step_s == pytest.approx(steps[0], rel=1e-3)


def test_no_restriction_improves_the_upper_end() -> None:
    asked = {"gpus": "64xH100", "batch": 1024, "seq": 8192, "top": 1}
    free = astra.plan("llama-3-70b", **asked).best.estimate.step_s_range.high  # type: ignore[arg-type]
    for fix in ("zero=3", "zero=2", "cp=1", "pp=1", "tp=8", "vp=1"):
        kept = astra.plan("llama-3-70b", fix=fix, **asked).best.estimate.step_s_range.high  # type: ignore[arg-type]
        assert free <= kept * (1 + 1e-9), fix


def test_no_plan_hides_exchanges_of_layers_that_are_recomputed_in_full() -> None:
    """A rule over a switch and a recompute binds the search: the five best must not all be illegal."""
    asked: dict[str, Any] = {"gpus": "16xL4", "batch": 16, "seq": 32768, "runtime": "megatron-bridge"}
    found = astra.plan("qwen3-30b-a3b", **asked, rank="expected")
    assert all(plan.estimate.legal and plan.estimate.fits for plan in found.plans)


@pytest.mark.parametrize("asked", [
    {"model": "qwen3-1.7b", "gpus": "2xMI250X-GCD", "batch": 128, "seq": 2048, "precision": "fp16",
     "fix": ["pp=2", "vp=2"]},
    {"model": "gpt-2-large", "gpus": "8xA10G", "batch": 8, "seq": 1024, "minimum": ["pp=2"]},
])  # fmt: skip
def test_a_search_doubts_what_it_finds_as_an_estimate_does(asked: dict[str, Any]) -> None:
    """Layers that are dealt unequally are doubted also where there is an equal number for each chunk."""
    world = World.of(read_request("plan", asked))
    found = search(world.job, world.restrictions, keep=20, doubt=Doubt(world.job))
    assert any(len(set(one.strategy.layers)) > 1 for one in found.candidates)
    results = estimate(world.job, [one.strategy for one in found.candidates])
    for one, result in zip(found.candidates, results, strict=True):
        assert one.step_s == pytest.approx(result.step_s)
        assert one.step_s * Doubt(world.job).of_strategy(one.strategy) == pytest.approx(result.step_s_range.high)
    uppers = [result.step_s_range.high for result in results]
    assert uppers == pytest.approx(sorted(uppers))
