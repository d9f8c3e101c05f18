"""``astra rent``: which GPUs to rent, how many and from whom."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Final

from astra.cli import options, output
from astra.cli.output import Answer
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.answer import RentReport
    from astra.spec.request import PlanRequest

HELP: Final = "what to rent: every trade of time for money worth making"
DESCRIPTION: Final = (
    "Search GPU types, numbers of nodes and strategies for training MODEL on so many tokens, and show the choices that "
    "no other beats in both time and money."
)
EPILOG: Final = """\
examples:
  astra rent llama-3-70b --tokens 2T --batch 1024 --seq 8192
  astra rent llama-3-70b --tokens 2T --gpus H100,H200,B200 --max-gpus 1024 --market reserved
  astra rent qwen3-8b --tokens 300B --budget 100k --providers AWS,Lambda,CoreWeave
  astra rent llama-3-8b --tokens 1T --deadline 10d --market spot --goodput expected --json
  astra rent llama-3-8b --tokens 1T --idle 24h --storage 50@23 --egress 2@90
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser)
    options.add_fields(parser, "rent")
    options.add_save(parser)
    options.add_output(parser, page=True)


def run(args: argparse.Namespace) -> Answer:
    """Search, and keep the answer ready to be drawn."""
    output.check_page(args.page)
    fields = options.asked(args, "rent")
    if "tokens" not in fields:
        raise InputError("--tokens", None, want="the tokens to train", fix="Such as --tokens 2T.")
    report = _search(options.request("rent", fields))
    work = report.request["workload"]
    notes = options.assumed(fields, work["seq"], work["global_batch"])
    notes += options.save(report.asked, "rent", args.save_request)
    if notes:
        from msgspec.structs import replace  # noqa: PLC0415

        report = replace(report, notes=[*notes, *report.notes])

    if args.page is not None:
        from astra.report.rent_page import rent_page  # noqa: PLC0415

        output.write_file(args.page, rent_page(report))

    def draw(width: int | None, color: bool) -> str:
        from astra.report.money import render_rent  # noqa: PLC0415

        return render_rent(report, width, color, brief=args.quiet, full=args.verbose)

    return Answer(draw, report.to_json)


def _search(request: PlanRequest) -> RentReport:
    from astra.cli import progress  # noqa: PLC0415
    from astra.renting.rent import rent  # noqa: PLC0415

    if not progress.watched():
        return rent(request)
    with progress.SearchProgress(sys.stderr) as bar:
        return rent(request, progress=bar)
