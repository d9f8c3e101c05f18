"""Lengths of sequences as people write them."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import astra
from astra.errors import InputError
from astra.spec.request import FIELDS, PlanRequest, tokens_of


@pytest.mark.parametrize(
    ("told", "tokens"),
    [
        (4096, 4096), ("4096", 4096), ("4k", 4096), ("8K", 8192), ("128k", 131_072), ("1M", 1_048_576),
        ("100k", 100_000), ("1.5k", 1500), ("200k", 200_000), ("4_096", 4096), ("4e3", 4000),
    ],
)  # fmt: skip
def test_powers_of_two_are_told_by_1024_and_others_by_1000(told: object, tokens: int) -> None:
    read = FIELDS["seq"].read(told, "seq")
    assert tokens_of(read) == tokens
    assert FIELDS["seq"].read(read, "seq") == read
    assert tokens_of(PlanRequest(model="llama-3-8b", seq=told).seq or 0) == tokens  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told", ["1.0001k", "0k", "-4k", "128q", "k", "1000M", "nan", "1e400k", "9" * 300 + "k", True, 1.5]
)
def test_what_is_no_length_is_refused(told: object) -> None:
    with pytest.raises(InputError) as caught:
        FIELDS["seq"].read(told, "--seq")
    assert caught.value.where == "--seq"
    assert "whole number" in caught.value.want


def test_a_plan_is_of_the_tokens_and_its_request_tells_them() -> None:
    plan = astra.plan("llama-3.1-8b", gpus="8xH100", batch=8, seq="32k", top=1)
    assert plan.request["workload"]["seq"] == plan.asked["seq"] == 32_768
    assert astra.describe_model("llama-3.1-8b", seq="32k").flops_per_token["seq"] == 32_768


def test_the_answer_says_how_they_were_read() -> None:
    words = ["plan", "llama-3.1-8b", "--gpus", "8xH100", "--seq", "32k", "--batch", "1Mtok", "--top", "1", "--json"]
    shown = subprocess.run([sys.executable, "-m", "astra", *words], capture_output=True, text=True, check=True)
    notes = json.loads(shown.stdout)["notes"]
    assert "--seq 32k is 32,768 tokens." in notes
    assert "--batch 1Mtok is 32 samples of 32,768 tokens, 1,048,576 tokens." in notes
