"""Sequences packed of samples: attention stops at their ends, all else is as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import astra
from astra.cost.parts import Part, parts
from astra.layers.block import LayerKind
from astra.layers.weights import attention_flops_per_token, forward_flops_per_token
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.request import PlanRequest
from tests.layers.test_operators import shard
from tests.oracle.requests import model
from tests.properties.jobs import job, with_work

ASKED: dict[str, Any] = {
    "model": "llama-3-8b", "gpus": "8xH100", "batch": 32, "seq": 8192, "task": "finetune", "runtime": "megatron"
}  # fmt: skip
STRATEGY = "tp2 mbs1 sp zero1"


def layer(asked: Job, seq: int, *, packed: int = 0, flash: bool = True) -> Part:
    """One layer of a job's sequences."""
    split = shard(seq)._replace(packed=packed, flash=np.array([flash]))
    return next(part for key, part in parts(asked, split).items() if isinstance(key, LayerKind))


@pytest.mark.parametrize("kind", ["dense", "moe", "mla"])
def test_packed_samples_attend_as_a_batch_of_them(kind: str) -> None:
    """A sequence of eight samples does what eight sequences do; its products are those of one."""
    asked = with_work(msgspec.structs.replace(job(2), model=model(kind)), task="pretrain", precision="bf16")
    whole, packed, short = layer(asked, 8192), layer(asked, 8192, packed=1024), layer(asked, 1024)
    for each, of, alone in ((packed.forward, whole.forward, short.forward), (packed.backward, whole.backward,
                            short.backward)):  # fmt: skip
        assert each.gemm_s == of.gemm_s
        assert alone.attention_s < each.attention_s < min(of.attention_s, 8 * alone.attention_s * 1.01)
    assert packed.kept.whole == whole.kept.whole


def test_samples_as_long_as_the_sequence_are_the_sequence() -> None:
    asked = with_work(msgspec.structs.replace(job(2), model=model("dense")), task="pretrain", precision="bf16")
    assert layer(asked, 4096, packed=4096).forward.attention_s == layer(asked, 4096).forward.attention_s


def test_unfused_attention_computes_what_it_masks() -> None:
    asked = with_work(msgspec.structs.replace(job(2), model=model("dense")), task="pretrain", precision="bf16")
    masked = layer(asked, 4096, packed=256, flash=False)
    assert masked.forward.attention_s == layer(asked, 4096, flash=False).forward.attention_s


def test_shorter_samples_take_less_time_and_as_much_memory() -> None:
    found = [astra.estimate(**ASKED, strategy=STRATEGY, packed=packed) for packed in (0, 8192, 2048, 206)]
    assert found[0].step_s == found[1].step_s > found[2].step_s > found[3].step_s
    assert len({each.peak_allocated_gib for each in found}) == 1


def test_model_flops_are_of_the_samples() -> None:
    """The attention that is not done is not counted either."""
    world = World.of(PlanRequest(model="llama-3-8b", gpus=("8xH100",), batch=32, seq=8192, packed=1024))
    less = forward_flops_per_token(world.model, 8192) - forward_flops_per_token(world.model, 1024)
    assert less == attention_flops_per_token(world.model, 8192) - attention_flops_per_token(world.model, 1024)
    plain, packed = (astra.estimate(**ASKED, strategy=STRATEGY, packed=tokens) for tokens in (0, 1024))
    done = packed.model_tflops_per_gpu / packed.tokens_per_s_per_gpu * 1e12
    whole = plain.model_tflops_per_gpu / plain.tokens_per_s_per_gpu * 1e12
    assert whole - done == pytest.approx(3 * less)


def test_plans_of_packed_sequences_are_as_estimated() -> None:
    found = astra.plan(**ASKED, packed=512, top=1).best
    again = astra.estimate(**ASKED, packed=512, strategy=found.strategy)
    assert again.step_s == pytest.approx(found.estimate.step_s, rel=1e-9)
    assert found.estimate.step_s < astra.plan(**ASKED, top=1).best.estimate.step_s


def test_images_are_not_packed() -> None:
    asked: dict[str, Any] = {"model": "vit-h-14", "gpus": "8xH100", "batch": 256}
    plain, packed = (astra.plan(**asked, packed=tokens, top=1) for tokens in (0, 64))
    assert packed.best.estimate.step_s == plain.best.estimate.step_s
    assert any("--packed changes nothing" in note for note in packed.notes)
