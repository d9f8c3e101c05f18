"""Prices from elsewhere: SkyPilot catalog files, or any CSV that names the GPU and its price.

A SkyPilot file has one provider's instances by region and zone, with the price of the whole instance. Zones of a region
are joined: the on-demand price is the same in all of them, of spot prices the median is taken. Google's GPUs are priced
apart from the machine they are in, and both are added up.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import statistics
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from astra.catalog import hardware
from astra.catalog.prices import COLUMNS, OPTIONAL, Market, Price, parse_prices, with_terms
from astra.errors import InputError, shortened
from astra.files import csv_rows, load_toml, own_text, read_text
from astra.spec.names import as_line, as_name, check_name

SKYPILOT: Final = ("InstanceType", "AcceleratorName", "AcceleratorCount", "Price", "SpotPrice", "Region")
PLAIN: Final = ("gpu", "usd_per_gpu_h")  # what a plain CSV must have; the rest has defaults


@cache
def _skypilots() -> dict[str, dict[str, Any]]:
    """SkyPilot's names (``data/skypilot.toml``)."""
    return load_toml(own_text(__file__, "skypilot.toml").encode())


class ImportedPrices(NamedTuple):
    """What was read, and what was not: names of unknown GPUs and rows without a price, counted."""

    form: Literal["skypilot", "plain", "astra"]
    prices: tuple[Price, ...]
    left_out: dict[str, int]


def import_prices(path: str | Path, *, provider: str = "", date: dt.date | None = None) -> ImportedPrices:
    """Prices of a file, whichever of the forms it has; a wrong column or cell is named by line and column."""
    where = str(path)
    check_name("provider", provider, empty=True)
    text = read_text(path, "prices")
    _, header = next(csv_rows(text, where), (1, []))
    if not header:
        raise InputError(f"{where}: line 1", None, want="the names of the columns; the file is empty")
    day = date or dt.date.fromtimestamp(Path(path).stat().st_mtime)
    if set(COLUMNS) - set(OPTIONAL) <= set(header) <= set(COLUMNS):
        return ImportedPrices("astra", parse_prices(text, where=where, today=dt.date.today()), {})
    if set(SKYPILOT) <= set(header):
        return _skypilot(text, where, provider or _provider(path), day)
    if set(PLAIN) <= set(header) <= set(COLUMNS):
        return ImportedPrices("plain", _plain(text, where, provider, day), {})
    whole = COLUMNS[: -len(OPTIONAL)]
    wanted = f"a price file ({','.join(whole)}), a plain one ({','.join(PLAIN)} and any of those), or SkyPilot's"
    missing = [name for name in SKYPILOT if name not in header] if "InstanceType" in header else []
    missing = missing or [name for name in PLAIN if name not in header]
    unknown = [name for name in header if name not in (*COLUMNS, *SKYPILOT)]
    faults = [f"column {', '.join(missing)} missing"] * bool(missing)
    faults += [f"column {shortened(', '.join(unknown[:8]), 200)} unknown"] * bool(unknown)
    raise InputError(f"{where}: line 1", None, want=wanted, fix=f"Here: {'; '.join(faults) or 'columns mixed'}.")


def _provider(path: str | Path) -> str:
    """By the file's name, or its folder's: a SkyPilot catalog keeps ``aws/vms.csv``."""
    name = Path(path).resolve().parent.name if Path(path).stem == "vms" else Path(path).stem
    return _skypilots()["providers"].get(name.lower()) or as_name(name)


def _plain(text: str, where: str, provider: str, day: dt.date) -> tuple[Price, ...]:
    """A file with some of the catalog's columns: the others take what is usual."""
    usual: dict[str, str] = {
        "provider": provider or "own list",
        "instance": "unnamed",
        "gpus": "",
        "region": "",
        "market": "on-demand",
        "currency": "USD",
        "date": day.isoformat(),
        "source": as_line(f"user file {Path(where).name}"),
        "notes": "",
    }
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for line, row in _rows(text, where):
        cells = {**usual, **{name: cell for name, cell in row.items() if cell.strip()}}
        if not cells["gpus"]:
            device = hardware.device(
                hardware.find("devices", cells.get("gpu", ""), where=f"{where}: line {line}, column gpu")
            )
            cells["gpus"] = str(hardware.default_node(device).gpus)
        writer.writerow([cells.get(name, "") for name in COLUMNS])
    return parse_prices(out.getvalue(), where=where, today=dt.date.today())


