"""``astra profile``: what it needs, what it shows. The measuring itself needs a GPU."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from astra.lab.profile import collectives
from astra.lab.profile import run as profiler
from astra.lab.profile.plan import Store, all_rows, row_key
from astra.lab.profile.summary import summarize
from tests.cli.conftest import Shown

Command = Callable[..., Shown]
ROOT = Path(__file__).parents[2]


def torch_that_sees(monkeypatch: pytest.MonkeyPatch, gpu: bool) -> None:
    cuda = SimpleNamespace(is_available=lambda: gpu, device_count=lambda: int(gpu))
    torch = SimpleNamespace(__version__="9.9", cuda=cuda)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "torch", torch)


def test_without_torch_it_says_what_to_install(
    astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shown = astra_command("profile", "--out", str(tmp_path / "p.json"))
    assert shown.code == 2
    assert "astra-planner[gpu]" in shown.err
    assert "Traceback" not in shown.err
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_it_says_so(astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torch_that_sees(monkeypatch, gpu=False)
    shown = astra_command("profile", "--quick", "--out", str(tmp_path / "p.json"))
    assert shown.code == 2
    assert "torch 9.9 sees none" in shown.err


def test_a_file_that_is_there_is_only_gone_on_with_when_asked(
    astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_that_sees(monkeypatch, gpu=True)
    path = tmp_path / "p.json"
    store = measured(path)
    monkeypatch.setattr(profiler, "run_profile", lambda *_, **__: store)
    refused = astra_command("profile", "--quick", "--out", str(path))
    assert refused.code == 2
    assert "--resume" in refused.err
    assert astra_command("profile", "--quick", "--out", str(path), "--resume").code == 0


def measured(path: Path) -> Store:
    """A small profile with round numbers."""
    store = Store(path, key="key")
    store.header.update(gpu="toy", driver="1", torch="9.9", date="2026-11-15")
    gemm = {"op": "gemm", "precision": "bf16", "m": 8192, "n": 8192, "k": 8192}
    head = {"op": "attention", "causal": True, "batch": 1, "heads": 1, "head_dim": 64, "head_dim_v": 64}
    rows: list[dict[str, Any]] = [
        {"op": "sustained", "burst_flops_per_s": 8e14, "sustained_flops_per_s": 6e14},
        {"op": "launch", "name": "mm", "seconds": 5e-6},
        {**gemm, "layout": "fwd", "seconds": 2 * 8192**3 / 5e14},
        {**gemm, "layout": "fwd", "seconds": 2 * 8192**3 / 7e14},
        {**gemm, "layout": "fwd", "m": 64, "seconds": 1.0},  # too small to say anything of the GPU
        {**head, "seq_q": 8192, "seq_kv": 8192, "kernel": "flash", "direction": "bwd",
         "seconds": 2.5 * 128 * 8192**2 / 3e14},
        {"op": "streaming", "name": "copy", "nbytes": 4e9, "seconds": 1e-3},
        {"op": "streaming", "name": "copy", "error": "refused"},
        {"op": "collective", "collective": "all_reduce", "ranks": 8, "stride": 1, "bytes": 2**30,
         "seconds": 2**30 / 2e11},
    ]  # fmt: skip
    for place, row in enumerate(rows):
        store.add({"key": str(place), **row})
    return store


def test_the_summary(tmp_path: Path) -> None:
    store = measured(tmp_path / "p.json")
    found = summarize(store.header, store.rows, file="p.json", planned=9)
    assert found.gemm["bf16 fwd"].rows == 2
    assert found.gemm["bf16 fwd"].best_per_s == pytest.approx(7e14)
    assert found.gemm["bf16 fwd"].median_per_s == pytest.approx(6e14)
    assert found.attention["flash bwd"].best_per_s == pytest.approx(3e14)
    assert found.memory["copy"].median_per_s == pytest.approx(4e12)
    assert found.collectives["all_reduce of 8"].best_per_s == pytest.approx(1.75 * 2e11)
    assert (found.rows, found.planned, found.refused) == (9, 9, 1)
    text = found.draw(100, False)
    for words in (
        "toy",
        "mm 5.0 us",
        "sustained 600 TFLOP/s, 0.75 of the first 0.2 s (800)",
        "9 of 9 rows in p.json, 1 refused",
    ):
        assert words in text


def test_one_gpu_and_missing_packages_are_said(tmp_path: Path) -> None:
    store = measured(tmp_path / "p.json")
    header = store.header | {"packages": {"flash_attn": None, "transformer_engine": "2.5"}, "gpus": 1}
    alone = [row for row in store.rows if row["op"] != "collective"]
    found = summarize(header, alone, file="p.json", planned=9)
    assert found.not_measured == ["flash_attn: not installed", "collectives between GPUs: there is one GPU here"]
    assert "not measured: collectives between GPUs: there is one GPU here" in found.draw(100, False)
    failed = summarize(header | {"gpus": 8}, alone, file="p.json", planned=9).not_measured
    assert failed[1] == "collectives between GPUs: the processes on the 8 GPUs here did not finish"


def test_several_gpus_are_profiled_by_torchrun(
    astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_that_sees(monkeypatch, gpu=True)
    sys.modules["torch"].cuda.device_count = lambda: 8
    asked: list[Any] = []
    monkeypatch.setattr(collectives, "launch", lambda *given, **how: asked.append((given, how)))
    store = measured(tmp_path / "other.json")
    monkeypatch.setattr(profiler, "run_profile", lambda *_, **__: store)
    path = str(tmp_path / "p.json")
    assert astra_command("profile", "--quick", "--out", path).code == 0
    assert asked == [((8, path), {"quick": True})]


def test_a_process_of_torchrun_other_than_the_first_has_no_answer(
    astra_command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch_that_sees(monkeypatch, gpu=True)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    asked: list[Any] = []
    monkeypatch.setattr(collectives, "run_collectives", lambda *given, **_: asked.append(given))
    with pytest.raises(SystemExit) as ended:
        astra_command("profile", "--out", str(tmp_path / "p.json"))
    assert ended.value.code == 0
    assert asked == [(str(tmp_path / "p.json"),)]


def test_the_published_profile_is_summed_up() -> None:
    document = json.loads((ROOT / "benchmarks/results/2026-11-15_profile_h200.json").read_text())
    rows = document.pop("rows")
    found = summarize(document, rows, file="x", planned=len(rows))
    assert found.gpu == "NVIDIA H200"
    assert 700e12 < found.gemm["bf16 fwd"].median_per_s < 740e12  # docs/profile.md
    assert 4.0e12 < found.memory["copy"].best_per_s < 4.8e12  # the H200 has 4.8 TB/s


def test_finished_rows_survive_an_interrupt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Watch:
        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            return None

        def summary(self) -> None:
            return None

    done: list[str] = []

    def one(_: Any, row: dict[str, Any]) -> dict[str, Any]:
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(row_key(row))
        return {"key": done[-1], **row, "seconds": 1.0}

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(profiler, "describe_gpu", lambda _: {"gpu": "toy"})
    monkeypatch.setattr(profiler, "ClockWatch", Watch)
    monkeypatch.setattr(profiler, "own_stream", lambda _: Watch())
    monkeypatch.setattr(profiler, "_one", one)
    path = tmp_path / "p.json"
    with pytest.raises(KeyboardInterrupt):
        profiler.run_profile(path, quick=True, sustain_s=0)
    assert [row["key"] for row in json.loads(path.read_text())["rows"]] == done
    seen: list[float] = []
    done_before = len(done)
    monkeypatch.setattr(profiler, "_one", lambda _, row: {"key": row_key(row), **row, "seconds": 1.0})
    store = profiler.run_profile(path, quick=True, sustain_s=0, progress=seen.append)
    assert len(store.rows) == len(all_rows(True))
    assert seen == sorted(seen)
    assert seen[0] == pytest.approx(done_before / len(store.rows))
