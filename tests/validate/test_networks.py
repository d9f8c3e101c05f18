"""What tables say of networks, phrase by phrase, and the links that come of it."""

from __future__ import annotations

import pytest

from astra.catalog import hardware
from astra.spec.cluster import NodeType
from astra.validate.networks import links_of, read_network
from astra.validate.pools import pool_of


@pytest.mark.parametrize(
    ("text", "kind", "gigabits"),
    [
        ("8x400Gb/s", None, 3200),
        ("8 x 400 Gbps InfiniBand", "infiniband", 3200),
        ("800Gb/s per node (4xHDR)", "infiniband", 800),
        ("4xHDR (800Gb/s)", "infiniband", 800),
        ("2x HDR-100", "infiniband", 200),
        ("ConnectX-7 NDR x8", "infiniband", 3200),
        ("Spectrum-X 400GbE x8", "roce", 3200),
        ("Slingshot-11 25 GB/s x4", "roce", 800),
        ("1x ConnectX-6 200Gb", "infiniband", 200),
        ("HDR 200Gb/s per node", "infiniband", 200),
        ("IB NDR 200Gb/s", "infiniband", 200),
        ("RoCE 1600 Gb/s", "roce", 1600),
        ("RoCE v2, 8 NICs of 200 Gb/s", "roce", 1600),
        ("400 Gb/s per GPU RoCE", "roce", 3200),
        ("NDR 400Gb/s/GPU", "infiniband", 3200),
        ("EFA 3.2Tbps", "efa", 3200),
        ("3.2 Tb/s EFA (p5.48xlarge)", "efa", 3200),
        ("100GbE", "tcp", 100),
        ("2 x 25 GbE", "tcp", 50),
        ("25 GB/s InfiniBand", "infiniband", 200),
        ("2x200Gb/s + 2x100Gb/s RoCE", "roce", 600),
        ("8x200Gb/s IB + 1x25Gb/s management", "infiniband", 1600),
        ("BF3 200Gbps for NS and 2xBF3 400Gbps for EW", None, 800),
        ("3200Gb/s total, 8x400", None, 3200),
        ("PCIe-NIC: 500 GB/s", None, None),
        ("TCP", "tcp", None),
        ("4x HDR200", "infiniband", 800),
        ("NDR 400 x8 rail-optimized", "infiniband", 3200),
        ("EFA v2 3200Gbps", "efa", 3200),
        ("AWS EFA 400Gb/s (p4d.24xlarge)", "efa", 400),
        ("RoCEv2 2x200G", "roce", 400),
        ("100GbE TCP", "tcp", 100),
        ("8x BlueField-3 400GbE", "roce", 3200),
        ("4x CX-8 800G per tray", "infiniband", 3200),
        ("Slingshot-11 4x200", "roce", 800),
        ("HPE Slingshot-11 (4x 25GB/s)", "roce", 800),
        ("Slingshot 11, 4 x 200 Gbps", "roce", 800),
        ("IB EDR dual-port", "infiniband", 200),
        ("dual-rail EDR InfiniBand", "infiniband", 200),
        ("8x 400 Gb/s NDR, non-blocking fat tree", "infiniband", 3200),
        ("8 ConnectX-6 HDR InfiniBand adapters", "infiniband", 1600),
        ("eight 400 Gb/s NDR ports", "infiniband", 3200),
        ("InfiniBand 200 Gb/s x 8", "infiniband", 1600),
        ("8x ConnectX-7 (3.2Tb/s)", "infiniband", 3200),
        ("EFA 3200", "efa", 3200),
        ("EFA 400", "efa", 400),
        ("EFAv2 3,200 Gbps", "efa", 3200),
        ("3,200 Gbps RDMA", "roce", 3200),
        ("NVLink 900GB/s; IB NDR 3200", "infiniband", 3200),
        ("IB 1600", "infiniband", 1600),
        ("RoCEv2 3200", "roce", 3200),
        ("Slingshot 4x200", "roce", 800),
        ("InfiniBand, 8 HCA, HDR", "infiniband", 1600),
        ("one 200 Gb/s HCA shared by 4 GPUs", "infiniband", 400),
        ("4 HDR links per node", "infiniband", 800),
        ("2 HDR ports per node", "infiniband", 400),
        ("8 Mellanox ConnectX-6 HDR200", "infiniband", 1600),
        ("8 HDR", "infiniband", 1600),
        ("HDR200 x4", "infiniband", 800),
        ("InfiniBand EDR (100 Gb/s), 4 per node", "infiniband", 400),
        ("400Gb/s NDR, 4 per node", "infiniband", 1600),
        ("8 NICs per node, 200 Gb/s each", None, 1600),
        ("NDR IB (8 NICs/node)", "infiniband", 3200),
        ("InfiniBand NDR (8x400Gb/s)", "infiniband", 3200),
        ("HDR InfiniBand (200 Gb/s per node)", "infiniband", 200),
        ("RoCE 200Gb*8", "roce", 1600),
        ("200 Gbps x 8 RDMA over Converged Ethernet", "roce", 1600),
        ("GPUDirect-TCPX 4x200Gbps", "tcp", 800),
        ("Cray Slingshot 11 (4x 200 Gb/s Cassini NICs)", "roce", 800),
        ("Quantum-2 NDR 400Gb/s x8, 1:1", "infiniband", 3200),
        ("GPUDirect-TCPXO 8x200Gbps", "roce", 1600),
        ("10 Gigabit Ethernet", "tcp", 10),
        ("10GigE", "tcp", 10),
        ("100Gb Ethernet x2", "tcp", 200),
        ("Omni-Path 100", "infiniband", 100),
        ("Azure ND96asr v4 (8x200 Gb/s HDR IB)", "infiniband", 1600),
        ("50 GB/s per NIC, 8 NICs", None, 3200),
        ("400 Gb/s per NIC (8 NICs per node)", None, 3200),
        ("4 NICs x 100 Gb/s", None, 400),
        ("single 100Gb/s NIC", None, 100),
        ("one 200Gb/s HDR NIC per 2 GPUs", "infiniband", 800),
        ("IB NDR, 1 NIC per 2 GPUs", "infiniband", 1600),
        ("1.6 Tbps InfiniBand (8 x 200)", "infiniband", 1600),
    ],
)
def test_phrases(text: str, kind: str | None, gigabits: float | None) -> None:
    found = read_network(text, 8)
    assert (found.kind, found.bytes_per_s and found.bytes_per_s * 8e-9) == (kind, gigabits and pytest.approx(gigabits))


