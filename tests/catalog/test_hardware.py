"""GPUs and node types: every record keeps the contract, and names lead where they should."""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astra.catalog import hardware
from astra.errors import InputError, UnknownName, fold
from astra.spec.cluster import Device, NodeType
from astra.units import GIB

DEVICES = hardware.devices()
NODES = hardware.node_types()
EVERY_DEVICE = pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
EVERY_NODE = pytest.mark.parametrize("node", NODES, ids=lambda node: node.name)


@EVERY_DEVICE
class TestDeviceContract:
    def test_peaks_are_known_precisions_and_narrower_is_not_slower(self, gpu: Device) -> None:
        assert set(gpu.flops_per_s) <= set(hardware.PRECISIONS)
        order = [gpu.flops_per_s[name] for name in ("fp4", "fp8", "bf16", "tf32", "fp32") if name in gpu.flops_per_s]
        assert order == sorted(order, reverse=True)

    def test_fp16_runs_at_the_bf16_rate(self, gpu: Device) -> None:
        assert gpu.flops_per_s.get("bf16", gpu.flops_per_s["fp16"]) == gpu.flops_per_s["fp16"]

    def test_peaks_are_dense(self, gpu: Device) -> None:
        # Sparse figures are twice the dense ones; no matrix unit before Rubin is more than twice as fast per halving.
        ratio = gpu.flops_per_s["fp16"] / gpu.flops_per_s.get("fp8", 2 * gpu.flops_per_s["fp16"])
        assert (4 / 17.5 if gpu.arch == "Rubin" else 0.49) <= ratio <= 1

    def test_quantities_are_physical(self, gpu: Device) -> None:
        assert 7 * GIB <= gpu.memory_bytes <= 288 * GIB
        assert 0.25e12 <= gpu.memory_bytes_per_s <= 19.2e12
        assert 15e9 <= gpu.host_bytes_per_s <= 450e9
        assert 60 <= gpu.power_w <= 1800
        assert 40 <= gpu.sms <= 304
        assert 20e12 < gpu.flops_per_s["fp16"] <= 4e15

    def test_intensity_is_within_what_was_ever_built(self, gpu: Device) -> None:
        # FLOP per byte of memory traffic: catches a slipped unit in either figure.
        assert 30 <= gpu.flops_per_s["fp16"] / gpu.memory_bytes_per_s <= 480

    def test_source_and_date(self, gpu: Device) -> None:
        assert gpu.source
        assert dt.date(2026, 1, 1) <= dt.date.fromisoformat(gpu.date) <= dt.date.today()

    def test_borrows_from_a_measured_gpu_unless_measured(self, gpu: Device) -> None:
        if gpu.name in hardware.measured():
            assert gpu.relative == ""
        else:
            assert gpu.relative in hardware.measured()

    def test_is_found_by_every_name_however_written(self, gpu: Device) -> None:
        for name in (gpu.name, *gpu.aliases):
            for spelled in (name, name.upper(), name.lower(), name.replace("-", " "), name.replace("-", "_")):
                assert hardware.device(spelled) == gpu

    def test_has_a_default_node(self, gpu: Device) -> None:
        node = hardware.default_node(gpu)
        assert node.gpu == gpu.name
        assert hardware.default_node(gpu.name) is node
        assert node.links[-1].reach == hardware.ANY_REACH


