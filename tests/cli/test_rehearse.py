"""``astra rehearse``: what is refused, what is compared, and (with megatron-core here) a rank without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astra.cli import main
from astra.lab.rehearse import here
from astra.lab.rehearse.case import Case, as_row
from tests.cli.conftest import Shown

Command = Callable[..., Shown]
ROOT = Path(__file__).parents[2]
GIB = 2**30


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A plan of a small model, pipelined."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    words = "plan llama-2-7b --gpus 8xH100 --batch 32 --seq 2048 --top 2 --max zero=1 --fix cp=1 --fix pp=4 --fix vp=1"
    assert main([*words.split(), "--quiet", "--out", str(path)]) == 0
    return str(path)


def ran(case: Case, **changes: Any) -> dict[str, Any]:
    """A row as a GPU would give it."""
    row = {
        **as_row(case), "oom": False, "params": 10, "peak_allocated_bytes": 20 * GIB, "peak_reserved_bytes": 21 * GIB,
        "compute_s": 0.5, "optimizer_s": 0.05, "zero_grad_s": 0.01, "chunk_layers": case.chunk_layers,
    }  # fmt: skip
    return row | changes


def on_gpu(monkeypatch: pytest.MonkeyPatch, name: str, **changes: Any) -> list[Case]:
    """Pretend that there is a GPU; the cases it is asked to run."""
    asked: list[Case] = []

    def run(cases: list[Case], _: Any) -> list[dict[str, Any]]:
        asked.extend(cases)
        return [ran(case, **changes) for case in cases]

    monkeypatch.setattr(here, "gpu_here", lambda framework: name)
    monkeypatch.setattr(here, "run_on_gpu", run)
    return asked


def test_without_the_framework_it_says_what_to_install(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_there", lambda module: False)
    shown = astra_command("rehearse", plan)
    assert shown.code == 2
    assert "torch and megatron-core" in shown.err
    assert "Nothing could be checked" in shown.err
    assert "astra-planner[rehearse]" in shown.err
    assert "Traceback" not in shown.err


def test_first_middle_and_last_stage_are_rehearsed_by_default(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    assert astra_command("rehearse", plan).code == 0
    assert [case.stage for case in asked] == [0, 2, 3]
    assert {case.strategy.pp for case in asked} == {4}


def test_measured_time_is_stretched_to_the_plans_micro_batches(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    stage = astra_command("rehearse", plan, "--stage", "1", "--json").record["stages"][0]
    case = asked[0]
    planned = 32 // (case.strategy.dp * case.strategy.mbs)
    assert stage["measured"]["compute_s"] == pytest.approx((0.5 - 0.05 - 0.01) / case.num_microbatches * planned)
    assert stage["measured"]["peak_allocated_gib"] == 20
    predicted = stage["rehearsed_runtime"]["peak_allocated_gib"]
    assert stage["differences"]["peak_allocated_gib"] == pytest.approx(predicted / 20 - 1)


def test_it_is_compared_with_the_runtime_and_gpu_that_ran(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    same = astra_command("rehearse", plan, "--json").record
    on_gpu(monkeypatch, "NVIDIA A100-SXM4-80GB")
    other = astra_command("rehearse", plan, "--json").record
    assert same["runtime"] == "megatron"
    assert same["notes"] == []
    assert "rehearsed on A100-SXM4-80GB" in other["notes"][0]
    for a, b in zip(same["stages"], other["stages"], strict=True):
        assert a["plan"] == b["plan"]
        assert a["rehearsed_runtime"]["compute_s"] > a["plan"]["compute_s"]  # no fused kernels
        assert b["rehearsed_runtime"]["compute_s"] > 1.5 * a["rehearsed_runtime"]["compute_s"]


def test_packed_sequences_are_rehearsed_and_predicted_whole(
    plan: str, tmp_path: Path, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    packed = tmp_path / "packed.json"
    astra_command("plan", plan, "--packed", "128", "--quiet", "--out", str(packed))
    whole, short = (astra_command("rehearse", path, "--json").record for path in (plan, str(packed)))
    assert short["notes"] == ["Sequences are rehearsed and predicted as one sample each, not as packed."]
    assert short["strategy"] == whole["strategy"]
    for a, b in zip(short["stages"], whole["stages"], strict=True):
        assert a["plan"]["compute_s"] < b["plan"]["compute_s"]
        assert a["rehearsed_runtime"] == b["rehearsed_runtime"]


def test_a_gpu_that_is_not_in_the_catalog_is_said(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, "Frobnicator 9000")
    record = astra_command("rehearse", plan, "--json").record
    assert "not in the catalog" in record["notes"][0]
    assert record["stages"][0]["rehearsed_runtime"] is None
    assert record["stages"][0]["plan"]["peak_allocated_gib"] > 0


def test_ranks_that_waited_tell_the_hosts_speed(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3", busy_s=0.5)
    assert astra_command("rehearse", plan, "--json").record["host_speed"] is None  # the GPU was busy
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3", busy_s=0.1)
    speed = astra_command("rehearse", plan, "--json").record["host_speed"]
    assert speed > 0
    shown = astra_command("rehearse", plan, "--width", "200")
    assert f"host_speed = {speed:.2f}" in shown.out
    on_gpu(monkeypatch, "Frobnicator 9000", busy_s=0.1)
    assert astra_command("rehearse", plan, "--json").record["host_speed"] is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "within the"),
        ({"peak_reserved_bytes": 79 * GIB}, "ABOVE the"),
        ({"oom": True, "allocated_at_oom_bytes": 70 * GIB}, "ran out of memory on the GPU here, with 70.0 GiB"),
        ({"error": "AssertionError: no"}, "the framework refused it: AssertionError: no"),
    ],
)
def test_every_stage_gets_a_verdict(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3", **changes)
    shown = astra_command("rehearse", plan, "--stage", "0", "--width", "120")
    assert shown.code == 0
    assert f"stage 0: {words}" in shown.out or words in shown.out


def test_without_a_gpu_it_says_what_was_not_checked(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "gpu_here", lambda framework: None)
    monkeypatch.setattr(here, "run_without_gpu", lambda cases: [ran(case) for case in cases])
    shown = astra_command("rehearse", plan, "--json")
    stage = shown.record["stages"][0]
    assert shown.record["how"] == "fake"
    assert stage["measured"] == {
        "peak_allocated_gib": pytest.approx(20 + 1 / 16), "peak_reserved_gib": None, "compute_s": None,
        "optimizer_s": None,
    }  # fmt: skip
    assert any("compute time" in what for what in shown.record["not_checked"])


def test_the_answer_can_be_kept(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    on_gpu(monkeypatch, "NVIDIA H100 80GB HBM3")
    target = tmp_path / "r.json"
    assert astra_command("rehearse", plan, "--out", str(target)).code == 0
    assert json.loads(target.read_text())["schema"] == "astra.rehearsal/1"


@pytest.mark.parametrize("stage", ["4", "-1", "last", "0.5"])
def test_a_stage_that_is_not_there_is_refused(plan: str, astra_command: Command, stage: str) -> None:
    shown = astra_command("rehearse", plan, f"--stage={stage}")
    assert shown.code == 2
    assert "0 to 3" in shown.err


def test_a_plan_that_is_not_there_is_refused(plan: str, astra_command: Command) -> None:
    assert astra_command("rehearse", plan, "--plan", "9").code == 2
    assert astra_command("rehearse", "nothing.json").code == 2


def megatron_python() -> str:
    """An interpreter with megatron-core: this one, or that of the framework tests."""
    if here._there("torch") and here._there("megatron.core"):
        return sys.executable
    other = ROOT / ".venvs" / "megatron" / "bin" / "python"
    if not other.exists():
        pytest.skip("torch and megatron-core are not installed: the rehearsal without a GPU was not run")
    asked = subprocess.run(
        [str(other), "-c", "import sys; print(sys.version_info[:2])"], capture_output=True, text=True, check=False
    )
    if asked.stdout.strip() != str(sys.version_info[:2]):
        pytest.skip("the environment with megatron-core has another Python: the rehearsal without a GPU was not run")
    return str(other)


@pytest.mark.exhaustive
def test_a_real_rank_without_a_gpu(plan: str) -> None:
    """Megatron-core itself, over tensors without data, finds the parameters and the peak that are predicted."""
    paths = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)])
    ended = subprocess.run(
        [megatron_python(), "-m", "astra", "rehearse", plan, "--stage", "1", "--json"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    stage = record["stages"][0]
    if record["how"] == "gpu":
        pytest.skip("there is a GPU here: it was used")
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    tp = int(record["strategy"].split()[0].removeprefix("tp"))
    norms = 2 * 4096 * (1 - 1 / tp)
    assert stage["parameters"] == stage["layers"][0] * (layer / tp + norms)
    assert abs(stage["differences"]["peak_allocated_gib"]) < 0.06


def test_plain_torch_needs_no_megatron(plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Case] = []

    def run(cases: list[Case], framework: str, *, gpu: bool) -> list[dict[str, Any]]:
        assert (framework, gpu) == ("torch", True)
        asked.extend(cases)
        return [ran(case) for case in cases]

    monkeypatch.setattr(here, "gpu_here", lambda framework: "NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(here, "run_in_torch", run)
    record = astra_command("rehearse", plan, "--framework", "torch", "--json").record
    assert [case.stage for case in asked] == [0, 2, 3]
    assert record["framework"] == "torch"
    assert any("predicted as megatron-local" in note for note in record["notes"])


def test_plain_torch_without_torch_asks_for_torch_alone(
    plan: str, astra_command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(here, "_there", lambda module: False)
    shown = astra_command("rehearse", plan, "--framework", "torch")
    assert shown.code == 2
    assert "want: torch, which" in shown.err or "torch, which this Python" in shown.err
    assert "torch and megatron-core, which" not in shown.err


@pytest.mark.exhaustive
def test_a_real_rank_in_plain_torch_without_a_gpu(plan: str) -> None:
    """Its parameters are those of the model, and its peak is near what is predicted for fused layers."""
    python = sys.executable if here._there("torch") else str(ROOT / ".venvs" / "torch" / "bin" / "python")
    if not Path(python).exists():
        pytest.skip("torch is not installed: the rehearsal in plain torch was not run")
    paths = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)])
    ended = subprocess.run(
        [python, "-m", "astra", "rehearse", plan, "--stage", "1", "--framework", "torch", "--json"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    record = json.loads(ended.stdout)
    stage = record["stages"][0]
    assert stage["error"] is None
    layer = 4 * 4096 * 4096 + 3 * 4096 * 11008 + 2 * 4096
    tp = int(record["strategy"].split()[0].removeprefix("tp"))
    assert stage["parameters"] == stage["layers"][0] * (layer / tp + 2 * 4096 * (1 - 1 / tp))
    if record["how"] == "fake":
        assert -0.25 < stage["differences"]["peak_allocated_gib"] < 0.02  # unfused layers keep more, never less
