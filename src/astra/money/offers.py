"""What can be rented: offers of the price catalog matched with node types, and the counts each is sold in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from astra.answer import PriceTag
from astra.answer_money import Unused
from astra.catalog import hardware
from astra.catalog.prices import Price, book, recent
from astra.errors import InputError, fold
from astra.money.tags import node_of, offer_tag, own_tag, owned_tag, said_price, wanted
from astra.provenance import Ints
from astra.spec.cluster import Cluster, Device, NodeType, Pool
from astra.spec.money import ANY_MARKET, Money
from astra.spec.workload import PRECISIONS
from astra.units import whole_count

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
    single: list[str]  # providers whose servers are rented one by one, because nobody says what joins them


class Wanted(NamedTuple):
    """What may be rented."""

    caps: dict[str, int]  # GPUs of each type, at most
    precision: str
    known_nodes: bool = False  # only where the network is known
    assume_network: bool = False  # that of the usual server where nobody says
    own: Cluster | None = None  # GPUs one has


def market(asked: Wanted, options: Money, *, today: dt.date | None = None) -> Market:
    """Offers of the GPUs asked for, the cheapest of each kind of node, and one's own GPUs beside them."""
    unused: dict[str, list[str]] = {}
    fit = _fitting(asked, unused)
    prices = 0
    if asked.own is None and (options.usd_per_gpu_h is not None or options.owned):
        _check_unlisted(options)
        every = [_at_own_price(options, device, asked.caps[device.name]) for device in fit]
    else:
        chosen = _priced(fit, options, unused)
        prices = len(chosen)
        every = [_offer(price, asked, options, today) for price in chosen]
        every = [offer for offer in every if offer.node_known or not asked.known_nodes]
        said = [device for device in fit if said_price(options, device.name) is not None]
        every += [_at_own_price(options, device, asked.caps[device.name]) for device in said]
    found = [*_cheapest(every, unused), *_own(options, asked)]
    offers = [offer for offer in found if len(offer.counts)]
    if found and not offers:
        least = min(offer.tag.min_gpus or offer.tag.instance_gpus for offer in found)
        most = max(asked.caps.values())
        free = max(most if offer.tag.available is None else offer.tag.available for offer in found)
        where, got = ("max_gpus", most) if free >= most else ("available", free)
        raise InputError(where, got, want=f"room for one node, {least} GPUs or more")
    if not offers:
        raise InputError(
            "gpus", ",".join(asked.caps), want=f"GPUs with {options.market} prices",
            fix="See astra catalog prices, choose another --market or --providers, or give --prices FILE.",
        )  # fmt: skip
    gone = [Unused(reason=reason, offers=names) for reason, names in unused.items()]
    single = sorted({offer.tag.provider for offer in every if not offer.node_known and len(offer.counts) == 1})
    return Market(offers, gone, prices or len(found), _by_place(every), single)


def _check_unlisted(options: Money) -> None:
    """Where every GPU has a price of one's own, words about listed prices would count for nothing."""
    for name in ("prices", "discount", "providers", "regions"):
        value = getattr(options, name)
        if value:
            raise InputError(
                f"money.{name}", value, want="no price of your own for every GPU beside it",
                fix="--price H100=3 is that of one type, and --own 64xH100 says which GPUs are yours: both stand "
                "beside listed prices.",
            )  # fmt: skip


def _fitting(asked: Wanted, unused: dict[str, list[str]]) -> list[Device]:
    """The GPUs asked for that have the precision."""
    devices = [hardware.device(name) for name in asked.caps]
    fit = [device for device in devices if device.computes(asked.precision)]
    for device in devices:
        if device not in fit:
            unused.setdefault(f"the GPU has no {asked.precision}", []).append(device.name)
    if not fit:
        have = [name for name in PRECISIONS if all(device.computes(name) for device in devices)]
        fix = f"All of them have {', '.join(have)}." if have else ""
        raise InputError("precision", asked.precision, want="one that at least one of the GPUs has", fix=fix)
    return fit


