"""Memory against published counts: activations of a layer, states of a parameter, micro-batches in flight."""

from __future__ import annotations

from typing import Any

import pytest

import astra
from astra.layers.weights import count
from astra.units import GIB
from tests.laws.models import HEADS, HIDDEN, MBS, SEQ, gpt, told

SBH = SEQ * MBS * HIDDEN
SCORES = HEADS * SEQ / HIDDEN  # as/h
# Korthikanti et al. 2022 (arXiv 2205.05198) count dropout masks of a byte an element, which modern recipes do not have:
# one of the attention scores, as/h, which tensor parallelism splits, and two of the stream, which it does not.
STREAM_MASKS, SCORE_MASK = 2, SCORES
LLAMA_2_7B = 6_738_415_616  # parameters of the published checkpoint


def layer_bytes(strategy: str, runtime: str) -> float:
    """Activations that one more layer keeps, in units of sbh."""
    few, more = (
        told(gpt(layers), f"{strategy} mbs{MBS} flash=off", runtime=runtime).stages[0].memory["activations"]
        for layers in (2, 4)
    )
    return (more - few) * GIB / 2 / SBH


@pytest.mark.parametrize("runtime", ["megatron", "megatron-apex"])
@pytest.mark.parametrize("t", [2, 4, 8])
def test_korthikanti_2022_activations_of_a_layer(t: int, runtime: str) -> None:
    """Table 2 of the paper, row by row."""
    dp = 8 // t
    assert layer_bytes("tp1 dp8 recompute=none", runtime) == pytest.approx(
        34 + 5 * SCORES - STREAM_MASKS - SCORE_MASK, rel=1e-9
    )
    assert layer_bytes(f"tp{t} dp{dp} recompute=none", runtime) == pytest.approx(
        10 + 24 / t + 5 * SCORES / t - STREAM_MASKS - SCORE_MASK / t, rel=1e-9
    )
    assert layer_bytes(f"tp{t} dp{dp} sp recompute=none", runtime) == pytest.approx(
        (34 + 5 * SCORES - STREAM_MASKS - SCORE_MASK) / t, rel=1e-9
    )
    assert layer_bytes(f"tp{t} dp{dp} recompute=selective", runtime) == pytest.approx(
        10 + 24 / t - STREAM_MASKS, rel=1e-9
    )
    assert layer_bytes(f"tp{t} dp{dp} sp recompute=selective", runtime) == pytest.approx(
        (34 - STREAM_MASKS) / t, rel=1e-9
    )
    assert layer_bytes(f"tp{t} dp{dp} recompute=full", runtime) == pytest.approx(2, rel=1e-9)


@pytest.mark.parametrize(("v", "times"), [(2, 1 + 3 / (4 * 2)), (4, 1 + 3 / (4 * 4))])
def test_korthikanti_2022_interleaving_keeps_more(v: int, times: float) -> None:
    """The first of p stages keeps L (1 + (p - 1) / (p v)) layers' activations instead of L."""
    first, cut = (
        told(gpt(32, vocab=128), f"{words} dp2 mbs1 recompute=none").stages[0].memory["activations"]
        for words in ("pp4", f"pp4 vp{v}")
    )
    assert cut / first == pytest.approx(times, rel=1e-9)


def test_narayanan_2021_micro_batches_in_flight() -> None:
    """1F1B keeps p - r micro-batches on rank r, however many there are; all-forward-all-backward keeps all of them."""
    for batch in (16, 64):
        found = told(gpt(32), "pp8 mbs1 recompute=none", batch=batch)
        assert [stage.in_flight for stage in found.stages] == [8, 7, 6, 5, 4, 3, 2, 1]
        every = told(gpt(32), "pp8 mbs1 recompute=none schedule=gpipe", batch=batch)
        assert [stage.in_flight for stage in every.stages] == [batch] * 8


