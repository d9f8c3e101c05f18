"""``astra sweep``: how the best plan moves with a number."""

from __future__ import annotations

import argparse
from typing import Final

from astra.cli import options
from astra.cli.output import VerbAnswer, answer, check_files, write_files
from astra.errors import InputError

HELP: Final = "plan over a range of GPUs, batches, lengths, links, prices, precisions or memory"
DESCRIPTION: Final = (
    "Plan MODEL at every point of a range and show how speed, MFU and dollars per token move, and where the best "
    "strategy becomes another one."
)
EPILOG: Final = """\
--over NAME=VALUES, once or twice; the first is charted, each value of the second is a curve:
  gpus=64,128,256   gpus=64..1024 (doubling)   batch=256..4096   seq=4k,8k,32k   precision=bf16,fp8
  link=0.5,1,2 (times the speed between servers)   memory=0.8,1,1.2 (times)   price=2,3,4 (dollars per GPU and hour)

examples:
  astra sweep llama-2-70b --gpus 64xH100 --batch 1024 --over gpus=32..256
  astra sweep llama-2-70b --gpus 64xH100 --over batch=256,512 --over precision=bf16,fp8 --plot scaling.svg
  astra sweep plan.json --over memory=0.9,1,1.1 --csv memory.csv
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser, optional=True)
    group = parser.add_argument_group("sweep")
    group.add_argument("--over", metavar="NAME=VALUES", action="append", default=[], help="what to sweep; see below")
    options.add_files(group)
    options.add_fields(parser, "plan", without=("top", "baseline"))
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Plan every point, write what is asked for, and keep the answer ready to be drawn."""
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.study.sweep import read_axes, swept  # noqa: PLC0415

    axes = read_axes(args.over)
    check_files(args)
    fields = options.asked(args, "plan")
    if len(fields.get("gpus", ())) > 1 and any(axis.name == "gpus" for axis in axes):
        raise InputError("--over", "gpus", want="one pool of GPUs whose number is swept")
    request = options.request("plan", fields)
    found = followed(lambda bar: swept(request, axes, progress=bar), "planning points")
    write_files(args, found)
    return answer(found, args)
