"""Work, bubbles and traffic against published formulas."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import astra
from astra.catalog.clusters import parse_gpus
from astra.network.collectives import collective
from astra.units import GIB
from tests.laws.models import HIDDEN, MBS, SEQ, gpt, told
from tests.oracle.requests import pool

BUBBLE = "pipeline bubble and p2p"


def seconds(op: str, nbytes: float, ranks: int, **where: Any) -> float:
    """One collective."""
    columns = [np.array([value]) for value in (nbytes, ranks, 1)]
    place = where.get("pool") or parse_gpus("8xH100")
    return float(collective(place, op, nbytes=columns[0], ranks=columns[1], stride=columns[2]).seconds[0])


@pytest.mark.parametrize(("layers", "seq"), [(24, 1024), (96, 2048)])
def test_narayanan_2021_model_flops(layers: int, seq: int) -> None:
    """72 l s h^2 (1 + s / 6h + V / 12lh) a sample where nothing is recomputed; a causal mask halves the middle term."""
    for causal, part in ((False, 1.0), (True, 0.5)):
        model = gpt(layers, causal=causal)
        wanted = 72 * layers * HIDDEN**2 * (1 + part * seq / (6 * HIDDEN) + model.vocab / (12 * layers * HIDDEN))
        assert astra.describe_model(model, seq=seq).flops_per_token["training"] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "active"),
    [("llama-2-7b", 6_738_415_616), ("llama-3-70b", 70_553_706_496), ("mixtral-8x7b", 12_879_925_248)],
)
def test_chowdhery_2022_six_n_and_attention(name: str, active: int) -> None:
    """6 N + 12 L H Q T a token (PaLM, appendix B); a mask halves the second, and the input table multiplies nothing."""
    spec, seq = astra.describe_model(name).shape, 4096
    counted = active - spec["vocab"] * spec["hidden"]
    attention = 12 * spec["layers"] * spec["heads"] * spec["head_dim"] * seq / 2
    found = astra.describe_model(name, seq=seq).flops_per_token["training"]
    norms = 6 * spec["hidden"] * (2 * spec["layers"] + 1)  # counted in N, but no product
    assert found == pytest.approx(6 * counted + attention - norms, rel=1e-9)


@pytest.mark.parametrize("strategy", ["tp2 dp4 sp", "pp2 dp4", "cp2 dp4", "dp8", "tp8"])
def test_utilisation_is_model_flops_over_time(strategy: str) -> None:
    """However the work is split, and whatever is repeated."""
    for words in ("", "recompute=full"):
        found = told("llama-2-7b", f"{strategy} mbs1 {words}", seq=4096)
        flops = astra.describe_model("llama-2-7b", seq=4096).flops_per_token["training"] * 64 * 4096
        assert found.mfu == pytest.approx(
            flops / found.step_s / 8 / 989.4e12, rel=1e-3
        )  # dense bf16, by the data sheet
    assert found.hfu == pytest.approx(found.mfu * 4 / 3, rel=0.02)  # the forward pass of all layers once more


@pytest.mark.parametrize(("p", "v"), [(2, 1), (4, 1), (8, 1), (4, 2), (4, 4)])
def test_narayanan_2021_bubble(p: int, v: int) -> None:
    """(p - 1) / m of the ideal time, divided by v where stages are interleaved."""
    words = f"pp{p}" + (f" vp{v}" if v > 1 else "")
    for batch in (64, 256):
        found = told(gpt(32, hidden=4096, ffn=16384, heads=32, kv_heads=32, vocab=128), f"{words} dp{8 // p} mbs1",
                     batch=batch, seq=4096)  # fmt: skip
        ideal_s = found.breakdown["forward"] + found.breakdown["backward"]
        wanted = (p - 1) / (found.microbatches * v)
        # What stages send each other, twice for each chunk and stage on the way, is the rest.
        assert wanted <= found.breakdown[BUBBLE] / ideal_s * 1.001
        assert found.breakdown[BUBBLE] / ideal_s <= wanted + 0.003 * v


@pytest.mark.parametrize("ranks", [8, 16, 64])
def test_rings_move_what_rings_move(ranks: int) -> None:
    """(n - 1) / n of the bytes in a gather or a scatter, twice that in an all-reduce: more ranks cost hardly more."""
    place = pool(64, 1)  # one GPU a server: nothing but the network

    def rate(op: str, moved: float) -> float:
        longer_s = seconds(op, 4e10, ranks, pool=place) - seconds(op, 2e10, ranks, pool=place)
        return moved * 2e10 / longer_s

    share = (ranks - 1) / ranks
    rates = [rate("all_gather", share), rate("reduce_scatter", share), rate("all_reduce", 2 * share)]
    assert max(rates) <= min(rates) * 1.005
    assert 0.9 * 5e10 <= min(rates) <= 5e10  # near the link's 50 GB/s, and never above it


def layer_s(strategy: str) -> float:
    """Tensor-parallel traffic of one more layer in one micro-batch."""
    few, more = (told(gpt(layers), f"{strategy} mbs{MBS} recompute=none overlap=none") for layers in (2, 4))
    longer_s = more.stages[0].communication_s["tp"] - few.stages[0].communication_s["tp"]
    return longer_s / 2 / few.microbatches


def test_shoeybi_2019_all_reduces_of_a_layer() -> None:
    """Two forward and two backward, each of 2sbh bytes."""
    assert layer_s("tp8") == pytest.approx(4 * seconds("all_reduce", 2 * SEQ * MBS * HIDDEN, 8), rel=1e-9)


def test_korthikanti_2022_sequence_parallelism_gathers_and_scatters() -> None:
    """A gather and a scatter for each all-reduce, and two inputs gathered again for the weights' gradients."""
    each = {op: seconds(op, 2 * SEQ * MBS * HIDDEN, 8) for op in ("all_gather", "reduce_scatter")}
    assert layer_s("tp8 sp") == pytest.approx(6 * each["all_gather"] + 4 * each["reduce_scatter"], rel=1e-9)


