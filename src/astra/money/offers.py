"""What can be rented: offers of the price catalog matched with node types, and the counts each is sold in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.answer import PriceTag, Unused
from astra.catalog import hardware
from astra.catalog.prices import Price, book, is_of, recent
from astra.errors import InputError, fold
from astra.money.bill import offer_tag, own_tag, wanted_providers
from astra.provenance import Ints
from astra.spec.cluster import Device, NodeType, Pool
from astra.spec.money import Money
from astra.spec.workload import PRECISIONS

ANY: Final = "any"
MOST_GPUS: Final = 100_000


class Offer(NamedTuple):
    """One node type at one price."""

    tag: PriceTag
    device: Device
    node: NodeType
    node_known: bool
    counts: Ints  # GPUs, ascending

    @property
    def pool(self) -> Pool:
        """The largest pool of it."""
        return self.pool_of(int(self.counts[-1]))

    def pool_of(self, gpus: int) -> Pool:
        """So many GPUs of it."""
        return Pool(
            device=self.device, node=self.node, gpus=gpus, usd_per_gpu_h=self.tag.usd_per_gpu_h,
            price_source=f"{self.tag.provider} {self.tag.date or ''}".strip(),
        )  # fmt: skip


class Market(NamedTuple):
    """The offers worth a look, and why the others are not."""

    offers: list[Offer]
    unused: list[Unused]
    prices: int
    mixable: list[Offer]  # what each provider sells in a region, also where an equal node is cheaper elsewhere


def market(
    gpus: str | Sequence[str],
    options: Money,
    *,
    max_gpus: int,
    precision: str,
    known_nodes: bool = False,
    today: dt.date | None = None,
) -> Market:
    """Offers of the GPUs asked for, the cheapest of each kind of node; ``known_nodes`` keeps to known links."""
    devices = wanted_gpus(gpus)
    if not 1 <= max_gpus <= MOST_GPUS:
        raise InputError("max_gpus", max_gpus, want=f"a number of GPUs from 1 to {MOST_GPUS:,}")
    unused: dict[str, list[str]] = {}
    fit = [device for device in devices if device.computes(precision)]
    for device in devices:
        if device not in fit:
            unused.setdefault(f"the GPU has no {precision}", []).append(device.name)
    if not fit:
        have = [name for name in PRECISIONS if all(device.computes(name) for device in devices)]
        fix = f"All of them have {', '.join(have)}." if have else ""
        raise InputError("precision", precision, want="one that at least one of the GPUs has", fix=fix)
    if options.owned or options.usd_per_gpu_h is not None:
        found = every = [_owned(options, device, max_gpus) for device in fit]
        prices = len(found)
    else:
        chosen = _priced(fit, options, unused)
        prices = len(chosen)
        every = [_offer(price, max_gpus, today) for price in chosen]
        every = [offer for offer in every if offer.node_known or not known_nodes]
        found = _cheapest(every, unused)
    offers = [offer for offer in found if len(offer.counts)]
    if found and not offers:
        least = min(offer.node.gpus for offer in found)
        raise InputError("max_gpus", max_gpus, want=f"room for one node, {least} GPUs or more")
    if not offers:
        raise InputError(
            "gpus", gpus if isinstance(gpus, str) else ",".join(gpus), want=f"GPUs with {options.market} prices",
            fix="See astra catalog prices, choose another --market or --providers, or give --prices FILE.",
        )  # fmt: skip
    gone = [Unused(reason=reason, offers=names) for reason, names in unused.items()]
    return Market(offers, gone, prices, _by_place(every))


def wanted_gpus(gpus: str | Sequence[str]) -> list[Device]:
    """The GPUs asked for, each once; ``any`` is all that have a price."""
    names = gpus.split(",") if isinstance(gpus, str) else list(gpus)
    if [fold(name) for name in names] == [ANY]:
        return [hardware.device(name) for name in dict.fromkeys(price.gpu for price in book())]
    if not any(fold(name) for name in names):
        raise InputError("gpus", gpus, want="GPU types, such as H100,H200,B200,A100, or any")
    for name in names:
        if "x" in name and name.split("x")[0].strip().isdigit():
            raise InputError("gpus", name, want="GPU types without a number", fix="How many is what is looked for.")
    return list({(device := hardware.device(name)).name: device for name in names}.values())


def _priced(devices: list[Device], options: Money, unused: dict[str, list[str]]) -> list[Price]:
    """Offers of the market and providers asked for; old ones only from providers asked for by name."""
    every = book(options.prices)
    wanted = wanted_providers(options, every)
    names = {device.name for device in devices}
    own = set(every) - set(book()) if options.prices is not None else set()
    found = [price for price in every if price.gpu in names and price.market == options.market]
    if wanted:
        return [price for price in found if fold(price.provider) in wanted]
    fresh = set(recent(found)) | own
    old = [f"{price.provider} {price.instance} ({price.gpu}, {price.date})" for price in found if price not in fresh]
    if old:
        unused["the price is more than 90 days older than the newest for that GPU"] = old
    return [price for price in found if price in fresh]


def _offer(price: Price, max_gpus: int, today: dt.date | None) -> Offer:
    """An offer with the node type it is, or the usual server of its GPU; part of a server is rented alone."""
    device = hardware.device(price.gpu)
    known = next((node for node in hardware.nodes_of(price.gpu) if is_of(price, node)), None)
    node = known or hardware.default_node(device)
    alone = known is None and (price.gpus == 1 or price.gpus % node.gpus != 0)
    if alone:  # nothing is known of links between such instances
        counts = [price.gpus] if price.gpus <= min(node.gpus, max_gpus) else []
    else:
        counts = list(range(price.gpus, max_gpus + 1, price.gpus))
    return Offer(offer_tag(price, today), device, node, known is not None, np.array(counts, np.int64))


def _owned(options: Money, device: Device, max_gpus: int) -> Offer:
    node = hardware.default_node(device)
    tag = own_tag(options, Pool(device=device, node=node, gpus=node.gpus))
    if tag is None:
        raise InputError("price", None, want="a price of your own")
    return Offer(tag, device, node, True, np.arange(node.gpus, max_gpus + 1, node.gpus))


def _by_place(offers: list[Offer]) -> list[Offer]:
    """Of each provider and region the cheapest offer of each kind of node."""
    places: dict[tuple[str, str], list[Offer]] = {}
    for offer in offers:
        places.setdefault((offer.tag.provider, offer.tag.region), []).append(offer)
    return [offer for some in places.values() for offer in _cheapest(some, {})]


def _cheapest(offers: list[Offer], unused: dict[str, list[str]]) -> list[Offer]:
    """Equal nodes run equally fast, so of each kind only the cheapest can be worth renting."""
    best: dict[object, Offer] = {}
    for offer in sorted(offers, key=lambda offer: (offer.tag.usd_per_gpu_h, not offer.node_known, offer.tag.provider)):
        links = tuple(msgspec.structs.astuple(msgspec.structs.replace(link, source="")) for link in offer.node.links)
        key = (offer.device.name, offer.node.gpus, links, offer.counts.tobytes())
        if best.setdefault(key, offer) is not offer:
            name = f"{offer.tag.provider} {offer.tag.instance} ({offer.device.name}, ${offer.tag.usd_per_gpu_h:g})"
            unused.setdefault("an equal node is cheaper elsewhere", []).append(name)
    return list(best.values())