@pytest.mark.parametrize(
    ("runtime", "gradient"), [("deepspeed", 2), ("megatron", 4)]  # Megatron adds gradients up in fp32
)  # fmt: skip
def test_rajbhandari_2020_bytes_of_a_parameter(runtime: str, gradient: int) -> None:
    """2 + 2 + 12 bytes with Adam in mixed precision; each ZeRO stage divides one of the three by the replicas."""
    states = {"weights": 2, "gradients": gradient, "optimizer": 12}
    sharded: tuple[str, ...] = ()
    for zero, kind in enumerate(("", "optimizer", "gradients", "weights")):
        sharded = (*sharded, kind)
        memory = told("llama-2-7b", f"dp8 mbs1 zero{zero}", runtime=runtime, gpus="8xH200").stages[0].memory
        for name, nbytes in states.items():
            wanted = nbytes * LLAMA_2_7B / (8 if name in sharded else 1)
            assert memory[name] * GIB == pytest.approx(wanted, rel=1e-9), (zero, name)


@pytest.mark.parametrize("runtime", ["deepspeed", "fsdp", "composer", "torchtitan"])
@pytest.mark.parametrize(("precision", "nbytes"), [("bf16", 2), ("tf32", 4)])
def test_ranks_that_share_frozen_weights_hold_them_once(runtime: str, precision: str, nbytes: int) -> None:
    """What adapters stand beside is in somebody's memory, in the precision it is read in."""
    asked = {"runtime": runtime, "gpus": "8xH200", "task": "lora", "precision": precision}
    memory = told("llama-2-7b", "dp8 mbs1 zero3", **asked).stages[0].memory
    states = memory["optimizer"] * GIB * 8  # of the adapters, half of a percent of 7B: two moments or more
    assert memory["weights"] * GIB * 8 == pytest.approx(nbytes * LLAMA_2_7B, abs=nbytes * states / 8 + 1)


@pytest.mark.parametrize(("precision", "scale"), [("fp8-tensorwise", 0.0), ("mxfp8", 1 / 32)])
def test_fp8_copies_the_weights_of_layers_alone(precision: str, scale: float) -> None:
    """Twice a byte and its scale; the table of the vocabulary and the head are not quantised."""
    asked = {"gpus": "8xB200", "runtime": "megatron"}
    words = "dp8 mbs1 zero1 params=bf16"
    half, low = (told("llama-2-7b", words, **asked, precision=each) for each in ("bf16", precision))
    layers = LLAMA_2_7B - 2 * 32000 * 4096 - 4096
    more_gib = low.stages[0].memory["weights"] - half.stages[0].memory["weights"]
    assert more_gib * GIB == pytest.approx(2 * (1 + scale) * layers, rel=1e-9)


@pytest.mark.parametrize(("model", "words"), [("t5-11b", "dp16 mbs4 zero3"), ("llama-2-7b", "dp16 mbs1 zero3")])
def test_no_kind_of_memory_is_less_than_nothing(model: str, words: str) -> None:
    """Where the only micro-batch's activations are all there, gradients are not yet."""
    found = told(model, words, gpus="16xH100", runtime="fsdp", batch=64 if model == "t5-11b" else 16, seq=512)
    for memory in (stage.memory for stage in found.stages):
        assert min(memory.values()) >= 0
        assert sum(memory.values()) == pytest.approx(found.stages[0].peak_allocated_gib)


def test_tensor_parallel_ranks_hold_their_share() -> None:
    """All ranks together hold the model once, and the norms, which are copied, on each."""
    copied = 65 * 4096  # two norms in each of 32 layers and the last
    for t in (2, 4, 8):
        memory = told("llama-2-7b", f"tp{t} dp{8 // t} mbs1 zero0").stages[0].memory
        assert memory["weights"] * GIB * t == pytest.approx(2 * (LLAMA_2_7B + (t - 1) * copied), rel=1e-9)


def test_stages_hold_the_model_once() -> None:
    """Of a pipeline and of expert parallelism alike."""
    for name, copied in (("gpt-2-xl", 50257 * 1600), ("opt-350m", 50272 * 512)):  # a tied table, on both ends
        ends = told(name, "pp2 dp4 mbs1 zero0").stages
        total = astra.describe_model(name).parameters["total"]
        assert sum(stage.memory["weights"] for stage in ends) * GIB == pytest.approx(2 * (total + copied), rel=1e-9)
    stages = told("llama-2-7b", "pp8 mbs1 zero0").stages
    assert sum(stage.memory["weights"] for stage in stages) * GIB == pytest.approx(2 * LLAMA_2_7B, rel=1e-9)
    layer = count(gpt(3)).total - count(gpt(2)).total
    assert layer == 12 * HIDDEN**2 + 13 * HIDDEN  # as every paper counts a GPT layer
    expert, dense = (
        told("mixtral-8x7b", f"ep{ep} dp8 mbs1 zero0", gpus="8xH200").stages[0].memory["weights"] * GIB / 2
        for ep in (8, 1)
    )
    assert dense == pytest.approx(46_702_792_704, rel=1e-9)
    experts = 32 * 8 * 3 * 4096 * 14336
    assert dense - expert == pytest.approx(experts * 7 / 8, rel=1e-9)


