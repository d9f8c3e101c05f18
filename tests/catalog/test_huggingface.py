"""Hugging Face configs: shapes read right, and everything else refused with a sentence."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog.huggingface import from_config
from astra.catalog.huggingface_forward import model_types
from astra.errors import InputError
from astra.layers.kinds import layer_kinds
from astra.layers.weights import count
from astra.spec.model import Rotary

Config = dict[str, Any]

LLAMA: Config = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


def llama(**changes: Any) -> Config:
    return LLAMA | changes


MOE: Config = {"num_experts_per_tok": 2, "moe_intermediate_size": 512}
GLM4_MOE = llama(
    model_type="glm4_moe", **MOE, n_routed_experts=8, n_shared_experts=1, first_k_dense_replace=1, attention_bias=True
)
DEEPSEEK = llama(
    model_type="deepseek_v3",
    hidden_size=7168,
    num_hidden_layers=61,
    num_attention_heads=128,
    num_key_value_heads=128,
    intermediate_size=18432,
    moe_intermediate_size=2048,
    n_routed_experts=256,
    n_shared_experts=1,
    num_experts_per_tok=8,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    vocab_size=129280,
)
GPT_OSS = llama(
    model_type="gpt_oss",
    hidden_size=2880,
    num_hidden_layers=24,
    num_attention_heads=64,
    head_dim=64,
    intermediate_size=2880,
    num_local_experts=32,
    num_experts_per_tok=4,
    vocab_size=201088,
    sliding_window=128,
)
LLAMA4 = llama(
    model_type="llama4_text",
    num_local_experts=4,
    num_experts_per_tok=1,
    intermediate_size_mlp=16384,
    interleave_moe_layer_step=2,
)
GEMMA2 = llama(
    model_type="gemma2",
    hidden_size=3584,
    num_hidden_layers=42,
    num_attention_heads=16,
    head_dim=256,
    vocab_size=256000,
    sliding_window=4096,
    tie_word_embeddings=True,
)

DELTA: Config = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "head_dim": 256, "max_position_embeddings": 262144,
}  # fmt: skip
QWEN3_NEXT = llama(
    model_type="qwen3_next",
    hidden_size=2048,
    num_hidden_layers=48,
    num_attention_heads=16,
    num_key_value_heads=2,
    intermediate_size=5120,
    vocab_size=151936,
    num_experts=512,
    num_experts_per_tok=10,
    moe_intermediate_size=512,
    shared_expert_intermediate_size=512,
    **DELTA,
)
QWEN3_5: Config = {
    "model_type": "qwen3_5_moe",
    "tie_word_embeddings": False,
    "text_config": {
        "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads": 16, "num_key_value_heads": 2,
        "vocab_size": 248320, "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "mtp_num_hidden_layers": 1,
        "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention"] * 10, **DELTA,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "patch_size": 16},
}  # fmt: skip
QWEN2_5_VL = llama(
    model_type="qwen2_5_vl",
    hidden_size=3584,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    intermediate_size=18944,
    vocab_size=152064,
    vision_config={"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "patch_size": 14},
)
QWEN3_VL: Config = {
    "model_type": "qwen3_vl",
    "tie_word_embeddings": True,
    "text_config": llama(
        hidden_size=2560, num_hidden_layers=36, intermediate_size=9728, vocab_size=151936, head_dim=128
    ) | {"tie_word_embeddings": True},
    "vision_config": {
        "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16,
        "deepstack_visual_indexes": [5, 11, 17],
    },
}  # fmt: skip
GEMMA3: Config = {
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024,
    },
    "vision_config": {
        "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16,
        "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
    },
}  # fmt: skip
BERT: Config = {
    "model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
    "intermediate_size": 4096, "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2,
}  # fmt: skip
OPT_350M: Config = {
    "model_type": "opt", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
    "vocab_size": 50272, "max_position_embeddings": 2048, "word_embed_proj_dim": 512, "do_layer_norm_before": False,
}  # fmt: skip
MINIMAX = llama(
    model_type="minimax_m2", hidden_size=3072, num_hidden_layers=62, num_attention_heads=48, intermediate_size=1536,
    vocab_size=200064, num_local_experts=256, num_experts_per_tok=8, rotary_dim=64, head_dim=128,
)  # fmt: skip

# Config, total and input table, as transformers 5.22.2 builds them on the meta device.
BUILT: list[tuple[str, Config, int, int]] = [
    (
        "gpt2",
        {
            "model_type": "gpt2",
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_positions": 1024,
            "vocab_size": 50257,
            "n_inner": None,
        },
        124_439_808,
        38_597_376,
    ),
    (
        "llama-2-7b",
        llama(num_key_value_heads=32, intermediate_size=11008, vocab_size=32000),
        6_738_415_616,
        131_072_000,
    ),
    (
        "llama-2-70b",
        llama(
            hidden_size=8192, num_hidden_layers=80, num_attention_heads=64, intermediate_size=28672, vocab_size=32000
        ),
        68_976_648_192,
        262_144_000,
    ),
    ("llama-3-8b", LLAMA, 8_030_261_248, 525_336_576),
    (
        "mixtral-8x7b",
        llama(model_type="mixtral", vocab_size=32000, num_local_experts=8, num_experts_per_tok=2),
        46_702_792_704,
        131_072_000,
    ),
    (
        "qwen2.5-7b",
        llama(
            model_type="qwen2",
            hidden_size=3584,
            num_hidden_layers=28,
            num_attention_heads=28,
            num_key_value_heads=4,
            intermediate_size=18944,
            vocab_size=152064,
        ),
        7_615_616_512,
        544_997_376,
    ),
    (
        "qwen3-8b",
        llama(model_type="qwen3", num_hidden_layers=36, intermediate_size=12288, vocab_size=151936, head_dim=128),
        8_190_735_360,
        622_329_856,
    ),
    (
        "qwen3-30b-a3b",
        llama(
            model_type="qwen3_moe",
            hidden_size=2048,
            num_hidden_layers=48,
            num_key_value_heads=4,
            intermediate_size=6144,
            moe_intermediate_size=768,
            num_experts=128,
            num_experts_per_tok=8,
            vocab_size=151936,
            head_dim=128,
            decoder_sparse_step=1,
            norm_topk_prob=True,
            mlp_only_layers=[],
        ),
        30_532_122_624,
        311_164_928,
    ),
    ("deepseek-v3", DEEPSEEK, 671_026_404_352, 926_679_040),
    ("gemma-2-9b", GEMMA2, 9_241_705_984, 917_504_000),
    (
        "phi-4",
        llama(
            model_type="phi3",
            hidden_size=5120,
            num_hidden_layers=40,
            num_attention_heads=40,
            num_key_value_heads=10,
            intermediate_size=17920,
            vocab_size=100352,
            sliding_window=None,
        ),
        14_659_507_200,
        513_802_240,
    ),
    ("gpt-oss-20b", GPT_OSS, 20_914_757_184, 579_133_440),
    ("qwen3-next-80b-a3b", QWEN3_NEXT, 79_674_391_296, 311_164_928),
    ("qwen3.5-35b-a3b", QWEN3_5, 35_107_181_936, 508_559_360),
    ("qwen2.5-vl-7b", QWEN2_5_VL, 8_292_166_656, 544_997_376),
    ("qwen3-vl-4b", QWEN3_VL, 4_437_815_808, 388_956_160),
    ("gemma-3-4b", GEMMA3, 4_300_079_472, 671_252_480),
    ("bert-large", BERT, 335_174_458, 31_254_528),
    ("opt-350m", OPT_350M, 331_196_416, 25_739_264),
    ("minimax-m2", MINIMAX, 228_689_748_992, 614_596_608),
    # Small shapes of the types that have no model above.
    ("granite", llama(model_type="granite", mlp_bias=True, attention_bias=True), 8_031_637_504, 525_336_576),
    ("olmo2", llama(model_type="olmo2"), 8_030_425_088, 525_336_576),
    ("gemma", llama(model_type="gemma", head_dim=256), 9_372_438_528, 525_336_576),
    ("glm4", llama(model_type="glm4", head_dim=128), 8_030_720_000, 525_336_576),
    ("glm4_moe", GLM4_MOE, 4_325_806_080, 525_336_576),
    (
        "qwen2_moe",
        llama(model_type="qwen2_moe", **MOE, num_experts=8, shared_expert_intermediate_size=1024),
        4_407_758_848,
        525_336_576,
    ),
    ("llama4_text", LLAMA4, 19_707_465_728, 525_336_576),
    (
        "gpt_neox",
        llama(model_type="gpt_neox", num_key_value_heads=None),
        6_957_899_776,
        525_336_576,
    ),
    (
        "falcon",
        {
            "model_type": "falcon",
            "hidden_size": 4544,
            "num_hidden_layers": 32,
            "num_attention_heads": 71,
            "vocab_size": 65024,
            "multi_query": True,
        },
        6_921_720_704,
        295_469_056,
    ),
]


@pytest.mark.parametrize(("name", "config", "total", "embedding"), BUILT, ids=[row[0] for row in BUILT])
def test_counts_equal_those_of_transformers(name: str, config: Config, total: int, embedding: int) -> None:
    counts = count(from_config(config, where=f"{name}/config.json"))
    assert (counts.total, counts.embedding) == (total, embedding)


def test_the_name_and_source_come_from_the_file() -> None:
    spec = from_config(LLAMA, where="/models/my-llama/config.json")
    assert (spec.name, spec.source) == ("my-llama", "Hugging Face llama config /models/my-llama/config.json")
    assert from_config(llama(_name_or_path="org/other"), where="x").name == "other"
    assert from_config(llama(_name_or_path="org/\x1b[31mred"), where="x").name == "[31mred"


def test_the_text_part_of_a_multimodal_file_is_read() -> None:
    text = {key: value for key, value in GEMMA2.items() if key not in ("model_type", "vocab_size")}
    spec = from_config({"model_type": "gemma3", "text_config": text, "vision_config": {}}, where="x")
    assert (spec.vocab, spec.qk_norm, spec.full_attention_every) == (262208, "per_head", 6)
    assert from_config({"model_type": "llama4", "text_config": LLAMA4}, where="x").chunked
    with pytest.raises(InputError, match="text_config"):
        from_config({"model_type": "gemma3"}, where="x")


def test_what_families_do_besides_their_shape() -> None:
    hybrid = from_config(QWEN3_5, where="x")
    assert hybrid.delta_net is not None
    assert (hybrid.delta_net.attention_every, hybrid.attention_gate, hybrid.mtp_layers) == (4, True, 1)
    assert hybrid.quirks == ("zero_centered_norm",)
    assert from_config(MINIMAX, where="x").rotary == Rotary(base=5_000_000.0, fraction=0.5)
    bert = from_config(BERT, where="x")
    assert (bert.causal, bert.final_norm, bert.quirks) == (False, False, ("post_norm",))
    assert from_config(OPT_350M, where="x").quirks == ("post_norm",)
    alone = from_config({key: value for key, value in GEMMA3.items() if key != "vision_config"}, where="x")
    assert alone.tower is None


def test_windows() -> None:
    window = from_config(llama(model_type="mistral", sliding_window=4096), where="x")
    assert (window.window, window.full_attention_every) == (4096, 0)
    assert from_config(llama(model_type="mistral", sliding_window=None), where="x").window is None
    assert from_config(llama(model_type="mistral"), where="x").window == 4096
    unused = llama(model_type="qwen2", sliding_window=4096, use_sliding_window=False, max_window_layers=28)
    assert from_config(unused, where="x").window is None
    listed = ["sliding_attention", "sliding_attention", "full_attention"] * 14
    spec = from_config(GEMMA2 | {"layer_types": listed}, where="x")
    assert [kind.span for kind in layer_kinds(spec)[:4]] == ["window", "window", "full", "window"]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({}, "model_type"),
        ({"model_type": 7}, "model_type"),
        (llama(model_type="mamba"), "model_type"),
        ({"model_type": "llama"}, "num_hidden_layers"),
        (llama(hidden_size="4096"), "hidden_size"),
        (llama(hidden_size=True), "hidden_size"),
        (llama(hidden_size=4096.0), "hidden_size"),
        (llama(hidden_size=float("nan")), "hidden_size"),
        (llama(hidden_size=-4096), "hidden_size"),
        (llama(hidden_size=0), "hidden_size"),
        (llama(hidden_size=2**70), "hidden_size"),
        (llama(hidden_size=[4096]), "hidden_size"),
        (llama(hidden_size=None), "hidden_size"),
        (llama(num_hidden_layers=10**9), "num_hidden_layers"),
        (llama(num_attention_heads=33, num_key_value_heads=33), "num_attention_heads"),
        (llama(num_key_value_heads=5), "num_key_value_heads"),
        (llama(num_key_value_heads=64), "num_key_value_heads"),
        (llama(tie_word_embeddings="yes"), "tie_word_embeddings"),
        (llama(tie_word_embeddings=1), "tie_word_embeddings"),
        (llama(hidden_size=2**38, head_dim=128), "model"),
        ({k: v for k, v in llama(model_type="mistral").items() if k != "num_key_value_heads"}, "num_key_value_heads"),
        (llama(model_type="mixtral", num_local_experts=2, num_experts_per_tok=3), "moe.topk"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq"),
        (DEEPSEEK | {"attention_bias": True}, "attention_bias"),
        ({k: v for k, v in DEEPSEEK.items() if k != "q_lora_rank"}, "q_lora_rank"),
        (GEMMA2 | {"layer_types": ["full_attention"]}, "layer_types"),
        (GEMMA2 | {"layer_types": ["linear_attention"] * 42}, "layer_types"),
        (GEMMA2 | {"layer_types": ["full_attention"] * 20 + ["sliding_attention"] * 22}, "layer_types"),
        (LLAMA4 | {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        (QWEN3_NEXT | {"layer_types": ["linear_attention"] * 47}, "layer_types"),
        (QWEN3_NEXT | {"layer_types": ["linear_attention"] * 48}, "delta_net.attention_every"),
        (QWEN3_NEXT | {"linear_num_key_heads": 5}, "delta_net.key_heads"),
        (GEMMA3 | {"mm_tokens_per_image": 100}, "mm_tokens_per_image"),
        (GEMMA3 | {"vision_config": {"hidden_size": 1152}}, "vision_config"),
        (BERT | {"is_decoder": True}, "is_decoder"),
        (LLAMA4 | {"moe_layers": "all"}, "moe_layers"),
        (llama(model_type="qwen3_moe", **MOE, num_experts=8, mlp_only_layers=[5]), "mlp_only_layers"),
        (
            llama(model_type="qwen2", use_sliding_window=True, sliding_window=4096, max_window_layers=28),
            "max_window_layers",
        ),
    ],
)
def test_a_bad_config_is_refused_by_file_and_key(config: Config, key: str) -> None:
    with pytest.raises(InputError) as caught:
        from_config(config, where="some/config.json")
    assert caught.value.where.startswith("some/config.json")
    assert key in caught.value.where


def test_an_unknown_type_with_familiar_keys_is_not_guessed() -> None:
    with pytest.raises(InputError, match=r"The nearest is llama, .*TOML"):
        from_config(llama(model_type="llama5"), where="x")


_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(0, 4),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
_KEYS = sorted({key for _, config, _, _ in BUILT for key in config if key != "model_type"})


@given(st.sampled_from([row[1] for row in BUILT]), st.sampled_from(list(model_types())), st.data())
def test_no_config_ends_in_anything_but_a_model_or_a_sentence(
    config: Config, model_type: str, data: st.DataObject
) -> None:
    changes = data.draw(st.dictionaries(st.sampled_from(_KEYS), _VALUES, max_size=4))
    changed = config | changes | {"model_type": data.draw(st.sampled_from([model_type, config["model_type"]]))}
    try:
        spec = from_config(changed, where="f")
    except InputError as error:
        assert error.where.startswith("f")  # noqa: PT017
    else:
        assert 0 < count(spec).active <= count(spec).total < 2**62
