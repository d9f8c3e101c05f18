"""The GPUs of a published run as a cluster: catalog devices and node types, varied where the run says so.

Tables name GPUs in free text (``H100-SXM``). What the text states wins; what it leaves out is the catalog's for the
nearest node type, whose links networks.py varies. GPU types with a plus between them are pools of their own.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

import numpy as np
from msgspec.structs import replace

from astra.catalog import hardware
from astra.errors import InputError, fold
from astra.spec.cluster import Cluster, Device, NodeType, Pool
from astra.units import GIB
from astra.validate.cells import Missing, Row, count, degree, needed, number, words_of
from astra.validate.networks import Network, links_of, read_network

_VISIBLE: Final = 0.985  # of a GPU's nominal memory, what software sees
_SAME_MEMORY: Final = 0.12
_HOST_GB: Final = 400  # more is of a host's memory
# Steady throughput of 8192-wide products under a power limit, over that at full power: an H200 of 700 W limited to 350,
# 400, 500 and 600 W (torch 2.11, 2.5 s each after as long a warm-up, 2026-11-15). Memory keeps its rate down to 500 W.
_POWER_SHARES: Final = (350 / 700, 400 / 700, 500 / 700, 600 / 700, 1.0)
_SPEED_AT: Final = {"fp8": (0.468, 0.567, 0.751, 0.908, 1.0), "bf16": (0.548, 0.657, 0.831, 0.927, 1.0)}
_HBM2E_STACK_BYTES_PER_S: Final = 400e9  # 16 GB each, at 3.1 to 3.2 Gb/s a pin
_HBM2E_STACK_GB: Final = 16


@lru_cache(maxsize=256)
def pool_of(gpu: str, memory_gb: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Pool:
    """The pool; an InputError where the GPU is not one Astra knows."""
    known = find_device(gpu, memory_gb)
    network = read_network(far, per_node or 8)
    base = _node_called(gpu) or _nearest_node(known, per_node, network)
    size = per_node or base.gpus
    if gpus > size and gpus % size:
        size = math.gcd(gpus, size)
    node = replace(base, gpus=size, links=links_of(base, size, near, network))
    return Pool(device=vary_device(known, gpu, memory_gb), node=node, gpus=gpus)


def find_device(text: str, memory_gb: float | None) -> Device:
    """The catalog's GPU for a text and a memory size: the chip, then the form factor, then the nearest memory."""
    plain = re.sub(r"(?i)\b(nvidia|amd|tesla|geforce|instinct|[dh]gx|grace|hopper|blackwell|ampere)\b", "", text)
    wanted, devices = fold(plain), hardware.devices()
    chip = _chip(plain, {fold(device.name.split("-")[0]) for device in devices})
    if not chip and (node := _node_called(text)):
        return hardware.device(node.gpu)
    if not chip:
        raise InputError("gpu", text, want="a GPU in the catalog")
    forms = [device for device in devices if fold(device.name.split("-")[0]) == chip]
    form = "pcie" if "pcie" in wanted else "nvl" if re.search(r"nvl(?!72)", wanted) else "sxm"
    forms = [device for device in forms if form in fold(device.name)] or forms
    said = re.search(r"(?i)(?<!\d)(\d{2,3})\s*gi?b", text)
    nominal = memory_gb or (float(said.group(1)) if said and float(said.group(1)) < _HOST_GB else 0.0)
    if not nominal:  # of several the larger is the later one
        return max(forms, key=lambda device: device.memory_bytes)
    return min(forms, key=lambda device: (abs(device.memory_bytes / 1e9 - nominal), device.name))


def _chip(text: str, chips: set[str]) -> str:
    """The longest chip that a text names, as soon as it names one; a number goes on to its end: an L40 is no L4."""
    words = [fold(word) for word in re.split(r"[\s\-_/(),]+", re.sub(r"^\d+\s*x\s*", "", text)) if word]
    for first in range(len(words)):  # the first words, or later ones: ND A100 v4
        starts = ["".join(words[first : last + 1]) for last in range(first, len(words))]
        if found := [chip for chip in chips for start in starts if _names(start, chip)]:
            return max(found, key=len)
    return ""


def _names(start: str, chip: str) -> bool:
    return start.startswith(chip) and not start[len(chip) : len(chip) + 1].isdigit()


def _node_called(text: str) -> NodeType | None:
    """The catalog's server that a text names, such as an instance of a cloud."""
    named = fold(text)
    return next((node for node in hardware.node_types() if named in map(fold, (node.name, *node.aliases))), None)


