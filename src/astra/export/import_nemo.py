"""NeMo's configurations: those of its launcher and examples, a trainer and a model; Megatron's words underneath."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.import_megatron import from_words
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
        from msgspec.structs import replace  # noqa: PLC0415

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
