"""nanotron's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from astra.errors import InputError
from astra.export.imported import ImportAsked, ImportedLaunch, Numbers, known_settings, section
from astra.spec.model import ModelSpec
from astra.spec.strategy import Strategy

_FAMILIES: Final = {"is_llama_config": "llama", "is_qwen2_config": "qwen2"}


def read_nanotron(record: Mapping[str, Any], asked: ImportAsked) -> ImportedLaunch:
    """Degrees, tokens of a step, and the model where it is a plain one."""
    mesh, tokens = section(record, "parallelism", asked.name), section(record, "tokens", asked.name)
    optimizer = section(record, "optimizer", asked.name)
    dp, tp, pp = mesh.count("dp"), mesh.count("tp"), mesh.count("pp")
    zero = optimizer.whole("zero_stage", 0)
    if zero not in (0, 1):
        raise InputError(f"{asked.name}: optimizer.zero_stage", zero, want="0 or 1, all that nanotron has")
    engine = str(mesh.values.get("pp_engine", "1f1b")).lower()
    wide = optimizer.values.get("accumulate_grad_in_fp32", True) is not False
    strategy = Strategy(
        tp=tp, pp=pp, dp=dp, mbs=tokens.count("micro_batch_size"), cp=mesh.count("context_parallel_size"),
        ep=mesh.count("expert_parallel_size"), zero=zero, overlap=(), grads="fp32" if wide else "bf16",
        recompute="full" if mesh.values.get("recompute_layer") else "none",
        sp=tp > 1 and str(mesh.values.get("tp_mode", "")).upper() == "REDUCE_SCATTER",
        schedule="1f1b" if engine == "1f1b" or pp == 1 else "gpipe",
    )  # fmt: skip
    if asked.gpus is not None and asked.gpus != strategy.gpus:
        want = f"{strategy.gpus}: dp*tp*pp of the file"
        raise InputError("gpus", asked.gpus, want=want, fix="The file says the degrees; change dp in it.")
    asynchronous = mesh.values.get("tp_linear_async_communication") is True and strategy.sp
    others = [
        f"parallelism.{key}"
        for key, value in mesh.values.items()
        if key not in known_settings("nanotron").read and value
    ]
    remarks = ["parallelism.tp_linear_async_communication"] * asynchronous
    model = _model(section(record, "model", asked.name), asked.name, remarks)
    return ImportedLaunch(
        framework="nanotron",
        strategy=strategy,
        gpus=strategy.gpus,
        global_batch=strategy.mbs * tokens.count("batch_accumulation_per_replica") * dp,
        seq=tokens.count("sequence_length"),
        model=model,
        ignored=(*remarks, *others),
    )


def _model(settings: Numbers, name: str, remarks: list[str]) -> ModelSpec | None:
    """The model, in the words of Hugging Face."""
    from astra.catalog.huggingface import from_config  # noqa: PLC0415

    config = section(settings.values, "model_config", f"{name}: model").values
    kind = next((ours for word, ours in _FAMILIES.items() if config.get(word) is True), None)
    if config.get("moe_config"):
        remarks.append("model.model_config.moe_config, which is not read: name the model")
        return None
    if settings.values.get("dtype") not in (None, "bfloat16"):
        remarks.append(f"model.dtype {settings.values['dtype']}, taken as bfloat16")
    if kind is None:
        return None
    return from_config({**config, "model_type": kind}, where=f"{name}: model_config")
