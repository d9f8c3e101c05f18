"""``astra rent``: which GPUs to rent, how many and from whom."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from astra.cli import export, options, output
from astra.cli.output import VerbAnswer
from astra.errors import InputError

if TYPE_CHECKING:
    from astra.answer_money import RentReport

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
  astra rent llama-3-8b --tokens 100B --market any --budget 20k --export skypilot
  astra rent llama-3-8b --tokens 1T --gpus H100:256,H200 --own 64xH100 --usd-per-gpu 30k --usd-per-kwh 0.1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser)
    options.add_fields(parser, "rent")
    launch = parser.add_argument_group("launch")
    launch.add_argument("--export", metavar="TARGET", help="also write the files that start a choice, as astra export")
    launch.add_argument("--pick", metavar="N", type=options.whole("--pick", at_most=1000),
                        help="which row of the front (default: what is chosen, or the best trade)")  # fmt: skip
    launch.add_argument("--export-out", metavar="DIR", help="folder for --export (default MODEL-TARGET)")
    options.add_save(parser)
    options.add_files(parser)
    options.add_output(parser, page=True)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Search, and keep the answer ready to be drawn."""
    output.check_page(args.page)
    output.check_files(args)
    fields = options.asked(args, "rent")
    if "tokens" not in fields:
        raise InputError("--tokens", None, want="the tokens to train", fix="Such as --tokens 2T.")
    export.check_target(args, "pick", "export_out")
    if args.export_out is not None:
        from astra.atomic import check_folder  # noqa: PLC0415

        check_folder(args.export_out, flag="--export-out")
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.renting.rent import rent  # noqa: PLC0415

    request = options.request("rent", fields)
    report = followed(lambda bar: rent(request, progress=bar))
    work = report.request["workload"]
    notes = options.assumed(fields, work["seq"], work["global_batch"])
    notes += options.save(report.asked, "rent", args.save_request)
    notes += _export(report, args) if args.export is not None else []
    if notes:
        from msgspec.structs import replace  # noqa: PLC0415

        report = replace(report, notes=[*notes, *report.notes])

    if args.page is not None:
        from astra.report.rent_page import rent_page  # noqa: PLC0415

        output.write_file(args.page, rent_page(report))

    output.write_files(args, report)
    return output.answer(report, args)


def _export(report: RentReport, args: argparse.Namespace) -> list[str]:
    """The files of one choice, and a sentence that says where they are."""
    from astra.export.python import write  # noqa: PLC0415
    from astra.export.reading import from_record, plan_of_choice  # noqa: PLC0415

    plans = plan_of_choice(report.to_dict(), args.pick, "rent")
    launch, job = from_record(plans, 1, where="rent")
    record = write(launch, job, args.export, folder=args.export_out, flag="--export-out")
    estimate = plans["plans"][0]["estimate"]
    return [f"Files for {args.export} that start {estimate['name']} are in {record['folder']}."]
