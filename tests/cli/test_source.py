"""What somebody runs today, from the command line: plan files, choices, the vocabulary, parameters, several pools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from astra.cli import main

SCRIPT = """
for TP in 2 4; do
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --seq-length 4096 --micro-batch-size 1 --global-batch-size 128 --tensor-model-parallel-size $TP --swiglu --bf16 \\
  --pipeline-model-parallel-size ${1:-1} --use-distributed-optimizer
done
"""


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Plan files on one pool and on two."""
    folder = tmp_path_factory.mktemp("plans")
    found = {"one": folder / "one.json", "two": folder / "two.json"}
    common = ["plan", "llama-2-7b", "--batch", "128", "--top", "3", "-q"]
    assert main([*common, "--gpus", "16xH100", "--out", str(found["one"])]) == 0
    assert main([*common, "--gpus", "8xH100", "--gpus", "8xA100-80", "--out", str(found["two"])]) == 0
    return found


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main([words[0], "--json", *words[1:]]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(list(words)) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize("pools", ["one", "two"])
@pytest.mark.parametrize("rank", [1, 2])
def test_an_estimate_of_a_plan_is_the_plans(
    plans: dict[str, Path], capsys: pytest.CaptureFixture[str], pools: str, rank: int
) -> None:
    plan = next(one for one in json.loads(plans[pools].read_text())["plans"] if one["rank"] == rank)
    found = answer(capsys, "estimate", "--from", str(plans[pools]), "--pick", str(rank))
    assert found["strategy"] == plan["strategy"]
    assert found["step_s"] == pytest.approx(plan["estimate"]["step_s"], rel=1e-9)
    assert answer(capsys, "import", str(plans[pools]), "--pick", str(rank))["strategy"] == plan["strategy"]


def test_a_plan_may_be_the_baseline(plans: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "plan", "--baseline", str(plans["one"]), "--pick", "3")
    third = json.loads(plans["one"].read_text())["plans"][2]
    assert found["baseline"]["estimate"]["strategy"] == third["strategy"]


def test_a_plan_of_another_version_is_refused_with_how(
    plans: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(plans["one"].read_text()) | {"schema": "astra.plan/9"}))
    for verb in (["estimate", "--from"], ["import"]):
        assert "Make the plan again" in refused(capsys, *verb, str(other))


def test_what_is_not_there_is_said(plans: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert "a rank in the file" in refused(capsys, "estimate", "--from", str(plans["one"]), "--pick", "99")
    assert "--pick" in refused(capsys, "estimate", "--from", str(plans["one"]), "--pick", "best")
    assert "MODEL" in refused(capsys, "estimate", "llama-2-7b", "--from", str(plans["one"]))
    assert "--baseline FILE" in refused(capsys, "plan", "llama-2-7b", "--gpus", "8xH100", "--vocab", "32000")


def test_several_jobs_are_listed_and_one_is_picked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    assert "has several, 2" in refused(capsys, "import", str(script))
    assert "one of 1, 2" in refused(capsys, "import", str(script), "--pick", "3")
    found = answer(capsys, "import", str(script), "--pick", "2")
    assert found["strategy"].startswith("tp4 pp1 dp4")
    assert (found["lacks"], found["model_spec"]) == (["vocab"], None)
    assert answer(capsys, "import", str(script), "--pick", "2", "--", "2")["strategy"].startswith("tp4 pp2 dp2")


def test_a_vocabulary_is_asked_for_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    asked = ["estimate", "--from", str(script), "--pick", "1", "--gpus", "16xH100"]
    told = refused(capsys, *asked)
    assert "--vocab" in told
    assert "vocabulary" in told
    assert answer(capsys, *asked, "--vocab", "32000", "--parameters", "2")["strategy"].startswith("tp2 pp2 dp4")


def test_a_script_on_several_pools(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    pools = ["--gpus", "8xH100", "--gpus", "8xA100-80", "--vocab", "32000", "--pick", "1", "--parameters", "2"]
    found = answer(capsys, "estimate", "--from", str(script), *pools)
    assert "H100-SXM5-80GB tp2 pp1" in found["strategy"]
    assert "A100-SXM4-80GB tp2 pp1" in found["strategy"]
    against = answer(capsys, "plan", "--baseline", str(script), *pools)
    assert against["baseline"]["estimate"]["strategy"] == found["strategy"]