@pytest.mark.parametrize(
    ("text", "node", "gigabits"),
    [
        ("IB NDR", "dgx-h100", 8 * 400),
        ("NDR400", "dgx-h100", 8 * 400),
        ("IB NDR 400Gb/s", "dgx-h100", 8 * 400),
        ("HDR InfiniBand", "dgx-h100", 8 * 200),
        ("HDR100", "dgx-a100", 8 * 100),
        ("Mellanox ConnectX-5 EDR", "dgx-a100", 8 * 100),
        ("NDR", "dgx-a100", 8 * 200),  # which has HDR ports
        ("IB EDR 100Gb/s", "dgx-a100", 8 * 100),
        ("FDR", "dgx-a100", 8 * 56),
        ("Mellanox HDR 4X", "dgx-a100", 8 * 200),  # lanes, not ports
        ("200Gbps IB", "dgx-a100", 8 * 200),  # what each of its GPUs has
        ("400Gb/s InfiniBand", "dgx-h100", 8 * 400),
        ("100 Gb/s InfiniBand", "dgx-a100", 100),  # a network of the whole node
        ("NVL72 + CX-8 800G", "dgx-b300", 8 * 800),
        ("EDR", "dgx-1v-16gb", 4 * 100),  # what such a node has
        ("InfiniBand 100Gb/s (EDR)", "dgx-1v-16gb", 100),  # whose GPUs share ports: all that is told of the node
    ],
)
def test_a_generation_alone_is_a_port_for_each_gpu(text: str, node: str, gigabits: float) -> None:
    """Or what the catalog's node has, where that is less."""
    found = links_of(hardware.node_type(node), 8, "", read_network(text, 8))[-1]
    assert found.bytes_per_s * 8 * 8e-9 == pytest.approx(gigabits)
    assert found.kind == "infiniband"


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("8x400Gb/s", 1), ("8x400Gb/s, 2:1 oversubscribed", 2), ("RoCE 3200Gb/s, oversubscription 1:4", 4),
        ("HDR 200Gb/s blocking factor 3", 3), ("IB HDR, 1:2 oversubscribed fat-tree", 2), ("tapered 2:1 Clos", 2),
        ("IB NDR 2:1", 2), ("NDR, 2:1 fat tree", 2), ("8 x 400 Gb/s, 1:1", 1),
        ("oversubscription ratio of 4:1", 4), ("NDR non-blocking, 8x400Gb/s", 1), ("blocking 8x400Gb/s", 1),
    ],
)  # fmt: skip
def test_oversubscription_is_the_stated_one(text: str, times: float) -> None:
    assert read_network(text, 8).oversubscription == times


