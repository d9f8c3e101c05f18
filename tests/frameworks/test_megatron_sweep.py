"""What the planner really proposes, not what we thought of: the best plans of many requests, through Megatron.

Every plan must be taken: by the parser, the validation, the configurations and the process groups; of the best of each
request the model of one rank is built too. ``ASTRA_SWEEP=20`` takes more plans of each request.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import astra
from astra.export.base import refusals
from astra.export.reading import from_record
from tests.frameworks.conftest import Harness
from tests.frameworks.test_megatron import MEGATRON, take

PLANS = int(os.environ.get("ASTRA_SWEEP", "4"))
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("llama-2-7b", "8xA100-40", {"batch": 64}),
    ("llama-2-7b", "4xRTX4090", {"batch": 32, "seq": 2048}),
    ("llama-3.1-8b", "8xH100", {"batch": 128}),
    ("llama-3.1-8b", "32xB200", {"batch": 256, "precision": "fp8"}),
    ("llama-3.1-8b", "64xH200", {"batch": 64, "seq": 131072}),
    ("llama-3.1-70b", "64xH100", {"batch": 512, "seq": 8192}),
    ("llama-3.1-70b", "128xB200", {"batch": 512, "precision": "fp8"}),
    ("llama-3.1-70b", "256xH100", {"batch": 1024, "precision": "fp8"}),
    ("llama-3.1-405b", "2048xH100", {"batch": 2048, "seq": 8192}),
    ("qwen2.5-0.5b", "8xL40S", {"batch": 256}),
    ("qwen2.5-72b", "96xH100", {"batch": 960}),
    ("qwen3-14b", "24xA100-80", {"batch": 480}),
    ("qwen3-30b-a3b", "16xH100", {"batch": 256}),
    ("qwen3-235b-a22b", "256xB200", {"batch": 2048, "precision": "fp8"}),
    ("mistral-nemo-12b", "16xH200", {"batch": 128, "seq": 32768}),
    ("mixtral-8x7b", "32xH100", {"batch": 256}),
    ("mixtral-8x22b", "128xH200", {"batch": 1024, "precision": "fp8"}),
    ("deepseek-v2", "256xH100", {"batch": 2304}),
    ("deepseek-v3", "2048xH100", {"batch": 15360, "precision": "fp8"}),
    ("deepseek-v3", "256xGB200", {"batch": 4096}),
    ("glm-4.5-air", "128xH100", {"batch": 1024}),
    ("gpt-oss-20b", "32xH100", {"batch": 256, "seq": 8192}),
    ("gpt-oss-120b", "64xB200", {"batch": 512}),
    ("gpt-3-175b", "96xA100-80", {"batch": 1536, "seq": 2048}),
    ("gpt-2-xl", "8xV100-32", {"batch": 512, "seq": 1024, "precision": "fp16"}),
    ("phi-4", "32xMI300X", {"batch": 256}),
    ("llama-2-70b", "32xA100-80", {"fix": ["recompute=full"]}),
    ("llama-2-70b", "32xA100-80", {"fix": ["zero=2"]}),
    ("llama-2-70b", "64xA100-80", {"fix": ["zero=3"]}),
    ("llama-2-13b", "8xA100-40", {"fix": ["offload=optimizer"]}),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpus", "request_"), REQUESTS, ids=lambda value: str(value)[:40])
def test_the_best_plans_are_accepted(
    megatron: Harness, tmp_path: Path, model: str, gpus: str, request_: dict[str, Any]
) -> None:
    record = json.loads(astra.plan(model, gpus=gpus, top=PLANS, **request_).to_json())
    assert record["plans"]
    for plan in record["plans"]:
        launch, _ = from_record(record, plan["rank"])
        assert refusals(MEGATRON, launch) == []
        verdict = take(megatron, launch, tmp_path, ranks=[0] if plan["rank"] == 1 else [])
        assert verdict["accepted"], f"{launch.strategy}: {verdict}"
        strategy = launch.strategy
        assert (verdict["dp"], verdict["vpp"]) == (strategy.dp, strategy.vp)
        assert verdict["microbatches"] == launch.microbatches
