"""Sets of modules as numbers."""

from __future__ import annotations

from itertools import combinations

import pytest

from astra import api
from astra.cost.layers import modules_in
from astra.cost.recompute import module_bits, module_names


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
