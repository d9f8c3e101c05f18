"""A sample of the contract; ``make contract`` runs all of it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from astra.catalog import runtimes
from astra.catalog.models import model_names
from astra.export import EXPORTERS
from astra.spec.workload import TASKS
from tests.contract.requests import COUNTS, Request, requests, verdict
from tests.tiers import sampled

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
SAMPLE = random.Random(11).sample(requests(), 140)


def test_the_sample_is_varied() -> None:
    assert {request.runtime for request in SAMPLE} == set(runtimes.runtime_names())
    assert {request.gpus for request in SAMPLE} == set(COUNTS)
    assert {request.task for request in SAMPLE} == set(TASKS)


@pytest.mark.parametrize("first", sampled(range(0, len(SAMPLE), 20), every=4))
def test_every_plan_shown_can_be_exported_or_it_is_said_why_not(first: int) -> None:
    for request in SAMPLE[first : first + 20]:
        found = verdict(request)
        assert found.kind != "broken", (request, found.said)


@pytest.mark.parametrize(
    ("runtime", "model", "kind"),
    [
        ("torchtitan", "llama-3.1-8b", "exported"),
        ("torchtitan", "mixtral-8x7b", "refused"),
        ("pytorch", "llama-3.2-3b", "exported"),
        ("pytorch", "gpt-3-175b", "exported"),
        ("pytorch", "mixtral-8x7b", "refused"),
        ("deepspeed", "mixtral-8x7b", "exported"),
        ("fsdp-eager", "t5-11b", "exported"),
        ("megatron", "gemma-3-27b", "refused"),
        ("megatron-bridge", "gemma-3-27b", "exported"),
        ("megatron-bridge", "deepseek-v2-lite", "exported"),
        ("megatron", "deepseek-v2-lite", "refused"),
        ("nemo", "llama-4-scout", "exported"),
        ("nanotron", "llama-2-7b", "no target"),
    ],
)
def test_who_trains_what(runtime: str, model: str, kind: str) -> None:
    assert verdict(Request(runtime, model, 64, "pretrain")).kind == kind


def test_every_target_of_a_runtime_is_one() -> None:
    targets = {runtimes.runtime(name).exports_to for name in runtimes.runtime_names()} - {""}
    assert targets <= set(EXPORTERS)
    assert {exporter.runtime for exporter in EXPORTERS.values()} - {None} <= set(runtimes.runtime_names())
    for name in targets:
        assert runtimes.runtime(str(EXPORTERS[name].runtime)).exports_to == name


def test_the_recorded_runs_are_whole() -> None:
    """Runs of all of it, by make contract: nothing broken, no model left out; an old one had fewer runtimes."""
    record = json.loads((RESULTS / "contract.json").read_text(encoding="utf-8"))
    for run in record["runs"]:
        assert run["broken"] == []
        assert set(run["runtimes"]) <= set(runtimes.runtime_names())
        asked = len(run["models"]) * len(COUNTS) * len(TASKS)
        assert run["requests"] == asked * len(run["runtimes"])
        assert {sum(row[kind] for kind in row if kind != "plans") for row in run["runtimes"].values()} == {asked}
    assert set(record["runs"][-1]["runtimes"]) == set(runtimes.runtime_names())
    assert {model for run in record["runs"] for model in run["models"]} >= set(model_names())
