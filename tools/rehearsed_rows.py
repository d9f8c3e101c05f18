"""Rows of rehearsals as the cases they were written from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astra.lab.rehearse.case import MODEL_FIELDS, Case
from astra.spec.model import ModelSpec, MoE
from astra.spec.strategy import parse_strategy


def case_of_row(row: Mapping[str, Any]) -> Case:
    """The case a row was written from."""
    hidden = ["ep"] if row.get("overlaps_experts") else []
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
        **{name: shape[name] for name in MODEL_FIELDS},
        max_seq=seq,
        qk_norm="per_head" if shape["qk_norm"] else "none",
        qkv_bias=shape["qkv_bias"] or biases,
        out_bias=biases,
        mlp_bias=biases,
        learned_positions=seq if shape["learned_positions"] else 0,
        moe=moe,
    )