def wanted_gpus(gpus: str | Sequence[str], options: Money, max_gpus: int, own: Cluster | None = None) -> dict[str, int]:
    """The GPUs asked for, each with how many at most (``H200:64``); ``any`` is all that have a price."""
    if not 1 <= max_gpus <= MOST_GPUS:
        raise InputError("max_gpus", max_gpus, want=f"a number of GPUs from 1 to {MOST_GPUS:,}")
    names = gpus.split(",") if isinstance(gpus, str) else list(gpus)
    if [fold(name) for name in names] == [ANY]:
        said = [hardware.find("devices", text.partition("=")[0], where="price") for text in options.price]
        mine = [pool.device.name for pool in own.pools] if own is not None else []
        listed = [price.gpu for price in (*book(), *book(options.prices))]
        return dict.fromkeys([*listed, *said, *(name for name in mine if hardware.has("devices", name))], max_gpus)
    if not any(fold(name) for name in names):
        raise InputError("gpus", gpus, want="GPU types, such as H100,H200:64,B200, or any")
    found: dict[str, int] = {}
    for name in names:
        if "x" in name and name.split("x")[0].strip().isdigit():
            raise InputError(
                "gpus",
                name,
                want="GPU types without a number",
                fix="How many is what is looked for; H200:64 is at most.",
            )
        kind, colon, most = name.partition(":")
        cap = whole_count(most, MOST_GPUS) if colon else max_gpus
        if cap is None:
            raise InputError("gpus", name, want="how many at most after the colon, such as H200:64")
        device, cap = hardware.find("devices", kind), min(cap, max_gpus)
        if found.get(device, cap) != cap:
            raise InputError("gpus", name, want=f"one most for {device}", fix=f"It is {found[device]:,} before.")
        found[device] = cap
    return found


def _priced(devices: list[Device], options: Money, unused: dict[str, list[str]]) -> list[Price]:
    """Offers of the markets, regions and providers asked for; old ones only from providers asked for by name."""
    every = wanted(options, book(options.prices))
    names = {device.name for device in devices}
    own = set(every) - set(book()) if options.prices is not None else set()
    found = [price for price in every if price.gpu in names and price.market in options.markets]
    if options.market == ANY_MARKET:
        vague = [price for price in found if price.market == "reserved" and price.term_days is None]
        if vague:
            reason = "how long one commits at the reserved price is not known (--market reserved shows them)"
            unused[reason] = [f"{price.provider} {price.instance} ({price.gpu})" for price in vague]
        found = [price for price in found if price not in vague]
    if options.providers:
        return found
    fresh = set(recent(found)) | own
    old = [f"{price.provider} {price.instance} ({price.gpu}, {price.date})" for price in found if price not in fresh]
    if old:
        unused["the price is more than 90 days older than the newest for that GPU"] = old
    return [price for price in found if price in fresh]


def _offer(price: Price, asked: Wanted, options: Money, today: dt.date | None) -> Offer:
    """An offer with the node type it is, or the usual server of its GPU.

    One instance alone where nobody says how several are joined, unless the usual network is to be assumed; a part of a
    server is rented alone in any case.
    """
    tag, (node, fabric, _) = offer_tag(price, today, options=options), node_of(price)
    part = not fabric and (price.gpus == 1 or price.gpus % node.gpus != 0)
    alone = part or not (fabric or asked.assume_network)
    most = min(asked.caps[price.gpu], price.available or MOST_GPUS, price.gpus if alone else MOST_GPUS)
    if part and price.gpus > node.gpus:
        most = 0
    counts = np.arange(price.gpus, most + 1, price.gpus)
    return Offer(tag, hardware.device(price.gpu), node, bool(fabric), counts[counts >= (price.min_gpus or 1)])


def _at_own_price(options: Money, device: Device, most: int) -> Offer:
    """As many usual servers of a GPU as may be, at a price of one's own."""
    node = hardware.default_node(device)
    tag = own_tag(options, Pool(device=device, node=node, gpus=node.gpus))
    if tag is None:
        raise InputError("price", None, want="a price of your own")
    return Offer(tag, device, node, True, np.arange(node.gpus, most + 1, node.gpus))


def _own(options: Money, asked: Wanted) -> list[Offer]:
    """The GPUs one has, in every number of nodes; nothing is kept for them that is cheaper elsewhere."""
    found = []
    for pool in asked.own.pools if asked.own is not None else ():
        tag = owned_tag(options, pool) if options.owned else own_tag(options, pool)
        if tag is None:
            fix = "Give --usd-per-gpu-h, or --usd-per-kwh and --usd-per-gpu, or usd_per_gpu_h in the cluster file."
            raise InputError("own", pool.device.name, want="what an hour of your own GPUs costs", fix=fix)
        tag = msgspec.structs.replace(tag, market="owned", startup_s=0.0, available=pool.gpus)
        size = pool.gpus_per_node
        if pool.device.computes(asked.precision):
            found.append(Offer(tag, pool.device, pool.node, True, np.arange(size, pool.gpus + 1, size)))
    return found


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
        terms = (offer.tag.market, offer.tag.minimum_s, offer.tag.step_s, offer.tag.startup_s)
        key = (offer.device.name, offer.node.gpus, links, offer.counts.tobytes(), terms)
        if best.setdefault(key, offer) is not offer:
            name = f"{offer.tag.provider} {offer.tag.instance} ({offer.device.name}, ${offer.tag.usd_per_gpu_h:g})"
            unused.setdefault("an equal node is cheaper elsewhere", []).append(name)
    return list(best.values())
