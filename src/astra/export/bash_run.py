"""What a script would run: branches are decided where their tests are simple, loops and functions are followed.

A test that cannot be decided (a file, a program, a variable nobody sets) leaves a choice: the script is then read once
for each way it may go, and whoever reads it says whether the ways differ in what matters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from astra.errors import InputError
from astra.export.bash import Statement, statements
from astra.export.bash_walk import SLURM, ScriptEnded, ScriptRun

_MOST_WAYS: Final = 64
_SBATCH: Final = re.compile(r"^#SBATCH\s+--?([A-Za-z-]+)[=\s]\s*([^\s#]+)", re.MULTILINE)


class Script(NamedTuple):
    """What a script sets and runs, one way it may go."""

    variables: dict[str, str]
    commands: list[list[str]]
    decided: tuple[str, ...] = ()  # tests that could not be decided, as they were taken
    files: dict[str, str] = {}  # noqa: RUF012  what it writes from here-documents
    ended: bool = False  # by an exit


def read_script(text: str, parameters: Sequence[str] = ()) -> Script:
    """The first way a script may go."""
    return ways(text, parameters)[0]


def ways(text: str, parameters: Sequence[str] = ()) -> list[Script]:
    """Every way a script may go, as far as its tests cannot be decided."""
    whole = list(statements(text))
    batch = _slurm(text)
    found = _all_ways(whole, parameters, batch, given=False)
    if all(script.ended for script in found):  # for want of something that whoever runs it sets
        return _all_ways(whole, parameters, batch, given=True)
    return found


def _all_ways(whole: list[Statement], parameters: Sequence[str], batch: dict[str, str], *, given: bool) -> list[Script]:
    """The ways through a script; with ``given``, what it tests for and never sets is taken to be set."""
    found: list[Script] = []
    open_: list[tuple[bool, ...]] = [()]
    while open_:
        choice = open_.pop()
        script, tests = _follow(whole, parameters, batch, choice, given=given)
        found.append(script)
        taken = [yes for _, yes in tests]
        open_ += [(*taken[:place], not taken[place]) for place in range(len(choice), len(taken))]
        if len(found) + len(open_) > _MOST_WAYS:
            fix = "Give its parameters behind --, or a script without so many branches."
            named = "; ".join(dict.fromkeys(test for test, _ in tests))
            raise InputError("script", None, want=f"tests that can be decided ({named})", fix=fix)
    return found


def _follow(
    whole: list[Statement], parameters: Sequence[str], batch: dict[str, str], choice: Sequence[bool], *, given: bool
) -> tuple[Script, list[tuple[str, bool]]]:
    run = ScriptRun(choice, given=given)
    run.expander.values |= {name: [value] for name, value in batch.items()}
    run.parameters(list(parameters))
    ended = False
    try:
        run.block(whole)
    except ScriptEnded:
        ended = True
    named = {name: parts for name, parts in run.expander.values.items() if name.isidentifier()}
    variables = {name: " ".join(parts) for name, parts in named.items()}
    decided = tuple(f"{test}: {'yes' if yes else 'no'}" for test, yes in run.taken)
    return Script(variables, run.commands, decided, run.files, ended), run.taken


def _slurm(text: str) -> dict[str, str]:
    """The job's own sizes, from the lines that the batch system reads."""
    found = {}
    for option, value in _SBATCH.findall(text):
        number = re.search(r"([0-9]+)$", value)
        for name in SLURM.get(option, ()):
            if number:
                found[name] = number.group(1)
    return found
