"""Ranks counted over tensors without data by the frameworks themselves, held to arithmetic that needs no cost model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from astra.lab.rehearse import here
from astra.lab.rehearse.case import Case, write_cases
from astra.spec.model import MLA, ModelSpec, MoE
from astra.spec.strategy import parse_strategy

ROOT = Path(__file__).resolve().parents[2]
LAYERS, TOKENS, RANKS = 2, 512, 8
DENSE = ModelSpec(
    name="toy", layers=LAYERS, hidden=256, ffn=512, heads=8, kv_heads=4, head_dim=32, vocab=5120, max_seq=4096
)
LATENT = replace(
    DENSE, name="toy-latent", kv_heads=8, moe=MoE(experts=8, topk=2, ffn=128, shared_ffn=128, first_dense=1),
    mla=MLA(q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32),
)  # fmt: skip
LAYER = 256 * (2 * 256 + 2 * 128) + 3 * 256 * 512 + 2 * 256
PARAMETERS = LAYERS * LAYER + 2 * 256 * 5120 + 256


def python(name: str, *modules: str) -> str:
    """An interpreter with a framework: this one, or that of the framework tests."""
    if all(here._there(module) for module in modules):
        return sys.executable
    other = ROOT / ".venvs" / name / "bin" / "python"
    if not other.exists():
        pytest.skip(f"{' and '.join(modules)} not installed: nothing was counted")
    return str(other)


def counted(interpreter: str, module: str, cases: list[Case]) -> list[dict[str, Any]]:
    paths = os.pathsep.join([str(ROOT / "src"), *(path for path in sys.path if path)])
    settings = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ended = subprocess.run(
        [interpreter, "-m", f"astra.lab.rehearse.{module}"], input=write_cases(cases), capture_output=True, text=True,
        env={**os.environ, **settings}, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-2000:]
    rows: list[dict[str, Any]] = json.loads(ended.stdout)
    assert [row.get("error") for row in rows] == [None] * len(rows)
    return rows


def case(words: str, model: ModelSpec = DENSE, **more: Any) -> Case:
    return Case(model=model, strategy=parse_strategy(words), seq=TOKENS, **more)


@pytest.mark.exhaustive
def test_fsdp2_shards_everything_and_keeps_what_autograd_needs() -> None:
    fsdp2: dict[str, Any] = {"framework": "fsdp2", "microbatches": 1}
    eager, compiled, kept, again = counted(
        python("torch", "torch"),
        "fsdp_rank",
        [
            case(f"dp{RANKS} zero3", **fsdp2),
            case(f"dp{RANKS} zero3", **fsdp2, compiled=True),
            case(f"dp{RANKS} zero2", **fsdp2),
            case(f"dp{RANKS} zero3 recompute=full", **fsdp2),
        ],
    )
    assert {row["params"] for row in (eager, compiled, kept, again)} == {PARAMETERS}
    grains = 16 * 512 * LAYERS * 12  # every tensor is rounded up
    assert 0 <= eager["static_bytes"] - 16 * PARAMETERS / RANKS < grains + 1e5  # fp32 weight, gradient, two moments
    # The loss is the fullest moment: kept weights are there, and compiled layers lack the activation of the gate and
    # two of the three fp32 copies of the logits.
    peak = {name: row["peak_allocated_bytes"] for name, row in (("eager", eager), ("kept", kept), ("again", again))}
    assert peak["kept"] - peak["eager"] == pytest.approx(2 * (LAYERS * LAYER + 256 * 5120), rel=0.01)
    fused = LAYERS * 2 * TOKENS * 512 + 8 * TOKENS * 5120
    assert peak["eager"] - compiled["peak_allocated_bytes"] == pytest.approx(fused, rel=0.05)
    assert peak["again"] < peak["eager"]


@pytest.mark.exhaustive
def test_megatron_shards_more_with_each_stage_and_knows_latent_attention() -> None:
    whole, gradients, weights, moments, latent = counted(
        python("megatron", "torch", "megatron.core"),
        "fake",
        [
            case(f"dp{RANKS} zero1"),
            case(f"dp{RANKS} zero2"),
            case(f"dp{RANKS} zero3"),
            case(f"dp{RANKS} zero1 moments=bf16"),
            case("tp2 dp4 ep4 sp zero1 offload=optimizer recompute=selective:core_attn,layernorm", LATENT),
        ],
    )
    assert {row["params"] for row in (whole, gradients, weights)} == {PARAMETERS}
    assert whole["built_bytes"] - gradients["built_bytes"] == pytest.approx(PARAMETERS * 4 * (1 - 1 / RANKS), rel=0.05)
    assert gradients["built_bytes"] - weights["built_bytes"] == pytest.approx(
        PARAMETERS * 2 * (1 - 1 / RANKS), rel=0.05
    )
    assert whole["static_bytes"] - moments["static_bytes"] == pytest.approx(4 * PARAMETERS / RANKS, rel=0.02)
    # Without the optimizer's 12 bytes over its replicas (4, or 2 of an expert): weights, gradients, the gather buffer.
    assert 6 <= latent["static_bytes"] / latent["params"] < 6.3


@pytest.mark.exhaustive
def test_exchanges_hide_by_megatrons_own_schedule() -> None:
    """Which holds part of a second micro-batch more; a deeper model may follow another in one process."""
    shown, hidden, deeper = counted(
        python("megatron", "torch", "megatron.core"),
        "fake",
        [
            case("pp2 vp2 dp4 ep4 zero1 overlap=grad,param", replace(LATENT, layers=4)),
            case("pp2 vp2 dp4 ep4 zero1 overlap=grad,param,ep", replace(LATENT, layers=4)),
            case("pp2 vp2 dp4 ep4 zero1 overlap=grad,param,ep", replace(LATENT, layers=12)),
        ],
    )
    assert (shown["overlaps_experts"], hidden["overlaps_experts"]) == (False, True)
    assert shown["params"] == hidden["params"] < deeper["params"]
    layers = (shown["peak_allocated_bytes"] - shown["static_bytes"]) / 2
    assert 0 < hidden["peak_allocated_bytes"] - shown["peak_allocated_bytes"] < layers


@pytest.mark.exhaustive
def test_transformers_keeps_norms_in_fp32_and_pads_few_experts() -> None:
    """Against layers with torch's norms, and against experts that all ranks have one of."""
    wide = replace(DENSE, name="toy-wide", hidden=2048, head_dim=256)
    deep, few = replace(wide, layers=6), replace(DENSE, name="toy-experts", moe=MoE(experts=4, topk=2, ffn=2048))
    plain = counted(
        python("torch", "torch"),
        "fsdp_rank",
        [case("dp8 zero3", each, framework="fsdp2", microbatches=1) for each in (wide, deep)],
    )
    theirs = counted(
        python("bridge", "torch", "transformers"),
        "transformers_rank",
        [
            case(f"dp{ranks} zero3", each, framework="transformers", microbatches=1)
            for ranks, each in ((8, wide), (8, deep), (4, few), (8, few))
        ],
    )
    assert [row["params"] for row in theirs[:2]] == [row["params"] for row in plain]
    # What four layers more keep: each of eight norms its input in fp32, and what comes out before the weight.
    more = [(rows[1]["peak_allocated_bytes"] - rows[0]["peak_allocated_bytes"]) for rows in (theirs, plain)]
    assert more[0] - more[1] == pytest.approx(8 * 4 * TOKENS * 2048, rel=0.1)
    # Twice as many ranks, half of them without an expert: as many are gathered again, of one layer and the next.
    even, padded = (row["peak_allocated_bytes"] for row in theirs[2:])
    assert padded - even == pytest.approx(2 * 2 * 4 * 3 * 256 * 2048, rel=0.35)
