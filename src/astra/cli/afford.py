"""``astra afford``: what a budget buys."""

from __future__ import annotations

import argparse
from typing import Any, Final

from astra.cli import options, output
from astra.cli.output import VerbAnswer
from astra.errors import InputError
from astra.spec import kinds

HELP: Final = "what a budget buys: tokens, models, GPUs"
DESCRIPTION: Final = (
    "The most tokens of MODEL that a budget trains within a deadline (or a year), the largest model of the catalog for "
    "a number of tokens for each parameter, and the one with the least loss by a published law."
)
EPILOG: Final = """\
examples:
  astra afford --budget 1M --deadline 30d --gpus H100 --max-gpus 512
  astra afford llama-3.1-8b --budget 50k --gpus H100,H200
  astra afford llama-3-8b --budget 200k --market spot --gpus H100
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    options.add_model(parser, optional=True)
    parser.add_argument("--ratio", metavar="N", type=options.reader(kinds.number(0, 1e6, above=True), "--ratio"),
                        default=None, help="tokens for each parameter (default 20, as Chinchilla)")  # fmt: skip
    options.add_fields(parser, "rent")
    options.add_files(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Search, and keep the answer ready to be drawn."""
    output.check_files(args)
    fields: dict[str, Any] = options.asked(args, "rent")
    if fields.get("budget") is None:
        raise InputError("--budget", None, want="the dollars to spend", fix="Such as --budget 1M.")
    for name in ("tokens", "objective"):
        if name in fields:
            raise InputError(f"--{name}", fields[name], want="nothing: how many tokens is what is looked for")
    model = fields.pop("model", None)
    if args.ratio is not None:
        fields["ratio"] = args.ratio
    from astra.cli.progress import followed  # noqa: PLC0415
    from astra.renting.afford import afford  # noqa: PLC0415

    report = followed(lambda bar: afford(model, progress=bar, **fields))
    output.write_files(args, report)
    return output.answer(report, args)
