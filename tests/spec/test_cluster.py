"""GPUs, links and pools: whole servers, growing tiers, and the nearest tier that reaches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.errors import InputError
from astra.spec.cluster import Cluster, Link, NodeType, Pool
from tests.oracle.requests import device, pool
from tests.properties.jobs import law


def link(**changes: Any) -> Link:
    fields = {"reach": 8, "kind": "nvswitch", "bytes_per_s": 1e11, "latency_s": 1e-6, "source": "made up", **changes}
    return Link(**fields)


@pytest.mark.parametrize(
    "changes",
    [{"reach": 1}, {"bytes_per_s": 0}, {"bytes_per_s": float("nan")}, {"latency_s": -1}, {"oversubscription": 0.5}],
)
def test_links_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="link"):
        link(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"memory_bytes": 0.0}, {"memory_bytes_per_s": float("inf")}, {"sms": 0}, {"power_w": -1.0}, {"source": ""},
        {"flops_per_s": {"bf16": 0.0}},
    ],
)  # fmt: skip
def test_gpus_that_cannot_be(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="gpu toy"):
        device(**changes)


def test_a_precision_the_gpu_lacks() -> None:
    assert device().peak("fp8") == 2 * device().peak("bf16")
    with pytest.raises(InputError, match="one that toy has: bf16, fp16, fp8"):
        device().peak("fp4")


def test_tiers_grow() -> None:
    node = pool(8).node
    for links in ((link(reach=8), link(reach=8)), (link(reach=16), link(reach=8))):
        with pytest.raises(InputError, match="growing reach"):
            msgspec.structs.replace(node, links=links)
    with pytest.raises(InputError, match="gpus"):
        msgspec.structs.replace(node, gpus=0)


@law(60)
@given(st.integers(1, 16), st.integers(1, 200))
def test_pools_are_whole_servers_or_part_of_one(node_gpus: int, gpus: int) -> None:
    if gpus < node_gpus or gpus % node_gpus == 0:
        made = pool(gpus, node_gpus)
        assert made.gpus_per_node == min(gpus, node_gpus)
        assert made.gpus % made.gpus_per_node == 0
    else:
        lower = gpus // node_gpus * node_gpus
        with pytest.raises(InputError, match=f"Try {lower}x or {lower + node_gpus}x"):
            pool(gpus, node_gpus)


@pytest.mark.parametrize("gpus", [0, -8, 10**8])
def test_absurd_counts(gpus: int) -> None:
    with pytest.raises(InputError, match="gpus"):
        pool(gpus, 8)


def test_the_nearest_tier_that_reaches() -> None:
    made = pool(16, 4)
    near, far = made.node.links
    assert made.tier(1) is None
    assert [made.tier(span) for span in (2, 4, 5, 16)] == [near, near, far, far]
    short = NodeType(name="n", provider="p", gpu="toy", gpus=4, links=(near,), source="made up", date="2026-01-01")
    assert Pool(device=device(), node=short, gpus=8).tier(8) == near  # the outermost there is
    lonely = msgspec.structs.replace(short, links=(), gpus=1)
    assert Pool(device=device(), node=lonely, gpus=1).tier(2) is None


def test_prices_are_not_negative() -> None:
    with pytest.raises(InputError, match="usd_per_gpu_h"):
        msgspec.structs.replace(pool(4), usd_per_gpu_h=-1.0)


def test_clusters() -> None:
    assert Cluster(pools=(pool(4), pool(8))).gpus == 12
    with pytest.raises(InputError, match=r"cluster\.pools"):
        Cluster(pools=())
