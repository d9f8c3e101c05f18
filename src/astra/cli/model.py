"""``astra model``: what was understood of a model."""

from __future__ import annotations

import argparse
from typing import Final

from astra.cli import options, output
from astra.cli.output import VerbAnswer
from astra.spec.request import FIELDS

HELP: Final = "what Astra understands of a model: shape, parameters, FLOPs per token"
DESCRIPTION: Final = "Show a model's shape, exact parameter counts and FLOPs per token."
EPILOG: Final = """\
examples:
  astra model deepseek-v3
  astra model ./my-model/config.json --seq 32768 --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser, files=False)
    options.add_field(parser, FIELDS["seq"], "model")
    options.add_output(parser, detail=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Read the model, and keep the answer ready to be drawn."""
    from astra import api  # noqa: PLC0415

    return output.answer(api.describe_model(args.model, seq=getattr(args, "seq", None)), args)