def test_rajbhandari_2020_traffic_of_zero() -> None:
    """Stages 1 and 2 send what plain data parallelism sends, stage 3 half as much again."""
    found = [
        told("llama-2-7b", f"dp64 mbs1 zero{zero} overlap=none", runtime="deepspeed", gpus="64xH100", seq=2048)
        for zero in range(4)
    ]
    assert {one.microbatches for one in found} == {1}
    plain, *sharded = (one.stages[0].communication_s["dp"] for one in found)
    assert [each / plain for each in sharded] == pytest.approx([1, 1, 1.5], rel=0.01)


def test_pieces_of_replicas_are_copied_one_by_one_under_stage_one_alone() -> None:
    """nanotron cuts and copies every replica's piece of every layer: more replicas take its host longer."""

    def update_s(zero: int, dp: int) -> float:
        found = told("llama-3.2-1b", f"dp{dp} mbs1 zero{zero}", runtime="nanotron", gpus=f"{dp}xH100")
        return found.stages[0].optimizer_s

    assert update_s(0, 16) == pytest.approx(update_s(0, 8), rel=1e-9)
    assert update_s(1, 64) > update_s(1, 16) > update_s(1, 8)


@pytest.mark.parametrize("tp", [1, 2])
def test_tied_tables_add_their_gradients_across_the_pipeline(tp: int) -> None:
    """Two copies of V h / t gradients, on the first and the last stage: one all-reduce of two ranks (Megatron, 2021).

    Nothing else is exchanged with a single replica; an untied model and a single stage have no second copy.
    """
    asked: dict[str, Any] = {"gpus": f"{2 * tp}xH100", "batch": 8, "seq": SEQ, "runtime": "megatron"}

    def between_s(pp: int, *, tied: bool) -> float:
        model = msgspec.structs.replace(gpt(8), tied_embeddings=tied)
        found = astra.estimate(model, strategy=f"tp{tp} pp{pp} dp{2 // pp} mbs1 zero0 grads=fp32 overlap=none", **asked)
        return found.breakdown["dp communication"]

    table_bytes = 4 * gpt(8).vocab * HIDDEN / tp
    place = parse_gpus(f"{2 * tp}xH100")
    columns = {"nbytes": np.array([table_bytes]), "ranks": np.array([2]), "stride": np.array([tp])}
    wanted = float(collective(place, "all_reduce", **columns).seconds[0])
    assert between_s(2, tied=True) == pytest.approx(wanted, rel=1e-9)
    assert between_s(2, tied=False) == 0


