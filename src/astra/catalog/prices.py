"""What a GPU-hour costs: dated offers with their source, one CSV row each."""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from astra.catalog import hardware
from astra.errors import InputError, fold, shortened
from astra.files import csv_rows, read_text
from astra.spec import kinds
from astra.spec.cluster import NodeType
from astra.spec.names import Line, Name, check_fields, check_line, check_name
from astra.spec.record import Spec

Market = Literal["on-demand", "spot", "reserved"]

STALE_DAYS: Final = 90  # older prices are shown with a warning
NETWORKS: Final = ("infiniband", "roce", "efa", "tcp")  # between servers
TERMS: Final = ("term_days", "minimum_s", "step_s")
_DEAREST_USD: Final = 1000.0  # above this a price is surely per node or per month
_GPUS: Final = kinds.whole(1, 999_999)
_SECONDS: Final = kinds.number(0, 1e9)  # or days
_GBITS: Final = kinds.number(0, 100_000, above=True)


class Price(Spec, frozen=True, kw_only=True):
    """One offer, in dollars per GPU and hour."""

    provider: Name
    instance: Name
    gpu: Name  # a device name
    gpus: int  # GPUs of the instance
    region: Name = ""
    market: Market
    usd_per_gpu_h: float
    currency: Literal["USD"] = "USD"
    date: dt.date  # when it was last seen
    source: Line
    notes: Line = ""
    available: int | None = None  # GPUs that can be had at once; None: nobody says
    min_gpus: int | None = None  # the fewest that are sold
    network: Line = ""  # between servers, as "infiniband 400" (Gb/s of a GPU); empty: that of the node type
    term_days: float | None = None  # of a reservation: paid for whether it is used or not; None: nobody says
    minimum_s: float | None = None  # the shortest time that is billed
    step_s: float | None = None  # a bill is rounded up to it
    startup_s: float | None = None  # from the order to the first step
    terms: Line = ""  # where term, minimum and step are known from

    def __post_init__(self) -> None:
        check_fields("price", self)


COLUMNS: Final = Price.__struct_fields__
OPTIONAL: Final = COLUMNS[COLUMNS.index("available") :]  # columns that a file may leave out


def prices(gpu: str | None = None) -> tuple[Price, ...]:
    """The catalog's offers, all of them or those of one GPU."""
    if gpu is None:
        return _catalog()
    name = hardware.find("devices", gpu)
    return tuple(price for price in _catalog() if price.gpu == name)


def book(path: str | Path | None = None, *, today: dt.date | None = None) -> tuple[Price, ...]:
    """The catalog's offers, with those of a user's file in place of the same instances and markets."""
    if path is None:
        return _catalog()
    own = read_prices(path, today=today)
    replaced = {_offer(price) for price in own}
    return (*own, *(price for price in _catalog() if _offer(price) not in replaced))


def default_price(
    device_name: str,
    market: Market = "on-demand",
    *,
    offers: Iterable[Price] | None = None,
    whole: bool = True,
) -> Price | None:
    """The offer to calculate with when the user gives no price: the median provider's, on demand unless said.

    Only whole servers count (``whole``) where anyone sells them, because parts of a server come without the network
    that a job over several needs. Each provider speaks with its newest offer of its largest instance (the dearer one on
    a tie, which is the one with guarantees). Providers not seen in the 90 days before the newest offer of that GPU are
    left out. Of the rest the lower median is taken, so that the answer is an offer that exists. None if nobody offers
    the GPU.
    """
    if not hardware.has("devices", device_name):
        return None  # a GPU of the user's own
    gpu = hardware.find("devices", device_name)
    if offers is None:
        return _default(gpu, market, whole)
    return _median_provider((price for price in offers if (price.gpu, price.market) == (gpu, market)), whole=whole)


def node_price(node: NodeType, market: Market = "on-demand", *, offers: Iterable[Price] | None = None) -> Price | None:
    """The newest offer of exactly this node type, or None."""
    found = [price for price in offers or _catalog() if price.market == market and is_of(price, node)]
    return max(found, key=lambda price: (price.date, price.usd_per_gpu_h), default=None)


