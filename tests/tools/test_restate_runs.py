"""The project's table of published runs, written and read back."""

from __future__ import annotations

from pathlib import Path

import pytest

from astra.validate import table
from astra.validate.runs import Run, Skipped, runs_of
from tools.restate_runs import restate

ROW = {
    "id": "mine-0001", "framework": "megatron", "model_name": "llama2-7b", "layers": "32", "hidden": "4096",
    "ffn": "11008", "heads": "32", "kv_heads": "32", "vocab": "32000", "seq_len": "4096", "gated_mlp": "1",
    "gpu_type": "H100-SXM", "gpu_mem_gb": "80", "num_gpus": "16", "gpus_per_node": "8", "precision": "bf16", "tp": "2",
    "pp": "2", "vp": "1", "cp": "1", "ep": "1", "dp": "4", "sp": "1", "zero_stage_or_dist_opt": "zero1",
    "recompute": "none", "flash_attn": "1", "mbs": "1", "gbs": "64", "measured_step_time_s": "3.5", "oom": "0",
    "task": "pretrain", "intra_node_link": "NVLink4 900GB/s NVSwitch", "inter_node_link": "IB NDR 8x400Gb/s",
    "notes": "",
}  # fmt: skip


def test_restating_and_reading_back_is_the_identity(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = runs_of([
        ROW,
        ROW | {"id": "mine-0002", "gpu_type": "H100-SXM 96GB HBM2e 500W", "gpu_mem_gb": "96"},
        ROW | {"id": "mine-0003", "framework": "megatron-bridge", "task": "lora", "precision": "fp8"},
        ROW | {"id": "mine-0004", "tp": "", "dp": ""},
    ])  # fmt: skip
    lines, shared = restate(rows)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / table.RUNS).write_text(lines, encoding="utf-8")
    (tmp_path / "data" / table.SHARED).write_text(shared, encoding="utf-8")
    monkeypatch.setattr(table, "files", lambda _: tmp_path)
    again = table.published()
    assert again[:3] == rows[:3]
    assert isinstance(again[2], Run)
    assert again[2].request.task == "lora"
    assert isinstance(again[3], Skipped)
