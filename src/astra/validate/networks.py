"""The links of a published run, as its table words them: ``8x400Gb/s``, ``800Gb/s per node (4xHDR)``.

What a text states wins; what it leaves out is the catalog's for the nearest node type. A stated network is all a run
says of the way between nodes: it has the oversubscription it states, or none.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from msgspec.structs import replace

from astra.catalog import hardware
from astra.errors import InputError, fold
from astra.spec.cluster import Link, NodeType

_GBIT: Final = 1e9 / 8
_PCIE_BYTES_PER_S: Final = {"3": 15.75e9, "4": 31.5e9, "5": 63e9}
_IB_GBIT: Final = {"xdr": 800.0, "ndr": 400.0, "hdr": 200.0, "edr": 100.0, "fdr": 56.0, "qdr": 40.0}
_PORTS_GBIT: Final = (10, 25, 40, 50, 56, 100, 200, 400, 800)  # of a port; what is more belongs to several
_MOST_GBIT: Final = 1_000_000  # more is no network's
_RDMA_GBIT: Final = 200  # Ethernet ports of this rate and more run RoCE: no kernel's TCP fills them
_KINDS: Final = (
    (r"efa", "efa"),
    (r"roce|rdma|slingshot|spectrum-?x|tcpxo|fastrak", "roce"),
    (r"\bib\b|\bhcas?\b|infiniband|(?<![a-wyz])[xnhefq]dr\d*\b|quantum|omni-?path|\bopa\b", "infiniband"),
    (r"ethernet|tcp|gbe\b|gige\b", "tcp"),
    (r"connectx|mellanox|\bcx-?\d\b", "infiniband"),
)
# Words as figures, and names whose figure counts nothing.
_PLAIN: Final = (
    (r"\b(?:single|one)\b", "1"),
    (r"\b(?:dual|two)\b", "2"),
    (r"\b(?:quad|four)\b", "4"),
    (r"\beight\b", "8"),
    (r"\b\d+\s*gpus?\s*(?:per|/|each)\s*(?:node|server|host|tray)\b", ""),
    (r"(?<=\d)\s*-?gig(?:abit)?(?:e\b|\b(?:/s| per second)?)", "Gb/s "),
    (r"\b(connectx|bluefield|slingshot|quantum|thor|cx|bf|v|gen|rocev|efav)[- ]?\d+(?!\d|[x×*]\d)", r"\1"),  # noqa: RUF001
    (r"\b(omni-?path|opa)[- ](\d{2,3})\b(?!\s*G)", r"\1 \2G"),
    (r"(?<=dr) ?[14][xX]\b", ""),  # lanes of a port: HDR 4X
    (r"(?<![\w.:-])(1600|2400|3200|6400)(?!\w|\s*[x×*GT])", r"\1Gb/s"),  # noqa: RUF001  # a total without its unit
    (r"\b(efa|roce|ib|infiniband) (25|50|100|200|400|800)(?![\w.]|\s*[GT])", r"\1 \2Gb/s"),
    (r"[^+]*(?:nvl\d+|nvlink|pcie)[^+]*\+", ""),  # inside a node or a rack
)
_RATE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([GT])(b|B)?(?:it|its)?(?:E\b|ps\b|/s(?:ec)?\b|\b)")
_CARD: Final = r"(?:nics?|ports?|hcas?|adapters?|rails?|cards?|links?)\b"
_NODE: Final = r"(?:per|/|each)\s*(?:node|server|host|tray)\b"
_COUNT: Final = re.compile(
    rf"(?<![-\w.])(\d{{1,2}})(?!\s*[GT]b?)(?:\s*[x×*]|[-\s]+(?:[\w/.-]+\s+){{0,4}}?{_CARD}|\s*{_NODE}"  # noqa: RUF001
    r"|\s+(?:(?:mellanox|nvidia|connectx|infiniband|ib)\s+){0,3}[xnhefq]dr\d*\b)"
    r"|(?:[\s)]|(?<=[bs]))[x×*]\s?(\d{1,2})(?!\d|\s*[GT]b?)",  # noqa: RUF001
    re.IGNORECASE,
)
_OF_CARDS: Final = re.compile(rf"{_CARD}|{_NODE}", re.IGNORECASE)
_BARE: Final = re.compile(r"\d\s?[x×*]\s?(\d{2,3})(?![\d.]|\s*[GTW])")  # noqa: RUF001
_GENERATION: Final = re.compile(r"(?<![a-wyz])([xnhefq]dr)[- ]?(\d{2,3})?\b", re.IGNORECASE)
_OF_GPUS: Final = re.compile(r"(?:per|/|each|shared by)\s*(\d*)\s*gpus?\b", re.IGNORECASE)
_OF_PORTS: Final = re.compile(rf"(?:per|/|each)\s*(?:link|{_CARD})", re.IGNORECASE)
_SCOPE: Final = re.compile(rf"{_NODE}|\btotal|aggregate|\+|{_OF_GPUS.pattern}", re.IGNORECASE)
_BUS: Final = re.compile(r"pcie|nvlink|\bbus\b", re.IGNORECASE)
_ASIDE: Final = re.compile(r"storage|management|mgmt|front-?end|north|for ns\b", re.IGNORECASE)
_COMPUTE: Final = re.compile(r"compute|east|for ew\b|back-?end", re.IGNORECASE)
_OVERSUBSCRIBED: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*:\s*(\d+(?:\.\d+)?)\s*(?:over|block|taper|fat|$)"
    r"|(?<!non)(?<!non.)(?:over-?sub|block|taper)[a-z]*\D{0,14}?(\d+(?:\.\d+)?)(?:\s*:\s*(\d+(?:\.\d+)?))?(?!\s*[x×GT\d])",  # noqa: RUF001
    re.IGNORECASE,
)


class Network(NamedTuple):
    """What a text says of the links between nodes; None where it says nothing.

    With both rates the text has one and does not say whose: a port's, if each GPU of such a node has a port like that.
    Neither is a stated port's where GPUs share ports: then it is all that the node has.
    """

    kind: str | None
    bytes_per_s: float | None  # of a node
    oversubscription: float = 1.0
    port_bytes_per_s: float | None = None  # where neither is told how many ports there are nor their total
    port_stated: bool = False  # as a rate, not by its generation alone


def read_network(text: str, per_node: int) -> Network:
    """Kind and rate of the network between nodes: of all its ports, per node unless the text says per GPU."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text)
    parts = _with_counts([part for part in re.split(r"[,;]|\band\b", text) if part.strip()])
    compute = [part for part in parts if _COMPUTE.search(part)]
    used = compute or [part for part in parts if not _ASIDE.search(part)] or parts
    kind = next((kind for pattern, kind in _KINDS if re.search(pattern, " ".join(used).lower())), None)
    plain = [_plain(part) for part in used]
    joint = " ".join(plain)
    oversubscribed, scope = _oversubscription(text), _OF_GPUS.search(joint)
    if (port := _port(joint)) is not None:
        return Network(kind, None, oversubscribed, port * _GBIT, _RATE.search(joint) is not None)
    rates = [rate for part in (plain if not _OF_PORTS.search(joint) else [joint]) if (rate := _all_ports(part))]
    if not rates:
        return Network(kind, None, oversubscribed)
    if kind == "tcp" and "tcp" not in text.lower() and _each(joint) >= _RDMA_GBIT:
        kind = "roce"
    total = max(rates) * (per_node / int(scope.group(1) or 1) if scope else 1) * _GBIT
    alone = kind == "infiniband" and len(used) == 1 and not _SCOPE.search(joint) and not _COUNT.search(joint)
    return Network(kind, total, oversubscribed, total if alone else None)


