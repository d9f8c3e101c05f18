"""Runtime profiles as shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

import astra
from astra.catalog import runtimes
from astra.catalog.runtimes import runtime, runtime_names, step_error
from astra.errors import InputError


def test_every_profile_times_every_kernel() -> None:
    kernels = {name: set(runtime(name).kernels) for name in runtime_names()}
    assert all(found == kernels["megatron"] for found in kernels.values())


@pytest.mark.parametrize(
    "name",
    [name for name in runtime_names() if "experts" in runtime(name).can.blocks and not runtime(name).can.recipes],
)
def test_every_runtime_with_experts_plans_them(name: str) -> None:
    found = astra.plan("mixtral-8x7b", gpus="64xH100", batch=256, seq=4096, runtime=name)
    assert found.best.estimate.fits


def test_a_runtime_is_like_another_but_for_what_it_says() -> None:
    bridge, megatron = runtime("megatron-bridge"), runtime("megatron")
    assert bridge.can.degrees == megatron.can.degrees
    assert bridge.can.blocks != megatron.can.blocks
    assert bridge.kernels["norm"] == megatron.kernels["norm"]
    assert bridge.kernels["router"] != megatron.kernels["router"]
    assert bridge.framework == megatron.framework == "megatron"


@pytest.mark.parametrize("field", ["blocks", "degrees", "schedules", "recompute", "overlap", "precision", "tasks"])
def test_an_unknown_word_of_what_a_runtime_can_do_is_refused(field: str) -> None:
    can = runtime("megatron").can
    with pytest.raises(InputError, match=rf"can\.{field}: got 'mamab'"):
        replace(can, **{field: (*getattr(can, field), "mamab")})


def test_a_runtime_that_is_like_itself_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.toml").write_text('name = "a"\nlike = "b"\n', encoding="utf-8")
    (tmp_path / "b.toml").write_text('name = "b"\nlike = "a"\n', encoding="utf-8")
    monkeypatch.setattr(runtimes, "_FOLDER", tmp_path)
    runtime_names.cache_clear()
    runtime.cache_clear()
    try:
        with pytest.raises(InputError, match="not like a itself"):
            runtime("a")
    finally:
        runtime_names.cache_clear()
        runtime.cache_clear()


@pytest.mark.parametrize("name", runtime_names())
@pytest.mark.parametrize("moe", [False, True])
def test_error_bars_are_fractions(name: str, moe: bool) -> None:
    assert 0.02 < step_error(name, moe=moe) < 0.5
