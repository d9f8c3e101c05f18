"""``astra model``: what was understood of a model."""

from __future__ import annotations

import argparse
from typing import Final

from astra.cli import options
from astra.cli.output import Answer

HELP: Final = "what Astra understands of a model: shape, parameters, FLOPs per token"
DESCRIPTION: Final = "Show a model's shape, exact parameter counts and FLOPs per token."
EPILOG: Final = """\
examples:
  astra model deepseek-v3
  astra model ./my-model/config.json --seq 32768 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser)
    parser.add_argument("--seq", metavar="N", type=options.whole("--seq", at_most=100_000_000),
                        help="tokens per sample, for the FLOPs of attention")  # fmt: skip
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> Answer:
    """Read the model, and keep the answer ready to be drawn."""
    from astra.search import api  # noqa: PLC0415

    report = api.describe_model(args.model, seq=args.seq)

    def draw(width: int | None, color: bool) -> str:
        from astra.report.text import render_model  # noqa: PLC0415

        return render_model(report, width, color)

    return Answer(draw, report.to_json)