def _with_counts(parts: list[str]) -> list[str]:
    """How many cards there are beside the one rate that is told elsewhere: ``400Gb/s NDR, 4 per node``."""
    plain = [_plain(part) for part in parts]
    rated = [place for place, part in enumerate(plain) if _rate(part) is not None]
    counts = [place for place, part in enumerate(plain) if _OF_CARDS.search(part) and _COUNT.search(part)]
    if len(rated) != 1 or len(counts) != 1 or rated == counts or _SCOPE.search(plain[rated[0]]):
        return parts
    joined = f"{parts[rated[0]]} {parts[counts[0]].strip()}"
    return [joined if place == rated[0] else part for place, part in enumerate(parts) if place != counts[0]]


def _plain(text: str) -> str:
    """The text with numbers as figures, without those that are part of a name."""
    for pattern, figure in _PLAIN:
        text = re.sub(pattern, figure, text, flags=re.IGNORECASE)
    return text


def _port(text: str) -> float | None:
    """Gigabits per second of a port, where a text says which generation of InfiniBand it is and nothing of how many.

    A rate that is a port's own, as in ``IB NDR 400Gb/s`` or ``400 Gb/s per port``, says no more than the generation.
    """
    if _COUNT.search(text) or _SCOPE.search(text) or _BUS.search(text):
        return None
    named, stated = _GENERATION.search(text), _RATE.search(text)
    if named is None:
        return _gbit(stated) if stated and _OF_PORTS.search(text) else None
    port = float(named.group(2) or _IB_GBIT[named.group(1).lower()])
    return port if stated is None or _gbit(stated) == port else None


