"""Layers dealt over equal GPUs with little memory: of all splits and recomputes of the plan, none is much better."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import comb, inf
from random import Random
from typing import Any

import pytest

import astra
from astra.cost.stage import parts_of
from astra.layers.kinds import layer_kinds
from astra.search.detail import as_row, estimate, legality
from astra.search.splits import Split, Tried, simulated
from astra.search.world import World
from astra.spec.request import read_request
from astra.spec.strategy import Strategy, parse_strategy, replace

MOST = 1_500  # splits that are tried of one strategy
NEAR = 0.01  # of a step, by which a split that was not found may be better

ASKED: list[dict[str, Any]] = [
    {"model": "llama-3.2-3b", "gpus": "5xRTX2080", "batch": 128, "seq": 512, "precision": "fp16"},  # no recompute fits
    {"model": "llama-3.2-3b", "gpus": "4xRTX4090", "batch": 32, "seq": 2048, "fix": ["pp=4"]},
    {"model": "qwen2.5-vl-3b", "gpus": "8xRTX4090", "batch": 16, "seq": 512, "fix": ["pp=4"]},  # images come first
    {"model": "megatron-3.6b", "gpus": "4xRTX2080Ti", "batch": 4, "precision": "fp16", "fix": ["pp=4"]},
    {"model": "qwen2.5-vl-7b", "gpus": "4xV100-SXM2-16GB", "batch": 32, "seq": 512, "precision": "fp16"},
]


def ways(best: Strategy) -> list[Strategy]:
    """The same with everything that may be recomputed."""
    plain = replace(best, layers=(), recompute="none", method="uniform", recompute_layers=1, modules=())
    full = [replace(plain, recompute="full", recompute_layers=layers) for layers in (1, 2, 3, 4, 6, 8)]
    some = [plain, replace(plain, recompute="selective"), *full]
    return [replace(best, layers=()), *some, *(replace(one, method="block") for one in full)]


def splits(depth: int, stages: int, draw: Random) -> list[Split]:
    """All ways to cut so many layers, or many of them; the last stage may be left with its head alone."""
    places = range(1, depth + 1)
    cuts = combinations(places, stages - 1)
    if comb(depth, stages - 1) > MOST:
        cuts = (tuple(sorted(draw.sample(places, stages - 1))) for _ in range(MOST))  # type: ignore[assignment]
    return [tuple(there - here for here, there in pairwise((0, *cut, depth))) for cut in cuts]


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked['model']} on {asked['gpus']}")
def test_no_split_or_recompute_is_much_better(asked: dict[str, Any]) -> None:
    request = {"runtime": "nemo", **asked, "task": "finetune", "maximum": ["vp=1"], "top": 1}
    plan = astra.plan(**request).best
    best = parse_strategy(plan.strategy)
    assert best.pp > 1, "nothing is cut"
    job = World.of(read_request("plan", request)).job.saying(best)
    parts = parts_of(job, as_row(job, best).meshes.columns)
    some = splits(len(layer_kinds(job.model)), best.pp, Random(0))
    quickest = (inf, best)
    for strategy in ways(best):
        for step_s, split in simulated(job, [Tried(strategy, parts, some, quickest[0])])[0][:20]:
            if not legality(job, dealt := replace(strategy, layers=split)):
                quickest = step_s, dealt
                break
    assert quickest[0] < inf, "nothing fits at all"
    assert plan.estimate.step_s <= quickest[0] * (1 + NEAR), quickest[1]


CHUNKED: list[dict[str, Any]] = [
    {"model": "phi-3-mini", "gpus": "16xA100-80", "batch": 24, "seq": 64, "fix": ["pp=4", "tp=4"]},
    {"model": "qwen2.5-32b", "gpus": "32xH100", "batch": 16, "seq": 1024, "fix": ["pp=8"]},
    {"model": "llama-3-8b", "gpus": "8xA100-40", "batch": 8, "seq": 256, "fix": ["pp=4"]},
]


@pytest.mark.parametrize("asked", CHUNKED, ids=lambda asked: f"{asked['model']} on {asked['gpus']}")
def test_no_number_of_chunks_is_much_better(asked: dict[str, Any]) -> None:
    request = {**asked, "task": "finetune", "rank": "expected", "top": 1, "minimum": ["vp=2"]}
    plan = astra.plan(**request).best
    best, job = parse_strategy(plan.strategy), World.of(read_request("plan", request)).job
    counts = range(2, len(layer_kinds(job.model)) // best.pp + 1)
    others = [replace(best, vp=vp, layers=()) for vp in counts]
    legal = [one for one in others if not legality(job.saying(one), one)]
    assert len(legal) > 3, "there is no choice"
    quickest = min((one for one in estimate(job, legal) if one.fits), key=lambda one: one.step_s)
    assert plan.estimate.step_s <= quickest.step_s * (1 + NEAR), quickest.strategy