@EVERY_NODE
class TestNodeContract:
    def test_links_reach_further_and_end_anywhere(self, node: NodeType) -> None:
        reaches = [link.reach for link in node.links]
        assert reaches == sorted(set(reaches))
        assert reaches[-1] == hardware.ANY_REACH

    def test_the_node_is_joined_inside(self, node: NodeType) -> None:
        inner = [link for link in node.links if link.kind not in {"infiniband", "roce", "efa", "tcp"}]
        assert node.gpus == 1 or max(link.reach for link in inner) >= node.gpus
        assert all(link.kind != "rack" or link.reach == 72 for link in inner)

    def test_nearer_links_are_faster(self, node: NodeType) -> None:
        rates = [link.bytes_per_s / link.oversubscription for link in node.links]
        assert rates == sorted(rates, reverse=True)
        latencies = [link.latency_s for link in node.links]
        assert latencies == sorted(latencies)

    def test_rates_are_physical(self, node: NodeType) -> None:
        fastest = {
            "nvswitch": 900e9,
            "rack": 1500e9,
            "nvlink-mesh": 450e9,
            "xgmi": 536e9,
            "pcie": 64e9,
            "infiniband": 200e9,
            "roce": 100e9,
            "efa": 100e9,
            "tcp": 12.5e9,
        }
        for link in node.links:
            assert 1e8 <= link.bytes_per_s <= fastest[link.kind]
            assert 1e-6 <= link.latency_s <= 1e-4

    def test_source_and_date(self, node: NodeType) -> None:
        assert node.source
        assert all(link.source for link in node.links)
        assert dt.date(2026, 1, 1) <= dt.date.fromisoformat(node.date) <= dt.date.today()

    def test_holds_a_known_gpu(self, node: NodeType) -> None:
        assert hardware.device(node.gpu).name == node.gpu
        assert all(name == node.gpu for name in node.default_for)

    def test_is_found_by_every_name(self, node: NodeType) -> None:
        for name in (node.name, *node.aliases):
            assert hardware.node_type(name.upper()) is node


@pytest.mark.parametrize(("records", "kind"), [(DEVICES, "devices"), (NODES, "nodes")])
def test_names_and_aliases_are_unique_and_the_file_is_named_after_the_record(
    records: tuple[Device | NodeType, ...], kind: hardware.Kind
) -> None:
    claimed = [fold(name) for record in records for name in (record.name, *record.aliases)]
    assert len(claimed) == len(set(claimed))
    assert tuple(record.name for record in records) == hardware.names(kind)
    # The quick scan of the text sees the same names as the full parse.
    assert all(hardware.has(kind, name) for name in claimed)
    assert all(name.isascii() for record in records for name in (record.name, *record.aliases))


# Figures of the vendors' data sheets: dense TFLOP/s of bf16 (fp16 where there is none), GB/s, watts.
DATA_SHEETS = {
    "V100-SXM2-32GB": (125, 900, 300),
    "T4": (65, 320, 70),
    "A10": (125, 600, 150),
    "L4": (121, 300, 72),
    "L40S": (362, 864, 350),
    "A100-SXM4-40GB": (312, 1555, 400),
    "A100-SXM4-80GB": (312, 2039, 400),
    "A100-PCIe-80GB": (312, 1935, 300),
    "H100-SXM5-80GB": (989, 3350, 700),
    "H100-PCIe-80GB": (756, 2000, 350),
    "H100-NVL-94GB": (835, 3900, 400),
    "H200-SXM5-141GB": (989, 4800, 700),
    "H20-96GB": (148, 4000, 400),
    "B200-SXM-180GB": (2250, 8000, 1000),
    "GB200-NVL72": (2500, 8000, 1200),
    "GB300-NVL72": (2500, 8000, 1400),
    "RTX4090": (165, 1008, 450),
    "MI300X": (1307, 5300, 750),
    "MI325X": (1307, 6000, 1000),
    "MI350X": (2306.9, 8000, 1000),
    "MI355X": (2516, 8000, 1400),
    "RTX2080": (40.3, 448, 215),
    "RTX2080Ti": (53.8, 616, 250),
    "TitanRTX": (130.5, 672, 280),
    "RTX3080Ti": (68, 912, 350),
}


@pytest.mark.parametrize("name", DATA_SHEETS)
def test_figures_agree_with_the_data_sheet(name: str) -> None:
    gpu = hardware.device(name)
    tflops, gigabytes_per_s, watts = DATA_SHEETS[name]
    assert gpu.flops_per_s["fp16"] == pytest.approx(tflops * 1e12, rel=2e-3)
    assert gpu.memory_bytes_per_s == pytest.approx(gigabytes_per_s * 1e9, rel=2e-3)
    assert gpu.power_w == watts


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("V100-32", {"bf16", "tf32", "fp8"}),
        ("T4", {"bf16", "tf32", "fp8"}),
        ("2080 Ti", {"bf16"}),
        ("A100", {"fp8"}),
        ("H100", {"fp4"}),
    ],
)
def test_absent_precisions_are_absent(name: str, lacks: set[str]) -> None:
    assert not lacks & set(hardware.device(name).flops_per_s)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("H100", "H100-SXM5-80GB"),
        ("A100", "A100-SXM4-80GB"),
        ("a100-80", "A100-SXM4-80GB"),
        ("A100-40", "A100-SXM4-40GB"),
        ("A100-PCIe-40", "A100-PCIe-40GB"),
        ("h200", "H200-SXM5-141GB"),
        ("B200", "B200-SXM-180GB"),
        ("gb200", "GB200-NVL72"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM5-80GB"),
        ("Tesla V100-SXM2-32GB", "V100-SXM2-32GB"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("mi250x", "MI250X-GCD"),
        ("B300-SXM", "B300-SXM-288GB"),
    ],
)
def test_common_names(name: str, full: str) -> None:
    assert hardware.device(name).name == full


