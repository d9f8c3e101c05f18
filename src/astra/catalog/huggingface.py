"""Reads the ``config.json`` of a Hugging Face model: one small reader per ``model_type``.

A key that is absent means what transformers takes it to mean for that type (checked against 5.22), except that a size
transformers would fill in with the number of some other model is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

from astra.catalog.huggingface_classic import CLASSIC
from astra.catalog.huggingface_forward import forward_fields, routing
from astra.catalog.keys import Keys
from astra.errors import InputError, nearest_names
from astra.spec.model import MLA, ModelSpec, MoE
from astra.spec.names import MOST_IN_NAME, as_line

Fields = dict[str, Any]


def from_config(config: Mapping[str, Any], *, where: str) -> ModelSpec:
    """A model from the contents of its ``config.json``; ``where`` names it in errors and as its source."""
    keys = Keys(config, where)
    model_type = keys.raw("model_type")
    if not isinstance(model_type, str):
        raise keys.refuse("model_type", model_type, f"one of {', '.join(sorted(READERS))}", _HOW)
    reader = READERS.get(model_type)
    if reader is None:
        near = nearest_names(model_type, READERS, count=1)
        hint = f"The nearest is {near[0]}, which may differ in shape. " if near else ""
        raise keys.refuse(
            "model_type", model_type, f"one that Astra can count exactly: {', '.join(sorted(READERS))}", hint + _HOW
        )
    try:
        fields = reader(keys) | forward_fields(model_type, keys)
        return ModelSpec(name=_name(keys), source=as_line(f"Hugging Face {model_type} config {where}"), **fields)
    except InputError as error:
        if error.where.startswith(where):
            raise
        raise InputError(f"{where}: {error.where}", error.got, want=error.want, fix=error.fix) from None


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


def _dims(keys: Keys, *, kv_default: str = "ask", head_dim: int | None = None) -> Fields:
    """Heads and their width. ``head_dim``: the type's own default; without one it is hidden / heads."""
    hidden, heads = keys.size("hidden_size"), keys.size("num_attention_heads")
    if keys.raw("num_key_value_heads") is None and (kv_default == "heads" or keys.has("num_key_value_heads")):
        kv_heads = heads
    else:
        kv_heads = keys.size("num_key_value_heads")
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads={heads}")
    if head_dim is None or keys.has("head_dim"):
        head_dim = keys.optional("head_dim") or keys.whole_head(hidden, heads)
    return {"hidden": hidden, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}


def _frame(keys: Keys, *, max_seq: int, tied: bool = False) -> Fields:
    """What nearly every type spells the same way."""
    return {
        "layers": keys.layers("num_hidden_layers"),
        "ffn": keys.size("intermediate_size"),
        "vocab": keys.size("vocab_size"),
        "max_seq": keys.size("max_position_embeddings", default=max_seq),
        "tied_embeddings": keys.flag("tie_word_embeddings", tied),
    }


def _biases(keys: Keys, *, attention: bool = False) -> Fields:
    biased = keys.flag("attention_bias", attention)
    return {"qkv_bias": biased, "out_bias": biased}


def _every_layer(window: int | None) -> Fields:
    return {} if window is None else {"window": window, "full_attention_every": 0}


