"""``astra explain``: why a plan is as it is, and what a single change would bring."""

from __future__ import annotations

import argparse
from typing import Final

from astra.cli import options, output, source
from astra.cli.output import VerbAnswer

HELP: Final = "why a plan is as it is, what binds it, and what would bring most"
DESCRIPTION: Final = (
    "Say of a plan made by astra plan --out PLAN.json what its time goes to, which limit binds, what the next plan "
    "lost by, what a single change (memory, links, batch, GPU, precision, dispatcher, graphs, widths) would bring, "
    "each planned anew, and how sure each figure is."
)
EPILOG: Final = """\
examples:
  astra explain plan.json
  astra explain plan.json --pick 2 --seconds 0
  astra explain plan.json --json
"""
SECONDS: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    source.add_plan(parser)
    text = f"plan changes for at most about so long (default {SECONDS}); those left are named"
    parser.add_argument("--seconds", metavar="N", type=options.whole("--seconds", at_least=0, at_most=86400),
                        default=SECONDS, help=text)  # fmt: skip
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Plan every change, and keep the answer ready to be drawn."""
    found = source.read(args.plan, args.pick)
    from astra.answer import PlanSet  # noqa: PLC0415
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.report.explanation import explained  # noqa: PLC0415
    from astra.study.changes import tried  # noqa: PLC0415
    from astra.study.records import answer_of  # noqa: PLC0415

    planset = answer_of(found.record, found.file)
    assert isinstance(planset, PlanSet), "only plans were read"
    best = planset.best.estimate
    changes, skipped = followed(
        lambda bar: tried(found.world, best, seconds=args.seconds, progress=bar), "planning changes"
    )
    return output.answer(explained(planset, found.rank, changes, skipped, name=found.file), args)
