"""The columns of a measured row that say what was played, and the case they were written from."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from typing import Any, Final

from astra.lab.rehearse.case import Case
from astra.spec.model import ModelSpec, MoE
from astra.spec.strategy import parse_strategy

_STRATEGY: Final = (
    "tp", "pp", "vp", "ep", "dp", "mbs", "sp", "zero", "recompute", "method", "recompute_layers", "layers",
)  # fmt: skip
_CASE: Final = (
    "id",
    "split",
    "seq",
    "stage",
    "attention",
    "fused_cross_entropy",
    "overlap_grad",
    "hides_experts",
    "framework",
    "compiled",
    "precision",
)
_MODEL: Final = (
    "name", "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "gated_mlp", "norm", "tied_embeddings",
)  # fmt: skip


def as_row(case: Case) -> dict[str, Any]:
    """Plain data: what was played, before what was measured."""
    return {
        **{name: getattr(case, name) for name in _CASE},
        **{name: getattr(case.strategy, name) for name in _STRATEGY},
        "strategy": case.words,
        "world": case.strategy.gpus,
        "microbatches": case.num_microbatches,
        "shape": _shape(case.model),
    }


def refused(case: Case, error: Exception) -> dict[str, Any]:
    """The row of a case that its framework refuses, with where: the others go on."""
    where = traceback.format_exc().strip().splitlines()[-12:]
    return {**as_row(case), "oom": False, "error": f"{type(error).__name__}: {error}"[:400], "traceback": where}


def _shape(model: ModelSpec) -> dict[str, Any]:
    """The part of a model that decides a rank's kernels and memory."""
    moe = model.moe
    return {
        **{name: getattr(model, name) for name in _MODEL},
        "biases": model.mlp_bias,  # GPT-2 style: every linear layer has one
        "qkv_bias": model.qkv_bias and not model.mlp_bias,
        "qk_norm": model.qk_norm == "per_head",
        "learned_positions": model.learned_positions > 0,
        "experts": moe.experts if moe else 0,
        "topk": moe.topk if moe else 0,
        "moe_ffn": moe.ffn if moe else 0,
        "shared_ffn": moe.shared_ffn if moe else 0,
    }


def case_of_row(row: Mapping[str, Any]) -> Case:
    """The case a row was written from."""
    hidden = ["ep"] if row.get("hides_experts") else []
    overlap = ",".join([*(["grad", "param"] if row["overlap_grad"] else []), *hidden]) or "none"
    return Case(
        model=_model(row["shape"], row["seq"]),
        strategy=parse_strategy(f"{row['strategy']} overlap={overlap}"),
        seq=row["seq"],
        stage=row["stage"],
        microbatches=row["microbatches"],
        attention=row["attention"],
        fused_cross_entropy=row["fused_cross_entropy"],
        framework=row.get("framework", "megatron"),
        compiled=row.get("compiled", False),
        precision=row.get("precision", "bf16"),
    )


def _model(shape: Mapping[str, Any], seq: int) -> ModelSpec:
    biases, moe = shape["biases"], None
    if shape["experts"]:
        moe = MoE(experts=shape["experts"], topk=shape["topk"], ffn=shape["moe_ffn"], shared_ffn=shape["shared_ffn"])
    return ModelSpec(
        **{name: shape[name] for name in _MODEL},
        max_seq=seq,
        qk_norm="per_head" if shape["qk_norm"] else "none",
        qkv_bias=shape["qkv_bias"] or biases,
        out_bias=biases,
        mlp_bias=biases,
        learned_positions=seq if shape["learned_positions"] else 0,
        moe=moe,
    )