def is_of(price: Price, node: NodeType) -> bool:
    """Whether an offer is of exactly this node type."""
    if (price.gpu, price.gpus) != (node.gpu, node.gpus):
        return False
    known = {fold(name) for name in (node.name, *node.aliases)}
    named = fold(price.provider) == fold(node.provider) and fold(price.instance) in known
    return named or fold(price.provider + price.instance) in known


def is_whole(price: Price) -> bool:
    """Whether an instance is one or more whole servers: of a known node type, or of the GPU's usual number."""
    usual = hardware.default_node(price.gpu).gpus
    if price.gpus > 1 and price.gpus % usual == 0:
        return True
    return any(is_of(price, node) for node in hardware.nodes_of(price.gpu))


def recent(offers: Iterable[Price]) -> list[Price]:
    """Without those more than 90 days older than the newest offer of the same GPU and market."""
    kept = list(offers)
    newest: dict[tuple[str, str], dt.date] = {}
    for price in kept:
        key = (price.gpu, price.market)
        newest[key] = max(newest.get(key, price.date), price.date)
    return [price for price in kept if age_days(price, newest[price.gpu, price.market]) <= STALE_DAYS]


def to_csv(offers: Iterable[Price]) -> str:
    """Offers as the text of a price file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = list(offers)
    said = {column for column in OPTIONAL for price in rows if getattr(price, column) not in (None, "")}
    columns = [column for column in COLUMNS if column not in OPTIONAL or column in said]
    writer.writerow(columns)
    writer.writerows([getattr(price, column) for column in columns] for price in rows)
    return text.getvalue()


def age_days(price: Price, today: dt.date) -> int:
    """Days since the price was last seen."""
    return (today - price.date).days


def is_stale(price: Price, today: dt.date) -> bool:
    """Whether the price is older than 90 days."""
    return age_days(price, today) > STALE_DAYS


def read_prices(path: str | Path, *, today: dt.date | None = None) -> tuple[Price, ...]:
    """Offers from a CSV file with the catalog's columns; any fault is named by line and column."""
    text = read_text(path, "prices")
    return parse_prices(text, where=str(path), today=today or dt.date.today())


@cache
def _catalog() -> tuple[Price, ...]:
    path = hardware.DATA / "prices.csv"
    # No check against today: a computer with a wrong clock must still be able to plan.
    return parse_prices(_text_of(path), where=path.name, today=dt.date.max)


def _text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def _default(gpu: str, market: Market, whole: bool) -> Price | None:
    found = (price for price in _catalog() if (price.gpu, price.market) == (gpu, market))
    return _median_provider(found, whole=whole)


def _offer(price: Price) -> tuple[str, str, str, str]:
    return fold(price.provider), fold(price.instance), price.gpu, price.market