def test_offloaded_activations_cross_a_slow_link_twice() -> None:
    """Once to host memory and once back for every micro-batch: what a slow link takes is bytes over its speed."""
    bytes_per_s, plain = 1e6, "dp8 mbs2 recompute=none zero1"
    place = parse_gpus("8xH100")
    device = msgspec.structs.replace(place.device, host_bytes_per_s=bytes_per_s)
    cluster = astra.Cluster(pools=(msgspec.structs.replace(place, device=device),))
    asked: dict[str, Any] = {"cluster": cluster, "batch": 64, "seq": SEQ}
    kept = astra.estimate(gpt(8), strategy=plain, **asked)
    moved = 2 * kept.microbatches * kept.stages[0].memory["activations"] * GIB
    eight, four, two = (
        astra.estimate(gpt(8), strategy=f"{plain} offload=activations:{layers}", **asked).step_s for layers in (8, 4, 2)
    )
    assert 0.8 < moved / bytes_per_s / eight <= 1.0  # the share of its speed that a link reaches
    assert [four / eight, two / eight] == pytest.approx([1 / 2, 1 / 4], rel=1e-3)


def test_norms_are_repeated_as_fast_beside_experts_as_beside_a_feed_forward() -> None:
    """What recompute of the norms adds is theirs alone: nobody waits for tokens to be dealt to experts."""
    plain: dict[str, Any] = {"gated_mlp": True, "mlp_bias": False, "out_bias": False, "qkv_bias": False}
    added = []
    for model, degrees in (
        (gpt(8, **plain), "dp8"),
        (gpt(8, **plain, moe=astra.MoE(experts=8, topk=2, ffn=HIDDEN)), "dp8 ep8"),
    ):
        none, again = (
            told(model, f"{degrees} mbs{MBS} zero1 recompute={kind}").stages[0].backward_s
            for kind in ("none", "selective:layernorm")
        )
        added.append(again - none)
    assert added[0] > 0
    assert added[1] == pytest.approx(added[0], rel=1e-6)


def test_tensor_parallel_traffic_does_not_hide_behind_attention() -> None:
    """It runs beside the products it feeds: longer attention fills gaps of a slow host, and hides no more of it."""
    shape: dict[str, Any] = {"max_seq": 16384, "learned_positions": 16384}
    words = "tp8 dp1 sp mbs1 zero1 recompute=none overlap=tp"
    whole, narrow = (
        told(model, words, seq=8192, batch=4).stages[0]
        for model in (gpt(8, **shape), gpt(8, **shape, window=128, full_attention_every=0))
    )
    assert whole.communication_s["tp"] == pytest.approx(narrow.communication_s["tp"])
    assert whole.forward_s > narrow.forward_s
    assert whole.exposed_s["tp"] >= narrow.exposed_s["tp"] > 0


def test_adapters_spare_the_gradients_of_weights_alone() -> None:
    """Scores and values have none: their backward is twice their forward, whoever trains (here 4,096 tokens of 7B)."""
    asked = {"runtime": "fsdp", "gpus": "8xH200", "batch": 16, "seq": 4096}
    full, adapted = (told("llama-2-7b", "dp8 mbs1 zero3", **asked, task=task) for task in ("pretrain", "lora"))
    flops, least = (found.model_tflops_per_gpu * found.step_s * 8 * 1e12 for found in (full, adapted))
    products = 6 * (32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096) * 16 * 4096
    assert flops - least == pytest.approx(products / 3, rel=1e-6)


@pytest.mark.parametrize("runtime", ["deepspeed", "fsdp", "composer", "megatron-bridge"])
def test_weights_in_shards_are_gathered_whoever_trains_them(runtime: str) -> None:
    """Adapters' gradients are nothing to reduce, but what they stand beside is gathered for forward and backward."""
    full, adapted = (
        told("llama-2-7b", "dp64 mbs1 zero3 overlap=none", runtime=runtime, gpus="64xH200", task=task).stages[0]
        for task in ("pretrain", "lora")
    )
    whole = told("llama-2-7b", "dp64 mbs1 zero0 overlap=none", runtime=runtime, gpus="64xH200", task="lora").stages[0]
    assert adapted.forward_s > full.forward_s  # adapters are added to all that there is, copies of weights included
    assert full.communication_s["dp"] * 0.4 < adapted.communication_s["dp"] < full.communication_s["dp"]
    assert whole.communication_s["dp"] < 0.02 * adapted.communication_s["dp"]
