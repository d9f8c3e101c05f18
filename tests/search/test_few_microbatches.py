"""Fewer micro-batches than stages: what a runtime's rules allow and can be costed is in the search, whoever asks."""

from __future__ import annotations

from typing import Any

import astra
from astra.api import make_job
from astra.search.detail import legality

ASKED: dict[str, Any] = {"gpus": "24xH100", "batch": 8, "seq": 2048, "runtime": "torchtitan"}
FEW = ["tp=1", "pp=6", "vp=2", "cp=1", "mbs=1"]  # dp4: two micro-batches for six stages


def test_an_interleaved_pipeline_that_is_not_filled_is_searched() -> None:
    job = make_job("llama-3.1-8b", **ASKED)
    strategy = job.strategy("tp1 pp6 vp2 dp4 mbs1 zero3")
    assert legality(job, strategy) == []
    found = astra.plan("llama-3.1-8b", **ASKED, fix=FEW)
    assert found.search.evaluated > 0
    assert found.best.estimate.microbatches == 2
    assert found.best.estimate.step_s <= astra.estimate("llama-3.1-8b", **ASKED, strategy=str(strategy)).step_s * (
        1 + 1e-9
    )
