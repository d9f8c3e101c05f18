"""What must be recomputed for room: no strategy that fits is faster than the bound says, and the bound is of use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from astra.api import make_job
from astra.cost import memory
from astra.cost.stage import gather_parts, stage_costs
from astra.cost.step import evaluate, needed_bound_s, states
from astra.rules.restrictions import Restrictions
from astra.search.space import Space
from tests.search.test_counts import USUAL

CASES: dict[str, dict[str, Any]] = {
    "long": {"model": "llama-3-8b", "gpus": "16xH100", "batch": 16, "seq": 32768},
    "uneven": {"model": "llama-2-13b", "gpus": "24xA100-80", "batch": 48, "seq": 8192},
    "experts": {"model": "mixtral-8x7b", "gpus": "32xH100", "batch": 32, "seq": 8192},
    "hybrid": {"model": "nemotron-h-8b", "gpus": "16xH100", "batch": 16, "seq": 16384},
    "unfused": {"model": "gpt-2-xl", "gpus": "8xV100-SXM2-32GB", "batch": 32, "seq": 1024, "precision": "fp16"},
    "torchtitan": {"model": "llama-3-8b", "gpus": "16xL40S", "batch": 32, "seq": 8192, "runtime": "torchtitan"},
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_that_fits_is_faster(name: str) -> None:
    job = make_job(**{**USUAL, **CASES[name]})
    space = Space(job, Restrictions())
    grids = np.random.default_rng(1).permutation(len(space.strategies))[:150]
    meshes, _, _ = space.expand(np.sort(grids))
    meshes = meshes.take(np.random.default_rng(2).permutation(len(meshes))[:400])
    costs = stage_costs(job, meshes, gather_parts(job, meshes.columns))
    result = evaluate(job, meshes, costs, space.recomputes, space.shardings)
    fits = result.known & memory.fits(job, result.peak_bytes)
    best_s = np.where(fits, result.bound_s, np.inf).min(axis=1)
    needed_s = needed_bound_s(job, meshes, costs, space.recomputes, states(job, meshes, costs, space.shardings))
    assert fits.any()
    assert (needed_s <= best_s).all()
    # It must tell more than that nothing is recomputed, or nobody would ask for it.
    unsaved_s = result.bound_s[:, space.recomputes.recompute == 0].min(axis=1)
    again = np.isfinite(best_s) & (best_s > 1.02 * unsaved_s)
    if again.any():
        closed = (needed_s[again] - unsaved_s[again]) / (best_s[again] - unsaved_s[again])
        assert np.median(closed) > 0.5
