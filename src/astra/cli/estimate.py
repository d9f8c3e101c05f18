"""``astra estimate``: the speed and memory of a strategy the user already has."""

from __future__ import annotations

import argparse
from typing import Final

from astra.cli import options, output
from astra.cli import source as from_
from astra.cli.output import VerbAnswer
from astra.errors import InputError, NoFeasiblePlan

HELP: Final = "time and memory of a strategy you already have"
DESCRIPTION: Final = "Predict step time and memory of one strategy, legal or not; if not, say why."
_EXAMPLE: Final = '--strategy "tp8 pp4 vp5 dp2 mbs1 sp zero1 recompute=selective"'
EPILOG: Final = f"""\
A strategy is words: degrees tp pp vp cp ep etp dp mbs with their number, sp, zero0..zero3,
recompute=none|selective|full (or full:block:4), flash=on|off, offload=optimizer, overlap=grad,param,tp,p2p or none,
layers=19,20*2,21. A row of a plan's table is such a text. What is left out is as in plans: dp takes the GPUs left,
communication is overlapped wherever it can be, layers are even or balanced (docs/strategy.md).
Over several pools, groups in brackets (docs/mixed.md).

examples:
  astra estimate llama-2-70b --gpus 64xH100 --batch 1024 --seq 4096 {_EXAMPLE}
  astra estimate --from train.sh --gpus 64xH100
  astra estimate --from plan.json --pick 2
  astra estimate --from plan.json --check           (exit code 3 if it is not legal or does not fit)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser, optional=True)
    text = "read strategy, batch and model from what you run today (astra import), or from a plan file"
    parser.add_argument("--from", metavar="FILE", dest="source", help=text)
    from_.add_arguments(parser)
    options.add_fields(parser, "estimate")
    options.add_save(parser)
    text = f"end with exit code {NoFeasiblePlan.exit_code} if the strategy is not legal or does not fit"
    parser.add_argument("--check", action="store_true", help=text)
    options.add_output(parser)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Estimate, and keep the answer ready to be drawn."""
    notes: list[str] = []
    planned = from_.is_plan(args.source)
    if planned:
        from_.take_request(args, args.source, "--from")
    fields = options.asked(args, "estimate")
    if args.source is not None:
        if "strategy" in fields:
            raise InputError("--strategy", fields["strategy"], want="either --strategy or --from, not both")
        choice = from_.choice_of(args)
        if planned:
            fields["strategy"], _, rank = from_.plan_strategy(args.source, choice)
            notes.append(f"The strategy is plan {rank} of {args.source}.")
        else:
            from astra.cli import import_  # noqa: PLC0415

            fields["strategy"] = str(import_.fill(fields, args.source, choice, notes))
    if "strategy" not in fields:
        raise InputError("--strategy", None, want="the strategy to estimate", fix=f"Such as {_EXAMPLE}.")
    request, assumed = options.resolve("estimate", fields, args.save_request)
    notes += assumed

    from msgspec.structs import replace  # noqa: PLC0415

    from astra import api  # noqa: PLC0415
    from astra.search.world import World  # noqa: PLC0415

    world = World.of(request)
    notes += [f"{note.removesuffix('.')}." for note in (world.because, *world.notes) if note]
    estimate = api.estimate(request)
    estimate = replace(estimate, warnings=[*estimate.warnings, *notes])
    refused = args.check and not (estimate.legal and estimate.fits)
    return output.answer(estimate, args, NoFeasiblePlan.exit_code if refused else 0)
