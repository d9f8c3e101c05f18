"""What each parallel dimension sends: nothing at degree 1, and the volume its algorithm is known for."""

from __future__ import annotations

import numpy as np
import pytest

from astra.axes import AXES, Axis
from astra.layers.block import LayerKind, Send
from astra.layers.kinds import layer_kinds
from astra.layers.operators import Shard
from astra.network.collectives import OPS
from astra.spec.model import ModelSpec
from astra.spec.strategy_fields import SWITCHES
from tests.layers.test_operators import shard
from tests.oracle.requests import KINDS, model

SEQ = 512
SPECS = [model(kind) for kind in dict.fromkeys(KINDS)]
BY_NAME = {axis.name: axis for axis in AXES}
DENSE = LayerKind(("attention", "dense"))


def sends(axis: Axis, spec: ModelSpec, some: Shard) -> list[Send]:
    """Of every kind of layer, the embedding and the head."""
    found = [send for kind in dict.fromkeys(layer_kinds(spec)) for send in axis.layer_sends(spec, kind, some)]
    return [*found, *axis.embedding_sends(spec, some), *axis.head_sends(spec, some)]


def wire_bytes(some: list[Send], way: str) -> float:
    """Bytes each rank puts on the wire: a ring's (n-1)/n of the buffer, twice for an all-reduce."""
    total = 0.0
    for send in some:
        n, times = float(np.ravel(send.ranks)[0]), float(np.ravel(getattr(send, way))[0])
        share = {"all_reduce": 2 * (n - 1) / n, "send_recv": 1.0}.get(send.op, (n - 1) / n)
        total += times * share * float(np.ravel(send.nbytes)[0]) if n > 1 else 0.0
    return total


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
def test_an_axis_declares_what_the_table_and_the_collectives_know(axis: Axis) -> None:
    assert axis.name in Shard._fields
    assert axis.overlap == "" or axis.overlap in SWITCHES
    assert axis.title
    for spec in SPECS:
        for send in sends(axis, spec, shard(SEQ, tp=2, cp=2, ep=2, etp=2, sp=True)):
            assert send.op in OPS
            assert send.behind in ("", "gemm", "attention")
            assert np.all(send.nbytes > 0)
            assert np.all(send.stride >= 1)


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.name)
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_degree_one_is_silent(axis: Axis, spec: ModelSpec) -> None:
    others = {"tp": 2, "cp": 2, "ep": 2, "etp": 1} | {axis.name: 1}
    for way in ("forward", "backward"):
        assert wire_bytes(sends(axis, spec, shard(SEQ, **others)), way) == 0
    assert any(wire_bytes(sends(a, s, shard(SEQ, **others | {axis.name: 2})), "forward") for a in [axis] for s in SPECS)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(AXES)


def test_tensor_parallelism_moves_as_much_with_sequence_parallelism_as_without() -> None:
    """An all-reduce is a reduce-scatter and an all-gather (Korthikanti et al. 2022); backward gathers once more."""
    spec, layer = model("dense"), DENSE
    with_sp, without = (BY_NAME["tp"].layer_sends(spec, layer, shard(SEQ, tp=4, sp=on)) for on in (True, False))
    whole = 2 * SEQ * spec.hidden
    assert wire_bytes(with_sp, "forward") == pytest.approx(wire_bytes(without, "forward"))
    assert wire_bytes(without, "forward") == pytest.approx(2 * 2 * 3 / 4 * whole)
    assert wire_bytes(with_sp, "backward") == pytest.approx(1.5 * wire_bytes(without, "backward"))


def test_a_crossing_layer_has_one_block_more() -> None:
    spec = model("encdec")
    crossing = LayerKind(("attention", "cross", "dense"), "cross")
    cross, plain = (BY_NAME["tp"].layer_sends(spec, kind, shard(SEQ, tp=2)) for kind in (crossing, DENSE))
    assert wire_bytes(cross, "forward") == pytest.approx(1.5 * wire_bytes(plain, "forward"))


@pytest.mark.parametrize("cp", [2, 4, 8])
def test_context_parallelism_sends_keys_and_values_round_the_ring(cp: int) -> None:
    spec = model("gqa")
    (send,) = BY_NAME["cp"].layer_sends(spec, DENSE, shard(SEQ, cp=cp))
    own = 2 * 2 * (SEQ / cp) * spec.kv_heads * spec.head_dim
    assert float(send.nbytes[0]) == own
    assert wire_bytes([send], "forward") == (cp - 1) * own
    assert wire_bytes([send], "backward") == 2 * (cp - 1) * own
    assert send.behind == "attention"
    assert int(send.ranks[0]) == cp  # the slowest hop of the whole ring decides


def test_expert_parallelism_sends_each_token_to_its_experts_and_back() -> None:
    spec = model("moe")
    assert spec.moe is not None
    kind = layer_kinds(spec)[-1]
    found = BY_NAME["ep"].layer_sends(spec, kind, shard(SEQ, tp=2, ep=4, sp=True))
    routed = 2 * (SEQ / 2) * spec.moe.topk * spec.hidden
    assert wire_bytes(found, "forward") == pytest.approx(2 * 3 / 4 * routed)
    assert BY_NAME["ep"].layer_sends(spec, DENSE, shard(SEQ, ep=4)) == []
