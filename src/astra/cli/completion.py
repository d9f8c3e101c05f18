"""``astra completion``: completion for a shell, or the manual page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Final

from astra.cli import options
from astra.cli.output import VerbAnswer
from astra.errors import UnknownName

COMPLETION_SCHEMA: Final = "astra.completion/1"
SHELLS: Final = ("bash", "zsh", "fish", "man")
HELP: Final = "completion for bash, zsh or fish, and the manual page"
DESCRIPTION: Final = (
    "Print what makes a shell complete verbs, options, models, GPUs and files, or the manual page. All of it is "
    "written out from the same table as --help."
)
EPILOG: Final = """\
source <(astra completion bash)                              in ~/.bashrc
astra completion zsh > ~/.zfunc/_astra                       with fpath+=~/.zfunc before compinit
astra completion fish > ~/.config/fish/completions/astra.fish
astra completion man > ~/.local/share/man/man1/astra.1       then: man astra

examples:
  astra completion bash
  astra completion man
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the verb."""
    parser.add_argument("shell", metavar="SHELL", help=f"one of {', '.join(SHELLS)}")
    options.add_output(parser, detail=False, file=False)


def run(args: argparse.Namespace) -> VerbAnswer:
    """Write it out."""
    from astra.cli import shells  # noqa: PLC0415

    written: dict[str, Callable[[], str]] = {
        "bash": shells.bash, "zsh": shells.zsh, "fish": shells.fish, "man": shells.man,
    }  # fmt: skip
    if args.shell not in written:
        raise UnknownName("SHELL", args.shell, SHELLS, fix=f"One of {', '.join(SHELLS)}.")
    text = written[args.shell]()
    record = {"schema": COMPLETION_SCHEMA, "shell": args.shell, "text": text}
    return VerbAnswer(lambda width, color: text, lambda: json.dumps(record, indent=2))
