"""Ways to scale quantised operands, against what a GPU was measured to do."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

import astra
from astra import api
from astra.answer import Estimate
from astra.cost.layers import core_casts
from astra.cost.low import SCALINGS, core_cast_bytes, qkv_bytes
from astra.layers.operators import Attention

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@pytest.mark.parametrize("way", ["rowwise", "blockwise"])
def test_finer_scales_slow_a_product_as_they_were_measured_to(way: str) -> None:
    measured = json.loads(max(RESULTS.glob("*_quantised_h200.json")).read_text(encoding="utf-8"))["slower"]
    assert SCALINGS[f"fp8-{way}"].slower == pytest.approx(measured[way], rel=0.01)
    assert SCALINGS[f"fp8-{way}"].slower < measured["bf16"], "else nobody would quantise"


def estimated(model: str, gpus: str, strategy: str, precision: str = "mxfp8") -> Estimate:
    return astra.estimate(
        model, gpus=gpus, batch=1024, seq=4096, precision=precision, runtime="megatron-bridge", strategy=strategy
    )


LATENT = "tp1 pp2 vp4 ep32 dp32 mbs1 zero1 overlap=grad,param,p2p,ep dispatch=hybridep graphs=full"
WINDOWED = "tp1 pp1 ep16 dp64 mbs4 zero1 overlap=grad,param,ep dispatch=hybridep graphs=full"


def test_attention_in_fp8_helps_wide_heads_and_not_a_window() -> None:
    """By what cuDNN's kernels were measured to take: 0.73 and 0.77 of bf16's time, and 4.5 times behind a window."""
    narrow, wide = (estimated("deepseek-v3", "64xGB300", f"{LATENT} attention={word}") for word in ("fp8", "bf16"))
    assert 0.9 * wide.step_s < narrow.step_s < wide.step_s
    narrow, wide = (estimated("gpt-oss-120b", "64xGB300", f"{WINDOWED} attention={word}") for word in ("fp8", "bf16"))
    assert wide.step_s < narrow.step_s < 1.3 * wide.step_s


def test_attention_in_fp8_keeps_its_quantised_copies_alone() -> None:
    """Both layouts in mxfp8 with their scales, which is 1/16 more than bf16 (TransformerEngine's FusedAttnFunc).

    Qwen3 30B: 48 layers of 32 heads of 128 and 4 of keys and values, 4,096 tokens each of a micro-batch, one in flight.
    """
    text = "tp1 pp1 ep8 dp8 mbs1 zero1 overlap=grad,param dispatch=hybridep graphs=full attention="
    narrow, wide = (estimated("qwen3-30b-a3b", "8xGB200", text + word).peak_allocated_gib for word in ("fp8", "bf16"))
    queries, keys = 32 * 128, 4 * 128
    more = (2 * 33 / 32 - 2) * (queries + 2 * keys)
    assert (narrow - wide) * 2**30 == pytest.approx(48 * 4096 * more, rel=0.01)


@pytest.mark.parametrize(
    ("model", "gpus", "precision"),
    [
        ("qwen3-30b-a3b", "8xH100", "fp8"),
        ("qwen3-30b-a3b", "8xGB200", "bf16"),
        ("qwen3-30b-a3b", "8xGB200", "nvfp4"),
        ("qwen3-next-80b-a3b", "64xGB200", "mxfp8"),  # heads of 256
    ],
)
def test_attention_in_fp8_is_refused_where_it_has_no_kernel(model: str, gpus: str, precision: str) -> None:
    found = estimated(model, gpus, "ep8 mbs1 zero1 graphs=none attention=fp8", precision)
    assert any("attention in fp8 is of B200" in reason for reason in found.violations)


def test_every_number_that_goes_into_attention_is_cast_once() -> None:
    """Queries, keys and values in forward, in backward the gradient of what came out; keys are of fewer heads."""
    asked = api.make_job("qwen3-30b-a3b", gpus="8xGB200", batch=64, precision="mxfp8")
    asked = msgspec.structs.replace(asked, settled=msgspec.structs.replace(asked.words, attention="fp8"))

    def elements(kv_heads: int) -> list[float]:
        one = np.ones(1)
        core = Attention("core", 2 * one, 4096 * one, 4096 * one, 32 * one, kv_heads * one, 128, 64, True, None)
        return [float(stream.elements[0]) for stream in core_casts(asked, (core,))]

    queries, keys, values, gradient = elements(32)
    assert queries == keys == 2 * values == 2 * gradient
    assert elements(4) == [queries, keys / 8, values / 8, gradient]


@pytest.mark.parametrize(("gpu", "precision"), [("GB200", "mxfp8"), ("H100", "fp8")])
def test_a_cast_for_attention_reads_its_tensor_and_writes_what_is_kept(gpu: str, precision: str) -> None:
    """No more than once again for the maximum of all, and no less than both bytes of a number in bf16."""
    asked = api.make_job("llama-3.1-8b", gpus=f"8x{gpu}", batch=64, precision=precision)
    assert 2 <= core_cast_bytes(asked) - qkv_bytes(asked) <= 2 + 2
    assert 1 <= qkv_bytes(asked) <= 2.1  # one byte, or two layouts with a scale for every 32 numbers
