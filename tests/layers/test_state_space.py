"""State-space layers: the scan's products against the recurrence they compute, and the laws every block keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import astra
from astra.axes import AXES
from astra.catalog.models import model
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.reading import from_record
from astra.layers import blocks, ends
from astra.layers.block import LayerKind
from astra.layers.blocks import state_space
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Layer
from astra.layers.weights import count, forward_flops_per_token, layer_matmul_parameters, layer_weights
from astra.rules.can import unable
from astra.spec.model import ModelSpec, MoE, StateSpace
from astra.spec.workload import Workload
from tests.export.launching import import_text
from tests.layers.test_operators import shard
from tests.oracle.requests import model as tiny

SEQ = 256
SPACE = StateSpace(pattern="M-M*ME", heads=8, head_dim=16, states=32, groups=4, chunk=64)
SCAN = LayerKind(("state_space",))


def hybrid(**changes: Any) -> ModelSpec:
    """A small model with every letter of a pattern."""
    fields: dict[str, Any] = {
        "layers": 6, "vocab": 1024, "norms_per_layer": 1, "state_space": SPACE,
        "moe": MoE(experts=4, topk=2, ffn=64), **changes,
    }  # fmt: skip
    return tiny("dense", **fields)


def flops(layer: Layer, *, weights: bool) -> float:
    return float(sum(np.sum(2.0 * g.groups * g.m * g.n * g.k) for g in layer.gemms if g.weight is weights))


def test_each_letter_is_a_layer_of_one_block() -> None:
    blocks = [kind.blocks for kind in layer_kinds(hybrid())]
    names = {"M": "state_space", "-": "dense", "*": "attention", "E": "experts"}
    assert blocks == [(names[letter],) for letter in SPACE.pattern]
    spec = model("nemotron-h-8b")
    assert [part.layers for part in count(spec).per_kind] == [24, 24, 4]


def test_the_scan_in_chunks_is_the_recurrence_and_its_products_are_those_counted() -> None:
    """One head: h' = a h + b x, y = c h, token by token; and in chunks, by four products, counted as they are made."""
    rng = np.random.default_rng(3)
    tokens, states, width, chunk = 64, 8, 4, 16
    a, x = rng.uniform(0.5, 1.0, tokens), rng.normal(size=(tokens, width))
    b, c = rng.normal(size=(tokens, states)), rng.normal(size=(tokens, states))
    state, slow = np.zeros((states, width)), np.zeros((tokens, width))
    for t in range(tokens):
        state = a[t] * state + np.outer(b[t], x[t])
        slow[t] = c[t] @ state
    fast, state, counted = np.zeros((tokens, width)), np.zeros((states, width)), 0.0

    def product(left: np.ndarray, right: np.ndarray, share: float = 1.0) -> np.ndarray:
        nonlocal counted
        counted += share * 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return np.asarray(left @ right)

    for start in range(0, tokens, chunk):
        at = slice(start, start + chunk)
        decay = np.cumprod(a[at])
        lower = np.tril(decay[:, None] / decay[None, :])
        within = product(product(c[at], b[at].T) * lower, x[at], share=0.5)  # below the diagonal alone
        between = product(c[at] * decay[:, None], state)
        state = decay[-1] * state + product((b[at] * (decay[-1] / decay)[:, None]).T, x[at])
        fast[at] = within + between
    np.testing.assert_allclose(fast, slow, rtol=1e-9)
    one = StateSpace(pattern="M", heads=1, head_dim=width, states=states, groups=1, chunk=chunk)
    spec = tiny("dense", layers=1, norms_per_layer=1, state_space=one)
    assert state_space.BLOCK.other_flops(spec, SCAN, tokens) * tokens == counted