@pytest.mark.parametrize(
    ("name", "candidates"),
    [
        ("V100", {"V100-SXM2-16GB", "V100-SXM2-32GB"}),
        ("A100-PCIe", {"A100-PCIe-40GB", "A100-PCIe-80GB"}),
        ("RTX 6000", {"RTX6000-Ada", "RTXPRO6000-Blackwell"}),
    ],
)
def test_an_ambiguous_name_is_refused_with_its_candidates(name: str, candidates: set[str]) -> None:
    with pytest.raises(InputError) as caught:
        hardware.device(name)
    assert not isinstance(caught.value, UnknownName)
    assert all(candidate in str(caught.value) for candidate in candidates)


def test_many_candidates_are_cut_short() -> None:
    with pytest.raises(InputError, match=r"aws-.* and \d+ more"):
        hardware.node_type("aws")


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        hardware.device("H10O")
    assert "H100" in caught.value.nearest
    with pytest.raises(UnknownName, match=r"aws-p5\.48xlarge|p5\.48xlarge"):
        hardware.node_type("p5.48xlage")


@pytest.mark.parametrize("name", ["", "  ", "--", None, 512])
def test_no_name_is_refused(name: str) -> None:
    with pytest.raises(InputError, match="gpu"):
        hardware.device(name)


@given(st.text(max_size=30))
def test_any_text_is_a_gpu_or_an_input_error(name: str) -> None:
    with suppress(InputError):
        assert hardware.device(name) in DEVICES


def test_gb200_is_joined_by_the_rack() -> None:
    node = hardware.default_node("GB200")
    assert (node.gpus, node.links[0].kind, node.links[0].reach) == (4, "rack", 72)


def test_meta_pod_has_three_tiers() -> None:
    node = hardware.node_type("meta-roce-h100")
    assert [(link.reach, link.oversubscription) for link in node.links] == [
        (8, 1.0),
        (3072, 1.0),
        (hardware.ANY_REACH, 7.0),
    ]


@pytest.fixture
def own_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    shutil.copytree(hardware.DATA, tmp_path / "data")
    monkeypatch.setattr(hardware, "DATA", tmp_path / "data")
    hardware.forget()
    yield tmp_path / "data"
    monkeypatch.undo()
    hardware.forget()


def test_a_gpu_is_added_by_one_file(own_catalog: Path) -> None:
    text = (own_catalog / "devices" / "T4.toml").read_text()
    text = text.replace('name = "T4"', 'name = "Toy-1"\naliases = ["Plaything"]')
    (own_catalog / "devices" / "Toy-1.toml").write_text(text)
    assert hardware.device("toy").name == hardware.device("plaything").name == "Toy-1"
    with pytest.raises(InputError, match="Toy-1"):
        hardware.default_node("toy")


def test_an_alias_claimed_twice_is_refused(own_catalog: Path) -> None:
    path = own_catalog / "devices" / "T4.toml"
    path.write_text(path.read_text().replace('name = "T4"', 'name = "T4"\naliases = ["H100"]'))
    with pytest.raises(InputError, match="H100"):
        hardware.device("L4")


def test_the_hash_follows_the_data_but_not_line_ends(own_catalog: Path) -> None:
    before = hardware.catalog_hash()
    assert len(before) == 12
    int(before, 16)
    path = own_catalog / "devices" / "T4.toml"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    hardware.forget()
    assert hardware.catalog_hash() == before
    path.write_bytes(path.read_bytes().replace(b"power_w = 70", b"power_w = 71"))
    hardware.forget()
    assert hardware.catalog_hash() != before
