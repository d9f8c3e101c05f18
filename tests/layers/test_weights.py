"""Parameter counts against published and independently built ones, and the laws that hold for any model."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog.models import model, models
from astra.layers.block import LayerKind
from astra.layers.blocks.attention import keys_per_query
from astra.layers.kinds import layer_kinds
from astra.layers.weights import (
    Weights,
    attention_flops_per_token,
    count,
    embedding_weights,
    forward_flops_per_token,
    head_weights,
    layer_matmul_parameters,
    layer_tensors,
    layer_weights,
    tied_head_weights,
)
from astra.spec.model import MLA, ModelSpec, MoE

# Totals of the model that transformers 5.22.2 builds on the meta device from the published config, tied tables once.
# Those marked * are also the publisher's own total (checkpoint index, model card or paper); vit: torchvision's.
BUILT = {
    "bert-base": 109_514_298,
    "bert-large": 335_174_458,
    "bloom-176b": 176_247_271_424,  # *
    "deepseek-v2": 235_741_434_880,  # *
    "deepseek-v2-lite": 15_706_484_224,  # *
    "deepseek-v3": 671_026_404_352,  # * less 14,848 router biases, which are buffers, and the MTP layer
    "falcon-180b": 178_557_088_768,
    "falcon-40b": 41_303_293_952,
    "gemma-2-27b": 27_227_128_320,  # *
    "gemma-2-9b": 9_241_705_984,  # *
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-12b-vl": 12_187_325_040,  # *
    "gemma-3-1b": 999_885_952,  # *
    "gemma-3-27b": 27_009_346_304,
    "gemma-3-27b-vl": 27_432_406_640,  # *
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-4b-vl": 4_300_079_472,  # *
    "glm-4-32b-0414": 32_566_081_536,  # *
    "glm-4-9b": 9_399_951_360,  # *
    "glm-4-9b-0414": 9_400_279_040,  # *
    "glm-4.5": 352_797_814_784,
    "glm-4.5-air": 106_852_245_504,
    "glm-4.6": 352_797_814_784,
    "gpt-2": 124_439_808,  # *
    "gpt-2-large": 774_030_080,  # *
    "gpt-2-medium": 354_823_168,  # *
    "gpt-2-xl": 1_557_611_200,  # *
    "gpt-oss-120b": 116_829_156_672,  # *
    "gpt-oss-20b": 20_914_757_184,  # *
    "internlm-7b": 7_321_948_160,  # built as llama with attention biases
    "kimi-k2": 1_026_408_209_408,  # built as deepseek_v3
    "llama-2-13b": 13_015_864_320,  # *
    "llama-2-70b": 68_976_648_192,  # *
    "llama-2-7b": 6_738_415_616,  # *
    "llama-3-70b": 70_553_706_496,  # *
    "llama-3-8b": 8_030_261_248,  # *
    "llama-3.1-405b": 405_853_388_800,  # *
    "llama-3.1-70b": 70_553_706_496,  # *
    "llama-3.1-8b": 8_030_261_248,  # *
    "llama-3.2-1b": 1_235_814_400,  # *
    "llama-3.2-3b": 3_212_749_824,  # *
    "llama-3.3-70b": 70_553_706_496,  # *
    "llama-4-maverick": 400_711_848_960,
    "llama-4-maverick-vl": 401_583_781_376,  # *
    "llama-4-scout": 107_769_861_120,
    "llama-4-scout-vl": 108_641_793_536,  # *
    "minimax-m2": 228_689_748_992,
    "mistral-7b-v0.1": 7_241_732_096,  # *
    "mistral-7b-v0.3": 7_248_023_552,  # *
    "mistral-nemo-12b": 12_247_782_400,  # *
    "mixtral-8x22b": 140_620_634_112,  # *
    "mixtral-8x7b": 46_702_792_704,  # *
    "mpt-30b": 29_957_200_896,
    "mpt-7b": 6_649_286_656,  # *
    "opt-175b": 174_604_468_224,
    "opt-350m": 331_196_416,  # *
    "phi-3-medium": 13_960_238_080,  # *
    "phi-3-mini": 3_821_079_552,  # *
    "phi-4": 14_659_507_200,  # *
    "qwen2.5-0.5b": 494_032_768,  # *
    "qwen2.5-1.5b": 1_543_714_304,  # *
    "qwen2.5-14b": 14_770_033_664,  # *
    "qwen2.5-32b": 32_763_876_352,  # *
    "qwen2.5-72b": 72_706_203_648,  # *
    "qwen2.5-7b": 7_615_616_512,  # *
    "qwen2.5-vl-32b": 33_452_718_336,  # *
    "qwen2.5-vl-3b": 3_754_622_976,  # *
    "qwen2.5-vl-72b": 73_410_777_344,  # *
    "qwen2.5-vl-7b": 8_292_166_656,  # *
    "qwen3-0.6b": 596_049_920,  # *
    "qwen3-1.7b": 1_720_574_976,  # *
    "qwen3-14b": 14_768_307_200,  # *
    "qwen3-235b-a22b": 235_093_634_560,  # *
    "qwen3-30b-a3b": 30_532_122_624,  # *
    "qwen3-32b": 32_762_123_264,  # *
    "qwen3-4b": 4_022_468_096,  # *
    "qwen3-8b": 8_190_735_360,  # *
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "qwen3-vl-2b": 2_127_532_032,  # *
    "qwen3-vl-30b-a3b": 31_070_754_032,  # *
    "qwen3-vl-32b": 33_357_390_064,  # *
    "qwen3-vl-4b": 4_437_815_808,  # *
    "qwen3-vl-8b": 8_767_123_696,  # *
    "qwen3.5-122b-a10b": 122_111_526_912,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-27b-vl": 27_356_728_560,
    "qwen3.5-35b-a3b": 34_660_610_688,
    "qwen3.5-35b-a3b-vl": 35_107_181_936,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3.5-397b-a17b-vl": 396_802_360_816,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-9b": 8_953_803_264,
    "qwen3.5-9b-vl": 9_409_813_744,
    "t5-11b": 11_307_321_344,  # *
    "t5-3b": 2_851_598_336,  # *
    "vit-h-14": 632_045_800,  # * torchvision publishes 633,470,440 at 518 pixels: 1,113 positions more
    "vit-l-16": 304_326_632,  # *
    "yi-34b": 34_388_917_248,  # *
}
PUBLISHED = {
    "flan-t5-xxl": 11_135_332_352,  # transformers 5 ties the two tables that the checkpoint keeps apart
    "nemotron-h-8b": 8_100_852_736,  # tensors of the checkpoint, added up
}
# Published rounded: billions and the tolerance that the rounding (or the publisher's way of counting) allows.
ROUNDED = {
    "falcon-180b": (180, 0.01),
    "glm-130b": (130, 0.0105),
    "glm-4.5": (355, 0.01),  # counts the MTP layer but no vocabulary tables
    "glm-4.5-air": (106, 0.01),
    "gpt-3-175b": (174.6, 0.001),
    "grok-1": (314, 0.01),
    "kimi-k2": (1026, 0.001),
    "llama-4-maverick": (400, 0.01),
    "llama-4-scout": (109, 0.015),  # with its vision encoder
    "nemotron-3-nano-30b-a3b": (31.6, 0.001),
    "opt-175b": (175, 0.01),
    "megatron-1.7b": (1.7, 0.03),
    "megatron-3.6b": (3.6, 0.015),
    "megatron-7.5b": (7.5, 0.01),
    "megatron-18.4b": (18.4, 0.003),
    "megatron-22b": (22, 0.01),
    "megatron-39.1b": (39.1, 0.002),
    "megatron-76.1b": (76.1, 0.001),
    "megatron-145.6b": (145.6, 0.001),
    "megatron-175b": (174.6, 0.001),
    "megatron-310.1b": (310.1, 0.001),
    "megatron-530b": (529.6, 0.001),
    "megatron-1t": (1008.0, 0.001),
}
# Active billions as published, and how many vocabulary tables the publisher leaves out.
ACTIVE = {
    "minimax-m2": (10, 2),
    "qwen3.5-397b-a17b": (17, 0),
    "deepseek-v2": (21, 0),
    "deepseek-v2-lite": (2.4, 1),
    "deepseek-v3": (37, 0),
    "glm-4.5": (32, 2),
    "glm-4.5-air": (12, 2),
    "gpt-oss-120b": (5.13, 1),
    "gpt-oss-20b": (3.61, 1),
    "kimi-k2": (32, 1),
    "llama-4-maverick": (17, 0),
    "llama-4-scout": (17, 0),
    "mixtral-8x22b": (39, 0),
    "mixtral-8x7b": (12.9, 0),
    "nemotron-3-nano-30b-a3b": (3.2, 1),
    "qwen3-235b-a22b": (22, 0),
    "qwen3-30b-a3b": (3.3, 0),
}


@pytest.mark.parametrize(("name", "total"), (BUILT | PUBLISHED).items())
def test_totals_are_exact(name: str, total: int) -> None:
    assert count(model(name)).total == total


@pytest.mark.parametrize(("name", "published"), ROUNDED.items())
def test_totals_agree_with_rounded_ones(name: str, published: tuple[float, float]) -> None:
    assert count(model(name)).total / 1e9 == pytest.approx(published[0], rel=published[1])


def test_every_model_of_the_catalog_is_checked_against_a_known_total() -> None:
    assert {spec.name for spec in models()} <= {*BUILT, *PUBLISHED, *ROUNDED}
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    assert f"{len(BUILT)} of the {len(models())} catalog models" in page


# Checkpoints with their multi-token-prediction layer, as published: tensors added up, or billions.
WITH_MTP = {"qwen3.5-27b-vl": 27_781_427_952, "qwen3.5-35b-a3b-vl": 35_951_822_704}
MTP_BILLIONS = {"deepseek-v3": (11.5, 0.01), "qwen3-next-80b-a3b": (81.3 - 79.67, 0.02)}


@pytest.mark.parametrize(("name", "total"), WITH_MTP.items())
def test_multi_token_prediction_makes_up_the_rest_of_a_checkpoint(name: str, total: int) -> None:
    counts = count(model(name))
    assert counts.total + counts.mtp == total


@pytest.mark.parametrize(("name", "published"), MTP_BILLIONS.items())
def test_multi_token_prediction_is_as_large_as_published(name: str, published: tuple[float, float]) -> None:
    assert count(model(name)).mtp / 1e9 == pytest.approx(published[0], rel=published[1])


@pytest.mark.parametrize(("name", "published"), ACTIVE.items())
def test_active_parameters_agree_with_published_ones(name: str, published: tuple[float, int]) -> None:
    billions, without_tables = published
    counts = count(model(name))
    assert (counts.active - without_tables * counts.embedding) / 1e9 == pytest.approx(billions, rel=0.025)


def test_gpt_oss_active_count_is_the_model_cards_to_the_last_digit() -> None:
    for name, billions in (("gpt-oss-20b", 3.61), ("gpt-oss-120b", 5.13)):
        counts = count(model(name))
        assert round((counts.active - counts.embedding) / 1e9, 2) == billions


def test_a_ranks_share_equals_what_megatron_core_builds() -> None:
    """Llama-3-70B, TP4 PP4, rank 0, vocabulary padded to a multiple of 512: built with megatron-core 0.19.2."""
    padded = msgspec.structs.replace(model("llama-3-70b"), vocab=128_512)
    stage = embedding_weights(padded).plus(layer_weights(padded, LayerKind(("attention", "dense"))).times(20))
    assert stage.expert == 0
    assert stage.sharded // 4 + stage.replicated == 4_541_710_336


@pytest.mark.parametrize("name", [spec.name for spec in models() if spec.name.startswith("megatron-")])
def test_gpt_counts_follow_narayanan_2021(name: str) -> None:
    """Equations 2 and 3 of arXiv 2104.04473; the paper leaves out the final norm and counts attention in full."""
    m, seq = model(name), 2048
    h, L, V = m.hidden, m.layers, m.vocab
    assert count(m).total == 12 * L * h**2 + 13 * L * h + (V + seq) * h + 2 * h
    full = 24 * L * h**2 + 4 * seq * L * h + 2 * V * h
    assert forward_flops_per_token(m, seq) == pytest.approx(full - 2 * seq * L * h, rel=1e-12)


def test_vision_flops_equal_torchvisions() -> None:
    """torchvision publishes 61.55 G multiply-adds for one 224-pixel image through ViT-L/16."""
    m = model("vit-l-16")
    assert m.vision is not None
    seq = m.vision.tokens
    assert round(forward_flops_per_token(m, seq) * seq / 2e9, 2) == 61.55


def test_layer_kinds_follow_the_published_patterns() -> None:
    gemma2, gemma3, oss = (layer_kinds(model(name)) for name in ("gemma-2-9b", "gemma-3-27b", "gpt-oss-20b"))
    assert [kind.span for kind in gemma2[:4]] == ["window", "full", "window", "full"]
    assert [kind.span for kind in gemma3[:7]] == ["window"] * 5 + ["full", "window"]
    assert sum(kind.span == "full" for kind in gemma3) == 10
    assert [kind.span for kind in oss[:3]] == ["window", "full", "window"]
    assert {kind.span for kind in layer_kinds(model("mistral-7b-v0.1"))} == {"window"}
    scout, maverick = layer_kinds(model("llama-4-scout")), layer_kinds(model("llama-4-maverick"))
    assert [kind.span for kind in scout[:5]] == ["window"] * 3 + ["full", "window"]
    assert {kind.blocks for kind in scout} == {("attention", "experts")}
    assert [kind.blocks[1] for kind in maverick[:4]] == ["dense", "experts", "dense", "experts"]
    deepseek = [kind.blocks for kind in layer_kinds(model("deepseek-v3"))[:5]]
    assert deepseek == [("latent", "dense")] * 3 + [("latent", "experts")] * 2
    assert [kind.role for kind in layer_kinds(model("t5-11b"))] == ["encoder"] * 24 + ["cross"] * 24
    assert {kind.role for kind in layer_kinds(model("vit-l-16"))} == {"encoder"}


def test_split_follows_megatron() -> None:
    """Of a DeepSeek-V3 layer the norms, router and down-projections are whole on every rank."""
    m = model("deepseek-v3")
    moe = layer_weights(m, LayerKind(("latent", "experts")))
    assert moe.replicated == 2 * 7168 + 1536 + 512 + 7168 * 1536 + 7168 * (512 + 64) + 7168 * 256
    assert moe.expert == 256 * 3 * 7168 * 2048
    oss = layer_tensors(model("gpt-oss-20b"), LayerKind(("attention", "experts"), span="window"))
    by_name = {tensor.name: (tensor.parameters, tensor.split) for tensor in oss}
    assert by_name["attention.sinks"] == (64, "tp")
    assert by_name["attention.out_bias"] == (2880, "none")
    assert by_name["attention.qkv_bias"] == ((64 + 16) * 64, "tp")
    assert by_name["router.bias"] == (32, "none")
    assert by_name["experts.bias"] == (32 * 3 * 2880, "expert")


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    heads = draw(st.sampled_from([1, 2, 4, 6]))
    mla = draw(st.none() | st.builds(_mla, st.none() | st.integers(1, 40), st.integers(1, 40)))
    moe = draw(st.none() | _moes())
    window = draw(st.none() | st.integers(1, 5000))
    return ModelSpec(
        name="any",
        layers=draw(st.integers(1, 12)),
        hidden=draw(st.integers(1, 300)),
        ffn=draw(st.integers(1, 300)),
        heads=heads,
        kv_heads=draw(st.sampled_from([g for g in (1, 2, 3, 6) if heads % g == 0])),
        head_dim=draw(st.integers(1, 64)),
        vocab=draw(st.integers(1, 1000)),
        max_seq=4096,
        gated_mlp=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        norm=draw(st.sampled_from(["rmsnorm", "layernorm"])),
        norms_per_layer=draw(st.integers(1, 4)),
        qk_norm=draw(st.sampled_from(["none", "per_head", "full"])),
        qkv_bias=draw(st.booleans()),
        out_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()),
        head_bias=draw(st.booleans()),
        attention_sinks=draw(st.booleans()),
        learned_positions=draw(st.integers(0, 100)),
        window=window,
        full_attention_every=1 if window is None else draw(st.sampled_from([0, 2, 3, 4])),
        chunked=draw(st.booleans()),
        mla=mla,
        moe=moe,
    )


def _mla(q_lora_rank: int | None, kv_lora_rank: int) -> MLA:
    return MLA(
        q_lora_rank=q_lora_rank, kv_lora_rank=kv_lora_rank, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12
    )


@st.composite
def _moes(draw: st.DrawFn) -> MoE:
    experts = draw(st.integers(1, 16))
    return MoE(
        experts=experts,
        topk=draw(st.integers(1, experts)),
        ffn=draw(st.integers(1, 100)),
        shared_ffn=draw(st.integers(0, 100)),
        first_dense=draw(st.integers(0, 4)),
        every=draw(st.integers(1, 3)),
        router_bias=draw(st.booleans()),
        expert_bias=draw(st.booleans()),
        shared_gate=draw(st.booleans()),
    )


@given(specs())
def test_the_count_is_the_sum_of_its_parts(m: ModelSpec) -> None:
    counts = count(m)
    layers = [layer_weights(m, kind) for kind in layer_kinds(m)]
    parts = [embedding_weights(m), head_weights(m), *layers]
    assert counts.total == sum(part.sharded + part.replicated + part.expert for part in parts)
    assert counts.expert == sum(part.expert for part in parts)
    assert sum(part.layers for part in counts.per_kind) == m.layers


@given(specs())
def test_active_is_all_unless_some_experts_sleep(m: ModelSpec) -> None:
    counts = count(m)
    sleeping = m.moe is not None and m.moe.topk < m.moe.experts and counts.expert > 0
    assert (counts.active < counts.total) == sleeping
    if m.moe is not None:
        awake = msgspec.structs.replace(m.moe, topk=m.moe.experts)
        assert count(msgspec.structs.replace(m, moe=awake)).active == counts.total


@given(specs())
def test_untying_adds_the_copy_a_pipeline_keeps(m: ModelSpec) -> None:
    tied, untied = (msgspec.structs.replace(m, tied_embeddings=tied) for tied in (True, False))
    assert count(untied).total - count(tied).total == tied_head_weights(tied).total == m.vocab * m.hidden
    assert tied_head_weights(untied) == Weights()
    assert forward_flops_per_token(tied, 64) == forward_flops_per_token(untied, 64)


@given(specs())
def test_one_more_layer_adds_one_layer(m: ModelSpec) -> None:
    longer = msgspec.structs.replace(m, layers=m.layers + 1)
    last = layer_kinds(longer)[-1]
    assert layer_kinds(longer)[:-1] == layer_kinds(m)
    assert count(longer).total - count(m).total == layer_weights(m, last).total
    more = forward_flops_per_token(longer, 128) - attention_flops_per_token(longer, 128)
    fewer = forward_flops_per_token(m, 128) - attention_flops_per_token(m, 128)
    assert more - fewer == 2 * layer_matmul_parameters(m, last)


@given(specs(), st.integers(1, 10_000))
def test_no_token_sees_more_than_the_causal_past(m: ModelSpec, seq: int) -> None:
    full = LayerKind(("attention", "dense"))
    windowed = LayerKind(("attention", "dense"), span="window")
    assert keys_per_query(m, windowed, seq) <= keys_per_query(m, full, seq) == seq / 2
    if m.window is not None and m.window >= seq:
        assert keys_per_query(m, windowed, seq) == seq / 2


@given(st.integers(1, 60), st.integers(1, 60), st.booleans())
def test_windows_are_counted_exactly(window: int, seq: int, chunked: bool) -> None:
    """Against a count of every pair, the diagonal at half."""
    m = msgspec.structs.replace(model("llama-2-7b"), window=window, full_attention_every=0, chunked=chunked)
    pairs = 0.0
    for query in range(seq):
        first = query // window * window if chunked else max(0, query - window)
        # A sliding window of w has its far edge at half, as the diagonal: w wide in all.
        edge = 0.5 if not chunked and query >= window else 0.0
        pairs += query - first + 0.5 - edge
    expected = keys_per_query(m, LayerKind(("attention", "dense"), span="window"), seq) * seq
    assert expected == pytest.approx(pairs)


def test_cross_attention_and_the_encoder_see_everything() -> None:
    m = model("t5-3b")
    seq = 512
    per_key = 4 * m.heads * m.head_dim
    assert attention_flops_per_token(m, seq) == 24 * per_key * (seq + seq / 2 + seq)