def _skypilot(text: str, where: str, provider: str, day: dt.date) -> ImportedPrices:
    rows = list(_rows(text, where))
    machines = {_at(row): row for _, row in rows if not row["AcceleratorName"].strip()}
    by_region = any(row["Region"].strip() for _, row in rows)
    seen: dict[tuple[str, str, int, str, Market], list[float]] = {}
    left_out: dict[str, int] = {}
    for line, row in rows:
        name, instance = row["AcceleratorName"].strip(), row["InstanceType"].strip()
        if not name:
            continue  # an instance without GPUs
        gpu, machine = _gpu(name, row), None
        gpus = _count(row["AcceleratorCount"], f"{where}: line {line}, column AcceleratorCount") if gpu else 0
        if not instance:
            instance = _skypilots()["machines"].get(name.upper(), {}).get(str(gpus), "")
            machine = machines.get(_at(row, instance))
        for column in ("InstanceType", "Region"):
            check_name(f"{where}: line {line}, column {column}", row[column].strip(), empty=True)
        if gpu is None:
            reason = f"unknown GPU {as_name(name)}"
        elif machine is None and not row["InstanceType"].strip():
            reason = "a GPU priced without its instance"
        elif by_region and not row["Region"].strip():
            reason = "an instance that no region has"  # the others of the file name theirs
        else:
            reason = ""
        if gpu is None or reason:
            left_out[reason] = left_out.get(reason, 0) + 1
            continue
        for market, column in _MARKETS.items():
            usd = _usd(row[column], f"{where}: line {line}, column {column}")
            more = 0.0 if machine is None else _usd(machine[column], f"{where}: column {column} of {instance}")
            if usd is not None and more is not None:
                seen.setdefault((gpu, instance, gpus, row["Region"].strip(), market), []).append((usd + more) / gpus)
    path = Path(where).resolve()
    source = as_line(f"SkyPilot catalog file {f'{path.parent.name}/' if path.stem == 'vms' else ''}{path.name}")
    prices = [
        with_terms(Price(
            provider=provider, instance=instance, gpu=gpu, gpus=gpus, region=region, market=market,
            usd_per_gpu_h=round(statistics.median(usd), 6), date=day, source=source,
            notes=f"median of {len(usd)} zones" if market == "spot" and len(usd) > 1 else "",
        ))
        for (gpu, instance, gpus, region, market), usd in seen.items()
    ]  # fmt: skip
    return ImportedPrices("skypilot", tuple(prices), left_out)


def _at(row: Mapping[str, str], instance: str | None = None) -> tuple[str, str, str]:
    """An instance in a zone."""
    return (row["InstanceType"] if instance is None else instance, row["Region"], row.get("AvailabilityZone", ""))


_MARKETS: Final[Mapping[Market, str]] = {"on-demand": "Price", "spot": "SpotPrice"}


def _gpu(name: str, row: Mapping[str, str]) -> str | None:
    said = f"{row['InstanceType']} {row.get('GpuInfo', '')}".upper()
    boards = _skypilots()["pcie"] if "PCIE" in said and "SXM" not in said else {}
    return boards.get(name.upper()) or _skypilots()["gpus"].get(name.upper()) or hardware.guess("devices", name)


def _count(cell: str, where: str) -> int:
    value = _number(cell)
    if value is None or not value.is_integer() or not 1 <= value <= 1024:
        raise InputError(where, cell or None, want="a whole number of GPUs, 1 or more")
    return int(value)


def _usd(cell: str, where: str) -> float | None:
    """Dollars per hour of an instance; None where the file gives none."""
    if not cell.strip():
        return None
    value = _number(cell)
    if value is None or value < 0:
        raise InputError(where, cell, want="dollars per hour of the instance, not negative, or nothing")
    return value or None


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _rows(text: str, where: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows with their line; a row with too few or too many fields is named."""
    rows = csv_rows(text, where)
    _, header = next(rows)
    for line, row in rows:
        if len(row) != len(header):
            raise InputError(f"{where}: line {line}", len(row), want=f"{len(header)} fields, as in line 1")
        yield line, dict(zip(header, row, strict=True))
