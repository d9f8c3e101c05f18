"""gpt-neox: Megatron's settings in YAML, run by DeepSpeed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.import_megatron import from_words
from astra.export.import_sharding import zero_sharding
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings

_GATED: Final = ("swiglu", "geglu", "reglu", "bilinear", "glu")


def read_neox(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """One file that holds the model, the batch and the sharding."""
    flat = {str(key).replace("-", "_"): value for key, value in record.items()}
    top = Numbers(flat, asked.name)
    if not {"train_micro_batch_size_per_gpu", "train_batch_size"} & set(flat):
        fix = "Settings of a run may be in several files: put them in one."
        raise InputError(asked.name, None, want="train_micro_batch_size_per_gpu or train_batch_size", fix=fix)
    if top.whole("moe_num_experts", 1) > 1 or top.whole("context_parallel_size", 1) > 1:
        key = "moe_num_experts" if top.whole("moe_num_experts", 1) > 1 else "context_parallel_size"
        raise InputError(f"{asked.name}: {key}", flat[key], want="a dense model: this part of gpt-neox is not read")
    fields, remarks = zero_sharding(flat, asked.name)
    pp, tp = (top.whole(key, 1) or 1 for key in ("pipe_parallel_size", "model_parallel_size"))
    words = ["gpt-neox.py", "--deepspeed", "--zero-stage", str(fields["zero"])]
    degrees = {"pipe_parallel_size": pp, "model_parallel_size": tp}
    for key, flag in known_settings("neox").words["numbers"].items():
        if isinstance(degrees.get(key, flat.get(key)), int):
            words += [flag, str(degrees.get(key, top.whole(key, 1)))]
    words += ["--deepspeed-activation-checkpointing"] * bool(flat.get("checkpoint_activations"))
    words += _shape(flat)
    world = asked.count()
    if "train_batch_size" not in flat:
        steps = top.count("gradient_accumulation_steps")
        batch = top.count("train_micro_batch_size_per_gpu") * steps * (world // max(pp * tp, 1))
        words += ["--global-batch-size", str(batch)]
    found = from_words([*words, _width(flat)], {}, asked._replace(gpus=world))
    fused = "flash" in str(flat.get("attention_config"))
    grads = "fp32" if fields["grads"] == "fp32" else found.strategy.grads
    strategy = replace(found.strategy, flash=fused, overlap=fields["overlap"], offload=fields["offload"], grads=grads)
    costly = [key for key in known_settings("neox").unread(flat) if flat[key] not in (False, 0, 1, None)]
    costly += ["gpt_j_residual"] if flat.get("gpt_j_residual") is True else []
    gated = _is_gated(flat)
    remarks += ["a gated MLP, whose width is not said: name the model"] * gated
    ignored = (*found.ignored, *costly, *remarks)
    return found._replace(
        strategy=strategy, ignored=tuple(dict.fromkeys(ignored)), optimizer=_optimizer(flat),
        model=None if gated else found.model, lacks_vocab=found.lacks_vocab and not gated,
    )  # fmt: skip


def _is_gated(flat: Mapping[str, Any]) -> bool:
    """The width of a gated MLP depends on the version of gpt-neox: it is not guessed."""
    return str(flat.get("activation", "gelu")) in _GATED or str(flat.get("mlp_type", "regular")) == "llama"


def _shape(flat: Mapping[str, Any]) -> list[str]:
    words = []
    kv = flat.get("num_kv_heads")
    if isinstance(kv, int) and not isinstance(kv, bool):
        words += ["--group-query-attention", "--num-query-groups", str(kv)]
    if str(flat.get("norm", "layernorm")) == "rmsnorm":
        words += ["--normalization", "RMSNorm"]
    if str(flat.get("pos_emb", "learned")) == "rotary":
        words += ["--position-embedding-type", "rope", "--rotary-percent", str(flat.get("rotary_pct", 1.0))]
    elif str(flat.get("pos_emb", "learned")) != "learned":
        words += ["--position-embedding-type", "none"]
    return words + ["--untie-embeddings-and-output-weights"] * (flat.get("no_weight_tying") is True)


def _width(flat: Mapping[str, Any]) -> str:
    fp16, bf16 = flat.get("fp16"), flat.get("bf16")
    narrow = isinstance(fp16, Mapping) and fp16.get("enabled", fp16.get("fp16")) is True
    wide = isinstance(bf16, Mapping) and bf16.get("enabled") is True
    brain = isinstance(fp16, Mapping) and fp16.get("type") == "bfloat16"
    return "--fp16" if narrow and not wide and not brain and flat.get("precision") != "bfloat16" else "--bf16"


def _optimizer(flat: Mapping[str, Any]) -> str:
    optimizer = flat.get("optimizer")
    kind = str(optimizer.get("type", "adam")).lower() if isinstance(optimizer, Mapping) else "adam"
    return "sgd" if kind == "sgd" else "adam"
