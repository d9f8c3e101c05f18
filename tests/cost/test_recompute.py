"""Sets of modules as numbers."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from astra import api
from astra.columns import code
from astra.cost.layers import modules_in
from astra.cost.recompute import KeptActivations, Recomputes, module_bits, module_names, offloaded_s


@pytest.mark.parametrize("model", ["llama-2-7b", "mixtral-8x7b", "deepseek-v2-lite"])
def test_a_number_names_the_modules_it_was_made_of(model: str) -> None:
    """Every set of one or two, but for what one of them has inside."""
    job = api.make_job(model, gpus="8xH100", batch=64)
    every = modules_in(job)
    sets = [*combinations(every, 1), *combinations(every, 2)]
    assert len(sets) >= len(every)
    for names in sets:
        bits = module_bits(job, names)
        assert set(module_names(job, bits)) <= set(names)
        assert module_bits(job, module_names(job, bits)) == bits
    assert [module_names(job, module_bits(job, [name])) for name in every] == [(name,) for name in every]


def test_what_is_made_again_is_not_moved_to_host_memory() -> None:
    """Of 10 GB, a module that keeps 4 leaves 6; a checkpoint of 1 leaves that. Compute hides none of it here."""
    none, one = np.zeros(1), np.ones(1, np.int64)
    kept = KeptActivations(np.array([10e9]), np.array([[4e9]]), np.array([1e9]), none, none)

    def seconds(recompute: str, layers: int = 8) -> float:
        way = Recomputes(code("recompute", recompute) * one, 0 * one, one, one, layers * one)
        return float(offloaded_s(kept, np.array([8.0]), 1e-9, way)[0])

    assert [seconds(word) for word in ("none", "selective", "full")] == pytest.approx([2 * 10, 2 * 6, 2 * 1])
    assert seconds("none", layers=2) == pytest.approx(2 * 10 / 4)