def _each(text: str) -> float:
    """Gigabits per second of the one rate in a text."""
    stated = _RATE.search(text)
    return _gbit(stated) if stated else 0.0


def _gbit(stated: re.Match[str]) -> float:
    """Gigabits per second of a rate."""
    value, scale, unit = stated.groups()
    gbit = float(value) * (1000 if scale == "T" else 1) * (8 if unit == "B" else 1)
    if gbit > _MOST_GBIT:
        raise InputError("network", stated.group(), want=f"at most {_MOST_GBIT:,} Gb/s")
    return gbit


def _all_ports(part: str) -> float | None:
    """Gigabits per second of ports joined by a plus."""
    rates = [_gigabits(port) for port in part.split("+") if not _ASIDE.search(port)]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _gigabits(port: str) -> float | None:
    """What stands outside parentheses is the total: ``800Gb/s per node (4xHDR)`` says 800 twice."""
    outside, inside = re.sub(r"\([^)]*\)", " ", port), " ".join(re.findall(r"\(([^)]*)\)", port))
    each, count = _rate(outside), _COUNT.search(outside)
    if _RATE.search(outside) is None or _OF_PORTS.search(outside):
        count = count or _COUNT.search(inside)
    each = each if each is not None else _rate(inside)
    if each is None or count is None or each > max(_PORTS_GBIT) or re.search(r"\btotal|aggregate", port.lower()):
        return each
    return each * int(count.group(1) or count.group(2))


def _rate(text: str) -> float | None:
    """Gigabits per second of one port; of an InfiniBand generation where only that is named. A bus is no network."""
    if _BUS.search(text):
        return None
    stated = _RATE.search(text)
    if stated:
        return _gbit(stated)
    if named := _GENERATION.search(text):
        return float(named.group(2) or _IB_GBIT[named.group(1).lower()])
    bare = _BARE.search(text)
    return float(bare.group(1)) if bare and int(bare.group(1)) in _PORTS_GBIT else None


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
    if generation and (link.kind == "pcie" or "nvl" not in words):  # beside NVLink the bus leads to the host
        changes |= {"kind": "pcie", "bytes_per_s": _PCIE_BYTES_PER_S[generation.group(1)]}
    elif rate and "nvl" in words:
        both = 1 if re.search(r"per direction|each (?:way|direction)|uni-?dir", words) else 2
        changes |= {"bytes_per_s": float(rate.group(1)) * 1e9 / both}
    if "nvswitch" in words:
        changes |= {"kind": "nvswitch"}
    return replace(link, **changes)


def _outside(tiers: list[Link], size: int, network: Network) -> list[Link]:
    """Beyond a node: racks as the catalog has them, then the stated network, or the catalog's where none is stated."""
    racks = [link for link in tiers if link.kind == "rack"]
    beyond = [link for link in tiers if link.kind != "rack"] or [tiers[-1]]
    own, port = beyond[0].bytes_per_s, network.port_bytes_per_s
    if port is not None and network.port_stated and port > 1.01 * own:
        network = network._replace(bytes_per_s=port)
    elif port is not None and (network.bytes_per_s is None or math.isclose(port, own, rel_tol=0.01)):
        network = network._replace(bytes_per_s=min(port, own) * size)  # a port for each GPU, or what the node has
    if network.bytes_per_s is None:
        named = [replace(link, kind=network.kind or link.kind) for link in beyond]
        shared = max(network.oversubscription, named[-1].oversubscription)
        return [*racks, *named[:-1], replace(named[-1], reach=hardware.ANY_REACH, oversubscription=shared)]
    stated = replace(
        beyond[0], reach=hardware.ANY_REACH, kind=network.kind or beyond[0].kind,
        bytes_per_s=network.bytes_per_s / size, oversubscription=network.oversubscription,
    )  # fmt: skip
    return [*racks, stated]
