"""Reads the ``config.json`` of a Hugging Face model: one row of ``data/huggingface.toml`` per ``model_type``.

A key that is absent means what transformers takes it to mean for that type (checked against 5.22), except that a size
transformers would fill in with the number of some other model is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, Final

from astra.catalog.huggingface_families import CLASSIC, TOWERS
from astra.catalog.huggingface_forward import ModelType, forward_fields, model_types, routing
from astra.catalog.keys import (
    Fields,
    Keys,
    dims_of,
    every_layer,
    frame_of,
    group_of,
    listed_of,
    mtp_of,
    pattern_of,
    topk_of,
)  # fmt: skip
from astra.errors import nearest_names, within
from astra.spec.model import MLA, DeltaNet, ModelSpec, MoE
from astra.spec.names import MOST_IN_NAME, as_line


def from_config(config: Mapping[str, Any], *, where: str) -> ModelSpec:
    """A model from the contents of its ``config.json``; ``where`` names it in errors and as its source."""
    keys, known = Keys(config, where), model_types()
    model_type = keys.raw("model_type")
    if not isinstance(model_type, str):
        raise keys.refuse("model_type", model_type, f"one of {', '.join(known)}", _HOW)
    if model_type not in known:
        near = nearest_names(model_type, known, count=1)
        hint = f"The nearest is {near[0]}, which may differ in shape. " if near else ""
        want = f"one that Astra can count exactly: {', '.join(known)}"
        raise keys.refuse("model_type", model_type, want, hint + _HOW)
    with within(where):
        text = _text_of(model_type, keys)
        fields = _shape(known[model_type], text) | forward_fields(model_type, text)
        tower = known[model_type].tower
        if tower and keys.raw("vision_config"):
            fields["tower"] = TOWERS[tower](keys.inside("vision_config"), keys, fields["hidden"])
        return ModelSpec(name=_name(keys), source=as_line(f"Hugging Face {model_type} config {where}"), **fields)


_HOW: Final = (
    "Otherwise write the shape as a TOML file (layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_seq, ...; "
    "see docs/models.md) and give that."
)


def _name(keys: Keys) -> str:
    given = keys.raw("_name_or_path")
    path = PurePath(keys.where)
    name = path.parent.name if path.name == "config.json" else path.stem
    if isinstance(given, str) and given.strip("./"):
        name = given.rstrip("/").rsplit("/", 1)[-1]
    printable = "".join(letter for letter in name if letter.isprintable())
    return printable.strip()[:MOST_IN_NAME].rstrip() or "model"


def _shape(kind: ModelType, keys: Keys) -> Fields:
    """The usual keys with the type's defaults, and what its reader finds besides."""
    keys, frame = keys.filled(**kind.defaults), Fields()
    if kind.max_seq:
        frame = frame_of(keys, max_seq=kind.max_seq, tied=kind.tied)
        frame |= dims_of(keys, kv_default=kind.kv_heads, head_dim=kind.head_dim)
    frame |= {field: keys.flag(*flag) for field, flag in kind.flags.items()} | {**kind.fields}
    return frame | _READERS[kind.reader](keys, frame)


def _mistral(keys: Keys, _: Fields) -> Fields:
    return every_layer(keys.optional("sliding_window") if keys.has("sliding_window") else 4096)


def _mixtral(keys: Keys, frame: Fields) -> Fields:
    moe = MoE(experts=keys.size("num_local_experts"), topk=topk_of(keys), ffn=frame["ffn"])
    return every_layer(keys.optional("sliding_window")) | {"moe": moe}


def _qwen(keys: Keys, _: Fields) -> Fields:
    """Qwen windows only the layers from ``max_window_layers`` on, and only when asked to."""
    window = keys.optional("sliding_window") if keys.flag("use_sliding_window", False) else None
    if keys.raw("layer_types") is not None:
        return pattern_of(keys, window, every=1, word="sliding_attention")
    if window is None:
        return {}
    first, layers = keys.size("max_window_layers", default=28, least=0), keys.layers("num_hidden_layers")
    if 0 < first < layers:
        raise keys.refuse("max_window_layers", first, f"0 or at least {layers}: else some layers see more than others")
    return every_layer(window if first == 0 else None)


