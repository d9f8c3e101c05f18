"""Megatron's settings in the YAML of others: NeMo's launcher and examples, and gpt-neox, which DeepSpeed runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from astra.errors import InputError
from astra.export.import_megatron import from_words
from astra.export.import_sharding import zero_sharding
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings, section

_SHARDED: Final = ("distributed_fused_adam", "mcore_distributed_optim")
_SAME: Final = re.compile(r"\$\{\.(\w+)\}")
_TIMES: Final = re.compile(r"\$\{multiply:\s*([0-9]{1,4})\s*,\s*\$\{[\w.]*?(\w+)\}\s*\}")


def is_nemo(record: Mapping[str, Any]) -> bool:
    """Whether a configuration has the sections of NeMo."""
    model = record.get("model")
    return "trainer" in record and isinstance(model, Mapping) and "tensor_model_parallel_size" in model


def read_nemo(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """What a trainer and a model say together."""
    trainer, model = section(record, "trainer", asked.name), section(record, "model", asked.name)
    if model.values.get("fsdp") is True:
        raise InputError(f"{asked.name}: model.fsdp", True, want="off: NeMo's own FSDP is not read")
    settings = _settled(model.values, asked.name)
    if "num_layers" not in settings and "restore_from_path" not in settings:
        raise InputError(f"{asked.name}: model.num_layers", None, want="a plain decoder: other models are not read")
    words = ["megatron_gpt_pretraining.py", *_flags(settings, asked.name)]
    words += _optimizer(section(model.values, "optim", asked.name).values)
    words += ["--fp16"] if str(trainer.values.get("precision", "bf16")) in ("16", "16-mixed", "fp16") else ["--bf16"]
    found = from_words(words, {}, asked._replace(gpus=asked.gpus or _gpus(trainer)))
    costly = [f"model.{key}" for key in known_settings("nemo").unread(settings) if settings.get(key)]
    if settings.get("overlap_p2p_comm") is False and found.strategy.vp > 1:
        kept = tuple(word for word in found.strategy.overlap if word != "p2p")
        found = found._replace(strategy=replace(found.strategy, overlap=kept))
    task, rank = _task(section(model.values, "peft", asked.name), model.values, asked.name)
    return found._replace(framework="nemo", ignored=(*found.ignored, *costly), task=task, lora_rank=rank)


def _settled(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Settings with the products of others worked out; what refers to another file is told."""
    found = dict(model)
    train = section(model, "data", name).values.get("train_ds")
    data = train if isinstance(train, Mapping) else {}
    for key in ("micro_batch_size", "global_batch_size"):
        found.setdefault(key, data.get(key))
    if "max_seq_length" in data and "${" in str(found.get("encoder_seq_length", "${")):
        found["encoder_seq_length"] = data["max_seq_length"]
    for key in known_settings("nemo").words["numbers"]:
        other = _SAME.fullmatch(str(found.get(key)))
        if other is not None and isinstance(found.get(other.group(1)), int):
            found[key] = found[other.group(1)]
        product = _TIMES.fullmatch(str(found.get(key)))
        if product is not None and isinstance(model.get(product.group(2)), int):
            found[key] = int(product.group(1)) * model[product.group(2)]
    return found


def _flags(model: Mapping[str, Any], name: str) -> list[str]:
    words: list[str] = []
    known = known_settings("nemo").words
    for key, flag in known["numbers"].items():
        value = model.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            fix = "A value from another file is not known here: write it out."
            raise InputError(f"{name}: model.{key}", value, want="a whole number", fix=fix)
        words += [flag, str(value)]
    words += [flag for key, flag in known["switches"].items() if model.get(key) is True]
    groups = model.get("num_query_groups")
    if isinstance(groups, int):
        words += ["--group-query-attention", "--num-query-groups", str(groups)]
    return [*words, *_kinds(model), *_recompute(model)]


def _kinds(model: Mapping[str, Any]) -> list[str]:
    """The kinds of layers, by their names."""
    activation, norm = str(model.get("activation", "gelu")), str(model.get("normalization", "layernorm"))
    words = ["--swiglu"] if "swiglu" in activation else ["--squared-relu"] if activation == "squared-relu" else []
    words += ["--normalization", "RMSNorm"] if "rmsnorm" in norm else []
    words += ["--apply-layernorm-1p"] if norm == "layernorm1p" else []
    words += ["--disable-bias-linear"] if model.get("bias") is False else []
    words += ["--untie-embeddings-and-output-weights"] * (model.get("share_embeddings_and_output_weights") is False)
    if model.get("fp8") is True:
        words += ["--fp8-format", "e4m3" if model.get("fp8_e4m3") is True else "hybrid"]
    if model.get("position_embedding_type") is not None:
        words += ["--position-embedding-type", str(model["position_embedding_type"])]
    return words


def _recompute(model: Mapping[str, Any]) -> list[str]:
    kind = model.get("activations_checkpoint_granularity")
    if kind is None:
        return []
    words = ["--recompute-granularity", str(kind)]
    if kind == "full":
        words += ["--recompute-method", str(model.get("activations_checkpoint_method") or "uniform")]
        words += ["--recompute-num-layers", str(model.get("activations_checkpoint_num_layers") or 1)]
    return words


def _optimizer(optim: Mapping[str, Any]) -> list[str]:
    sharded = optim.get("name") in _SHARDED
    words = ["--use-distributed-optimizer"] * sharded
    words += ["--overlap-grad-reduce"] * (sharded and optim.get("overlap_grad_sync") is True)
    words += ["--overlap-param-gather"] * (sharded and optim.get("overlap_param_sync") is True)
    return words + ["--grad-reduce-in-bf16"] * (sharded and optim.get("grad_sync_dtype") in ("bf16", "16"))


def _gpus(trainer: Numbers) -> int | None:
    each, nodes = trainer.values.get("devices"), trainer.values.get("num_nodes", 1)
    if isinstance(each, int) and isinstance(nodes, int) and each > 0 and nodes > 0:
        return each * nodes
    return None


def _task(peft: Numbers, model: Mapping[str, Any], name: str) -> tuple[str, int | None]:
    scheme = peft.values.get("peft_scheme")
    if scheme is None:
        return ("finetune" if "peft" in model or model.get("restore_from_path") else "pretrain"), None
    if scheme != "lora":
        raise InputError(f"{name}: model.peft.peft_scheme", scheme, want="lora, or null")
    rank = section(peft.values, "lora_tuning", f"{name}: model.peft").count("adapter_dim", 32)
    return "lora", rank


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
    words += _neox_shape(flat)
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
    # The width of a gated MLP depends on the version of gpt-neox: it is not guessed.
    gated = str(flat.get("activation", "gelu")) in _GATED or str(flat.get("mlp_type", "regular")) == "llama"
    remarks += ["a gated MLP, whose width is not said: name the model"] * gated
    ignored = (*found.ignored, *costly, *remarks)
    return found._replace(
        strategy=strategy, ignored=tuple(dict.fromkeys(ignored)), optimizer=_neox_optimizer(flat),
        model=None if gated else found.model, lacks_vocab=found.lacks_vocab and not gated,
    )  # fmt: skip


def _neox_shape(flat: Mapping[str, Any]) -> list[str]:
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


def _neox_optimizer(flat: Mapping[str, Any]) -> str:
    optimizer = flat.get("optimizer")
    kind = str(optimizer.get("type", "adam")).lower() if isinstance(optimizer, Mapping) else "adam"
    return "sgd" if kind == "sgd" else "adam"