def _pattern(keys: Keys, window: int | None, *, every: int, word: str) -> Fields:
    """Windowed layers with a full one at the end of each group: from ``layer_types`` if given, else ``every``."""
    layers = keys.layers("num_hidden_layers")
    types = keys.raw("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise keys.refuse("layer_types", types, f"a list with one word for each of the {layers} layers")
        every = _group(keys, "layer_types", [_is_full(keys, given, word) for given in types])
    if every == 1:
        return {}
    if window is None:
        raise keys.refuse("sliding_window", None, "the window of the layers that do not see everything")
    return {"window": window, "full_attention_every": every}


def _is_full(keys: Keys, given: object, windowed: str) -> bool:
    if given not in ("full_attention", windowed):
        raise keys.refuse("layer_types", given, f"full_attention or {windowed}")
    return given == "full_attention"


def _group(keys: Keys, key: str, marked: Sequence[bool]) -> int:
    """The n for which exactly the layers n, 2n, 3n, ... (the first is 1) are marked; 0 if none is."""
    if not any(marked):
        return 0
    every = marked.index(True) + 1
    if any(mark != ((index + 1) % every == 0) for index, mark in enumerate(marked)):
        raise keys.refuse(key, None, "a regular pattern: every n-th layer, counted from the first")
    return every


def _llama(keys: Keys) -> Fields:
    mlp_bias = keys.flag("mlp_bias", False)
    return _frame(keys, max_seq=2048) | _dims(keys, kv_default="heads") | _biases(keys) | {"mlp_bias": mlp_bias}


def _internlm(keys: Keys) -> Fields:
    biased = keys.flag("bias", True)
    return _frame(keys, max_seq=2048) | _dims(keys, kv_default="heads") | {"qkv_bias": biased, "out_bias": biased}


def _mistral(keys: Keys) -> Fields:
    window = keys.optional("sliding_window") if keys.has("sliding_window") else 4096
    return _frame(keys, max_seq=131072) | _dims(keys) | _every_layer(window)


def _mixtral(keys: Keys) -> Fields:
    frame = _frame(keys, max_seq=131072) | _dims(keys) | _every_layer(keys.optional("sliding_window"))
    moe = MoE(experts=keys.size("num_local_experts"), topk=_topk(keys), ffn=frame["ffn"])
    return frame | {"moe": moe}


def _topk(keys: Keys) -> int:
    return keys.size("num_experts_per_tok", "experts_per_token")


def _qwen_window(keys: Keys) -> Fields:
    """Qwen windows only the layers from ``max_window_layers`` on, and only when asked to."""
    window = keys.optional("sliding_window") if keys.flag("use_sliding_window", False) else None
    if keys.raw("layer_types") is not None:
        return _pattern(keys, window, every=1, word="sliding_attention")
    if window is None:
        return {}
    first, layers = keys.size("max_window_layers", default=28, least=0), keys.layers("num_hidden_layers")
    if 0 < first < layers:
        raise keys.refuse("max_window_layers", first, f"0 or at least {layers}: else some layers see more than others")
    return _every_layer(window if first == 0 else None)


def _qwen2(keys: Keys) -> Fields:
    return _frame(keys, max_seq=32768) | _dims(keys) | _qwen_window(keys) | {"qkv_bias": True}


def _qwen3(keys: Keys) -> Fields:
    dims = _dims(keys, head_dim=128)
    return _frame(keys, max_seq=32768) | dims | _qwen_window(keys) | _biases(keys) | {"qk_norm": "per_head"}


def _qwen_experts(keys: Keys, *, normalized: bool = False, **shared: Any) -> MoE:
    every = keys.size("decoder_sparse_step", default=1)
    dense = keys.numbers("mlp_only_layers") or []
    if sorted(dense) != list(range(len(dense))) or (dense and every > 1):
        raise keys.refuse("mlp_only_layers", dense, "the first layers only, and decoder_sparse_step of 1 with them")
    return MoE(
        experts=keys.size("num_experts", "num_local_experts"),
        topk=_topk(keys),
        ffn=keys.size("moe_intermediate_size"),
        first_dense=len(dense),
        every=every,
        normalized=keys.flag("norm_topk_prob", normalized),
        **shared,
    )


def _qwen2_moe(keys: Keys) -> Fields:
    moe = _qwen_experts(keys, shared_ffn=keys.size("shared_expert_intermediate_size"), shared_gate=True)
    frame = _frame(keys, max_seq=32768) | _dims(keys) | _qwen_window(keys)
    return frame | {"qkv_bias": keys.flag("qkv_bias", True), "moe": moe}


def _qwen3_moe(keys: Keys) -> Fields:
    window = keys.optional("sliding_window") if keys.flag("use_sliding_window", False) else None
    frame = _frame(keys, max_seq=32768) | _dims(keys) | _every_layer(window) | _biases(keys)
    return frame | {"qk_norm": "per_head", "moe": _qwen_experts(keys)}


def _deepseek(keys: Keys) -> Fields:
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
    frame = _frame(keys, max_seq=4096) | width | {"head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim}
    score = "sigmoid" if keys.word("model_type", "deepseek_v3") != "deepseek_v2" else "softmax"
    moe = _routed(keys, score=score)
    return frame | {"mla": mla, "moe": moe, "mtp_layers": _mtp(keys)}


def _mtp(keys: Keys) -> int:
    return keys.size("num_nextn_predict_layers", default=0, least=0)


def _routed(keys: Keys, *, score: str) -> MoE:
    ffn = keys.size("moe_intermediate_size")
    return MoE(
        experts=keys.size("n_routed_experts"),
        topk=_topk(keys),
        ffn=ffn,
        shared_ffn=ffn * keys.size_or_none("n_shared_experts"),
        first_dense=keys.size("first_k_dense_replace", least=0),
        **routing(keys, score=score, normalized=score == "sigmoid"),
    )


def _gemma(keys: Keys) -> Fields:
    return _frame(keys, max_seq=8192, tied=True) | _dims(keys, head_dim=256) | _biases(keys)


def _gemma2(keys: Keys) -> Fields:
    window = keys.size("sliding_window", default=4096)
    return _gemma(keys) | _pattern(keys, window, every=2, word="sliding_attention") | {"norms_per_layer": 4}


def _gemma3_text(keys: Keys) -> Fields:
    """The published files leave out heads and vocabulary where they are the type's defaults."""
    keys.only("use_bidirectional_attention", False, "a model that predicts the next token")
    keys = keys.filled(num_attention_heads=8, num_key_value_heads=4, vocab_size=262208, max_position_embeddings=131072)
    every = keys.size("sliding_window_pattern", "_sliding_window_pattern", default=6)
    pattern = _pattern(keys, keys.size("sliding_window", default=4096), every=every, word="sliding_attention")
    return _gemma(keys) | pattern | {"norms_per_layer": 4, "qk_norm": "per_head"}


def _phi3(keys: Keys) -> Fields:
    frame = _frame(keys, max_seq=4096) | _dims(keys, kv_default="heads")
    return frame | _every_layer(keys.optional("sliding_window"))


def _olmo2(keys: Keys) -> Fields:
    return _frame(keys, max_seq=2048) | _dims(keys, kv_default="heads") | _biases(keys) | {"qk_norm": "full"}


def _gpt_oss(keys: Keys) -> Fields:
    frame = _frame(keys, max_seq=131072) | _dims(keys, head_dim=64) | _biases(keys, attention=True)
    frame |= _pattern(keys, keys.size("sliding_window", default=128), every=2, word="sliding_attention")
    moe = MoE(
        experts=keys.size("num_local_experts"), topk=_topk(keys), ffn=frame["ffn"], router_bias=True, expert_bias=True
    )
    return frame | {"attention_sinks": True, "moe": moe}


def _glm4(keys: Keys) -> Fields:
    frame = _frame(keys, max_seq=131072) | _dims(keys, head_dim=128)
    return frame | {"qkv_bias": keys.flag("attention_bias", True), "norms_per_layer": 4}


def _glm4_moe(keys: Keys) -> Fields:
    frame = _frame(keys, max_seq=131072) | _dims(keys) | {"qkv_bias": keys.flag("attention_bias", False)}
    qk_norm = "per_head" if keys.flag("use_qk_norm", False) else "none"
    return frame | {"qk_norm": qk_norm, "moe": _routed(keys, score="sigmoid"), "mtp_layers": _mtp(keys)}


def _llama4_text(keys: Keys) -> Fields:
    """Experts and the shared expert have ``intermediate_size``; dense layers ``intermediate_size_mlp``."""
    frame = _frame(keys, max_seq=131072) | _dims(keys, head_dim=128) | _biases(keys)
    expert_ffn, layers = frame["ffn"], frame["layers"]
    listed = keys.numbers("moe_layers")
    every = keys.size("interleave_moe_layer_step", default=1)
    if listed is not None:
        with_experts = set(listed)
        every = _group(keys, "moe_layers", [layer in with_experts for layer in range(layers)])
    moe = MoE(
        experts=keys.size("num_local_experts"),
        topk=_topk(keys),
        ffn=expert_ffn,
        shared_ffn=expert_ffn,
        every=every,
        score="sigmoid",
        normalized=False,
    )
    return frame | _llama4_chunks(keys, layers) | {"ffn": keys.size("intermediate_size_mlp"), "moe": moe}


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
        every = _group(keys, "no_rope_layers", [not number for number in rotary])
    pattern = _pattern(keys, chunk, every=every, word="chunked_attention")
    return pattern | {"chunked": True} if pattern else {}


def _text_of(reader: Callable[[Keys], Fields]) -> Callable[[Keys], Fields]:
    """The language model of a multimodal file."""
    return lambda keys: reader(keys.inside("text_config"))


READERS: Final[Mapping[str, Callable[[Keys], Fields]]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3": _text_of(_gemma3_text),
    "gemma3_text": _gemma3_text,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "gpt_oss": _gpt_oss,
    "granite": _llama,
    "internlm": _internlm,
    "kimi_k2": _deepseek,
    "llama": _llama,
    "llama4": _text_of(_llama4_text),
    "llama4_text": _llama4_text,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    **CLASSIC,
}
