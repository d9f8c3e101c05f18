"""The GPUs of a published run: a catalog device and node type, varied where the run says so.

Tables name GPUs and networks in free text (``H100-SXM``, ``IB NDR 8x400Gb/s``). What the text states wins; what it
leaves out is the catalog's for the nearest node type.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from astra.catalog import hardware
from astra.errors import InputError, fold
from astra.spec.cluster import Device, Link, NodeType, Pool
from astra.units import GIB

_GBIT: Final = 1e9 / 8
_VISIBLE: Final = 0.985  # of a GPU's nominal memory, what software sees
_SAME_MEMORY: Final = 0.12
# Steady throughput of 8192-wide products under a power limit, over that at full power: an H200 of 700 W limited to 350,
# 400, 500 and 600 W (torch 2.11, 2.5 s each after as long a warm-up, 2026-11-15). Memory keeps its rate down to 500 W.
_POWER_SHARES: Final = (350 / 700, 400 / 700, 500 / 700, 600 / 700, 1.0)
_SPEED_AT: Final = {"fp8": (0.468, 0.567, 0.751, 0.908, 1.0), "bf16": (0.548, 0.657, 0.831, 0.927, 1.0)}
_HBM2E_STACK_BYTES_PER_S: Final = 400e9  # 16 GB each, at 3.1 to 3.2 Gb/s a pin
_HBM2E_STACK_GB: Final = 16
_PCIE_BYTES_PER_S: Final = {"3": 15.75e9, "4": 31.5e9, "5": 63e9}
_IB_GBIT: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0}
_KINDS: Final = (
    (r"efa", "efa"),
    (r"roce|rdma|slingshot", "roce"),
    (r"\bib\b|infiniband|\b[xnhe]dr\b|quantum", "infiniband"),
    (r"ethernet|tcp", "tcp"),
)


class Network(NamedTuple):
    """What a text says of the links between nodes; None where it says nothing."""

    kind: str | None
    bytes_per_s: float | None  # of a node


@lru_cache(maxsize=256)
def pool_of(gpu: str, memory_gb: float | None, gpus: int, per_node: int | None, near: str, far: str) -> Pool:
    """The pool; an InputError where the GPU is not one Astra knows."""
    known = find_device(gpu, memory_gb)
    network = read_network(far, per_node or 8)
    base = _nearest_node(known, per_node, network)
    size = per_node or base.gpus
    if gpus > size and gpus % size:
        size = math.gcd(gpus, size)
    node = replace(base, gpus=size, links=_links(base, size, near, network))
    return Pool(device=vary_device(known, gpu, memory_gb), node=node, gpus=gpus)


def find_device(text: str, memory_gb: float | None) -> Device:
    """The catalog's GPU for a text and a memory size: the chip, then the form factor, then the nearest memory."""
    wanted = fold(re.sub(r"(?i)\b(nvidia|amd|tesla|geforce|instinct)\b", "", text))
    devices = hardware.devices()
    chips = {fold(device.name.split("-")[0]) for device in devices}
    chip = max((name for name in chips if wanted.startswith(name)), key=len, default="")
    if not chip:
        raise InputError("gpu", text, want="a GPU in the catalog")
    forms = [device for device in devices if fold(device.name.split("-")[0]) == chip]
    form = "pcie" if "pcie" in wanted else "nvl" if re.search(r"nvl(?!72)", wanted) else "sxm"
    forms = [device for device in forms if form in fold(device.name)] or forms
    nominal = memory_gb or 0.0
    return min(forms, key=lambda device: (abs(device.memory_bytes / 1e9 - nominal) if nominal else 0.0, device.name))


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
    relative = device.name if device.name in hardware.MEASURED else device.relative
    name = f"{device.name} ({varied.memory_bytes / GIB:.0f} GiB, {varied.power_w:.0f} W)"
    return replace(varied, name=name, relative=relative, aliases=())


def _speed(precision: str, power_share: float) -> float:
    """Throughput under a share of the power, over that at full power."""
    return float(np.interp(power_share, _POWER_SHARES, _SPEED_AT["fp8" if precision in ("fp8", "fp4") else "bf16"]))


def read_network(text: str, per_node: int) -> Network:
    """Kind and rate of the network between nodes; rates in gigabits, per node unless the text says per GPU."""
    plain = re.sub(r"\(p\d[^)]*\)", "", text)
    parts = re.split(r"[,;]|\band\b", plain)
    compute = [part for part in parts if "compute" in part.lower()]
    rates = [rate for part in compute or parts if (rate := _gigabits(part)) is not None]
    text = " ".join(compute or parts).lower()
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, text)), None)
    if not rates:
        return Network(kind, None)
    times = per_node if re.search(r"per gpu", plain.lower()) else 1
    return Network(kind, max(rates) * times * _GBIT)


def _gigabits(part: str) -> float | None:
    rate = re.search(r"(\d+(?:\.\d+)?)\s*G(?:b|bit)(?:ps|/s|/sec)?\b", part, re.IGNORECASE)
    if rate and re.search(r"GB/s", part):  # bytes: a bus, not a network
        return None
    generation = next((gbit for name, gbit in _IB_GBIT.items() if re.search(rf"\b{name}\b", part.lower())), None)
    each = float(rate.group(1)) if rate else generation
    count = re.search(r"(\d+)\s*x", part)
    return None if each is None else each * (int(count.group(1)) if count else 1)


def _nearest_node(device: Device, per_node: int | None, network: Network) -> NodeType:
    """The catalog's node with this GPU whose size and network are nearest to what the run states."""
    usual = hardware.default_node(device)
    holding = [node for node in hardware.node_types() if node.gpu == device.name]

    def distance(node: NodeType) -> tuple[bool, bool, float, bool]:
        far = node.links[-1] if node.links else None
        rate = abs(math.log(far.bytes_per_s * node.gpus / network.bytes_per_s)) if far and network.bytes_per_s else 0.0
        other_kind = network.kind is not None and (far is None or far.kind != network.kind)
        return per_node is not None and node.gpus != per_node, other_kind, rate, node.name != usual.name

    return min(holding, key=distance) if holding else usual


def _links(base: NodeType, size: int, near: str, network: Network) -> tuple[Link, ...]:
    *inside, outer = base.links
    links: list[Link] = []
    if size > 1:
        first = inside[0] if inside else replace(outer, kind="pcie", bytes_per_s=_PCIE_BYTES_PER_S["4"])
        named = any(fold(name) in fold(near) for name in (base.name, *base.aliases))  # then the catalog knows better
        links.append(replace(first, reach=size) if named else _inside(first, size, near))
    rate = network.bytes_per_s / size if network.bytes_per_s else outer.bytes_per_s
    kind = network.kind or outer.kind
    links.append(replace(outer, reach=hardware.ANY_REACH, kind=kind, bytes_per_s=rate))
    return tuple(links)


def _inside(link: Link, size: int, text: str) -> Link:
    """The tier inside a node. NVLink rates are printed for both directions together."""
    words = text.lower()
    if link.kind == "rack" or "nvl72" in words:
        return link
    changes: dict[str, object] = {"reach": size}
    generation = re.search(r"pcie\s*(?:gen)?\s*([345])", words)
    rate = re.search(r"(\d{3,4})\s*gb/s", words)
    if generation:
        changes |= {"kind": "pcie", "bytes_per_s": _PCIE_BYTES_PER_S[generation.group(1)]}
    elif rate and "nvl" in words:
        changes |= {"bytes_per_s": float(rate.group(1)) * 1e9 / 2}
    if "nvswitch" in words:
        changes |= {"kind": "nvswitch"}
    return replace(link, **changes)
