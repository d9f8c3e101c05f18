"""Rows that are no multiple of 16 bytes: products against an H200, and what a vocabulary of 50,257 costs whom."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np
import pytest

import astra
from astra.answer import Estimate
from astra.catalog.hardware import device
from astra.cost.kernels import padded
from astra.operators.gemm import gemm
from astra.spec.model import ModelSpec

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
LAYOUTS = {"forward": "fwd", "input": "dgrad", "weight": "wgrad"}


def measured(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / name).read_text("utf-8"))["rows"]
    return rows


def seconds(way: str, tokens: float, outputs: float, inputs: float, precision: str) -> float:
    m, n, k = {
        "forward": (tokens, outputs, inputs),
        "input": (tokens, inputs, outputs),
        "weight": (inputs, outputs, tokens),
    }[way]
    timed = gemm(device("H200"), m=m, n=n, k=k, precision=precision, layout=LAYOUTS[way])
    return float(timed.seconds)


@pytest.mark.parametrize("size", ["tokens", "outputs", "inputs"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32"])
def test_uneven_products_take_as_long_as_on_an_h200(size: str, precision: str) -> None:
    off = []
    for row in measured("2026-11-16_alignment_h200.json"):
        if (row["size"], row["precision"]) != (size, precision):
            continue
        shape = {name: row[name] for name in ("tokens", "outputs", "inputs")}
        uneven = shape | {size: shape[size] + row["more"]}
        ratio = seconds(row["way"], **uneven, precision=precision) / seconds(row["way"], **shape, precision=precision)
        off.append(ratio / (row["uneven_s"] / row["even_s"]))
    assert len(off) == 126
    assert math.exp(np.mean(np.abs(np.log(off)))) < 1.15
    assert 0.93 < geometric_mean(off) < 1.12


@pytest.mark.parametrize("hidden", [768, 1600, 4096])
@pytest.mark.parametrize("vocab", [50257, 50258, 50260, 50264])
def test_projections_to_odd_vocabularies_lose_what_they_lose_on_an_h200(hidden: int, vocab: int) -> None:
    """Measured with the loss, which takes the same time for any vocabulary: compare what is added. None was fitted."""
    rows = {row["vocab"]: row for row in measured("2026-11-16_aligned_heads_h200.json") if row["hidden"] == hidden}
    tokens = float(rows[vocab]["tokens"])

    def products_s(columns: float) -> float:
        return sum(seconds(way, tokens, columns, hidden, "bf16") for way in LAYOUTS)

    even_s = rows[50304]["eager"]
    added_s = products_s(vocab) - products_s(50304)
    assert even_s + added_s == pytest.approx(rows[vocab]["eager"], rel=0.25)
    m, n, k, one = (np.array([float(each)]) for each in (tokens, vocab, hidden, 1))
    _, _, copies = padded(device("H200"), "bf16", m, n, k, one)
    added_s = sum(float(np.max(each)) for each in copies)
    assert rows[50304]["compiled"] + added_s == pytest.approx(rows[vocab]["compiled"], rel=0.1)


@pytest.mark.parametrize(("n", "k"), [(4096, 1001), (1001, 4096), (1001, 1003)])
def test_what_is_padded_is_read_and_written_once(n: int, k: int) -> None:
    """Forward reads rows of inputs and of weights, backward of gradients: those of an odd length are copied."""
    gpu, m = device("H200"), 8192
    _, _, (forward_s, backward_s, _) = padded(gpu, "bf16", *(np.array([float(size)]) for size in (m, n, k, 1)))
    for copies_s, numbers in ((forward_s, n * k + (m * k if k % 8 else 0)), (backward_s, m * n if n % 8 else 0)):
        least_s = 2 * 2 * numbers / gpu.memory_bytes_per_s
        assert least_s <= float(np.max(copies_s)) <= 1.5 * least_s + 1e-5


def test_each_expert_has_copies_of_its_own() -> None:
    m, n, k, one, four = (np.array([float(size)]) for size in (8192, 4096, 1001, 1, 4))
    alone, together = (padded(device("H200"), "bf16", m, n, k, groups)[2][:2] for groups in (one, four))
    for alone_s, together_s in zip(alone, together, strict=True):
        assert float(np.max(together_s)) == pytest.approx(4 * float(np.max(alone_s)))
    assert float(np.max(alone[0])) > 0


def step(vocab: int, runtime: str) -> Estimate:
    strategy = "dp8 mbs8 zero3" if runtime != "megatron" else "dp8 mbs8 zero1"
    model = ModelSpec(
        name="small", family="decoder", layers=12, hidden=768, ffn=3072, heads=12, kv_heads=12, head_dim=64,
        vocab=vocab, max_seq=1024, source="a test",
    )  # fmt: skip
    found = astra.estimate(model, strategy=strategy, gpus="8xH100", batch=64, seq=1024, runtime=runtime)
    assert isinstance(found, Estimate)
    return found


def test_a_vocabulary_nobody_pads_is_slow_and_advised_against() -> None:
    odd, even = step(50257, "fsdp"), step(50304, "fsdp")
    assert odd.step_s > 1.2 * even.step_s
    assert any("pad it to a multiple of 64" in warning for warning in odd.warnings)
    assert not any("pad it" in warning for warning in even.warnings)


def test_megatron_pads_the_vocabulary_and_a_compiler_its_products() -> None:
    assert step(50257, "megatron").step_s == pytest.approx(step(50304, "megatron").step_s, rel=1e-4)
    odd, even = step(50257, "torchtitan"), step(50304, "torchtitan")
    assert even.step_s < odd.step_s < 1.2 * even.step_s
    assert not any("pad it" in warning for warning in [*odd.warnings, *step(50257, "megatron").warnings])
