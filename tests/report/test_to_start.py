"""A first plan over pools that nothing starts: the answer's first lines say what to start instead, and that exports."""

from __future__ import annotations

import json
from typing import Any

import astra
from astra.export import EXPORTERS
from astra.export.base import refusals
from astra.export.reading import from_record
from astra.report.mixed import to_start
from astra.search.fleet.records import MixedEstimate, MixedPlanSet

ASKED: dict[str, Any] = {"gpus": ["256xH100", "512xA100-80"], "batch": 1024, "seq": 4096, "top": 3}


def test_what_to_start_instead_is_told_first_and_exports() -> None:
    answer = astra.plan("llama-2-70b", **ASKED)
    assert isinstance(answer, MixedPlanSet)
    first, other = answer.plans[0].estimate, answer.plans[-1].estimate
    assert isinstance(first, MixedEstimate)
    assert isinstance(other, MixedEstimate)
    assert not {"Megatron-LM", "FlagScale", "PyTorch trainer"} & set(first.runs_on)
    assert "Megatron-LM" in other.runs_on
    assert answer.launchable is not None
    assert answer.launchable.strategy == answer.plans[-1].strategy
    slower = f"{other.step_s / first.step_s - 1:.1%} slower (--to megatron --rank 3)"
    said = to_start(answer)
    assert said is not None
    assert slower in said
    page = " ".join(answer.draw(width=100).split())
    assert page.index(slower) < page.index("strategy GPUs")
    launch, _ = from_record(json.loads(answer.to_json()), 3)
    assert refusals(EXPORTERS["megatron"], launch) == []


def test_nothing_is_said_where_the_first_plan_is_started() -> None:
    answer = astra.plan("llama-2-7b", gpus=["8xH100", "8xA100-80"], batch=128, seq=4096)
    assert isinstance(answer, MixedPlanSet)
    assert isinstance(answer.best.estimate, MixedEstimate)
    assert "Megatron-LM" in answer.best.estimate.runs_on
    assert to_start(answer) is None
