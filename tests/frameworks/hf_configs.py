"""Public Hugging Face configurations of the models behind Megatron-Bridge's recipes, by the names the recipes use."""

from __future__ import annotations

from typing import Any

_LLAMA31 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0}
_LLAMA31 |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_YARN = {"rope_type": "yarn", "type": "yarn", "rope_theta": 10000.0, "factor": 40.0, "beta_fast": 32, "beta_slow": 1}
_YARN |= {"original_max_position_embeddings": 4096}
_OSS = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0}
_OSS |= {"truncate": False, "original_max_position_embeddings": 4096}


def _shape(
    kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, vocab: int, **more: Any
) -> dict[str, Any]:
    architecture = {
        "llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "qwen3_moe": "Qwen3Moe", "deepseek_v2": "DeepseekV2",
        "deepseek_v3": "DeepseekV3", "gpt_oss": "GptOss",
    }[kind]  # fmt: skip
    return {
        "model_type": kind,
        "architectures": [f"{architecture}ForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        **more,
    }


def _llama(layers: int, hidden: int, heads: int, ffn: int, **more: Any) -> dict[str, Any]:
    rope = {"max_position_embeddings": 131072, "rope_parameters": dict(_LLAMA31)}
    return _shape("llama", layers, hidden, heads, 8, ffn, 128256, **(rope | more))


def _llama3(layers: int, hidden: int, heads: int, ffn: int) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": 500000.0}
    return _llama(layers, hidden, heads, ffn, max_position_embeddings=8192, rope_parameters=plain)


def _qwen(
    kind: str, layers: int, hidden: int, heads: int, kv: int, ffn: int, *, tied: bool, **more: Any
) -> dict[str, Any]:
    plain = {"rope_type": "default", "rope_theta": 1000000.0}
    vocab = 152064 if kind == "qwen2" and hidden > 1536 else 151936
    made = {
        "rope_parameters": plain,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": tied,
        "rms_norm_eps": 1e-6,
    }
    return _shape(kind, layers, hidden, heads, kv, ffn, vocab, **(made | more))


def _qwen3(layers: int, hidden: int, heads: int, kv: int, ffn: int, *, tied: bool = False) -> dict[str, Any]:
    return _qwen("qwen3", layers, hidden, heads, kv, ffn, tied=tied, head_dim=128, max_position_embeddings=40960)


def _qwen3_moe(layers: int, hidden: int, heads: int, ffn: int, expert: int) -> dict[str, Any]:
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": expert, "norm_topk_prob": True}
    return _qwen("qwen3_moe", layers, hidden, heads, 4, ffn, tied=False, head_dim=128, max_position_embeddings=40960,
                 decoder_sparse_step=1, mlp_only_layers=[], **experts)  # fmt: skip


def _latent(kind: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int, **more: Any) -> dict[str, Any]:
    ranks = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
    place = {"max_position_embeddings": 163840, "rope_theta": 10000.0, "rms_norm_eps": 1e-6, "moe_layer_freq": 1}
    return _shape(kind, layers, hidden, heads, heads, ffn, vocab, **(ranks | place | more))


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    kinds = ["sliding_attention", "full_attention"] * (layers // 2)
    return _shape("gpt_oss", layers, 2880, 64, 8, 2880, 201088, head_dim=64, num_local_experts=experts,
                  num_experts_per_tok=4, sliding_window=128, layer_types=kinds, attention_bias=True,
                  swiglu_limit=7.0, max_position_embeddings=131072, rope_parameters=dict(_OSS))  # fmt: skip


_DEEPSEEK2 = {"topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "meta-llama/Llama-2-7b-hf": _shape("llama", 32, 4096, 32, 32, 11008, 32000, max_position_embeddings=4096,
                                       rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "meta-llama/Meta-Llama-3-8B": _llama3(32, 4096, 32, 14336),
    "meta-llama/Meta-Llama-3-70B": _llama3(80, 8192, 64, 28672),
    "meta-llama/Meta-Llama-3.1-8B": _llama(32, 4096, 32, 14336),
    "meta-llama/Meta-Llama-3.1-70B": _llama(80, 8192, 64, 28672),
    "meta-llama/Meta-Llama-3.1-405B": _llama(126, 16384, 128, 53248),
    "meta-llama/Llama-3.2-1B": _llama(16, 2048, 32, 8192, head_dim=64, tie_word_embeddings=True,
                                      rope_parameters=_LLAMA31 | {"factor": 32.0}),
    "meta-llama/Llama-3.2-3B": _llama(28, 3072, 24, 8192, head_dim=128, tie_word_embeddings=True,
                                      rope_parameters=_LLAMA31 | {"factor": 32.0}),
    "Qwen/Qwen2-0.5B": _qwen("qwen2", 24, 896, 14, 2, 4864, tied=True),
    "Qwen/Qwen2-1.5B": _qwen("qwen2", 28, 1536, 12, 2, 8960, tied=True),
    "Qwen/Qwen2-7B": _qwen("qwen2", 28, 3584, 28, 4, 18944, tied=False),
    "Qwen/Qwen2-72B": _qwen("qwen2", 80, 8192, 64, 8, 29568, tied=False),
    "Qwen/Qwen2.5-0.5B": _qwen("qwen2", 24, 896, 14, 2, 4864, tied=True),
    "Qwen/Qwen2.5-1.5B": _qwen("qwen2", 28, 1536, 12, 2, 8960, tied=True),
    "Qwen/Qwen2.5-7B": _qwen("qwen2", 28, 3584, 28, 4, 18944, tied=False),
    "Qwen/Qwen2.5-14B": _qwen("qwen2", 48, 5120, 40, 8, 13824, tied=False),
    "Qwen/Qwen2.5-32B": _qwen("qwen2", 64, 5120, 40, 8, 27648, tied=False),
    "Qwen/Qwen2.5-72B": _qwen("qwen2", 80, 8192, 64, 8, 29568, tied=False),
    "Qwen/Qwen3-0.6B": _qwen3(28, 1024, 16, 8, 3072, tied=True),
    "Qwen/Qwen3-1.7B": _qwen3(28, 2048, 16, 8, 6144, tied=True),
    "Qwen/Qwen3-4B": _qwen3(36, 2560, 32, 8, 9728, tied=True),
    "Qwen/Qwen3-8B": _qwen3(36, 4096, 32, 8, 12288),
    "Qwen/Qwen3-14B": _qwen3(40, 5120, 40, 8, 17408),
    "Qwen/Qwen3-32B": _qwen3(64, 5120, 64, 8, 25600),
    "Qwen/Qwen3-30B-A3B": _qwen3_moe(48, 2048, 32, 6144, 768),
    "Qwen/Qwen3-235B-A22B": _qwen3_moe(94, 4096, 64, 12288, 1536),
    "deepseek-ai/DeepSeek-V2-Lite": _latent(
        "deepseek_v2", 27, 2048, 16, 10944, 102400, q_lora_rank=None, n_routed_experts=64, n_shared_experts=2,
        num_experts_per_tok=6, moe_intermediate_size=1408, first_k_dense_replace=1, n_group=1, topk_group=1,
        routed_scaling_factor=1.0, rope_scaling=_YARN | {"mscale": 0.707, "mscale_all_dim": 0.707},
        **(_DEEPSEEK2 | {"topk_method": "greedy"})),
    "deepseek-ai/DeepSeek-V2": _latent(
        "deepseek_v2", 60, 5120, 128, 12288, 102400, q_lora_rank=1536, n_routed_experts=160, n_shared_experts=2,
        num_experts_per_tok=6, moe_intermediate_size=1536, first_k_dense_replace=1, n_group=8, topk_group=3,
        routed_scaling_factor=16.0, rope_scaling=_YARN | {"mscale": 0.707, "mscale_all_dim": 0.707}, **_DEEPSEEK2),
    "deepseek-ai/DeepSeek-V3": _latent(
        "deepseek_v3", 61, 7168, 128, 18432, 129280, q_lora_rank=1536, n_routed_experts=256, n_shared_experts=1,
        num_experts_per_tok=8, moe_intermediate_size=2048, first_k_dense_replace=3, n_group=8, topk_group=4,
        routed_scaling_factor=2.5, norm_topk_prob=True, scoring_func="sigmoid", topk_method="noaux_tc",
        num_nextn_predict_layers=1, rope_scaling=_YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}),
    "openai/gpt-oss-20b": _gpt_oss(24, 32),
    "openai/gpt-oss-120b": _gpt_oss(36, 128),
}  # fmt: skip
