"""The verbs with the real planner: good answers, and bad input that gets a clear error and its own exit code."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shown

Command = Callable[..., Shown]
SMALL = ("--gpus", "16xH100", "--batch", "128", "--seq", "4096")
PLAN = ("plan", "llama-2-7b", *SMALL)
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "num_hidden_layers": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def test_plan(astra_command: Command) -> None:
    record = astra_command(*PLAN, "--tokens", "1T", "--json").record
    plans = record["plans"]
    assert [plan["rank"] for plan in plans] == list(range(1, len(plans) + 1))
    upper = [plan["estimate"]["step_s_range"]["high"] for plan in plans]
    assert upper == sorted(upper)
    for plan in plans:
        estimate = plan["estimate"]
        assert estimate["fits"]
        assert estimate["legal"]
        assert sum(estimate["breakdown"].values()) == pytest.approx(estimate["step_s"])
        assert estimate["peak_reserved_gib"] <= estimate["memory_limit_gib"]
        assert estimate["train_days"] == pytest.approx(1e12 / estimate["tokens_per_s"] / 86400)
        for stage in estimate["stages"]:
            assert sum(stage["memory"].values()) == pytest.approx(stage["peak_allocated_gib"])
    assert record["search"]["considered"] > 1000


@pytest.mark.parametrize("width", ["80", "100", "140"])
def test_plan_as_text(astra_command: Command, width: str) -> None:
    short = astra_command(*PLAN, "--width", width).out
    shown = astra_command(*PLAN, "--width", width, "-v")
    assert shown.code == 0
    assert len(short.splitlines()) < len(shown.out.splitlines())
    assert "Considered" in short
    assert "Where the" in shown.out
    assert "Why the others lost" in shown.out
    assert "Considered" in shown.out
    assert max(len(line) for line in shown.out.splitlines()) <= int(width)


def test_the_best_plan_can_be_estimated_again(astra_command: Command) -> None:
    best = astra_command(*PLAN, "--json").record["plans"][0]
    again = astra_command("estimate", "llama-2-7b", *SMALL, "--strategy", best["strategy"], "--json").record
    assert again["step_s"] == pytest.approx(best["estimate"]["step_s"])
    assert again["strategy"] == best["strategy"]


def test_an_illegal_strategy_is_estimated_and_told_why(astra_command: Command) -> None:
    shown = astra_command("estimate", "llama-2-7b", *SMALL, "--strategy", "tp16 pp1 dp1 mbs1", "--json")
    assert shown.code == 0
    text = astra_command("estimate", "llama-2-7b", *SMALL, "--strategy", "tp16 pp1 dp1 mbs1")
    if not shown.record["legal"]:
        assert shown.record["violations"]
        assert "not legal" in text.out


def test_restrictions_hold(astra_command: Command) -> None:
    record = astra_command(*PLAN, "--fix", "tp=4", "--max", "pp=2", "--forbid", "cp", "--json").record
    for plan in record["plans"]:
        words = plan["strategy"].split()
        assert "tp4" in words
        assert {"pp1", "pp2"} & set(words)


def test_model(astra_command: Command, tmp_path: Path) -> None:
    record = astra_command("model", "llama-2-7b", "--json").record
    assert record["parameters"]["total"] == 6_738_415_616
    assert record["parameters"]["embedding"] > 0
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for path in (tmp_path, tmp_path / "config.json"):
        assert astra_command("model", str(path), "--json").record["parameters"]["total"] == 6_738_415_616


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plan", "lama-2-70", *SMALL), "llama-2-70b"),
        (("plan", "llama-2-7b", "--gpus", "16xH1000"), "H100"),
        (("plan", "llama-2-7b", "--gpus", "16xRTX"), "RTX"),
        (("plan", "llama-2-7b", "--gpus", "H100"), "H100"),
        (("plan", "llama-2-7b", "--gpus", "0xH100"), "gpus"),
        (("plan", "llama-2-7b", "--gpus", "-8xH100"), "gpus"),
        (("plan", "llama-2-7b", "--gpus", "999999999999xH100"), "gpus"),
        (("plan", "llama-2-7b", "--gpus", "nanxH100"), "gpus"),
        (("plan", "llama-2-7b", "--gpus", ""), "gpus"),
        (("plan", "llama-2-7b", *SMALL, "--node", "dgx-h1000"), "dgx-h100"),
        (("plan", "llama-2-7b", "--gpus", "16xA100", "--precision", "fp8"), "fp8"),
        (("plan", "llama-2-7b", "--cluster", "no-such-file.toml"), "no-such-file.toml"),
        (("plan", "no-such-folder/config.json", *SMALL), "no-such-folder"),
        (("plan", "llama-2-7b", *SMALL, "--rules", "no-such-rules"), "no-such-rules"),
        (("plan", "llama-2-7b", *SMALL, "--runtime", "megatronn"), "megatron"),
        (("plan", "llama-2-7b", *SMALL, "--fix", "tp"), "tp"),
        (("plan", "llama-2-7b", *SMALL, "--fix", "tq=8"), "tq"),
        (("plan", "llama-2-7b", *SMALL, "--max", "pp=many"), "pp"),
        (("plan", "llama-2-7b", "--gpus", "16xH100", "--seq", "4096", "--batch", "1000 tokens"), "batch"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "tp3"), "divide"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "tp0"), "tp"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "tpp8"), "tp"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "tp8 tp4"), "twice"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "recompute=some"), "recompute"),
        (("estimate", "llama-2-7b", *SMALL, "--strategy", "tp8 dp16"), "GPUs"),
        (("model", ""), "model"),
    ],
)
def test_bad_input(astra_command: Command, arguments: tuple[str, ...], says: str) -> None:
    shown = astra_command(*arguments)
    assert shown.code == 2, shown.err
    assert shown.out == ""
    assert says.lower() in shown.err.lower()
    assert astra_command(*arguments, "--json").record["error"]["exit_code"] == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\x00\xff\xfe binary",
        '{"model_type": "llama"}'.encode("utf-16"),
        b"{}",
        b"[" * 100_000,
        json.dumps(LLAMA | {"hidden_size": 0}).encode(),
        json.dumps(LLAMA | {"hidden_size": -4096}).encode(),
        json.dumps(LLAMA | {"hidden_size": "large"}).encode(),
        json.dumps(LLAMA | {"num_hidden_layers": math.nan}).encode(),
        json.dumps(LLAMA | {"num_hidden_layers": 10**12}).encode(),
        json.dumps(LLAMA | {"num_key_value_heads": 7}).encode(),
        json.dumps({key: value for key, value in LLAMA.items() if key != "hidden_size"}).encode(),
        json.dumps(LLAMA | {"architectures": ["NobodyKnowsThis"], "model_type": "nobody-knows"}).encode(),
    ],
    ids=lambda content: repr(content[:24]),
)
def test_broken_configs(astra_command: Command, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    shown = astra_command("model", str(path))
    assert shown.code == 2, shown.err
    assert shown.err.startswith("astra: ")


def test_a_model_that_fits_nowhere_says_what_it_needs(astra_command: Command) -> None:
    shown = astra_command(
        "plan", "llama-3.1-405b", "--gpus", "1xT4", "--precision", "fp16", "--batch", "8", "--seq", "512"
    )
    assert shown.code == 3
    assert "GiB" in shown.err
    assert "Try" in shown.err


def test_a_malformed_rule_is_shown_with_its_position(astra_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "rules.txt"
    path.write_text("tp > > 4\n")
    shown = astra_command(*PLAN, "--rules", str(path))
    assert shown.code == 2
    assert "1" in shown.err


def test_an_unwritable_place_leaves_nothing(astra_command: Command, tmp_path: Path) -> None:
    shown = astra_command(*PLAN, "--out", str(tmp_path / "missing" / "plan.json"))
    assert shown.code == 5
    assert list(tmp_path.iterdir()) == []