def _qwen_experts(keys: Keys, *, normalized: bool = False, **shared: Any) -> MoE:
    every = keys.size("decoder_sparse_step", default=1)
    dense = keys.numbers("mlp_only_layers") or []
    if sorted(dense) != list(range(len(dense))) or (dense and every > 1):
        raise keys.refuse("mlp_only_layers", dense, "the first layers only, and decoder_sparse_step of 1 with them")
    return MoE(
        experts=keys.size("num_experts", "num_local_experts"),
        topk=topk_of(keys),
        ffn=keys.size("moe_intermediate_size"),
        first_dense=len(dense),
        every=every,
        normalized=keys.flag("norm_topk_prob", normalized),
        **shared,
    )


def _qwen2_moe(keys: Keys, frame: Fields) -> Fields:
    moe = _qwen_experts(keys, shared_ffn=keys.size("shared_expert_intermediate_size"), shared_gate=True)
    return _qwen(keys, frame) | {"moe": moe}


def _qwen3_moe(keys: Keys, _: Fields) -> Fields:
    window = keys.optional("sliding_window") if keys.flag("use_sliding_window", False) else None
    return every_layer(window) | {"moe": _qwen_experts(keys)}


def _deepseek(keys: Keys, _: Fields) -> Fields:
    heads = keys.size("num_attention_heads")
    for name in ("attention_bias", "mlp_bias"):
        keys.only(name, False, "latent attention with biases is not known")
    keys.only("moe_layer_freq", 1, "experts in every layer after the first dense ones")
    mla = MLA(
        q_lora_rank=keys.size_or_none("q_lora_rank") or None,
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.size("qk_rope_head_dim"),
        v_head_dim=keys.size("v_head_dim"),
    )
    width = {"hidden": keys.size("hidden_size"), "heads": heads, "kv_heads": heads}
    frame = frame_of(keys, max_seq=4096) | width | {"head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim}
    score = "sigmoid" if keys.word("model_type", "deepseek_v3") != "deepseek_v2" else "softmax"
    moe = _routed(keys, score=score)
    return frame | {"mla": mla, "moe": moe, "mtp_layers": mtp_of(keys)}


def _routed(keys: Keys, *, score: str) -> MoE:
    ffn = keys.size("moe_intermediate_size")
    return MoE(
        experts=keys.size("n_routed_experts"),
        topk=topk_of(keys),
        ffn=ffn,
        shared_ffn=ffn * keys.size_or_none("n_shared_experts"),
        first_dense=keys.size("first_k_dense_replace", least=0),
        **routing(keys, score=score, normalized=score == "sigmoid"),
    )


def _gemma3(keys: Keys, _: Fields) -> Fields:
    keys.only("use_bidirectional_attention", False, "a model that predicts the next token")
    every = keys.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    return _sliding(keys, 4096, every)


def _sliding(keys: Keys, window: int, every: int = 2) -> Fields:
    """A window in all layers but the last of each few."""
    return pattern_of(keys, keys.size("sliding_window", default=window), every=every, word="sliding_attention")


def _gpt_oss(keys: Keys, frame: Fields) -> Fields:
    pattern = _sliding(keys, 128)
    experts, topk = keys.size("num_local_experts"), topk_of(keys)
    return pattern | {"moe": MoE(experts=experts, topk=topk, ffn=frame["ffn"], router_bias=True, expert_bias=True)}


def _glm4_moe(keys: Keys, _: Fields) -> Fields:
    qk_norm = "per_head" if keys.flag("use_qk_norm", False) else "none"
    return {"qk_norm": qk_norm, "moe": _routed(keys, score="sigmoid"), "mtp_layers": mtp_of(keys)}


def _llama4(keys: Keys, frame: Fields) -> Fields:
    """Experts and the shared expert have ``intermediate_size``; dense layers ``intermediate_size_mlp``."""
    expert_ffn, layers = frame["ffn"], frame["layers"]
    listed = keys.numbers("moe_layers")
    every = keys.size("interleave_moe_layer_step", default=1)
    if listed is not None:
        with_experts = set(listed)
        every = group_of(keys, "moe_layers", [layer in with_experts for layer in range(layers)])
    moe = MoE(
        experts=keys.size("num_local_experts"),
        topk=topk_of(keys),
        ffn=expert_ffn,
        shared_ffn=expert_ffn,
        every=every,
        score="sigmoid",
        normalized=False,
    )
    return _llama4_chunks(keys, layers) | {"ffn": keys.size("intermediate_size_mlp"), "moe": moe}


def _llama4_chunks(keys: Keys, layers: int) -> Fields:
    """Layers with rotary positions see one chunk; those without see everything."""
    chunk = keys.optional("attention_chunk_size") if keys.has("attention_chunk_size") else 8192
    if chunk is None:
        return {}
    rotary = keys.numbers("no_rope_layers")
    every = keys.size("no_rope_layer_interval", default=4)
    if rotary:
        if len(rotary) != layers:
            raise keys.refuse("no_rope_layers", rotary, f"one number for each of the {layers} layers")
        every = group_of(keys, "no_rope_layers", [not number for number in rotary])
    pattern = pattern_of(keys, chunk, every=every, word="chunked_attention")
    return pattern | {"chunked": True} if pattern else {}


def _qwen3_hybrid_dense(keys: Keys, _: Fields) -> Fields:
    """Gated delta nets in most layers, and attention with a gate in the last of each few."""
    keys = (
        keys
        if keys.raw("intermediate_size") or keys.raw("num_experts") is None
        else keys.filled(intermediate_size=keys.size("shared_expert_intermediate_size"))
    )
    fields = frame_of(keys, max_seq=32768) | dims_of(keys, head_dim=256)
    every = keys.size("full_attention_interval", default=4)
    types = keys.raw("layer_types")
    if types is not None:
        every = listed_of(keys, fields["layers"], "linear_attention")
    net = DeltaNet(
        heads=keys.size("linear_num_value_heads"),
        head_dim=keys.size("linear_value_head_dim", default=128),
        key_heads=keys.size("linear_num_key_heads"),
        key_dim=keys.size("linear_key_head_dim", default=128),
        attention_every=every,
        conv=keys.size("linear_conv_kernel_dim", default=4),
    )
    biased = keys.flag("attention_bias", False)
    return fields | {
        "qkv_bias": biased,
        "out_bias": biased,
        "delta_net": net,
        "attention_gate": keys.flag("attn_output_gate", True),
        "qk_norm": "per_head",
        "mtp_layers": keys.size("mtp_num_hidden_layers", "num_nextn_predict_layers", default=0, least=0),
    }


def _qwen3_hybrid(keys: Keys, frame: Fields) -> Fields:
    shared = keys.size("shared_expert_intermediate_size")
    moe = _qwen_experts(keys, normalized=True, shared_ffn=shared, shared_gate=shared > 0)
    return _qwen3_hybrid_dense(keys, frame) | {"moe": moe}


def _minimax_m2(keys: Keys, frame: Fields) -> Fields:
    """Experts are as wide as ``intermediate_size``; their choice is steered by a bias outside the gradient."""
    keys.only("shared_intermediate_size", 0, "no shared experts")
    moe = MoE(
        experts=keys.size("num_local_experts"),
        topk=topk_of(keys),
        ffn=frame["ffn"],
        score="sigmoid",
        balance_bias=keys.flag("use_routing_bias", True),
    )
    modules = keys.size("num_mtp_modules", default=0, least=0) if keys.flag("use_mtp", False) else 0
    qk_norm = "full" if keys.flag("use_qk_norm", True) else "none"
    return {"qk_norm": qk_norm, "moe": moe, "mtp_layers": modules}


def _text_of(model_type: str, keys: Keys) -> Keys:
    """The keys of the language model: those of a multimodal file are inside it, but for some older ones."""
    if not model_types()[model_type].tower or (model_type == "qwen2_5_vl" and keys.raw("text_config") is None):
        return keys
    text = keys.inside("text_config")
    tied = keys.raw("tie_word_embeddings")
    return text if tied is None or text.has("tie_word_embeddings") else text.filled(tie_word_embeddings=tied)


_READERS: Final[Mapping[str, Callable[[Keys, Fields], Fields]]] = {
    "": lambda keys, frame: {}, "deepseek": _deepseek, "gemma2": lambda keys, _: _sliding(keys, 4096),
    "gemma3": _gemma3, "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss, "llama4": _llama4, "minimax_m2": _minimax_m2, "mistral": _mistral, "mixtral": _mixtral,
    "qwen": _qwen, "qwen2_moe": _qwen2_moe, "qwen3_hybrid": _qwen3_hybrid, "qwen3_hybrid_dense": _qwen3_hybrid_dense,
    "qwen3_moe": _qwen3_moe, "windowed": lambda keys, _: every_layer(keys.optional("sliding_window")), **CLASSIC,
}  # fmt: skip
