"""Image encoders beside language models: counted weights and products, memory, and who can train them."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import astra
from astra.catalog.models import model
from astra.catalog.runtimes import runtime
from astra.errors import InputError
from astra.layers import ends
from astra.layers.blocks import tower
from astra.layers.weights import count, forward_flops_per_token
from astra.rules.can import unable
from astra.spec.model import ModelSpec, Tower
from astra.spec.workload import Workload
from astra.units import GIB
from tests.layers.test_operators import shard
from tests.oracle.requests import model as tiny

SEQ = 512


def small(**changes: Any) -> Tower:
    usual: dict[str, Any] = {
        "layers": 3, "hidden": 64, "ffn": 128, "heads": 4, "patch": 8, "image": 64, "merge": 2,
        "connector": (256, 128), "share": 0.25, **changes,
    }  # fmt: skip
    return Tower(**usual)


def test_products_are_two_flops_a_weight_for_each_patch_and_token() -> None:
    it = small(window=4, full_layers=1)
    spec = tiny("dense", hidden=128, heads=4, tower=it)
    layer = tower.operators(spec, shard(SEQ, mbs=2))
    assert layer is not None
    made = 2 * SEQ * it.share  # tokens of images in the micro-batch
    weights = {t.name: t.parameters for t in tower.tensors(spec) if t.matmul}
    rows = {name: made if "connector" in name else made * it.merge**2 for name in weights}
    products = sum(2 * rows[name] * size for name, size in weights.items())
    assert sum(float(np.sum(2.0 * g.groups * g.m * g.n * g.k)) for g in layer.gemms) == products
    # Two layers see windows of 4 patches, one the whole image of 64; every patch sees as many as there are in it.
    seen = sum(float(np.sum(4 * a.batch * a.heads * a.seq_q * a.seq_kv * a.head_dim)) for a in layer.attentions)
    assert seen == 4 * made * it.merge**2 * it.hidden * (64 + 2 * 4)
    assert tower.flops_per_token(spec) * 2 * SEQ == pytest.approx(products + seen)


def test_it_is_counted_beside_the_language_model() -> None:
    with_images, alone = model("gemma-3-12b-vl"), model("gemma-3-12b")
    assert count(with_images).total - count(alone).total == sum(t.parameters for t in tower.tensors(with_images))
    more = forward_flops_per_token(with_images, SEQ) - forward_flops_per_token(alone, SEQ)
    assert more == pytest.approx(tower.flops_per_token(with_images))
    assert tower.flops_per_token(showing(0.0)) == 0


def showing(share: float) -> ModelSpec:
    """A catalog model with so many of a sample's tokens from images."""
    spec = model("qwen3-vl-8b")
    assert spec.tower is not None
    return msgspec.structs.replace(spec, tower=msgspec.structs.replace(spec.tower, share=share))


def kept_bytes(share: float) -> float:
    layer = tower.operators(showing(share), shard(4096))
    assert layer is not None
    return float(layer.kept.whole[0])


def test_its_activations_are_kept_on_the_first_stage_alone() -> None:
    """With more images the first stage needs more memory by what they keep, and a pipeline's other stages do not."""
    strategy = "tp1 pp2 dp8 mbs1 zero1 recompute=none"
    few, many = (
        astra.estimate(showing(share), gpus="16xH100", batch=32, runtime="megatron-bridge", strategy=strategy)
        for share in (0.05, 0.1)
    )
    first, last = (many.stages[n].memory["activations"] - few.stages[n].memory["activations"] for n in (0, 1))
    # Two micro-batches are under way on the first stage.
    assert first == pytest.approx(2 * (kept_bytes(0.1) - kept_bytes(0.05)) / GIB, rel=0.01)
    assert last == 0
    assert many.step_s > few.step_s


def test_a_model_without_images_has_none() -> None:
    spec = tiny("dense")
    assert tower.tensors(spec) == []
    assert tower.operators(spec, shard(SEQ)) is None
    assert not ends.embedding(spec, shard(SEQ)).attentions


@pytest.mark.parametrize(
    ("name", "able"),
    [
        ("qwen3-vl-8b", {"megatron-bridge", "nemo", "fsdp-eager", "deepspeed"}),
        ("llama-4-scout-vl", {"nemo", "fsdp-eager", "deepspeed"}),
    ],
)  # fmt: skip
def test_only_frameworks_with_image_encoders_train_them(name: str, able: set[str]) -> None:
    work = Workload(global_batch=8, seq=SEQ)
    every = ("megatron", "megatron-bridge", "nemo", "torchtitan", "fsdp-eager", "deepspeed")
    assert {each for each in every if not unable(runtime(each), model(name), work)} == able


@pytest.mark.parametrize(
    "changes",
    [{"heads": 5}, {"image": 60}, {"share": 1.5}, {"connector": (64,)}, {"full_layers": 4}, {"layers": 0}],
    ids=str,
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="tower"):
        small(**changes)
    with pytest.raises(InputError, match=r"model\.tower"):
        tiny("dense", hidden=64, heads=4, tower=small())  # the connector ends at another width
