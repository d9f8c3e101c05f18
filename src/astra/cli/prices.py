"""``astra prices``: bring price lists of other tools in, and check a list."""

from __future__ import annotations

import argparse
import datetime as dt
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from astra.cli import options, output
from astra.cli.output import VerbAnswer
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.catalog.prices import Price

HELP: Final = "import a price list, or check one"
DESCRIPTION: Final = (
    "import FILE reads a SkyPilot catalog CSV, a plain CSV with the columns gpu and usd_per_gpu_h, or a price file; "
    "check [FILE] says what a price file holds (the catalog's without FILE) and which prices are old."
)
EPILOG: Final = """\
examples:
  astra prices import aws.csv --provider AWS --date 2026-11-01 --to my-prices.csv
  astra prices check my-prices.csv
  astra rent llama-3-8b --tokens 1T --prices my-prices.csv
"""
PRICES_SCHEMA: Final = "astra.prices/1"
ACTIONS: Final = ("import", "check")
MOST_REASONS: Final = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("action", metavar="ACTION", type=options.one_of("ACTION", ACTIONS),
                        help="import or check")  # fmt: skip
    parser.add_argument("file", metavar="FILE", nargs="?", help="a CSV file")
    parser.add_argument("--provider", metavar="NAME", default="", help="whose prices (default: the file's name)")
    parser.add_argument("--date", metavar="YYYY-MM-DD", type=_date, help="when they held (default: the file's date)")
    parser.add_argument("--to", metavar="FILE", help="write the prices here, for --prices")
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Read the file, and keep the answer ready to be drawn."""
    if args.action == "check":
        return _check(args)
    if args.file is None:
        raise InputError("FILE", None, want="the file to import", fix="Such as astra prices import aws.csv.")
    from astra.catalog.prices import to_csv  # noqa: PLC0415
    from astra.catalog.prices_import import import_prices  # noqa: PLC0415

    output.check_destination(args.to)
    found = import_prices(args.file, provider=args.provider, date=args.date)
    if not found.prices:
        reasons = ", ".join(reason for reason, _ in _most(found.left_out))
        fix = f"Left out: {reasons}." if reasons else "It has no rows with a GPU."
        raise InputError(args.file, None, want="at least one price of a GPU the catalog knows", fix=fix)
    if args.to:
        output.write_file(args.to, to_csv(found.prices))
    remarks = [f"Read as {'a SkyPilot catalog' if found.form == 'skypilot' else f'{found.form} prices'}."]
    remarks += [f"Left out: {reason} ({count:,} rows)." for reason, count in _most(found.left_out)]
    remarks.append(f"Wrote {args.to}: use it with --prices." if args.to else "Nothing was written: give --to FILE.")
    return _answer(list(found.prices), remarks, {"form": found.form, "left_out": found.left_out})


def _check(args: argparse.Namespace) -> VerbAnswer:
    from astra.catalog import prices  # noqa: PLC0415

    found = list(prices.read_prices(args.file) if args.file is not None else prices.prices())
    today = dt.date.today()
    old = [price for price in found if prices.is_stale(price, today)]
    newest = max((price.date for price in found), default=None)
    by_provider = Counter(price.provider for price in found)
    remarks = [f"{len(found):,} prices of {len(by_provider):,} providers; the newest is of {newest}."]
    if old:
        remarks.append(f"{len(old):,} are older than {prices.STALE_DAYS} days.")
    return _answer(old or found, remarks, {"checked": len(found), "stale": len(old), "newest": str(newest)})


def _answer(found: list[Price], remarks: list[str], more: dict[str, Any]) -> VerbAnswer:
    from astra.cli.catalog import listed, written  # noqa: PLC0415

    return VerbAnswer(
        lambda width, color: listed("prices", found, remarks, width, color),
        lambda: written({"schema": PRICES_SCHEMA, **more, "entries": found}),
    )


def _most(left_out: dict[str, int]) -> list[tuple[str, int]]:
    """Reasons with their rows, most rows first; many reasons end in one for the rest."""
    ranked = sorted(left_out.items(), key=lambda item: -item[1])
    shown, rest = ranked[:MOST_REASONS], ranked[MOST_REASONS:]
    return [*shown, *([(f"{len(rest):,} other GPUs", sum(count for _, count in rest))] if rest else [])]


def _date(text: str) -> dt.date:
    try:
        found = dt.date.fromisoformat(text)
    except ValueError:
        raise InputError("--date", text, want="a date such as 2026-11-15") from None
    if found > dt.date.today():
        raise InputError("--date", text, want=f"no date after today ({dt.date.today()})")
    return found
