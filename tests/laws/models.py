"""A GPT as papers count it: four times as wide in the middle, biases, layer norms, no dropout."""

from __future__ import annotations

from typing import Any

import astra

HIDDEN, HEADS, SEQ, MBS = 2048, 16, 1024, 2


def gpt(layers: int, **changes: Any) -> astra.ModelSpec:
    """A GPT of some layers."""
    fields: dict[str, Any] = {
        "name": f"gpt-{layers}", "layers": layers, "hidden": HIDDEN, "ffn": 4 * HIDDEN, "heads": HEADS,
        "kv_heads": HEADS, "head_dim": HIDDEN // HEADS, "vocab": 51200, "max_seq": 4096, "gated_mlp": False,
        "norm": "layernorm", "learned_positions": 4096, "qkv_bias": True, "out_bias": True, "mlp_bias": True,
    }  # fmt: skip
    return astra.ModelSpec(**{**fields, **changes})


def told(model: str | astra.ModelSpec, strategy: str, **asked: Any) -> astra.Estimate:
    """An estimate, as a user asks for it."""
    return astra.estimate(model, strategy=strategy, **{"gpus": "8xH100", "batch": 64, "seq": SEQ, **asked})
