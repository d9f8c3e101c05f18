"""The manual page, written out from the grammar."""

from __future__ import annotations

from astra import __version__
from astra.cli.grammar import Option, Verb, verbs
from astra.cli.parser import EXIT_CODES, SUMMARY


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
        lines += _verb(verb)
    lines += [".SH EXIT STATUS"]
    for code, meaning in EXIT_CODES.items():
        lines += [".TP", f".B {code}", _roff(meaning)]
    return "\n".join(lines) + "\n"


def _verb(verb: Verb) -> list[str]:
    free = " ".join(option.metavar for option in verb.options if not option.names)
    lines = [f'.SH "ASTRA {verb.name.upper()}"', f".B astra {verb.name}", _roff(f"{free} [OPTIONS]".strip()), ".PP"]
    lines.append(_roff(verb.description))
    for option in verb.options:
        lines += _option(option)
    lines += [".PP", ".nf", *(_roff(line) for line in verb.epilog.rstrip("\n").split("\n")), ".fi"]
    return lines


def _option(option: Option) -> list[str]:
    names = ", ".join(f"\\fB{_roff(name)}\\fR" for name in option.names)
    value = f"\\fI{_roff(option.metavar)}\\fR" if option.metavar else ""
    return [".TP", " ".join(part for part in (names, value) if part), _roff(option.help) or "\\&"]


def _roff(words: str) -> str:
    """Words without a meaning in roff: backslashes and hyphens as themselves, no line that begins as a command."""
    text = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