@pytest.mark.parametrize("seq", [32, 256])
def test_products_are_two_flops_a_weight_and_the_scan(seq: int) -> None:
    spec, whole = hybrid(), 0.0
    for kind in layer_kinds(spec):
        layer = blocks.layer(spec, kind, shard(seq))
        assert flops(layer, weights=True) == 2.0 * seq * layer_matmul_parameters(spec, kind)
        whole += flops(layer, weights=True) + flops(layer, weights=False)
    head = ends.head(spec, shard(seq), logits_kept_bytes=4, logits_peak_bytes=8, vocab_multiple=128)
    attention = 2 * (seq / 2) * spec.heads * 2 * spec.head_dim * seq
    assert whole + flops(head, weights=True) + attention == pytest.approx(seq * forward_flops_per_token(spec, seq))


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_ranks_share_all_of_it(tp: int) -> None:
    spec = hybrid()
    alone, split = (blocks.layer(spec, SCAN, shard(SEQ, tp=degree, sp=degree > 1)) for degree in (1, tp))
    for weights in (True, False):
        assert tp * flops(split, weights=weights) == pytest.approx(flops(alone, weights=weights))
    np.testing.assert_allclose(tp * split.kept.whole, alone.kept.whole)
    assert layer_weights(spec, SCAN).replicated == spec.hidden  # the norm before it


def test_context_parallel_ranks_share_all_of_it_and_trade_sequence_for_heads() -> None:
    spec = hybrid()
    alone, split = (blocks.layer(spec, SCAN, shard(SEQ, cp=cp)) for cp in (1, 2))
    assert 2 * flops(split, weights=False) == flops(alone, weights=False)
    sends = {axis.name: axis.layer_sends(spec, SCAN, shard(SEQ, cp=2)) for axis in AXES}
    assert {send.op for send in sends["cp"]} == {"all_to_all"}
    assert not any(send.routed for send in sends["cp"])  # no dispatcher of experts sends it
    assert sends["ep"] == []


def test_full_recompute_keeps_the_input_alone_and_selective_leaves_it() -> None:
    kept = blocks.layer(hybrid(), SCAN, shard(SEQ)).kept
    assert kept.checkpoint == 2 * SEQ * hybrid().hidden
    assert kept.checkpoint < kept.whole == kept.selective


def test_frameworks_without_it_say_so() -> None:
    from astra.catalog.runtimes import runtime

    work = Workload(global_batch=8, seq=SEQ)
    spec = model("nemotron-h-8b")
    assert unable(runtime("megatron"), spec, work) == []
    for name in ("deepspeed", "fsdp-eager", "flagscale", "megatron-apex"):
        sentences = [reason.sentence for reason in unable(runtime(name), spec, work)]
        assert f"{name} has no state-space layers (Mamba-2)" in sentences


@pytest.mark.parametrize(
    ("where", "changes"),
    [
        ("model.state_space.pattern", {"layers": 5}),
        ("model.state_space.pattern", {"moe": None}),
        ("model.norms_per_layer", {"norms_per_layer": 2}),
        ("model.state_space", {"causal": False}),
    ],
)
def test_a_pattern_that_contradicts_the_model_is_refused(where: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        hybrid(**changes)
    assert caught.value.where == where


@pytest.mark.parametrize("changes", [{"pattern": "MX"}, {"pattern": "*-"}, {"groups": 3}, {"heads": 0}], ids=str)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"pattern": "M", "heads": 8, "head_dim": 16, "states": 32}
    with pytest.raises(InputError, match="state_space"):
        StateSpace(**(usual | changes))


@pytest.mark.parametrize("fix", [["pp=2", "tp=2"], ["pp=1"]], ids=str)
def test_a_script_for_megatron_is_read_back_as_the_same_hybrid(fix: list[str]) -> None:
    plan = astra.plan("nemotron-h-8b", gpus="16xH100", batch=64, top=1, fix=fix)
    launch, _ = from_record(json.loads(plan.to_json()), 1)
    script = EXPORTERS["megatron"].files(launch)["launch.sh"]
    found = import_text(script, name="launch.sh")
    assert "pretrain_hybrid.py" in script
    assert found.model is not None
    assert found.model.state_space == launch.model.state_space
    assert count(found.model).total == 8_100_852_736
    assert str(found.strategy) == str(launch.strategy)
    assert not any("hybrid" in word for word in found.ignored)
