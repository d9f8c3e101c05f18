"""Best first and pruned, or all of it: the search finds what costing every strategy finds, on models of real size."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest

from astra.api import make_job
from astra.cost.memory import fits as within
from astra.cost.pipeline import pipelines_s
from astra.cost.recompute import Recomputes
from astra.cost.stage import Meshes, gather_parts, stage_costs
from astra.cost.step import evaluate, seconds
from astra.provenance import Bools, Ints
from astra.rules.restrictions import Restrictions, parse_restrictions
from astra.rules.table import check
from astra.search.detail import estimate
from astra.search.engine import search
from astra.search.settle import GROUP
from astra.search.space import Space, recompute_columns
from astra.spec.job import Job
from tests.tiers import sampled

USUAL: dict[str, Any] = {
    "cluster": None, "node": None, "tokens": None, "precision": "bf16", "optimizer": "adam", "task": "pretrain",
    "lora_rank": 16, "runtime": "megatron", "headroom": 0.08,
}  # fmt: skip
Case = tuple[str, str, int, int, dict[str, Any], dict[str, list[str]]]
CASES: list[Case] = [
    ("llama-2-7b", "16xH100", 64, 4096, {}, {}),
    ("llama-2-13b", "8xA100", 16, 4096, {}, {}),  # hardly fits: recompute and offload decide
    ("llama-2-70b", "64xA100", 64, 4096, {}, {"maximum": ["cp=1"]}),
    ("mixtral-8x7b", "32xH100", 64, 4096, {}, {"maximum": ["cp=1", "etp=1"]}),
    ("llama-3-8b", "8xH100", 32, 8192, {"precision": "fp8", "runtime": "torchtitan"}, {}),
    ("gpt-3-175b", "128xA100", 128, 2048, {}, {"fix": ["tp=4,8", "recompute=full"], "maximum": ["cp=1"]}),
    ("t5-11b", "16xA100", 64, 512, {"runtime": "nanotron"}, {}),
    ("llama-2-70b", "8xH100", 16, 2048, {"task": "lora"}, {"forbid": ["recompute=none"]}),
]


def every_best(job: Job, limits: Restrictions, found_s: dict[tuple[int, ...], float]) -> dict[tuple[int, ...], float]:
    """The least simulated step that fits, of each group; what is bounded by what the search found is not simulated."""
    space = Space(job, limits)
    best: dict[tuple[int, ...], float] = {}
    for block in np.array_split(np.arange(len(space.strategies)), max(len(space.strategies) // 32, 1)):
        meshes, _, _ = space.expand(block)
        if not len(meshes):
            continue
        parts = gather_parts(job, meshes.columns)
        costs = stage_costs(job, meshes, parts)
        result = evaluate(job, meshes, costs, space.recomputes, space.shardings)
        fits = result.known & within(job, result.peak_bytes)
        groups = list(zip(*(meshes.columns[name].tolist() for name in GROUP), strict=True))
        limit_s = np.array([found_s.get(group, inf) for group in groups]) * (1 + 1e-9)
        mesh, recompute, sharding = np.nonzero(fits & (result.bound_s <= limit_s[:, None, None]))
        legal = _legal(space, meshes, mesh, recompute, sharding)
        mesh, recompute, sharding = mesh[legal], recompute[legal], sharding[legal]
        recomputes = Recomputes(*(column[recompute] for column in space.recomputes))
        pipeline_s = pipelines_s(
            job, meshes.take(mesh), parts.take(mesh), recomputes, result.exchanged_s[mesh, sharding], costs.p2p_s[mesh]
        )
        step_s = seconds(job, pipeline_s, result.after_s[mesh, sharding])
        for row, step in zip(mesh.tolist(), step_s.tolist(), strict=True):
            best[groups[row]] = min(best.get(groups[row], inf), step)
    return best


def _legal(space: Space, meshes: Meshes, mesh: Ints, recompute: Ints, sharding: Ints) -> Bools:
    """Which rows no rule refuses that joins a mesh to its recompute or its sharding."""
    columns = {name: column[mesh] for name, column in meshes.columns.items()}
    columns |= recompute_columns(space.job, space.recomputes.take(recompute))
    columns |= {name: column[sharding] for name, column in space.shardings._asdict().items()}
    return check(columns, space.facts, space.late_rules).ok


@pytest.mark.parametrize("case", sampled(CASES, every=2, first=1), ids=lambda case: f"{case[0]}-{case[1]}")
def test_the_search_misses_nothing(case: Case) -> None:
    name, gpus, batch, seq, more, limits = case
    job = make_job(name, gpus=gpus, batch=batch, seq=seq, **{**USUAL, **more})
    restrictions = parse_restrictions(**limits)
    found = search(job, restrictions, keep=10_000)
    by_group = {tuple(getattr(c.strategy, axis) for axis in GROUP): c.step_s for c in found.candidates}
    best = every_best(job, restrictions, by_group)
    assert best
    for keep in (1, 8, 10_000):
        found = search(job, restrictions, keep=keep)
        steps = [candidate.step_s for candidate in found.candidates]
        assert steps == pytest.approx(sorted(best.values())[:keep], rel=1e-11)
        for candidate in found.candidates:
            group = tuple(getattr(candidate.strategy, axis) for axis in GROUP)
            assert candidate.step_s == pytest.approx(best[group], rel=1e-11)
            assert candidate.step_s == pytest.approx(estimate(job, [candidate.strategy])[0].step_s, rel=1e-12)
    assert found.evaluated < found.considered
