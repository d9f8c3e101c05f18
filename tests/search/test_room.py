"""A grid passed over for want of room has no strategy that fits, whatever is recomputed, sharded or offloaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from astra.api import estimate, make_job
from astra.catalog.models import model as find_model
from astra.cost import memory
from astra.cost.stage import gather_parts, stage_costs
from astra.cost.step import evaluate
from astra.layers.weights import count
from astra.rules.restrictions import Restrictions
from astra.search.attempts import attempts
from astra.search.bounds import Grids, grids_may_fit
from astra.search.engine import search
from astra.search.space import Space
from astra.search.words import settled
from astra.units import GIB

CASES: list[tuple[str, str, int, int, dict[str, Any]]] = [
    ("llama-2-70b", "16xA100-40", 16, 4096, {}),
    ("mixtral-8x7b", "32xL4", 32, 4096, {"precision": "fp8"}),  # weights in two layouts
    ("mixtral-8x7b", "8xA10G", 8, 4096, {"task": "lora"}),
    ("qwen3-30b-a3b", "16xL4", 16, 32768, {"runtime": "megatron-bridge"}),  # graphs that hold their inputs
    ("qwen3-30b-a3b", "16xL4", 16, 8192, {"runtime": "torchtitan"}),  # gathered and reduced unit by unit
    ("llama-3-70b", "8xL4", 8, 8192, {"runtime": "deepspeed"}),
    ("qwen2.5-vl-7b", "8xA10G", 8, 8192, {}),  # an image encoder on the first stage
    ("t5-3b", "2xT4", 8, 8192, {"precision": "fp16"}),  # two kinds of layers
    ("deepseek-v2-lite", "8xL4", 8, 4096, {"optimizer": "sgd"}),
]


@pytest.mark.parametrize(("model", "gpus", "batch", "seq", "more"), CASES)
def test_what_is_passed_over_does_not_fit(model: str, gpus: str, batch: int, seq: int, more: dict[str, Any]) -> None:
    job = make_job(model, gpus=gpus, batch=batch, seq=seq, **({"runtime": "megatron"} | more))
    job = settled(job, Restrictions())
    for attempt in attempts(job, Restrictions()):
        space = Space(attempt.job, attempt.restrictions)
        fits = grids_may_fit(space.job, space, np.arange(len(space.strategies)))
        assert not fits.all()
        tried = np.random.default_rng(7).permutation(np.flatnonzero(~fits))[:60]
        meshes, _, _ = space.expand(tried)
        parts = gather_parts(space.job, meshes.columns)
        costs = stage_costs(space.job, meshes, parts)
        found = evaluate(space.job, meshes, costs, space.recomputes, space.shardings)
        allowed = found.known & space.allowed_pairs(meshes.columns)[:, None, :]
        assert not (allowed & memory.fits(space.job, found.peak_bytes)).any()


def test_nothing_is_timed_where_no_grid_has_room() -> None:
    job = make_job("llama-2-70b", gpus="8xT4", batch=8, seq=4096, precision="fp16", runtime="megatron")
    found = search(job, Restrictions(), keep=5, advise=False)
    assert not found.candidates
    assert not found.grids.timed
    assert found.grids.none_fits()
    assert found.considered == found.too_large + sum(found.refused.values()) + found.dominated + found.slower
    assert not Grids(make_job("llama-3.2-1b", gpus="8xH100", batch=8, seq=2048), Restrictions()).none_fits()


CLUSTER = """
[[pool]]
gpu = "A100-80"
node = "mine"
count = 8
[[node]]
name = "mine"
like = "dgx-a100"
gpu = "A100-80"
gpus = 8
host_memory_bytes = {host}
"""


@pytest.mark.parametrize("words", ["tp8 dp1 sp", "tp2 dp4 sp", "tp4 pp2 dp1 sp"])
def test_offloaded_states_have_to_be_in_host_memory(words: str, tmp_path: Path) -> None:
    """12 bytes of each parameter (Rajbhandari et al. 2020), however they are sharded over one server."""
    path, strategy = tmp_path / "mine.toml", f"{words} mbs1 zero1 recompute=full offload=optimizer"

    def warned(host: float) -> list[str]:
        path.write_text(CLUSTER.format(host=host), encoding="utf-8")
        told = estimate("llama-2-13b", cluster=str(path), batch=64, seq=4096, strategy=strategy).warnings
        return [text for text in told if "host memory" in text]

    state_bytes = 12.0 * count(find_model("llama-2-13b")).total
    assert not warned(state_bytes * 1.2)
    (sentence,) = warned(state_bytes / 2)
    (needed,) = re.findall(r"up to ([\d,]+) GiB", sentence)
    stages = 1.1 if "pp" in words else 1.001  # a server's stages are counted as its fullest
    assert 1 <= float(needed.replace(",", "")) * GIB / state_bytes + 0.01 <= stages + 0.01
    assert not warned(0.0 or state_bytes * 40)
