"""Which price applies: the user's own, the offer of a node type, or the usual one of a GPU."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import msgspec

from astra.answer import PriceTag
from astra.catalog import hardware
from astra.catalog.prices import STALE_DAYS, Price, book, default_price, is_of, node_price
from astra.errors import InputError, UnknownName, fold
from astra.money import rates
from astra.spec.cluster import Link, NodeType, Pool
from astra.spec.money import Money
from astra.units import DAY_S


def own_tag(options: Money, pool: Pool) -> PriceTag | None:
    """The price the user gave, in one way or another."""
    said = said_price(options, pool.device.name)
    if options.usd_per_gpu_h is not None or said is not None:
        return _tag(said or options.usd_per_gpu_h or 0.0, pool, market="given", source="given with the request")
    if options.owned:
        return owned_tag(options, pool)
    if pool.usd_per_gpu_h is not None:
        return _tag(pool.usd_per_gpu_h, pool, market="given", source=pool.price_source or "cluster file")
    return None


def said_price(options: Money, gpu: str) -> float | None:
    """The price given for this type of GPU."""
    found = None
    for text in options.price:
        name, _, usd = text.partition("=")
        if hardware.find("devices", name, where="price") == gpu:
            try:
                found = float(usd.strip().removeprefix("$"))
            except ValueError:
                raise InputError("price", text, want="a GPU and dollars per hour, such as H100=2.5") from None
    return found


def owned_tag(options: Money, pool: Pool) -> PriceTag:
    """What an hour of use of one's own GPU costs: energy, the purchase with its capital, and people."""
    watts = options.watts_per_gpu if options.watts_per_gpu is not None else pool.device.power_w
    energy, fixed = owned_usd_per_gpu_h(options, watts)
    parts = []
    if options.usd_per_kwh is not None:
        parts.append(f"{watts:.0f} W x PUE {options.pue:g} x ${options.usd_per_kwh:g}/kWh")
    if options.usd_per_gpu is not None:
        rate = f" at {100 * options.capital_rate:.3g}% a year" if options.capital_rate else ""
        parts.append(f"${options.usd_per_gpu:,.0f} over {options.lifetime_years:g} years{rate}")
    if options.staff_usd_per_gpu_year:
        parts.append(f"${options.staff_usd_per_gpu_year:,.0f} a year for people and upkeep")
    if options.use < 1:
        parts.append(f"used {options.use:.0%} of the time")
    return _tag(energy + fixed, pool, market="owned", source="; ".join(parts))


def owned_usd_per_gpu_h(options: Money, watts: float) -> tuple[float, float]:
    """Dollars per hour of use: energy, and what is paid whether it is used or not."""
    energy = float(rates.energy_usd_per_gpu_h(watts, options.pue, options.usd_per_kwh or 0.0))
    yearly = float(rates.yearly_usd_per_gpu(options.usd_per_gpu or 0.0, options.lifetime_years, options.capital_rate))
    return energy, float(rates.hourly_usd(yearly + options.staff_usd_per_gpu_year, options.use))


def tag_of(options: Money, pool: Pool, *, today: dt.date | None = None) -> PriceTag | None:
    """The price of a pool: the user's, the offer of exactly its node type, or the usual one for its GPU.

    The GPUs are there already, so that there is no start-up but the one the user states.
    """
    own = own_tag(options, pool) or _listed(options, pool, today)
    return None if own is None else msgspec.structs.replace(own, startup_s=options.startup_s or 0.0)


def _listed(options: Money, pool: Pool, today: dt.date | None) -> PriceTag | None:
    """The offer of a price list that fits a pool best, in the first of the markets that has one."""
    offers = wanted(options, book(options.prices))
    whole = pool.gpus >= pool.node.gpus
    median = "the median of the providers that sell whole servers" if whole else "the median of the providers"
    for market in options.markets:
        found, why = node_price(pool.node, market, offers=offers), "the newest offer of this node type"
        if found is None and options.prices is not None:  # a user's own list comes before the catalog's median
            found = default_price(pool.device.name, market, offers=set(offers) - set(book()), whole=whole)
            why = f"from {options.prices}"
        if found is None:
            found, why = default_price(pool.device.name, market, offers=offers, whole=whole), median
        if found is not None:
            return offer_tag(found, today, why=why, options=options)
    return None


def wanted(options: Money, offers: tuple[Price, ...]) -> tuple[Price, ...]:
    """The offers of the providers and regions asked for; one that nobody knows is refused."""
    check_regions(options, offers)
    if options.providers:
        names = wanted_providers(options, offers)
        offers = tuple(price for price in offers if fold(price.provider) in names)
    return tuple(price for price in offers if in_regions(options, price))


