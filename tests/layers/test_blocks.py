"""Layers as operators: their FLOPs are those of the parameters, and splitting them splits the work."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from astra.catalog.models import model, model_names
from astra.layers import blocks, ends
from astra.layers.block import LayerKind
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Layer, Retention, Shard
from astra.layers.weights import forward_flops_per_token, layer_matmul_parameters
from astra.spec.model import ModelSpec
from tests.layers.test_operators import shard
from tests.oracle.requests import KINDS
from tests.oracle.requests import model as tiny

SEQ = 1024
TINY = [tiny(kind) for kind in dict.fromkeys(KINDS)]


def gemm_flops(layer: Layer) -> float:
    """Of products with weights."""
    return float(sum(np.sum(2.0 * g.groups * g.m * g.n * g.k) for g in layer.gemms if g.weight))


DECODER = LayerKind(("attention", "dense"))


def every_kind(spec: ModelSpec) -> list[LayerKind]:
    return list(dict.fromkeys(layer_kinds(spec)))


@pytest.mark.parametrize("name", model_names())
def test_products_are_those_of_the_parameters(name: str) -> None:
    spec = model(name)
    for kind in every_kind(spec):
        wanted = 2.0 * SEQ * layer_matmul_parameters(spec, kind)
        wanted -= 2.0 * SEQ * spec.hidden if "experts" in kind.blocks and spec.moe and spec.moe.shared_gate else 0.0
        assert gemm_flops(blocks.layer(spec, kind, shard(SEQ))) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("name", model_names())
def test_products_of_one_input_are_those_of_the_tensors(name: str) -> None:
    """Queries with their gate, keys and values; both halves of a gated feed-forward: as wide as the model says."""
    spec = model(name)
    q, kv = spec.heads * spec.head_dim * (2 if spec.attention_gate else 1), spec.kv_heads * spec.head_dim
    for kind in every_kind(spec):
        for gemm in blocks.layer(spec, kind, shard(SEQ, tp=1)).gemms:
            widths = [float(np.max(part * gemm.n)) for part in gemm.parts]
            if gemm.name == "qkv":
                assert widths == pytest.approx([q, kv, kv])
            elif gemm.name in ("mlp_in", "experts_in", "shared_in") and spec.gated_mlp:
                assert widths == pytest.approx([float(gemm.n[0]) / 2] * 2)
            else:
                assert not widths, gemm.name


@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_a_whole_forward_pass_has_the_models_flops(spec: ModelSpec) -> None:
    """Products, and attention's scores and values over the keys a token sees."""
    seq = spec.vision.tokens if spec.vision else SEQ
    some = shard(seq)
    flops = 0.0
    for kind in layer_kinds(spec):
        layer = blocks.layer(spec, kind, some)
        flops += gemm_flops(layer)
        for grid in layer.attentions:
            span = float(np.asarray(grid.seq_kv))  # of a chunk, where the sequence is cut
            keys = span / 2 if grid.causal else span
            keys = grid.window - grid.window**2 / (2 * seq) if grid.window else keys
            flops += 2.0 * seq * keys * float(grid.heads[0]) * (grid.head_dim + grid.head_dim_v)
    flops += gemm_flops(ends.embedding(spec, some))
    flops += gemm_flops(ends.head(spec, some, logits_kept_bytes=4, logits_peak_bytes=8, vocab_multiple=128))
    padding = 2.0 * seq * spec.hidden * (-spec.vocab % 128)
    patches = 2.0 * (spec.hidden * 3 * spec.vision.patch**2) if spec.vision else 0.0  # the class token is no patch
    assert flops - padding - patches == pytest.approx(seq * forward_flops_per_token(spec, seq), rel=1e-9)


@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_ranks_share_the_products(spec: ModelSpec, tp: int) -> None:
    """All ranks together do the work of one, and what is copied (key/value heads, low-rank projections) on top."""
    for kind in every_kind(spec):
        alone = gemm_flops(blocks.layer(spec, kind, shard(SEQ)))
        together = tp * gemm_flops(blocks.layer(spec, kind, shard(SEQ, tp=tp, sp=True, etp=1)))
        copied = 0.0
        if spec.mla is None:
            copied = 2 * 2.0 * SEQ * spec.hidden * spec.head_dim * max(tp - spec.kv_heads, 0)
        assert together == pytest.approx(alone + copied, rel=1e-12)


@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_context_parallel_ranks_share_everything(spec: ModelSpec) -> None:
    for kind in every_kind(spec):
        alone, split = (blocks.layer(spec, kind, shard(SEQ, cp=cp)) for cp in (1, 4))
        assert 4 * gemm_flops(split) == pytest.approx(gemm_flops(alone), rel=1e-12)
        for whole, part in zip(alone.kept, split.kept, strict=True):
            np.testing.assert_allclose(4 * part, whole)


@pytest.mark.parametrize("spec", [spec for spec in TINY if spec.moe], ids=lambda spec: spec.name)
def test_expert_parallel_ranks_have_fewer_experts_and_as_much_work(spec: ModelSpec) -> None:
    kind = next(kind for kind in layer_kinds(spec) if "experts" in kind.blocks)
    for ep, etp in ((2, 1), (4, 1), (2, 2)):
        some = shard(SEQ, ep=ep, etp=etp, tp=etp, sp=etp > 1)
        experts = [gemm for gemm in blocks.layer(spec, kind, some).gemms if gemm.name.startswith("experts")]
        alone = [g for g in blocks.layer(spec, kind, shard(SEQ)).gemms if g.name.startswith("experts")]
        for split, whole in zip(experts, alone, strict=True):
            assert float(np.asarray(split.groups)[0]) * ep == float(np.asarray(whole.groups)[0])
            work = [np.sum(2.0 * gemm.groups * gemm.m * gemm.n * gemm.k) for gemm in (split, whole)]
            assert work[0] * etp == pytest.approx(work[1], rel=1e-12)


