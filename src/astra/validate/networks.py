"""The links of a published run, as its table words them: ``8x400Gb/s``, ``800Gb/s per node (4xHDR)``.

What a text states wins; what it leaves out is the catalog's for the nearest node type. A stated network is all a run
says of the way between nodes: it has the oversubscription it states, or none.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from astra.catalog import hardware
from astra.errors import fold
from astra.spec.cluster import Link, NodeType

_GBIT: Final = 1e9 / 8
_PCIE_BYTES_PER_S: Final = {"3": 15.75e9, "4": 31.5e9, "5": 63e9}
_IB_GBIT: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0, "qdr": 40.0}
_KINDS: Final = (
    (r"efa", "efa"),
    (r"roce|rdma|slingshot|spectrum-?x", "roce"),
    (r"\bib\b|infiniband|(?<![a-wyz])[xnhefq]dr\d*\b|quantum|omni-?path", "infiniband"),
    (r"ethernet|tcp|gbe\b", "tcp"),
    (r"connectx|mellanox|\bcx-?\d\b", "infiniband"),
)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([GT])(b|B)?(?:it|its)?(?:E\b|ps\b|/s(?:ec)?\b|\b)")
_COUNT: Final = re.compile(
    r"(?<![-\w])(\d+)\s*(?:[x×*]|(?:nics?|ports?|hcas?|adapters?|rails?|cards?)\b)|[\s)][x×*]\s?(\d{1,2})(?!\d|\s*[GT]b)",  # noqa: RUF001
    re.IGNORECASE,
)
_GENERATION: Final = re.compile(r"(?<![a-wyz])([xnhefq]dr)[- ]?(\d{2,3})?\b", re.IGNORECASE)
_SCOPE: Final = re.compile(r"(?:per|/|each)\s*(?:node|server|host|tray|gpu)\b|\btotal|aggregate|\+", re.IGNORECASE)
_BUS: Final = re.compile(r"pcie|nvlink|\bbus\b", re.IGNORECASE)
_ASIDE: Final = re.compile(r"storage|management|mgmt|front-?end|north|for ns\b", re.IGNORECASE)
_COMPUTE: Final = re.compile(r"compute|east|for ew\b|back-?end", re.IGNORECASE)
_OVERSUBSCRIBED: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*:\s*(\d+(?:\.\d+)?)\s*(?:over|block|taper)|(?:over|block|taper)[a-z]*\D{0,8}?(\d+(?:\.\d+)?)(?:\s*:\s*(\d+(?:\.\d+)?))?",
    re.IGNORECASE,
)


class Network(NamedTuple):
    """What a text says of the links between nodes; None where it says nothing."""

    kind: str | None
    bytes_per_s: float | None  # of a node
    oversubscription: float = 1.0
    port_bytes_per_s: float | None = None  # where a generation is named, and neither how many ports nor their total


def read_network(text: str, per_node: int) -> Network:
    """Kind and rate of the network between nodes: of all its ports, per node unless the text says per GPU."""
    parts = [part for part in re.split(r"[,;]|\band\b", text) if part.strip()]
    compute = [part for part in parts if _COMPUTE.search(part)]
    used = compute or [part for part in parts if not _ASIDE.search(part)] or parts
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, " ".join(used).lower())), None)
    oversubscribed = _oversubscription(text)
    if (port := _generation(" ".join(used))) is not None:
        return Network(kind, None, oversubscribed, port * _GBIT)
    rates = [rate for part in used if (rate := _all_ports(part)) is not None]
    times = per_node if re.search(r"(?:per|/|each)\s*gpu\b", " ".join(used).lower()) else 1
    return Network(kind, max(rates) * times * _GBIT if rates else None, oversubscribed)


def _generation(text: str) -> float | None:
    """Gigabits per second of a port, where a text says which generation of InfiniBand it is and nothing of how many.

    A rate that is a port's own, as in ``IB NDR 400Gb/s``, says no more than the generation does.
    """
    named, stated = _GENERATION.search(text), _RATE.search(text)
    if named is None or _COUNT.search(text) or _SCOPE.search(text) or _BUS.search(text):
        return None
    port = float(named.group(2) or _IB_GBIT[named.group(1).lower()])
    return port if stated is None or _gbit(stated) == port else None


def _gbit(stated: re.Match[str]) -> float:
    """Gigabits per second of a rate."""
    value, scale, unit = stated.groups()
    return float(value) * (1000 if scale == "T" else 1) * (8 if unit == "B" else 1)


def _all_ports(part: str) -> float | None:
    """Gigabits per second of ports joined by a plus."""
    rates = [_gigabits(port) for port in part.split("+") if not _ASIDE.search(port)]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _gigabits(port: str) -> float | None:
    """What stands outside parentheses is the total: ``800Gb/s per node (4xHDR)`` says 800 twice."""
    outside, inside = re.sub(r"\([^)]*\)", " ", port), " ".join(re.findall(r"\(([^)]*)\)", port))
    each = _rate(outside)
    each = each if each is not None else _rate(inside)
    count = None if re.search(r"\btotal|aggregate", port.lower()) else _COUNT.search(outside)
    return None if each is None else each * (int(count.group(1) or count.group(2)) if count else 1)


def _rate(text: str) -> float | None:
    """Gigabits per second of one port; of an InfiniBand generation where only that is named. A bus is no network."""
    if _BUS.search(text):
        return None
    stated = _RATE.search(text)
    if stated:
        return _gbit(stated)
    named = _GENERATION.search(text)
    return None if named is None else float(named.group(2) or _IB_GBIT[named.group(1).lower()])


def _oversubscription(text: str) -> float:
    """``2:1 oversubscribed``, ``oversubscription 1:4``, ``blocking factor 2``; 1 where nothing is said."""
    found = _OVERSUBSCRIBED.search(text)
    return 1.0 if found is None else max(float(number) for number in found.groups() if number)


def links_of(base: NodeType, size: int, near: str, network: Network) -> tuple[Link, ...]:
    """The tiers of a node type of ``size`` GPUs, changed as far as the texts say so, and the way between nodes."""
    outer = [link for link in base.links if link.reach > base.gpus]
    return (*_inside(base, size, near), *_outside(outer or [base.links[-1]], size, network))


def _inside(base: NodeType, size: int, near: str) -> list[Link]:
    """Every tier of the catalog's node that has GPUs to join; a text that names none but PCIe leaves bridges out."""
    if size == 1 or base.links[0].kind == "rack":
        return []
    tiers = [link for link in base.links if link.reach <= base.gpus]
    tiers = tiers or [replace(base.links[-1], kind="pcie", bytes_per_s=_PCIE_BYTES_PER_S["4"])]
    if any(fold(name) in fold(near) for name in (base.name, *base.aliases)):  # then the catalog knows better
        return [*(link for link in tiers[:-1] if link.reach < size), replace(tiers[-1], reach=size)]
    bridges = [
        link for link in tiers[:-1] if link.reach < size and not ("pcie" in near.lower() and "nvl" not in near.lower())
    ]
    return [*bridges, _stated(tiers[-1], size, near)]


def _stated(link: Link, size: int, text: str) -> Link:
    """The tier of a whole node. NVLink rates are printed for both directions together."""
    words = text.lower()
    if "nvl72" in words:
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


def _outside(tiers: list[Link], size: int, network: Network) -> list[Link]:
    """Beyond a node: racks as the catalog has them, then the stated network, or the catalog's where none is stated."""
    racks = [link for link in tiers if link.kind == "rack"]
    beyond = [link for link in tiers if link.kind != "rack"] or [tiers[-1]]
    if network.port_bytes_per_s is not None:  # a port for each GPU, or as many as the catalog's node has
        each = min(network.port_bytes_per_s, beyond[0].bytes_per_s)
        network = network._replace(bytes_per_s=each * size)
    if network.bytes_per_s is None:
        named = [replace(link, kind=network.kind or link.kind) for link in beyond]
        return [*racks, *named[:-1], replace(named[-1], reach=hardware.ANY_REACH)]
    stated = replace(
        beyond[0], reach=hardware.ANY_REACH, kind=network.kind or beyond[0].kind,
        bytes_per_s=network.bytes_per_s / size, oversubscription=network.oversubscription,
    )  # fmt: skip
    return [*racks, stated]
