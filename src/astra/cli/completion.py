"""``astra completion``: the command line as data, completion written out from it for shells, and the manual page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from astra import __version__
from astra.cli import options, parser
from astra.cli.output import VerbAnswer
from astra.cli.parser import EXIT_CODES, SUMMARY
from astra.errors import UnknownName
from astra.files import own_text
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
    built, found = parser.build(), []
    for name in parser.VERBS:
        said, actions = parser.module(name), parser.verb_parser(built, name)._actions
        found.append(Verb(name, said.HELP, said.DESCRIPTION, said.EPILOG, tuple(map(_option, actions))))
    return tuple(found)


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


def _filled(name: str, **words: str) -> str:
    """A text of ``data`` with words in their places."""
    text = own_text(__file__, name)
    for word, value in words.items():
        text = text.replace(f"@{word}@", value)
    return text


def bash() -> str:
    """A function for bash; file names where a file is taken, and GPUs behind their number."""
    cases = "\n".join(_bash_verb(verb) for verb in verbs())
    listed = " ".join(verb.name for verb in verbs())
    gpus = " ".join(names()["gpus"])
    return _filled("completion.bash", VERBS=listed, CASES=cases, GPUS=gpus)


def _bash_verb(verb: Verb) -> str:
    flags = [name for option in verb.options for name in option.names]
    lines = [f"        {verb.name})", f'            options="{" ".join(flags)}"', '            case "$prev" in']
    taking = [option for option in verb.options if option.names and option.metavar]
    lines += [f"                {'|'.join(option.names)}) {_bash_value(option)} ;;" for option in taking]
    free = [option for option in verb.options if not option.names]
    other = _bash_value(free[0]) if free else ":"
    lines.append(f'                *) if [[ "$cur" != -* ]]; then {other}; fi ;;')
    return "\n".join([*lines, "            esac ;;"])


def _bash_value(option: Option) -> str:
    """What follows an option: words, files, both, or nothing that is known."""
    parts = []
    if option.catalog == "gpus":
        parts.append('words="@gpus"')
    elif words := _words(option):
        parts.append(f'words="{" ".join(words)}"')
    if option.files:
        parts.append("files=1")
    return "; ".join([*parts, 'options=""'])


def _words(option: Option) -> tuple[str, ...]:
    return option.words or (names()[option.catalog] if option.catalog else ())


def zsh() -> str:
    """A function for zsh, with what each option is for beside it."""
    listed = "\n".join(f"        {_zsh_quoted(f'{_colon(verb.name)}:{verb.help}')}" for verb in verbs())
    cases = "\n".join(_zsh_verb(verb) for verb in verbs())
    return _filled("completion.zsh", VERBS=listed, CASES=cases, GPUS=",".join(names()["gpus"]))


def _colon(words: str) -> str:
    return words.replace("\\", "\\\\").replace(":", "\\:")


def _zsh_quoted(words: str) -> str:
    return "'" + words.replace("'", "'\\''") + "'"


def _zsh_verb(verb: Verb) -> str:
    lines = [f"        {verb.name})", "            _arguments -s \\"]
    free = 0
    for option in verb.options:
        message = _colon(option.metavar)
        if not option.names:
            free += 1
            lines.append(f"                {_zsh_quoted(f'{free}:{message}:{_zsh_action(option)}')} \\")
            continue
        meaning = option.help.replace("\\", "\\\\").replace("[", "\\[").replace("]", "\\]").replace(":", "\\:")
        for name in option.names:
            value = f":{message}:{_zsh_action(option)}" if option.metavar else ""
            lines.append(f"                {_zsh_quoted(f'*{name}[{meaning}]{value}')} \\")
    lines[-1] = lines[-1].removesuffix(" \\")
    return "\n".join([*lines, "            ;;"])


def _zsh_action(option: Option) -> str:
    if option.catalog == "gpus":
        return "_astra_gpus"
    words = f"({' '.join(_words(option))})" if _words(option) else ""
    if words and option.files:
        return f'{{_alternative "names:name:{words}" "files:file:_files"}}'
    return "_files" if option.files else words or " "


def fish() -> str:
    """Lines for fish, with what each option is for beside it."""
    lines = ["# fish completion for astra: save it as ~/.config/fish/completions/astra.fish", "complete -c astra -f"]
    for verb in verbs():
        lines.append(f"complete -c astra -n __fish_use_subcommand -a {verb.name} -d {_fish(verb.help)}")
        lines += [line for option in verb.options for line in _fish_option(verb.name, option)]
    return "\n".join(lines) + "\n"


def _fish(words: str) -> str:
    return "'" + words.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _fish_option(verb: str, option: Option) -> list[str]:
    start = f"complete -c astra -n '__fish_seen_subcommand_from {verb}'"
    words = " ".join(_words(option))
    if option.catalog == "gpus":
        words = f"(string match -r '^[0-9]+x' -- (commandline -ct); or echo 8x){{{','.join(names()['gpus'])}}}"
    parts = f" -a {_fish(words)}" if words else ""
    parts += " -F" if option.files else ""
    if not option.names:
        return [start + parts] if parts else []
    flags = "".join(f" -l {name[2:]}" if name.startswith("--") else f" -s {name[1:]}" for name in option.names)
    needs = " -r" if option.metavar else ""
    return [f"{start}{flags}{needs}{parts} -d {_fish(option.help)}"]


def man() -> str:
    """The page in man's macros: ``astra completion man | man -l -``."""
    lines = [
        f'.TH ASTRA 1 "" "Astra {__version__}" "Astra"',
        ".SH NAME",
        f"astra \\- {_roff(SUMMARY[0].lower() + SUMMARY[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B astra",
        "VERB [ARGUMENTS] [OPTIONS]",
        ".SH DESCRIPTION",
        _roff(SUMMARY),
        "Every verb prints one JSON record with \\-\\-json.",
    ]
    for verb in verbs():
        lines += _man_verb(verb)
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    return "\n".join(lines) + "\n"


def _man_verb(verb: Verb) -> list[str]:
    free = " ".join(option.metavar for option in verb.options if not option.names)
    lines = [f'.SH "ASTRA {verb.name.upper()}"', f".B astra {verb.name}", _roff(f"{free} [OPTIONS]".strip()), ".PP"]
    lines.append(_roff(verb.description))
    for option in verb.options:
        words = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.names)
        value = f"\\fI{_roff(option.metavar)}\\fR" if option.metavar else ""
        lines += [".TP", " ".join(filter(None, (words, value))), _roff(option.help) or "\\&"]
    lines += [".PP", ".nf", *(_roff(line) for line in verb.epilog.rstrip("\n").split("\n")), ".fi"]
    return lines


def _roff(words: str) -> str:
    """Words without a meaning in roff: backslashes and hyphens as themselves, no line that begins as a command."""
    text = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


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
    written: dict[str, Callable[[], str]] = {
        "bash": bash, "zsh": zsh, "fish": fish, "man": man,
    }  # fmt: skip
    if args.shell not in written:
        raise UnknownName("SHELL", args.shell, SHELLS, fix=f"One of {', '.join(SHELLS)}.")
    text = written[args.shell]()
    record = {"schema": COMPLETION_SCHEMA, "shell": args.shell, "text": text}
    return VerbAnswer(lambda width, color: text, lambda: json.dumps(record, indent=2))
