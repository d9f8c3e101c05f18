"""What fuzzing and random requests found, one line each: the text that did it is read or refused, and stays so."""

from __future__ import annotations

import time
from typing import Final

import pytest

import astra
from astra.errors import InputError
from astra.spec.request import read_request
from astra.units import parse_count, parse_seconds
from astra.validate.runs import Skipped, runs_of
from tests.fuzz.targets import TARGETS
from tests.validate.test_runs import ROW

# By target: texts that ended in something else than an answer or an error of ours.
FOUND: Final[tuple[tuple[str, str], ...]] = (
    ("units", "1e308"),  # days beyond all numbers of seconds
    ("request", 'gpus = ["16xH100"]\n'),  # no model
    ("scripts", "TP=1\nfunction train"),  # a function that ends before it begins
    ("scripts", "sbatch <<EOF\nsrun a | function b\nEOF\n"),
    ("yaml", "a: 1\nb: " + "9" * 19_000 + "x"),  # a number without end
)


@pytest.mark.parametrize(("target", "text"), FOUND)
def test_what_was_found_is_read_or_refused(target: str, text: str) -> None:
    began = time.process_time()
    assert TARGETS[target].refusal(text) != ""
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("text", ["1" + " " * 50_000 + "x", " " * 50_000 + "1k" + "\r\n" * 50_000, "9" * 50_000])
def test_a_long_text_is_no_number_soon(text: str) -> None:
    began = time.process_time()
    assert parse_count(text) == (1000.0 if "k" in text else None)
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("text", ["1e308", "1e308d", "1e306min", "0", "0d", "d"])
def test_a_time_is_above_zero_and_finite_or_none(text: str) -> None:
    assert parse_seconds(text) == (6e307 if text == "1e306min" else None)


def test_a_request_without_a_model_is_told_so() -> None:
    with pytest.raises(InputError, match=r"^file: model: wanted a catalog name"):
        read_request("plan", {"gpus": ["8xH100"]}, lambda name: f"file: {name}")


def test_every_strategy_of_a_front_is_accounted_for() -> None:
    answer = astra.plan(
        "llama-2-7b", gpus="16xH100", objective="pareto", tokens="1T", money={"usd_per_gpu_h": 2}, batch=512, seq=2048
    )
    refused = sum(reject.strategies for reject in answer.rejects)
    assert refused + answer.search.feasible == answer.search.considered


@pytest.mark.parametrize("digits", [400, 5_000])  # beyond floating point, beyond what Python reads
@pytest.mark.parametrize("cell", ["inter_node_link=8x{}Gb/s", "gpu_type={}x H100 + 8x A100", "notes=GA={}", "vocab={}"])
def test_a_run_with_a_number_beyond_all_is_left_out(cell: str, digits: int) -> None:
    name, _, text = cell.partition("=")
    stated = {} if name == "notes" else {"gbs": "64"}
    (row,) = runs_of([ROW | {"gbs": ""} | stated | {name: text.format("9" * digits)}])
    assert isinstance(row, Skipped)
