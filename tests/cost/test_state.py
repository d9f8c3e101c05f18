"""Parameters on a rank: what ZeRO shards, and what the update moves."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from astra.cost.state import Held, Holding, local, optimizer_s, static_bytes
from astra.layers.weights import Weights
from astra.spec.job import Job, Words
from tests.properties.jobs import job

PARAMETERS = 1e9
HELD = Held(*(np.array([size]) for size in (PARAMETERS, 0.0, PARAMETERS, 0.0, PARAMETERS)))


def asked(**work: Any) -> Job:
    some = job(2)
    words = {name: work.pop(name) for name in Words.__struct_fields__ if name in work}
    workload = msgspec.structs.replace(some.workload, **{"task": "pretrain", "optimizer": "adam", **work})
    return msgspec.structs.replace(some, workload=workload, settled=Words(**words))


def how(zero: int, ranks: int, offload: int = 0, **more: Any) -> Holding:
    one = {"zero": zero, "offload": offload, "ranks": ranks, "expert_ranks": 1, **more}
    columns: dict[str, Any] = {name: np.array([value]) for name, value in one.items()}
    return Holding(**columns)


def per_parameter(zero: int, ranks: int, offload: int = 0, **work: Any) -> list[float]:
    """Bytes of weights, gradients and optimizer state."""
    held = {name: work.pop(name) for name in Holding._fields if name in work}
    found = static_bytes(asked(**work), HELD, how(zero, ranks, offload, **held), np.array([10.0]))
    return [float(column[0]) / PARAMETERS for column in found[:3]]


def test_rajbhandari_2020() -> None:
    """2 + 12 bytes a parameter in mixed precision with Adam, and the 4-byte buffer gradients add up in."""
    assert per_parameter(0, 64) == [2, 4, 12]
    assert per_parameter(1, 64) == [2, 4, 12 / 64]
    assert per_parameter(2, 64) == [2, 4 / 64, 12 / 64]
    assert per_parameter(3, 64) == [2 / 64, 4 / 64, 12 / 64]
    assert per_parameter(1, 64, offload=1) == [2, 4, 0]
    assert per_parameter(0, 1, optimizer="sgd") == [2, 4, 8]
    assert per_parameter(0, 1, precision="tf32") == [4, 4, 8]  # in fp32 there is no second weight


def test_narrow_states() -> None:
    """Two moments of two bytes less each, sharded as they are; gradients of two bytes; and both at once."""
    assert per_parameter(0, 1, moments=1) == [2, 4, 12 - 4]
    assert per_parameter(1, 64, moments=1) == [2, 4, 8 / 64]
    assert per_parameter(0, 1, grads="bf16") == [2, 2, 12]
    assert per_parameter(2, 64, grads="bf16", moments=1) == [2, 2 / 64, 8 / 64]
    assert per_parameter(0, 1, optimizer="sgd", moments=1) == [2, 4, 6]


def test_weights_that_stay_gathered() -> None:
    """FSDP2 without resharding: weights whole; in a pipeline gradients too, so that the optimizer alone is sharded."""
    assert per_parameter(3, 64, reshard=1) == [2, 4 / 64, 12 / 64]
    assert per_parameter(3, 64, reshard=1, pipelined=True) == [2, 4, 12 / 64]
    assert per_parameter(3, 64, reshard=0, pipelined=True) == per_parameter(3, 64)


@pytest.mark.parametrize("zero", range(4))
def test_one_replica_has_nothing_to_share(zero: int) -> None:
    assert per_parameter(zero, 1) == per_parameter(0, 1)


def test_experts_are_sharded_over_their_own_replicas() -> None:
    held = HELD._replace(expert=HELD.dense, trained_expert=HELD.dense)
    found = static_bytes(asked(), held, how(1, 64, expert_ranks=8), np.array([10.0]))
    assert float(found.optimizer[0]) == pytest.approx(12 * PARAMETERS * (1 / 64 + 1 / 8))


def test_gathered_layers() -> None:
    """ZeRO-3 holds two layers whole, ZeRO-2 the gradients of one; the others none."""
    found = [static_bytes(asked(), HELD, how(zero, 8), np.array([10.0])) for zero in range(4)]
    gathered = [float(some.gathered[0]) for some in found]
    assert gathered[0] == gathered[1] == 0
    assert gathered[3] == 2 * gathered[2] == pytest.approx(2 * 6 * PARAMETERS / 10)


def test_what_is_gathered_does_not_ask_whether_it_is_an_experts() -> None:
    half = HELD.dense / 2
    shared = Held(half, half, half, half, HELD.layers)
    for zero in (2, 3):
        dense, both = (static_bytes(asked(), held, how(zero, 8), np.array([10.0])) for held in (HELD, shared))
        assert float(both.gathered[0]) == float(dense.gathered[0])


def seconds(zero: int, ranks: int, offload: int = 0) -> float:
    found, _ = optimizer_s(asked(), HELD, how(zero, ranks, offload))
    return float(found[0])


def test_the_update_is_shared_and_slower_on_the_host() -> None:
    assert seconds(0, 64) == seconds(0, 1) > seconds(1, 2) > seconds(1, 64)
    assert seconds(1, 8, offload=1) > seconds(1, 8)
    bytes_per_s = asked().pool.device.memory_bytes_per_s
    # However many ranks share the update on the host, each reads its whole gradient buffer first, and clears it.
    assert seconds(1, 10**6, offload=1) > 4 * PARAMETERS / bytes_per_s
    assert seconds(0, 1) > 38 * PARAMETERS / bytes_per_s  # gradient, states and weights are read and written once


def test_local_parameters() -> None:
    tp, ep, etp = np.array([4]), np.array([2]), np.array([2])
    dense, expert = local(Weights(sharded=400, replicated=10, expert=800), tp, ep, etp)
    assert (float(dense[0]), float(expert[0])) == (110, 200)


def test_fp8_weights_beside_or_instead_of_bf16() -> None:
    """Two layouts of a byte each beside two bytes; alone; and one of them where nothing is trained."""

    def weights(params: str, task: str) -> float:
        found = static_bytes(asked(precision="fp8", task=task, params=params), HELD, how(1, 1), np.array([10.0]))
        return float(found.weights[0]) / PARAMETERS

    assert weights("bf16", "pretrain") == 4
    assert weights("fp8", "pretrain") == 2
    assert weights("bf16", "lora") == 2
    assert weights("fp8", "lora") == 1


def test_an_experts_weights_have_copies_in_fp8_as_others_have() -> None:
    half = HELD.dense / 2
    for held in (HELD, Held(half, half, half, half, HELD.layers)):
        found = static_bytes(asked(precision="fp8", params="bf16"), held, how(1, 1), np.array([10.0]))
        assert float(found.weights[0]) == 4 * PARAMETERS