def test_a_stage_receives_as_much_in_a_pipeline_of_two_as_in_one_of_four() -> None:
    """Its working layer and one activation and gradient on their way: whatever the number of stages beyond it."""
    two, four, eight = (
        told(gpt(8, vocab=128), f"pp{pp} dp{8 // pp} mbs{MBS} recompute=none").stages[0].memory["buffers"]
        for pp in (2, 4, 8)
    )
    assert [four, eight] == pytest.approx([two, two], rel=1e-12)
    twice = told(gpt(8, vocab=128), f"pp2 dp4 mbs{2 * MBS} recompute=none").stages[0].memory["buffers"]
    assert twice > two


@pytest.mark.parametrize("runtime", ["torchtitan", "fsdp"])
@pytest.mark.parametrize("zero", [2, 3])
def test_gradients_of_fsdp2_are_there_from_the_second_micro_batch_on(zero: int, runtime: str) -> None:
    """One micro-batch makes them in its only backward, layer by layer, after the fullest moment.

    A shard of a gradient is as wide as that of its weight, fp32, whatever it is reduced in: counted on two ranks of
    torch 2.13 that reduce in bf16.
    """
    one, two, four = (
        told(gpt(8), f"dp8 mbs1 zero{zero} recompute=none", runtime=runtime, batch=8 * times).stages[0]
        for times in (1, 2, 4)
    )
    added = (two.peak_allocated_gib - one.peak_allocated_gib) * GIB
    assert added == pytest.approx(4 * count(gpt(8)).total / 8, rel=1e-6)
    assert four.peak_allocated_gib == pytest.approx(two.peak_allocated_gib, rel=1e-12)


def test_units_of_fsdp2_are_as_large_as_the_largest_layer() -> None:
    """Layers that are gathered in turn need room for one of the larger kind, whatever the others are."""
    plain: dict[str, Any] = {"gated_mlp": True, "ffn": 256, "mlp_bias": False, "out_bias": False, "qkv_bias": False}
    alike, mixed = (
        told(
            gpt(8, **plain, moe=astra.MoE(experts=8, topk=2, ffn=2048, first_dense=dense)),
            "dp8 mbs1 zero3 recompute=none",
            runtime="torchtitan",
        ).stages[0]
        for dense in (0, 1)
    )
    assert mixed.memory["buffers"] == pytest.approx(alike.memory["buffers"], rel=1e-12)
    assert mixed.memory["gradients"] < alike.memory["gradients"]


@pytest.mark.parametrize(("runtime", "times"), [("megatron-bridge", 1), ("nemo", 1), ("deepspeed", 2), ("fsdp", 2)])
def test_hu_2021_experts_have_the_adapters_of_their_framework(runtime: str, times: int) -> None:
    """r (in + out) parameters beside a matrix: each expert's, or one for all of a rank's experts as Bridge has them."""
    plain: dict[str, Any] = {"gated_mlp": True, "ffn": 256, "mlp_bias": False, "out_bias": False, "qkv_bias": False}

    def states(experts: int) -> float:
        model = gpt(8, **plain, moe=astra.MoE(experts=experts, topk=2, ffn=2048))
        found = told(model, "dp8 mbs1 zero3 recompute=none", runtime=runtime, task="lora", batch=64)
        return found.stages[0].memory["optimizer"] * GIB * 8 / 12

    rank, layers, attention = 16, 8, (HIDDEN + 3 * HIDDEN) + (HIDDEN + HIDDEN)
    expert = (HIDDEN + 2 * 2048) + (2048 + HIDDEN)
    for experts in (4, 8):
        wanted = attention + expert * (experts if times > 1 else 1)
        assert states(experts) == pytest.approx(rank * layers * wanted, rel=1e-6)