def _median_provider(offers: Iterable[Price], *, whole: bool = False) -> Price | None:
    by_provider: dict[str, Price] = {}
    every = list(offers)
    servers = [price for price in recent(every) if is_whole(price)]
    for price in servers if whole and servers else every:
        held = by_provider.setdefault(price.provider, price)
        if _weight(price) > _weight(held):
            by_provider[price.provider] = price
    if not by_provider:
        return None
    seen = recent(by_provider.values())
    return sorted(seen, key=lambda price: (price.usd_per_gpu_h, price.date))[(len(seen) - 1) // 2]


def _weight(price: Price) -> tuple[dt.date, int, float]:
    return price.date, price.gpus, price.usd_per_gpu_h


def parse_prices(text: str, *, where: str, today: dt.date) -> tuple[Price, ...]:
    """Offers from CSV text; no date may lie after ``today``."""
    rows = csv_rows(text, where)
    _, header = next(rows, (1, []))
    _check_header(header, where)
    return tuple(
        _price(dict(zip(header, row, strict=True)), f"{where}: line {line}", today)
        for line, row in rows
        if _has_all(row, header, f"{where}: line {line}")
    )


def _check_header(header: list[str], where: str) -> None:
    missing = [name for name in COLUMNS if name not in (*header, *OPTIONAL)]
    unknown = [name for name in header if name not in COLUMNS]
    if missing or unknown or len(set(header)) != len(header):
        faults = [f"{', '.join(missing)} missing"] * bool(missing)
        faults += [f"{shortened(', '.join(unknown[:8]), 200)} unknown"] * bool(unknown)
        raise InputError(
            f"{where}: line 1",
            None,
            want=f"the columns {','.join(COLUMNS[: -len(OPTIONAL)])}, each once, and any of {','.join(OPTIONAL)}",
            fix=f"Here: {'; '.join(faults) or 'a column twice'}. Shorter lists: astra prices import.",
        )


def _has_all(row: list[str], header: list[str], where: str) -> bool:
    """An error if the number of fields is not that of the header."""
    if len(row) != len(header):
        raise InputError(where, len(row), want=f"{len(header)} fields, as in line 1", fix="Quote fields with commas.")
    return True


def _price(cells: Mapping[str, str], where: str, today: dt.date) -> Price:
    fields: dict[str, Any] = {}
    for column, cell in cells.items():
        if column in OPTIONAL and not cell.strip():
            continue
        fields[column] = _READERS.get(column, _text)(cell.strip(), f"{where}, column {column}")
    if fields["date"] > today:
        raise InputError(f"{where}, column date", cells["date"], want=f"no date after today ({today})")
    return with_terms(Price(**fields))


def with_terms(price: Price) -> Price:
    """A price with the terms its provider bills by, where they are known and the price does not say its own."""
    known = _terms().get((fold(price.provider), price.market))
    if known is None or price.terms or any(getattr(price, name) is not None for name in TERMS):
        return price
    return msgspec.structs.replace(price, **known)


@cache
def _terms() -> dict[tuple[str, str], dict[str, Any]]:
    """By provider and market: how long one commits, the least and the step of a bill, and who says so."""
    path = hardware.DATA / "terms.csv"
    rows = csv_rows(_text_of(path), path.name)
    _, header = next(rows)
    found = {}
    for line, row in rows:
        cells = dict(zip(header, row, strict=True))
        said = {
            name: _SECONDS.read(cells[name], f"{path.name}: line {line}, column {name}")
            for name in TERMS
            if cells[name]
        }
        terms = f"{cells['source']}, {cells['date']}"
        found[fold(cells["provider"]), cells["market"]] = {**said, "terms": terms}
    return found


def _text(cell: str, where: str, *, line: bool = False, needed: bool = True) -> str:
    """A name, or a line of text."""
    if needed and not cell:
        raise InputError(where, None, want="some text; it is empty")
    return check_line(where, cell) if line else check_name(where, cell, empty=True)


def _gpu(cell: str, where: str) -> str:
    return hardware.find("devices", cell, where=where)


def _network(cell: str, where: str) -> str:
    """``infiniband 400``: a kind of network and the gigabits per second it gives each GPU."""
    kind, _, gbits = check_line(where, cell).lower().partition(" ")
    if kind not in NETWORKS or not gbits:
        raise InputError(where, cell, want=f"{', '.join(NETWORKS)} and Gb/s per GPU, such as infiniband 400")
    return f"{kind} {_GBITS.read(gbits, where):g}"


def _date(cell: str, where: str) -> dt.date:
    try:
        if cell[4:5] + cell[7:8] == "--":  # other ISO forms are read by some Python versions only
            return dt.date.fromisoformat(cell)
    except ValueError:
        pass
    raise InputError(where, cell or None, want="a date such as 2026-11-15")


_READERS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "gpu": _gpu,
    "gpus": _GPUS.read,
    "region": partial(_text, needed=False),
    "market": kinds.one_of(*get_args(Market)).read,
    "usd_per_gpu_h": kinds.number(0, _DEAREST_USD, above=True, example="2.49 dollars for a GPU and hour").read,
    "currency": kinds.one_of("USD").read,
    "date": _date,
    "source": partial(_text, line=True),
    "notes": partial(_text, line=True, needed=False),
    "available": _GPUS.read,
    "min_gpus": _GPUS.read,
    "network": _network,
    **dict.fromkeys(("term_days", "minimum_s", "step_s", "startup_s"), _SECONDS.read),
    "terms": partial(_text, line=True, needed=False),
}
