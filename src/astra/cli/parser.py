"""The command line's grammar: verbs, shared by help, completion of typos and the frozen list of flags."""

from __future__ import annotations

import argparse
import importlib
import re
from functools import cache
from keyword import iskeyword
from typing import Any, Final, NoReturn

from astra import __version__
from astra.errors import AstraError, UnknownName, did_you_mean, uninterrupted

# Each is a module of this package, loaded when it is asked for or told about.
VERBS: Final = (
    "plan",
    "estimate",
    "rent",
    "afford",
    "export",
    "import",
    "explain",
    "compare",
    "sweep",
    "study",
    "fleet",
    "trace",
    "model",
    "catalog",
    "prices",
    "validate",
    "rehearse",
    "profile",
    "serve",
    "completion",
)

_EPILOG: Final = """\
examples:
  astra plan                                   plan Llama-2-70B on 64 H100, to see what it looks like
  astra plan llama-3.1-70b --gpus 512xH100 --batch 1024 --seq 8192 --tokens 1T
  astra estimate llama-2-70b --gpus 64xH100 --strategy "tp8 pp4 dp2 mbs1 sp zero1 recompute=selective"
  astra rent llama-3-70b --tokens 2T --batch 1024 --seq 8192
  astra afford llama-3-8b --budget 50k         what a budget buys
  astra export plan.json --to megatron         files that start the plan
  astra explain plan.json                      why it is so, and what would bring most
  astra trace plan.json --out step.svg         its simulated step, stage by stage
  astra study roadmap.toml                     a whole grid of questions, into Parquet
  astra fleet jobs.toml                        several jobs on shared GPUs: who gets which, and when
  astra serve                                  all of it as a page in the browser
  astra model ./config.json
  astra catalog gpus

"""
SUMMARY: Final = "Find the fastest way to train a large model on the GPUs you have."
EXIT_CODES: Final = {
    0: "answer",
    2: "bad input",
    3: "no feasible plan",
    4: "no coverage under --strict",
    5: "output not written",
    1: "a bug",
}


class UsageError(AstraError):
    """The command line itself is wrong."""

    exit_code = 2

    def __init__(self, message: str, *, where: str = "command line", fix: str = "") -> None:
        self.where, self.fix = where, fix
        super().__init__(f"{message}.{' ' + fix if fix else ''}")


class _Stop(Exception):
    """Help or version was shown."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of ending the process."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours."""
        raise UsageError(message.rstrip("."), where=self.prog, fix=f"See {self.prog} --help.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Reached after help and version."""
        raise _Stop(status, message)


def module(verb: str) -> Any:
    """What a verb says of itself and does: ``HELP``, ``DESCRIPTION``, ``EPILOG``, ``add_arguments``, ``run``."""
    with uninterrupted():
        import msgspec  # noqa: F401, PLC0415 - interrupted while it loads, it forgets that and crashes later

        return importlib.import_module(f"astra.cli.{verb}_" if iskeyword(verb) else f"astra.cli.{verb}")


@cache
def build(*chosen: str) -> Parser:
    """The grammar of some verbs, of all if none is named."""
    parser = Parser(
        prog="astra",
        description=SUMMARY,
        epilog=f"{_EPILOG}exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"astra {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    for name in chosen or VERBS:
        help_text = module(name)
        verb = verbs.add_parser(
            name,
            help=help_text.HELP,
            description=help_text.DESCRIPTION,
            epilog=help_text.EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        help_text.add_arguments(verb)
        verb.set_defaults(run=help_text.run)
    return parser


def parse(arguments: list[str]) -> Any:
    """The namespace of a command; None when help or the version was asked for and shown."""
    _check_text(arguments)
    first = next((word for word in arguments if not word.startswith("-")), None)
    if first is not None and first not in VERBS and arguments[0] == first:
        raise UnknownName("astra", first, VERBS, fix=f"The verbs are {', '.join(VERBS)}.")
    parser = build() if first is None or arguments[0] != first else build(first)
    if not arguments:
        raise UsageError("a verb is needed", where="astra", fix=f"One of {', '.join(VERBS)}; see astra --help.")
    # Words behind -- are for a script: argparse would take them only where no flag stands before.
    place = arguments.index("--") if first == "import" and "--" in arguments else len(arguments)
    try:
        args, extra = parser.parse_known_args(arguments[:place])
    except _Stop:
        return None
    if place < len(arguments):
        args.parameters = [*args.parameters, *arguments[place + 1 :]]
    if extra:
        raise _unknown(args.verb, extra[0], flags(args.verb, parser))
    return args


def flags(verb: str, parser: Parser | None = None) -> list[str]:
    """The long options of a verb, in the order of its help."""
    actions = verb_parser(parser or build(), verb)._actions
    return [option for action in actions for option in action.option_strings if option.startswith("--")]


def verb_parser(parser: Parser, verb: str) -> argparse.ArgumentParser:
    """The grammar of one verb."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: argparse.ArgumentParser = action.choices[verb]
            return found
    raise KeyError(verb)


def _unknown(verb: str, word: str, known: list[str]) -> UsageError:
    name = word.partition("=")[0]
    if not name.startswith("-"):
        strategy = "--strategy" in known and re.match(r"[a-z]+\d", name)
        fix = "A strategy is one text: --strategy 'tp8 pp4 dp2'." if strategy else f"See astra {verb} --help."
        return UsageError(f"unexpected {word!r}", where=f"astra {verb}", fix=fix)
    fix = did_you_mean(name, known, f"See astra {verb} --help.")
    return UsageError(f"astra {verb} has no option {name}", where=name, fix=fix)


def _check_text(arguments: list[str]) -> None:
    """Bytes that are no text reach Python as lone surrogates, which no report could print."""
    for word in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(f"the argument {word!r} is not valid UTF-8", where="command line")