@pytest.mark.parametrize("spec", TINY, ids=lambda spec: spec.name)
def test_recompute_keeps_less(spec: ModelSpec) -> None:
    for kind in every_kind(spec):
        for some in (shard(SEQ), shard(SEQ, tp=2, sp=True), shard(SEQ, tp=2), shard(SEQ, flash=False)):
            kept = blocks.layer(spec, kind, some).kept
            assert kept.checkpoint < kept.selective < kept.whole
            assert kept.checkpoint == 2 * some.stream_tokens * spec.hidden


def test_sequence_parallelism_keeps_less_and_flash_keeps_no_scores() -> None:
    spec, kind = tiny("dense"), DECODER
    sp, no_sp = (blocks.layer(spec, kind, shard(SEQ, tp=4, sp=on)).kept for on in (True, False))
    assert sp.whole < no_sp.whole
    assert sp.checkpoint * 4 == no_sp.checkpoint
    fused, unfused = (blocks.layer(spec, kind, shard(SEQ, flash=on)).kept for on in (True, False))
    assert unfused.whole - fused.whole == 4 * SEQ * spec.heads * (SEQ - 1)
    assert unfused.selective == fused.selective


def test_norms_of_queries_and_keys_keep_both_sides() -> None:
    spec, kind = tiny("dense"), DECODER
    normed = msgspec.structs.replace(spec, qk_norm="per_head")
    plain, both = (blocks.layer(each, kind, shard(SEQ)).kept for each in (spec, normed))
    assert both.whole - plain.whole == 2 * SEQ * (spec.heads + spec.kv_heads) * spec.head_dim


def test_more_tensor_parallelism_than_key_heads_keeps_the_gathered_projection() -> None:
    spec, kind = tiny("dense", heads=8, kv_heads=2, head_dim=16), DECODER
    keeps = Retention(projection=True)
    two, four = (blocks.layer(spec, kind, shard(SEQ, tp=tp)._replace(keeps=keeps)).kept for tp in (2, 4))
    own = 2 * SEQ * (8 / 4 + 2) * 16  # a rank's queries and one key and value head
    gathered = 2 * SEQ * (8 + 2 * 2) * 16
    without = blocks.layer(spec, kind, shard(SEQ, tp=4)).kept
    rotated = 2 * SEQ * (8 / 4 + 1) * 16
    assert four.whole - without.whole == gathered - own + rotated
    assert two.whole > without.whole


def test_korthikanti_2022() -> None:
    """A GPT layer in bf16 keeps 34 s b h + 5 a s^2 b bytes with dropout; 32 s b h + 4 a s^2 b without its masks."""
    hidden, heads, seq = 1024, 8, 512
    spec = tiny("gpt", hidden=hidden, ffn=4 * hidden, heads=heads, kv_heads=heads, head_dim=hidden // heads)
    kept = blocks.layer(spec, DECODER, shard(seq, flash=False)).kept
    assert float(kept.whole[0]) == 32 * seq * hidden + 4 * heads * seq**2


def test_only_self_attention_is_causal_in_a_decoder_that_crosses() -> None:
    spec = tiny("encdec")
    cross = blocks.layer(spec, LayerKind(("attention", "cross", "dense"), "cross"), shard(SEQ))
    assert [grid.causal for grid in cross.attentions] == [True, False]
    encoder = blocks.layer(spec, LayerKind(("attention", "dense"), "encoder"), shard(SEQ))
    assert [grid.causal for grid in encoder.attentions] == [False]


def test_the_vocabulary_is_padded_and_split() -> None:
    spec = tiny("dense", vocab=1000)
    for tp in (1, 2, 4):
        head = ends.head(spec, shard(SEQ, tp=tp), logits_kept_bytes=4, logits_peak_bytes=8, vocab_multiple=128)
        columns = float(head.gemms[0].n[0])
        assert columns * tp >= 1000
        assert columns % 128 == 0
        assert float(head.kept.whole[0] + head.kept.working[0]) > 8 * SEQ * columns


def test_columns_are_rows_one_at_a_time() -> None:
    rows = [{"mbs": 2, "tp": 4, "cp": 1, "sp": True}, {"mbs": 1, "tp": 1, "cp": 2, "sp": False}]
    alone = [shard(SEQ, **row) for row in rows]
    columns: dict[str, Any] = {n: np.concatenate([getattr(one, n) for one in alone]) for n in Shard._fields[1:8]}
    both = alone[0]._replace(**columns)
    for spec in TINY:
        for kind in every_kind(spec):
            layers = [blocks.layer(spec, kind, some) for some in (both, *alone)]
            for place, one in enumerate(layers[1:]):
                for whole, part in zip(layers[0].kept, one.kept, strict=True):
                    np.testing.assert_allclose(whole[place], part[0])
                for many, single in zip(layers[0].gemms, one.gemms, strict=True):
                    size = [np.broadcast_to(getattr(many, dim), 2)[place] for dim in ("m", "n", "k", "groups")]
                    np.testing.assert_allclose(
                        size, [np.ravel(getattr(single, dim))[0] for dim in ("m", "n", "k", "groups")]
                    )
