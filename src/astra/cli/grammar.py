"""The command line as data: verbs, their options and what each of them takes, for completions and the manual."""

from __future__ import annotations

import argparse
from functools import cache
from typing import Final, NamedTuple

from astra.cli import parser
from astra.spec.fields import Field
from astra.spec.money import MONEY_FIELDS
from astra.spec.request import FIELDS

_FILES: Final = ("FILE", "PLAN.json", "DIR", "A", "B")
# What an option takes whose values have names: by the field it sets, or by the word that stands for its value.
_CATALOG: Final = {"model": "models", "gpus": "gpus", "runtime": "runtimes", "node": "nodes"}
_NAMED: Final = {"KIND": "sections", "SHELL": "shells", "TARGET": "targets", "ACTION": "actions"}


class Option(NamedTuple):
    """One option of a verb, or one word that stands without a flag (no names)."""

    names: tuple[str, ...]
    metavar: str  # empty: it takes no value
    help: str
    words: tuple[str, ...] = ()  # the values there are, where they are few
    catalog: str = ""  # models, gpus, runtimes, nodes, targets, ...: whose names it takes
    files: bool = False


class Verb(NamedTuple):
    """One verb."""

    name: str
    help: str
    description: str
    epilog: str
    options: tuple[Option, ...]


@cache
def verbs() -> tuple[Verb, ...]:
    """Every verb, in the order of the help."""
    built = parser.build()
    return tuple(_verb(name, parser.verb_parser(built, name)) for name in parser.VERBS)


def _verb(name: str, found: argparse.ArgumentParser) -> Verb:
    said = parser.module(name)
    options = tuple(_option(action) for action in found._actions)
    return Verb(name, said.HELP, said.DESCRIPTION, said.EPILOG, options)


def _option(action: argparse.Action) -> Option:
    metavar = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    field: Field | None = FIELDS.get(action.dest) or MONEY_FIELDS.get(action.dest)
    kind = None if field is None else field.typed or field.kind
    words = kind.words if kind is not None else tuple(map(str, action.choices or ()))
    files = metavar in _FILES or metavar.endswith("|FILE") or action.dest in ("model", "cluster", "rules", "prices")
    shown = (action.help or "").replace("%%", "%")
    catalog = (_NAMED.get(metavar) or _CATALOG.get(action.dest, "")) if metavar else ""
    return Option(tuple(action.option_strings), metavar, shown, words if metavar else (), catalog, files)


@cache
def names() -> dict[str, tuple[str, ...]]:
    """The names that options take."""
    from astra.catalog import hardware  # noqa: PLC0415
    from astra.catalog.models import model_names  # noqa: PLC0415
    from astra.catalog.runtimes import runtime_names  # noqa: PLC0415
    from astra.cli.catalog import SECTIONS  # noqa: PLC0415
    from astra.cli.completion import SHELLS  # noqa: PLC0415
    from astra.cli.prices import ACTIONS  # noqa: PLC0415
    from astra.export import EXPORTERS  # noqa: PLC0415

    return {
        "shells": SHELLS,
        "actions": ACTIONS,
        "targets": tuple(EXPORTERS),
        "sections": tuple(SECTIONS),
        "models": tuple(model_names()),
        "gpus": hardware.names("devices"),
        "nodes": hardware.names("nodes"),
        "runtimes": tuple(runtime_names()),
    }
