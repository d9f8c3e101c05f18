"""The verbs export and import, and their flags on plan and estimate, with the real planner."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shown

Command = Callable[..., Shown]
SMALL = ("--gpus", "16xH100", "--batch", "128", "--seq", "4096")


@pytest.fixture
def plan(astra_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "plan.json"
    assert astra_command("plan", "llama-2-7b", *SMALL, "--fix", "pp=2", "--out", str(path), "--json").code == 0
    return str(path)


def test_export_and_back(astra_command: Command, plan: str) -> None:
    shown = astra_command("export", plan, "--to", "megatron", "--out", "run", "--json")
    assert shown.code == 0
    record = shown.record
    assert record["schema"] == "astra.export/1"
    assert sorted(Path(file).name for file in record["files"]) == ["README.md", "launch.sh"]
    best = json.loads(Path(plan).read_text(encoding="utf-8"))["plans"][0]
    assert record["strategy"] == best["strategy"]
    found = astra_command("import", "run/launch.sh", "--json").record
    assert found["schema"] == "astra.import/1"
    asked = {"global_batch": 128, "seq": 4096, "precision": "bf16", "optimizer": "adam", "task": "pretrain"}
    assert found["workload"] == asked | {"lora_rank": None, "mtp": None}
    again = astra_command("estimate", "--from", "run/launch.sh", "--gpus", "16xH100", "--json").record
    assert again["step_s"] == pytest.approx(best["estimate"]["step_s"])
    assert "strategy" in astra_command("import", "run/launch.sh").out
    compared = astra_command(
        "plan", "--baseline", "run/launch.sh", "--gpus", "16xH100", "--fix", "pp=2", "--json"
    ).record
    assert compared["plans"][0]["estimate"]["step_s"] == pytest.approx(best["estimate"]["step_s"])


def test_never_overwrites(astra_command: Command, plan: str) -> None:
    assert astra_command("export", plan, "--to", "megatron").code == 0
    assert Path("llama-2-7b-megatron/launch.sh").is_file()
    again = astra_command("export", plan, "--to", "megatron")
    assert again.code == 5
    assert "--overwrite" in again.err
    assert astra_command("export", plan, "--to", "megatron", "--overwrite").code == 0


def test_refusal_and_nearest(astra_command: Command, plan: str) -> None:
    refused = astra_command("export", plan, "--to", "deepspeed")
    assert refused.code == 2
    assert "no pipeline parallelism" in refused.err
    assert "--nearest" in refused.err
    assert not Path("llama-2-7b-deepspeed").exists()
    shown = astra_command("export", plan, "--to", "deepspeed", "--nearest")
    assert shown.code == 0
    assert "pp: 2 -> 1" in shown.out
    assert "step" in shown.out


def test_a_plan_for_another_runtime_is_costed_again(astra_command: Command, plan: str) -> None:
    command = ("plan", "llama-2-7b", *SMALL, "--fix", "pp=2", "--runtime", "internevo", "--out", "other.json", "--json")
    assert astra_command(*command).code == 0
    record = astra_command("export", "other.json", "--to", "megatron", "--json").record
    there = record["estimated"]
    assert (there["planned_runtime"], there["runtime"], there["fits"]) == ("internevo", "megatron", True)
    assert there["step_s"] < there["planned_step_s"]
    assert f"about {there['step_s']:.3g} s" in Path("llama-2-7b-megatron/README.md").read_text(encoding="utf-8")
    assert astra_command("export", plan, "--to", "megatron", "--out", "same", "--json").record["estimated"] is None
    refused = astra_command("export", "other.json", "--to", "slurm", "--nearest")
    assert refused.code == 2
    assert "the plan is for another runtime" in refused.err


def test_plan_exports_the_nearest(astra_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("plan", "llama-2-7b", *SMALL, "--fix", "pp=2", "--export", "deepspeed", "--export-out", "job")
    assert "--nearest" in astra_command(*command).err
    record = astra_command(*command, "--nearest", "--json").record
    assert any("the closest it can express" in note for note in record["notes"])
    assert Path("job/ds_config.json").is_file()
    assert astra_command("plan", "llama-2-7b", *SMALL, "--nearest").code == 2
    quiet = astra_command(*command[:-1], "quiet", "--nearest", "-q")
    assert "Files for deepspeed are in quiet for tp" in quiet.out


def test_plan_exports(astra_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = ("plan", "llama-2-7b", *SMALL, "--export", "slurm", "--export-out", "job")
    assert astra_command(*command).code == 0
    assert Path("job/job.sbatch").is_file()
    again = astra_command(*command)
    assert again.code == 5
    assert "Name another --export-out" in again.err
    assert "give --overwrite" not in again.err  # a flag of astra export
    Path("file").write_text("mine", encoding="utf-8")
    onto = astra_command(*command[:-1], "file")
    assert (onto.code, Path("file").read_text(encoding="utf-8")) == (5, "mine")
    assert "--export-out names the folder" in onto.err


def test_rent_exports_into_a_folder_of_its_own(
    astra_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ("rent", "qwen2.5-1.5b", "--tokens", "10B", "--gpus", "H100", "--max-gpus", "8", "--export", "slurm")
    for command in (small, (*small, "--export-out", "job")):
        assert astra_command(*command).code == 0
        again = astra_command(*command)
        assert again.code == 5
        assert "Name another --export-out" in again.err
        assert "give --overwrite" not in again.err  # a flag of astra export
    assert Path("job/job.sbatch").is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--to", "megatorn"), "megatron"),
        (("--to", "megatron", "--rank", "99"), "--rank"),
        (("--to", "megatron", "--out", ""), "--out"),
        (("--to", "megatron", "--out", "no/such/folder"), "no folder"),
    ],
)
def test_bad_input(astra_command: Command, plan: str, words: tuple[str, ...], said: str) -> None:
    shown = astra_command("export", plan, *words)
    assert shown.code in (2, 5)
    assert said in shown.err


def test_estimate_from_needs_one_source(astra_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}', encoding="utf-8")
    both = astra_command("estimate", "llama-2-7b", "--from", str(path), "--strategy", "tp8", "--gpus", "8xH100")
    assert both.code == 2
    assert "not both" in both.err
    nameless = astra_command("estimate", "--from", str(path), "--gpus", "8xH100")
    assert nameless.code == 2
    assert "MODEL" in nameless.err
    named = astra_command("estimate", "llama-2-7b", "--from", str(path), "--gpus", "8xH100", "--json")
    assert named.record["strategy"].startswith("tp1 pp1 dp8 mbs1 zero3")
