"""Gated delta nets: the products of chunks against the recurrence they compute, and the laws every block keeps."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import astra
from astra.axes import AXES
from astra.catalog.models import model
from astra.catalog.runtimes import runtime, runtime_names
from astra.errors import InputError
from astra.export import EXPORTERS
from astra.export.reading import from_record
from astra.layers import blocks, ends
from astra.layers.block import LayerKind
from astra.layers.blocks import delta_net
from astra.layers.kinds import layer_kinds
from astra.layers.weights import count, forward_flops_per_token, layer_matmul_parameters, layer_weights
from astra.rules.can import unable
from astra.spec.model import DeltaNet, ModelSpec, StateSpace
from astra.spec.strategy import parse_strategy
from astra.spec.workload import Workload
from tests.export.launching import import_text
from tests.layers.test_operators import shard
from tests.layers.test_state_space import flops
from tests.oracle.requests import model as tiny

SEQ = 256
NET = DeltaNet(heads=8, head_dim=16, key_heads=4, key_dim=32, attention_every=3, chunk=32)
DELTA = LayerKind(("delta_net", "dense"))


def hybrid(**changes: Any) -> ModelSpec:
    """A small model with a delta net in two layers of three."""
    return tiny("dense", **{"layers": 6, "vocab": 1024, "delta_net": NET, "attention_gate": True, **changes})


def test_the_last_layer_of_each_group_has_attention() -> None:
    assert [kind.blocks[0] for kind in layer_kinds(hybrid())] == ["delta_net", "delta_net", "attention"] * 2
    names = [kind.blocks for kind in layer_kinds(model("qwen3-next-80b-a3b"))]
    assert names == [*[("delta_net", "experts")] * 3, ("attention", "experts")] * 12


def test_the_rule_in_chunks_is_the_recurrence_and_its_products_are_those_counted() -> None:
    """One head: S' = a S + b k (v - k a S), o = q S', token by token; and in chunks, by products counted as made."""
    rng = np.random.default_rng(5)
    tokens, keys, values, chunk = 64, 8, 4, 16
    a, b = rng.uniform(0.8, 1.0, tokens), rng.uniform(0.2, 0.9, tokens)
    q, k, v = (rng.normal(size=(tokens, width)) for width in (keys, keys, values))
    k /= np.linalg.norm(k, axis=1, keepdims=True)
    state, slow = np.zeros((keys, values)), np.zeros((tokens, values))
    for t in range(tokens):
        state = a[t] * state
        state = state + b[t] * np.outer(k[t], v[t] - k[t] @ state)
        slow[t] = q[t] @ state
    fast, state, counted = np.zeros((tokens, values)), np.zeros((keys, values)), 0.0

    def product(left: np.ndarray, right: np.ndarray, share: float = 1.0) -> np.ndarray:
        nonlocal counted
        counted += share * 2 * left.shape[0] * left.shape[1] * right.shape[1]
        return np.asarray(left @ right)

    for start in range(0, tokens, chunk):
        at = slice(start, start + chunk)
        decay = np.cumprod(a[at])
        ratio = decay[:, None] / decay[None, :]
        triangle = np.tril(product(k[at], k[at].T) * ratio * b[at][:, None], -1)
        inverse = np.linalg.inv(np.eye(chunk) + triangle)
        counted += chunk**3 / 3  # by forward substitution
        w = product(inverse, k[at] * (b[at] * decay)[:, None], share=0.5)  # below the diagonal alone
        u = product(inverse, v[at] * b[at][:, None], share=0.5)
        corrected = u - product(w, state)
        within = product(np.tril(product(q[at], k[at].T) * ratio), corrected, share=0.5)
        fast[at] = within + product(q[at] * decay[:, None], state)
        state = decay[-1] * state + product((k[at] * (decay[-1] / decay)[:, None]).T, corrected)
    np.testing.assert_allclose(fast, slow, rtol=1e-9, atol=1e-12)
    net = DeltaNet(heads=1, head_dim=values, key_heads=1, key_dim=keys, attention_every=2, chunk=chunk)
    spec = tiny("dense", layers=2, delta_net=net)
    assert delta_net.BLOCK.other_flops(spec, DELTA, tokens) * tokens == pytest.approx(counted)


@pytest.mark.parametrize("seq", [16, 256])
def test_products_are_two_flops_a_weight_and_the_rule(seq: int) -> None:
    spec, whole = hybrid(), 0.0
    for kind in layer_kinds(spec):
        layer = blocks.layer(spec, kind, shard(seq))
        assert flops(layer, weights=True) == 2.0 * seq * layer_matmul_parameters(spec, kind)
        whole += flops(layer, weights=True) + flops(layer, weights=False)
    head = ends.head(spec, shard(seq), logits_kept_bytes=4, logits_peak_bytes=8, vocab_multiple=128)
    attention = 2 * 2 * (seq / 2) * spec.heads * 2 * spec.head_dim * seq  # two layers of six
    assert whole + flops(head, weights=True) + attention == pytest.approx(seq * forward_flops_per_token(spec, seq))


@pytest.mark.parametrize("tp", [2, 4])
def test_tensor_parallel_ranks_share_all_of_it(tp: int) -> None:
    spec = hybrid()
    alone, split = (blocks.layer(spec, DELTA, shard(SEQ, tp=degree, sp=degree > 1)) for degree in (1, tp))
    for weights in (True, False):
        assert tp * flops(split, weights=weights) == pytest.approx(flops(alone, weights=weights))
    np.testing.assert_allclose(tp * split.kept.whole, alone.kept.whole)
    # Whole on every rank: the norms before both blocks, and the one that all heads share.
    assert layer_weights(spec, DELTA).replicated == 2 * spec.hidden + NET.head_dim


def test_context_parallel_ranks_share_all_of_it_and_trade_sequence_for_heads() -> None:
    spec = hybrid()
    alone, split = (blocks.layer(spec, DELTA, shard(SEQ, cp=cp)) for cp in (1, 2))
    assert 2 * flops(split, weights=False) == pytest.approx(flops(alone, weights=False))
    sends = {axis.name: axis.layer_sends(spec, DELTA, shard(SEQ, cp=2)) for axis in AXES}
    assert {send.op for send in sends["cp"]} == {"all_to_all"}
    assert sends["ep"] == []


def test_the_gate_doubles_the_queries() -> None:
    kind = LayerKind(("attention", "dense"))
    gated, plain = hybrid(), hybrid(attention_gate=False)
    more = layer_weights(gated, kind).total - layer_weights(plain, kind).total
    assert more == gated.hidden * gated.heads * gated.head_dim
    layers = [blocks.layer(spec, kind, shard(SEQ)) for spec in (gated, plain)]
    assert flops(layers[0], weights=True) - flops(layers[1], weights=True) == 2.0 * SEQ * more
    assert layers[0].kept.whole > layers[1].kept.whole


def test_frameworks_without_it_say_so() -> None:
    work, spec = Workload(global_batch=8, seq=SEQ), model("qwen3-next-80b-a3b")
    written = [runtime(name) for name in runtime_names() if runtime(name).exports_to]
    can = {each.name for each in written if not unable(each, spec, work)}
    assert can == {"megatron", "megatron-bridge", "fsdp-eager", "deepspeed"}
    for name in ("nemo", "flagscale", "megatron-apex"):
        assert f"{name} has no gated delta nets" in [reason.sentence for reason in unable(runtime(name), spec, work)]


@pytest.mark.parametrize(("name", "fix"), [("qwen3-next-80b-a3b", ["pp=2", "tp=2"]), ("qwen3.5-9b", ["pp=1"])])
def test_a_script_for_megatron_is_read_back_as_the_same_model(name: str, fix: list[str]) -> None:
    plan = astra.plan(name, gpus="64xH100", batch=64, top=1, fix=fix, runtime="megatron")
    launch, _ = from_record(json.loads(plan.to_json()), 1)
    found = import_text(EXPORTERS["megatron"].files(launch)["launch.sh"], name="launch.sh")
    assert found.model is not None
    for field in ("delta_net", "attention_gate", "quirks", "rotary", "moe", "qk_norm"):
        assert getattr(found.model, field) == getattr(launch.model, field), field
    assert count(found.model).total == count(model(name)).total
    degrees = ("tp", "pp", "vp", "cp", "ep", "dp", "mbs", "layers")
    assert all(getattr(found.strategy, name) == getattr(launch.strategy, name) for name in degrees)
    assert not any("linear" in word or "experimental" in word or "gate" in word for word in found.ignored)


@pytest.mark.parametrize(
    "changes", [{"key_heads": 3}, {"attention_every": 1}, {"heads": 0}, {"chunk": 0}], ids=str
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"heads": 8, "head_dim": 16, "key_heads": 4, "key_dim": 32, "attention_every": 4}
    with pytest.raises(InputError, match="delta_net"):
        DeltaNet(**(usual | changes))


def test_it_is_no_part_of_a_model_with_state_spaces_or_windows() -> None:
    space = StateSpace(pattern="MM", heads=8, head_dim=16, states=32, groups=4)
    for changes in ({"window": 16, "full_attention_every": 2}, {"state_space": space, "norms_per_layer": 1}):
        with pytest.raises(InputError, match="delta_net"):
            hybrid(layers=2, **changes)


def test_it_is_planned_with_the_rules_of_its_heads() -> None:
    plan = astra.plan("qwen3.5-9b", gpus="32xH100", batch=64, seq=32768, top=3)
    for each in plan.plans:
        strategy = parse_strategy(each.strategy)
        assert 16 % (strategy.tp * strategy.cp) == 0
    with pytest.raises(astra.NoFeasiblePlan):
        astra.plan("qwen3.5-9b", gpus="32xH100", batch=64, seq=32768, fix=["tp=8", "cp=4"])