def wanted_providers(options: Money, offers: tuple[Price, ...]) -> set[str]:
    """The providers asked for, by folded name; an unknown one is refused."""
    known = {fold(price.provider): price.provider for price in offers}
    for name in options.providers:
        if fold(name) not in known:
            raise UnknownName("providers", name, known.values(), fix="See astra catalog prices.")
    return {fold(name) for name in options.providers}


def in_regions(options: Money, price: Price) -> bool:
    """Whether an offer is of the regions asked for, or could be: many lists hold for every region."""
    if not options.regions or price.region.lower() in ("", "all", "global"):
        return True
    return any(place.startswith(want.lower()) for place in _places(price) for want in options.regions)


def check_regions(options: Money, offers: tuple[Price, ...]) -> None:
    """An error if no offer at all is of a region asked for: offers for every region would hide a slip of the pen."""
    known = sorted({place for price in offers for place in _places(price)}) if options.regions else []
    for want in options.regions:
        if not any(place.startswith(want.lower()) for place in known):
            raise UnknownName("regions", want, known, fix="See astra catalog prices.")


def _places(price: Price) -> list[str]:
    """The regions of an offer; ``us-east-1/2 us-west-2`` are several."""
    return price.region.lower().replace("/", " ").split()


def node_of(price: Price) -> tuple[NodeType, str, str]:
    """The node type of an offer, the network between its servers and who says so; both empty if nobody does."""
    known = next((node for node in hardware.nodes_of(price.gpu) if is_of(price, node)), None)
    node = known or hardware.default_node(price.gpu)
    if price.network:
        kind, _, gbits = price.network.partition(" ")
        link = msgspec.structs.replace(
            node.links[-1], kind=kind, bytes_per_s=float(gbits) * 1e9 / 8, oversubscription=1.0, source=price.source
        )
        inside = node.links[:-1] if node.links[-1].reach == hardware.ANY_REACH else node.links
        outside = msgspec.structs.replace(link, reach=hardware.ANY_REACH)
        return msgspec.structs.replace(node, links=(*inside, outside)), _fabric(outside), price.source
    if known is None:
        return node, "", ""
    return node, _fabric(node.links[-1]), f"node type {node.name}: {node.source}"


def _fabric(link: Link) -> str:
    return f"{link.kind} {link.bytes_per_s * 8 / 1e9:g} Gb/s per GPU"


def offer_tag(price: Price, today: dt.date | None = None, why: str = "", options: Money | None = None) -> PriceTag:
    """An offer of a price list as it is billed, with everything its row says."""
    _, fabric, known_by = node_of(price)
    less = options.discount if options is not None else 0.0
    return PriceTag(
        usd_per_gpu_h=price.usd_per_gpu_h * (1 - less), provider=price.provider, instance=price.instance,
        region=price.region, market=price.market, currency=price.currency, date=price.date.isoformat(),
        source=price.source + (f", less {100 * less:.3g}%" if less else ""),
        age_days=((today or dt.date.today()) - price.date).days, why=why, gpu=price.gpu, instance_gpus=price.gpus,
        fabric=fabric, fabric_source=known_by, available=price.available, min_gpus=price.min_gpus,
        term_s=None if price.term_days is None else price.term_days * DAY_S,
        minimum_s=max(price.minimum_s or 0.0, (price.term_days or 0.0) * DAY_S), step_s=price.step_s or 0.0,
        terms=price.terms, startup_s=price.startup_s, notes=price.notes,
    )  # fmt: skip


def _tag(usd: float, pool: Pool, *, market: str, source: str) -> PriceTag:
    if not usd > 0:
        raise InputError("price", usd, want="a price above zero", fix="Give --usd-per-gpu-h, or energy and a purchase.")
    fabric = _fabric(pool.node.links[-1]) if pool.node.links else ""
    return PriceTag(
        usd_per_gpu_h=usd, provider="you", instance="", region="", market=market, currency="USD", date=None,
        source=source, age_days=None, gpu=pool.device.name, instance_gpus=pool.node.gpus, fabric=fabric,
        fabric_source=f"node type {pool.node.name}", startup_s=0.0 if market == "owned" else None,
    )  # fmt: skip


def stale_warning(tag: PriceTag) -> str:
    """A sentence if the price is old."""
    return next(iter(stale_warnings([tag])), "")


def stale_warnings(tags: Sequence[PriceTag]) -> list[str]:
    """A sentence for the old prices of each provider and day."""
    old: dict[tuple[str, str | None, int], list[str]] = {}
    for tag in tags:
        if tag.age_days is not None and tag.age_days > STALE_DAYS:
            old.setdefault((tag.provider, tag.date, tag.age_days), []).append(tag.instance)
    out = []
    for (provider, date, days), instances in old.items():
        several = list(dict.fromkeys(instances))
        what, check = ("price", "it") if len(several) == 1 else ("prices", "them")
        is_old = f"{'is' if len(several) == 1 else 'are'} {days} days old ({date}): check {check}."
        out.append(f"The {what} of {provider} {', '.join(several)} {is_old}")
    return out
