"""Requests in files: saved, read, overridden by flags, and scripts beside several pools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shown

Command = Callable[..., Shown]
PLAN = ("plan", "gpt2", "--gpus", "8xH100", "--batch", "16", "--seq", "512")
SCRIPT = """
torchrun pretrain_gpt.py --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 512 \\
  --max-position-embeddings 1024 --micro-batch-size 1 --global-batch-size 16 --tensor-model-parallel-size 1 \\
  --pipeline-model-parallel-size 2 --bf16 --use-distributed-optimizer --vocab-size 50257 --use-flash-attn
"""


def answer(shown: Shown) -> dict[str, Any]:
    """What does not depend on the clock."""
    assert shown.code == 0, shown.err
    record = shown.record
    assert record["search"].pop("seconds") > 0
    record["search"].pop("strategies_per_s")
    record.pop("notes")
    return record


@pytest.mark.parametrize("more", [(), ("--fix", "tp=2", "--top", "2"), ("--tokens", "1B", "--market", "spot")])
def test_a_saved_request_is_answered_the_same(astra_command: Command, tmp_path: Path, more: tuple[str, ...]) -> None:
    saved, kept = str(tmp_path / "request.toml"), str(tmp_path / "plan.json")
    first = answer(astra_command(*PLAN, *more, "--save-request", saved, "--out", kept, "--json"))
    for file in (saved, kept):
        assert answer(astra_command("plan", file, "--json")) == first


def test_flags_override_the_file(astra_command: Command, tmp_path: Path) -> None:
    file = tmp_path / "request.toml"
    file.write_text('model = "gpt2"\ncluster = "nowhere.toml"\nbatch = 16\nseq = 512\nfix = ["tp=2"]\ntokens = "1B"\n'
                    'budget = "1M"\n[money]\nmarket = "spot"\npue = 1.0\n')  # fmt: skip
    flags = ("--gpus", "8xH100", "--fix", "tp=4", "--objective", "fastest", "--market", "reserved")
    asked = astra_command("plan", str(file), *flags, "--json").record["asked"]
    assert asked["gpus"] == ["8xH100-SXM5-80GB@dgx-h100"]
    assert "cluster" not in asked
    assert (asked["fix"], asked["objective"], asked["money"]["market"]) == (["tp=4"], "fastest", "reserved")
    assert (asked["batch"], asked["tokens"]) == (16, 1e9)
    assert "budget" not in asked


def test_paths_in_a_file_are_from_its_folder(
    astra_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "pools.toml").write_text('[[pool]]\ncount = 8\ngpu = "H100"\n')
    (folder / "rules.txt").write_text("narrow: tp > 2\n")
    (folder / "request.toml").write_text(
        'model = "gpt2"\ncluster = "pools.toml"\nrules = "rules.txt"\nbatch = 16\nseq = 512\n'
    )
    monkeypatch.chdir(tmp_path)
    record = astra_command("plan", "folder/request.toml", "--json").record
    assert record["asked"]["rules"] == ["narrow: tp > 2", ""]
    assert record["asked"]["cluster"]["pools"][0]["gpus"] == 8


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('model = "gpt2"\nbach = 3\n', "request.toml: bach: wanted a field of a request. Did you mean batch"),
        ('model = "gpt2"\ngpus = 8\n', "request.toml: gpus: got 8"),
        ('model = "gpt2"\ngpus = "8xH100"\nseq = 1.5\n', "request.toml: seq: got 1.5"),
        ('model = "gpt2"\ngpus = "8xH100"\n[money]\nmarkt = "spot"\n', "request.toml: money.markt"),
        ('modle = "gpt2"\n', "request.toml: modle: wanted a field of a request. Did you mean model"),
        ('gpus = "8xH100"\n', "the model to train"),
        ('model = "gpt2"\n', "--gpus"),
        ("model = \n", "valid TOML"),
    ],
)
def test_faults_of_a_file_are_named(astra_command: Command, tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "request.toml").write_text(text)
    shown = astra_command("plan", str(tmp_path / "request.toml"))
    assert (shown.code, shown.out) == (2, "")
    assert says in shown.err


def test_a_file_that_is_not_there(astra_command: Command) -> None:
    shown = astra_command("plan", "nosuch.toml")
    assert (shown.code, shown.err) == (
        2, "astra: nosuch.toml: wanted a request or a model in a file. There is no such file.\n"
    )  # fmt: skip


def test_models_in_files_are_still_models(astra_command: Command, tmp_path: Path) -> None:
    shape = {"layers": 4, "hidden": 256, "ffn": 1024, "heads": 4, "kv_heads": 4, "head_dim": 64, "vocab": 1000,
             "max_seq": 1024}  # fmt: skip
    toml = tmp_path / "tiny.toml"
    toml.write_text("".join(f"{name} = {value}\n" for name, value in shape.items()))
    record = astra_command("plan", str(toml), *PLAN[2:], "--json").record
    assert record["asked"]["model"]["hidden"] == 256
    toml.write_text("layer = 4\nhidden = 256\n")
    assert "Did you mean layers" in astra_command("plan", str(toml), *PLAN[2:]).err


def test_files_without_a_request(astra_command: Command, tmp_path: Path) -> None:
    old = tmp_path / "plan.json"
    record = astra_command(*PLAN, "--json").record
    old.write_text(json.dumps({key: value for key, value in record.items() if key not in ("asked", "request")}))
    assert "a plan file that carries its request" in astra_command("plan", str(old)).err
    old.write_text(old.read_text()[:-9])
    assert "whole JSON; it breaks off" in astra_command("plan", str(old)).err
    estimate = astra_command("estimate", *PLAN[1:], "--strategy", "tp2", "--json").record
    old.write_text(json.dumps(estimate))
    assert "a plan file that carries its request" in astra_command("plan", str(old)).err


def test_a_request_is_for_every_verb(astra_command: Command, tmp_path: Path) -> None:
    file = str(tmp_path / "plan.json")
    best = astra_command(*PLAN, "--out", file, "--json").record["plans"][0]
    again = astra_command("estimate", file, "--strategy", best["strategy"], "--json").record
    assert again["step_s"] == pytest.approx(best["estimate"]["step_s"], rel=1e-6)
    rented = astra_command("rent", file, "--gpus", "H100", "--tokens", "1B", "--max-gpus", "8", "--json").record
    assert rented["request"]["workload"]["global_batch"] == 16


def test_a_script_over_several_pools(astra_command: Command, tmp_path: Path) -> None:
    script = tmp_path / "launch.sh"
    script.write_text(SCRIPT)
    pools = ("--gpus", "8xH100", "--gpus", "8xA100")
    now = astra_command("estimate", "--from", str(script), *pools, "--json").record
    assert now["used"] == {"H100-SXM5-80GB": 8, "A100-SXM4-80GB": 8}
    assert len(now["groups"]) == 1, "the first stage is on the H100s, the second on the A100s"
    shown = astra_command("plan", "--baseline", str(script), *pools, "--json")
    assert shown.code == 0, shown.err
    assert shown.record["baseline"]["estimate"]["step_s"] == pytest.approx(now["step_s"])
    odd = astra_command("estimate", "--from", str(script), "--gpus", "8xH100", "--gpus", "7xA100", "--json")
    assert odd.code == 2
    assert "internal" not in odd.err
