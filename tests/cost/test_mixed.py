"""A pool of a fleet costs what the same GPUs cost alone: columns of cost/mixed.py against the stages of one pool."""

from __future__ import annotations

import numpy as np
import pytest

from astra import api
from astra.cost.between import Sync, with_other_groups
from astra.cost.mixed import Shards, Wire, other_groups, pool_columns, resident_bytes
from astra.cost.state import Held
from astra.layers.kinds import layer_kinds
from astra.layers.split import kinds
from astra.provenance import Source
from astra.search.detail import estimate
from astra.units import GIB


@pytest.mark.parametrize("words", ["params=bf16", "params=fp8"])
@pytest.mark.parametrize("task", ["pretrain", "lora"])
@pytest.mark.parametrize(("model", "degrees"), [("llama-2-7b", "tp2 dp4 sp"), ("mixtral-8x7b", "tp1 ep8 dp8")])
def test_states_of_a_pool_are_those_of_the_same_gpus_alone(model: str, degrees: str, task: str, words: str) -> None:
    """Every layer, the embedding and the head, whatever is frozen and in whatever width weights stay."""
    job = api.make_job(model, gpus="8xH100", batch=64, precision="fp8", task=task, runtime="megatron-bridge")
    strategy = job.strategy(f"{degrees} mbs1 zero1 recompute=none {words}")
    memory = estimate(job, [strategy])[0].stages[0].memory
    shards = Shards(*(np.array([degree]) for degree in (strategy.tp, 1, strategy.ep, 1)))
    each = resident_bytes(job.saying(strategy), pool_columns(job.saying(strategy), shards), strategy.dp, 1)[0]
    layers = layer_kinds(job.model)
    counts = np.array([*(layers.count(kind) for kind in kinds(job.model)), 1, 1])
    alone = sum(memory[name] for name in ("weights", "gradients", "optimizer"))
    assert float(each @ counts) / GIB == pytest.approx(alone, rel=1e-9)


def test_groups_of_pipelines_sum_gradients_in_a_ring() -> None:
    """Of two groups each sends what it owns once; of many, twice, and in 2 (g - 1) steps (Patarasuk and Yuan 2009)."""
    job = api.make_job("llama-2-7b", gpus="8xH100", batch=64)
    some, none = np.array([1e9]), np.zeros(1)
    held = Held(some, none, some, none, none)
    silent = Sync(none, none, none, np.zeros(1, np.int8), tied_s=none, across_s=none)

    def added_s(groups: int, *, latency_s: float = 0.0) -> float:
        wire = Wire(1e9, latency_s, Source.MEASURED)
        four = np.array([4])
        return float(with_other_groups(job, silent, held, four, four, other_groups(job, groups, wire)).across_s[0])

    owned_s = 4 * 1e9 / 4 / 1e9  # gradients in fp32, a fourth of them, at 1 GB/s
    assert added_s(1) == 0
    assert added_s(2) == pytest.approx(owned_s)
    assert added_s(10**6) == pytest.approx(2 * owned_s, rel=1e-5)
    assert added_s(5, latency_s=1.0) - added_s(5) == pytest.approx(8)
