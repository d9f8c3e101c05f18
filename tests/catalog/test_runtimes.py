"""Runtime profiles as shipped."""

from __future__ import annotations

import pytest

import astra
from astra.catalog.runtimes import runtime, runtime_names, step_error


def test_every_profile_times_every_kernel() -> None:
    kernels = {name: set(runtime(name).kernels) for name in runtime_names()}
    assert all(found == kernels["megatron"] for found in kernels.values())


@pytest.mark.parametrize("name", [name for name in runtime_names() if not runtime(name).replay_only])
def test_every_runtime_plans_experts(name: str) -> None:
    found = astra.plan("mixtral-8x7b", gpus="64xH100", batch=256, seq=4096, runtime=name)
    assert found.best.estimate.fits


@pytest.mark.parametrize("name", runtime_names())
@pytest.mark.parametrize("moe", [False, True])
def test_error_bars_are_fractions(name: str, moe: bool) -> None:
    assert 0.02 < step_error(name, moe=moe) < 0.5
