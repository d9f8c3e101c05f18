"""Layers that nobody fused, against the same layers run on an H200 (benchmarks/eager_layers.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from astra.catalog.models import model as find_model
from astra.cost.parts import Direction, Part
from astra.cost.stage import gather_parts
from astra.search.world import World
from astra.spec.request import PlanRequest

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "2026-11-16_eager_layers_h200.json"
SHORTEST = 1024  # tokens: shorter layers are there for the host's time


def layer(row: dict[str, Any]) -> Part:
    """The same layer as the cost model has it."""
    sizes = {"hidden": row["hidden"], "ffn": 4 * row["hidden"], "heads": row["heads"], "kv_heads": row["heads"]}
    sizes |= {"head_dim": row["hidden"] // row["heads"], "max_seq": row["seq"], "learned_positions": row["seq"]}
    model = msgspec.structs.replace(find_model("gpt2"), layers=4, **sizes)
    asked: dict[str, Any] = {
        "batch": 8 * row["batch"],
        "seq": row["seq"],
        "precision": row["precision"],
        "runtime": "deepspeed",
    }
    job = World.of(PlanRequest(model=model, gpus=("8xH200",), **asked)).job
    one, no = np.array([1]), np.array([False])
    degrees = {"tp": np.array([row["tp"]]), "mbs": np.array([row["batch"]]), "cp": one, "ep": one, "etp": one}
    gathered = gather_parts(job, degrees | {"sp": no, "flash": no, "overlap_tp": no})
    return next(part for key, part in gathered.parts.items() if not isinstance(key, str))


def gpu_s(way: Direction) -> float:
    return float((way.gemm_s + way.attention_s + way.stream_s)[0])


def rows() -> list[dict[str, Any]]:
    return [row for row in json.loads(MEASURED.read_text())["rows"] if row["seq"] >= SHORTEST]


def test_kernels_of_unfused_layers_take_what_they_take_on_an_h200() -> None:
    errors = []
    for row in rows():
        kernels = [seconds for name, seconds in row.items() if name.startswith("both_") and name.endswith("_s")]
        measured_s = sum(kernels) - row["both_s"] - row["both_host_s"]
        part = layer(row)
        errors.append((gpu_s(part.forward) + gpu_s(part.backward)) / measured_s - 1)
    assert np.mean(np.abs(errors)) < 0.04
    assert np.max(np.abs(errors)) < 0.10


def test_the_host_takes_as_long_to_issue_them() -> None:
    bound = [row for row in rows() if row["both_host_s"] > 0.98 * row["both_s"]]  # the GPU waits for the host
    part = layer(bound[0])
    measured_s = np.median([row["both_host_s"] for row in bound])
    assert float((part.forward.host_s + part.backward.host_s)[0]) == pytest.approx(measured_s, rel=0.15)