def test_a_stated_oversubscription_is_kept_where_no_rate_is() -> None:
    node = hardware.node_type("dgx-h100")
    assert links_of(node, 8, "", read_network("1:2 oversubscribed fat-tree", 8))[-1].oversubscription == 2


@pytest.mark.parametrize(
    ("near", "kind", "gigabytes"),
    [
        ("NVLink3 600GB/s, PCIe Gen4", "nvswitch", 300),  # the bus leads to the host
        ("NVLink 300GB/s per direction", "nvswitch", 300),
        ("PCIe Gen4", "pcie", 31.5),
    ],
)
def test_links_inside_a_node(near: str, kind: str, gigabytes: float) -> None:
    link = links_of(hardware.node_type("dgx-a100"), 8, near, read_network("", 8))[0]
    assert (link.kind, link.bytes_per_s) == (kind, gigabytes * 1e9)


def test_a_stated_network_inherits_no_oversubscription() -> None:
    node = hardware.node_type("alibaba-hpn7-h800")
    assert max(link.oversubscription for link in node.links) > 1
    links = links_of(node, 8, "", read_network("RoCE 3200Gb/s", 8))
    assert [(link.reach, link.oversubscription) for link in links] == [(8, 1), (hardware.ANY_REACH, 1)]
    assert links[-1].bytes_per_s == 50e9


@pytest.mark.parametrize("node", hardware.node_types(), ids=lambda node: node.name)
def test_every_tier_is_kept_where_nothing_is_stated(node: NodeType) -> None:
    links = links_of(node, node.gpus, "", read_network("", node.gpus))
    assert links[-1].reach == hardware.ANY_REACH
    if node.links[-1].reach == hardware.ANY_REACH and (node.gpus == 1 or len(node.links) > 1):
        assert links == node.links


def test_a_rack_is_kept_beside_the_network_of_its_trays() -> None:
    pool = pool_of("GB200", 186.0, 256, 4, "NVLink5 1800GB/s NVL72 domain", "IB NDR 4x400Gb/s per tray")
    assert [(link.reach, link.kind) for link in pool.node.links] == [(72, "rack"), (hardware.ANY_REACH, "infiniband")]
    assert pool.node.links[-1].bytes_per_s == 50e9


def test_ports_shared_by_gpus_are_dealt_among_them() -> None:
    shared, own = (
        pool_of("A100-SXM", 80.0, 64, 8, "", text).node.links[-1] for text in ("4x200Gb/s IB", "8x200Gb/s IB")
    )
    assert own.bytes_per_s == 2 * shared.bytes_per_s == 25e9
