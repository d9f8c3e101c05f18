"""A model's shape: what cannot be is refused with its place."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from astra.errors import InputError
from astra.spec.model import MLA, Encoder, ModelSpec, MoE, Vision
from astra.spec.record import decode
from tests.oracle.requests import model

BAD: list[tuple[str, dict[str, Any]]] = [
    ("model.layers", {"layers": 0}),
    ("model.layers", {"layers": 20_000}),
    ("model.hidden", {"hidden": -1}),
    ("model.heads", {"heads": 0}),
    ("model.kv_heads", {"kv_heads": 3}),
    ("model.kv_heads", {"kv_heads": 8}),
    ("model.vocab", {"vocab": 0}),
    ("model.vocab", {"vocab": -5}),
    ("model.max_seq", {"max_seq": 10**10}),
    ("model.window", {"window": 0, "full_attention_every": 2}),
    ("model.full_attention_every", {"window": 64}),
    ("model.full_attention_every", {"full_attention_every": 2}),
    ("model.norms_per_layer", {"norms_per_layer": 0}),
    ("model", {"hidden": 10**9, "ffn": 10**10}),
]


@pytest.mark.parametrize(("where", "changes"), BAD, ids=str)
def test_what_cannot_be_is_refused(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        model("dense", **changes)
    assert caught.value.where == where


def test_experts() -> None:
    assert MoE(experts=8, topk=8, ffn=1).topk == 8
    usual: dict[str, Any] = {"experts": 8, "topk": 2, "ffn": 64}
    for changes in ({"topk": 9}, {"topk": 0}, {"experts": 0}, {"ffn": 0}, {"every": 0}, {"first_dense": -1}):
        with pytest.raises(InputError, match="moe"):
            MoE(**{**usual, **changes})


def test_latent_attention_needs_no_divisible_heads() -> None:
    latent = MLA(kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
    assert model("dense", mla=latent, kv_heads=3).mla == latent
    with pytest.raises(InputError, match=r"mla\.q_lora_rank"):
        MLA(q_lora_rank=0, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)


def test_vision_and_encoder() -> None:
    assert Vision(image=224, patch=16).tokens == 197
    with pytest.raises(InputError, match=r"vision\.patch"):
        Vision(image=224, patch=15)
    with pytest.raises(InputError, match="encoder"):
        Encoder(layers=0)


def test_frozen_hashable_and_strict() -> None:
    one, same = model("gqa"), model("gqa")
    assert one == same
    assert hash(one) == hash(same)
    with pytest.raises(AttributeError):
        one.layers = 3  # type: ignore[misc]
    with pytest.raises(InputError, match="no field colour"):
        decode(ModelSpec, {**msgspec.to_builtins(one), "colour": "red"}, where="model file")
    assert decode(ModelSpec, msgspec.to_builtins(one), where="model file") == one