def vary_device(device: Device, text: str, memory_gb: float | None) -> Device:
    """The device with the memory, memory type and power limit the run states, where they are not the catalog's."""
    varied = device
    if memory_gb and abs(memory_gb * 1e9 / device.memory_bytes - 1) > _SAME_MEMORY:
        varied = replace(varied, memory_bytes=memory_gb * GIB * _VISIBLE)
    if "hbm2e" in text.lower() and device.memory_bytes_per_s > 3e12 and memory_gb:
        varied = replace(varied, memory_bytes_per_s=memory_gb / _HBM2E_STACK_GB * _HBM2E_STACK_BYTES_PER_S)
    limit = re.search(r"(\d{3,4})\s*W\b", text)
    if limit and float(limit.group(1)) < 0.95 * device.power_w:
        share = float(limit.group(1)) / device.power_w
        peaks = {precision: _speed(precision, share) * peak for precision, peak in device.flops_per_s.items()}
        varied = replace(varied, power_w=float(limit.group(1)), flops_per_s=peaks)
    if varied is device:
        return device
    relative = device.name if device.name in hardware.measured() else device.relative
    name = f"{device.name} ({varied.memory_bytes / GIB:.0f} GiB, {varied.power_w:.0f} W)"
    return replace(varied, name=name, relative=relative, aliases=())


def _speed(precision: str, power_share: float) -> float:
    """Throughput under a share of the power, over that at full power."""
    return float(np.interp(power_share, _POWER_SHARES, _SPEED_AT["fp8" if precision in ("fp8", "fp4") else "bf16"]))


def _nearest_node(device: Device, per_node: int | None, network: Network) -> NodeType:
    """The catalog's node with this GPU whose size and network are nearest to what the run states."""
    usual = hardware.default_node(device)
    holding = [node for node in hardware.node_types() if node.gpu == device.name]

    def distance(node: NodeType) -> tuple[bool, bool, float, bool]:
        far = node.links[-1] if node.links else None
        rates = (network.bytes_per_s, network.port_bytes_per_s and network.port_bytes_per_s * node.gpus)
        apart = [abs(math.log(far.bytes_per_s * node.gpus / rate)) for rate in rates if far and rate]
        rate = min(apart, default=0.0)
        other_kind = network.kind is not None and (far is None or far.kind != network.kind)
        return per_node is not None and node.gpus != per_node, other_kind, rate, node.name != usual.name

    return min(holding, key=distance) if holding else usual


# "12xV100-SXM2-16GB (3x p3.8xlarge)": how many of which, and the servers they are in.
_PART: Final = re.compile(r"(\d+)\s*x\s*([^\s(]+)\s*(\([^)]*\))?")


def cluster_of(row: Row, filled: list[str]) -> Cluster:
    """The cluster; equal ones are one object."""
    gpu, memory = words_of(row, "gpu_type"), number(row, "gpu_mem_gb")
    if not gpu:
        raise Missing("incomplete: GPU type is missing")
    gpus, per_node = _gpus(row, filled), count(row, "gpus_per_node")
    near, far = words_of(row, "intra_node_link"), words_of(row, "inter_node_link")
    cluster = _cluster(gpu, memory, gpus, per_node, near, far)
    node = cluster.pools[0].node
    if per_node is None and gpus > 1:
        filled.append(f"GPUs per node not stated: as {node.name}")
    if not far and gpus > node.gpus:
        filled.append(f"network between nodes not stated: as {node.name}")
    return cluster


def _gpus(row: Row, filled: list[str]) -> int:
    """How many GPUs; where a row gives every degree instead, their product."""
    degrees = [degree(row, name) for name in ("tp", "pp", "dp")]
    if count(row, "num_gpus") is None and None not in degrees:
        filled.append("number of GPUs not stated: the product of the degrees")
        return math.prod(size for size in (*degrees, degree(row, "cp")) if size)
    return needed(row, "num_gpus", "number of GPUs")


@lru_cache(maxsize=1024)
def _cluster(text: str, memory: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Cluster:
    """One pool, or one for each part of a text with a plus; links are told in the same order, with a slash between."""
    if "+" not in text:
        return Cluster(pools=(_known(text, memory, gpus, per_node, near, far),))
    parts = [part for each in text.split("+") if (part := _PART.search(each))]
    inside, outside = _each(near, len(parts)), _each(far, len(parts))
    pools = [
        _known(part.group(2), memory, int(part.group(1)), per_node, inside[place], outside[place])
        for place, part in enumerate(parts)
    ]
    if len(parts) != text.count("+") + 1 or sum(pool.gpus for pool in pools) != gpus:
        raise Missing(f"GPUs do not add up: {text}")
    return Cluster(pools=tuple(replace(pool, name=pool.device.name) for pool in pools))


def _each(text: str, parts: int) -> list[str]:
    links = [part.strip() for part in re.split(r"\s/\s", text)]
    return links if len(links) == parts else [text] * parts


def _known(gpu: str, memory: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Pool:
    try:
        return pool_of(gpu, memory, gpus, per_node, near, far)
    except InputError as error:
        if error.where == "gpu":
            raise Missing(f"unsupported hardware: {gpu}") from None
        raise
