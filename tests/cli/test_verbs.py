"""What each verb asks of the planner and shows of its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from astra.cli.plan import DEFAULT_GPUS, DEFAULT_MODEL
from tests.cli.conftest import FakePlanner, Shown

Command = Callable[..., Shown]
PLAN = ("plan", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--seq", "2048")
ESTIMATE = ("estimate", "llama-2-7b", "--gpus", "8xH100", "--batch", "64", "--seq", "2048", "--strategy", "tp8 pp1 dp1")


def test_plan_without_arguments_plans_the_default_and_says_so(astra_command: Command, planner: FakePlanner) -> None:
    shown = astra_command("plan")
    assert shown.code == 0
    assert (planner.asked["model"], planner.asked["gpus"]) == (DEFAULT_MODEL, (DEFAULT_GPUS,))
    assert f"{DEFAULT_MODEL} on {DEFAULT_GPUS}" in shown.out


def test_every_flag_of_plan_reaches_the_planner(astra_command: Command, planner: FakePlanner, tmp_path: Path) -> None:
    rules = tmp_path / "r.txt"
    rules.write_text("tp > 8\n")
    words = (
        "plan --gpus 512xH100 --node dgx-h100 mixtral-8x7b --batch 1k --seq 2048 --tokens 1.5T --precision FP8 "
        "--optimizer sgd --task lora --lora-rank 32 --top 7 --fix tp=8 --fix pp=4 --forbid cp --max pp=16 "
        f"--min mbs=2 --rules {rules} --runtime megatron --headroom 5% --strict"
    )
    assert astra_command(*words.split()).code == 0
    assert planner.asked == {
        "model": "mixtral-8x7b",
        "gpus": ("512xH100",),
        "node": "dgx-h100",
        "batch": 1000,
        "seq": 2048,
        "tokens": 1.5e12,
        "precision": "fp8",
        "optimizer": "sgd",
        "task": "lora",
        "lora_rank": 32,
        "top": 7,
        "fix": ("tp=8", "pp=4"),
        "forbid": ("cp",),
        "maximum": ("pp=16",),
        "minimum": ("mbs=2",),
        "rules": str(rules),
        "headroom": pytest.approx(0.05),
        "strict": True,
        "runtime": "megatron",
        "launchable": True,
    }


@pytest.mark.parametrize("text", ["4M tokens", "4Mtok", "4194304 token", "4Mtokens"])
def test_a_batch_in_tokens_is_passed_on(astra_command: Command, planner: FakePlanner, text: str) -> None:
    assert astra_command(*PLAN[:4], "--seq", "2048", "--batch", text).code == 0
    assert planner.asked["batch"] == text


@pytest.mark.parametrize(("verb", "told"), [(PLAN, "notes"), (ESTIMATE, "warnings")])
def test_assumed_values_are_said(
    astra_command: Command, planner: FakePlanner, verb: tuple[str, ...], told: str
) -> None:
    shown = astra_command(*(word for word in verb if word not in ("--batch", "64", "--seq", "2048")), "--json")
    assert {"seq", "batch"} & set(planner.asked) == set()
    assert shown.record[told] == ["--seq 4096 was assumed.", "--batch 1024 (samples) was assumed."]
    assert not astra_command(*verb, "--json").record[told]


@pytest.mark.parametrize(("verb", "told"), [(PLAN, "notes"), (ESTIMATE, "warnings")])
def test_words_that_change_nothing_are_said(astra_command: Command, verb: tuple[str, ...], told: str) -> None:
    asked = ("--imbalance", "1.5", "--lora-targets", "qkv", "--json")
    said = " ".join(astra_command(*verb, *asked).record[told])
    assert "--imbalance changes nothing: llama-2-7b has no experts" in said
    assert "--lora-targets change nothing: the task is pretrain, not lora" in said


@pytest.mark.parametrize("arguments", [PLAN, ESTIMATE, ("model", "m")])
def test_json_is_the_only_thing_on_stdout_and_equals_the_file(
    astra_command: Command, planner: FakePlanner, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    target = tmp_path / "answer.json"
    shown = astra_command(*arguments, "--json", "--out", str(target))
    assert shown.code == 0
    assert shown.record["schema"].startswith("astra.")
    assert json.loads(target.read_text()) == shown.record
    assert [entry.name for entry in tmp_path.iterdir()] == ["answer.json"]


def test_quiet_and_verbose_change_how_much_is_shown(astra_command: Command, planner: FakePlanner) -> None:
    usual, quiet, verbose = (astra_command(*PLAN, *extra).out for extra in ((), ("-q",), ("-v",)))
    assert len(quiet) < len(usual) < len(verbose)


def test_width(astra_command: Command, planner: FakePlanner) -> None:
    narrow = astra_command(*PLAN, "--width", "70").out
    assert max(len(line) for line in narrow.splitlines()) <= 70


def test_estimate_answers_for_an_illegal_strategy_with_exit_code_0(
    astra_command: Command, planner: FakePlanner
) -> None:
    from tests.report import records

    illegal = records.plan(1, legal=False, violations=["tp spans nodes"], fits=False)
    planner.planset = records.planset(plans=[illegal])
    shown = astra_command(*ESTIMATE)
    assert shown.code == 0
    assert "tp spans nodes" in shown.out
    assert planner.asked["strategy"] == "tp8 pp1 dp1"
    record = astra_command(*ESTIMATE, "--json").record
    assert record["legal"] is False


def test_estimate_record_has_the_promised_names(astra_command: Command, planner: FakePlanner) -> None:
    record = astra_command(*ESTIMATE, "--json").record
    assert {"step_s", "tokens_per_s", "mfu", "breakdown", "fits", "stages"} <= set(record)
    promised = {"compute_s", "optimizer_s", "communication_s", "peak_allocated_gib", "peak_reserved_gib", "memory"}
    assert promised <= set(record["stages"][0])


def test_plan_record_has_the_promised_names(astra_command: Command, planner: FakePlanner) -> None:
    record = astra_command(*PLAN, "--json").record
    assert {"strategy", "estimate"} <= set(record["plans"][0])
    assert {"considered", "seconds"} <= set(record["search"])
    assert "rejects" in record


def test_model(astra_command: Command, planner: FakePlanner) -> None:
    shown = astra_command("model", "m", "--seq", "8k")
    assert planner.asked == {"model": "m", "seq": "8k"}
    assert "7,000,000,000" in shown.out
    assert {"total", "active", "embedding"} <= set(astra_command("model", "m", "--json").record["parameters"])
