"""What a script would run: branches are decided where their tests are simple, loops and functions are followed.

A test that cannot be decided (a file, a program, a variable nobody sets) leaves a choice: the script is then read once
for each way it may go, and whoever reads it says whether the ways differ in what matters.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Final, NamedTuple, cast

from astra.errors import InputError
from astra.export.bash import (
    OPENING,
    SHELLS,
    ShellPiece,
    Statement,
    Word,
    after_brace,
    arms,
    block_end,
    brace_end,
    cases,
    decide,
    function_name,
    given_text,
    literal,
    opens_array,
    statements,
    without_first,
)
from astra.export.bash_values import Expander

_KEYWORDS: Final = ("export", "declare", "local", "readonly", "typeset", "exec", "time", "sudo", "nohup", "!")
_MOST_ROUNDS: Final = 32  # of a loop, and of scripts inside each other
_MOST_STATEMENTS: Final = 20_000
_REDIRECTION: Final = re.compile(r"[0-9]?>|&>|[0-9]>&[0-9]|\||<(?![A-Za-z])")  # where the words of a command end
SLURM: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS",), "n": ("SLURM_NTASKS",), "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}  # fmt: skip


class ScriptRun:
    """One way through a script."""

    def __init__(self, choice: Sequence[bool], *, given: bool = False) -> None:
        self._given = given
        self.expander = Expander()
        self.expander.said = self._said
        self.expander.values["?"] = ["0"]  # what is started is taken to succeed
        self.commands: list[list[str]] = []
        self.taken: list[tuple[str, bool]] = []
        self.functions: dict[str, list[Statement]] = {}
        self.files: dict[str, str] = {}
        self._choice = list(choice)
        self._status: bool | None = True  # of the last command
        self._depth = 0
        self._done = 0

    def parameters(self, words: list[str]) -> None:
        """Set ``$1`` and those behind it."""
        for name in [name for name in self.expander.values if name.isdigit() or name in "@#*"]:
            del self.expander.values[name]
        self.expander.values |= {str(place): [word] for place, word in enumerate(words, 1)}
        self.expander.values |= {"@": words, "*": words, "#": [str(len(words))]}

    def block(self, lines: list[Statement]) -> None:
        """Run statements in order."""
        place = 0
        while place < len(lines):
            self._done += 1
            if self._done > _MOST_STATEMENTS:
                raise InputError("script", None, want="a script that comes to an end")
            first = literal(lines[place].words[0])
            if first in OPENING:
                end = block_end(lines, place)
                inner = lines[place : end + 1]
                {"if": self._if, "case": self._case}.get(first, self._loop)(inner)
                place = end + 1
                continue
            if first == "{":
                end = brace_end(lines, place)
                if self._wanted(lines, place):
                    head = lines[place]._replace(words=lines[place].words[1:])
                    self.block([*([head] if head.words else []), *lines[place + 1 : end]])
                place = end + 1
                continue
            name = function_name(lines[place])
            if name is not None:
                opening = place if after_brace(lines[place].words, none=0) else place + 1
                if opening == len(lines):
                    raise InputError("script", name, want="a function with what it does")
                end = brace_end(lines, opening)
                opened = lines[opening]._replace(words=lines[opening].words[after_brace(lines[opening].words) :])
                self.functions[name] = [*([opened] if opened.words else []), *lines[opening + 1 : end]]
                place = end + 1
                continue
            self._joined(lines, place)
            place += 1

    def _joined(self, lines: list[Statement], place: int) -> None:
        """A command, unless what is before it says otherwise; one that is started is taken to succeed."""
        if not self._wanted(lines, place):
            return
        if literal(lines[place].words[0]) in ("[", "[[", "test"):
            self._status = self._test(lines[place].words)
        else:
            self._simple(lines[place])
            self._status = True

    def _wanted(self, lines: list[Statement], place: int) -> bool:
        """Whether && or || before a command lets it run."""
        joint = lines[place - 1].ended[:2] if place else ""
        if joint not in ("&&", "||"):
            return True
        if self._status is None:
            self._status = self._chosen([lines[place - 1]])
        return self._status == (joint == "&&")

    def _if(self, lines: list[Statement]) -> None:
        for test, body in arms(lines):
            known = test is None or self._known(test)
            if self._chosen(test or []) if known is None else known:
                return self.block(body)
        return None

    def _known(self, test: list[Statement]) -> bool | None:
        """Whether a list of tests, joined by && and ||, holds; None where that is not known."""
        joint, known = "&&", cast(bool | None, True)
        for statement in test:
            both, decides = {known, self._test(statement.words)}, joint == "||"
            known = decides if decides in both else None if None in both else not decides
            joint = "||" if statement.ended.startswith("||") else "&&"
        return known

    def _chosen(self, test: list[Statement]) -> bool:
        """The answer to a question that is left open, on this way through the script."""
        shown = " ".join(literal(word) for statement in test for word in statement.words)[:120]
        again = next((yes for test, yes in self.taken if test == shown), None)
        if again is not None:
            return again  # the same question has the same answer
        result = self._choice[len(self.taken)] if len(self.taken) < len(self._choice) else True
        self.taken.append((shown, result))
        return result

    def _test(self, words: list[Word]) -> bool | None:
        name = literal(words[0]) if words else ""
        if name == "!":
            inner = self._test(words[1:])
            return None if inner is None else not inner
        if name not in ("[", "[[", "test"):
            return {"true": True, "false": False, ":": True}.get(name)
        tested = words[1:-1] if name != "test" else words[1:]
        self.expander.missed.clear()
        parts = ["".join(self.expander.text(piece) for piece in word) for word in tested]
        return decide(parts, missing=bool(self.expander.missed), given=self._given)

    def _case(self, lines: list[Statement]) -> None:
        head = lines[0].words
        self.expander.missed.clear()
        value = "".join(self.expander.text(piece) for piece in head[1])
        if self.expander.missed:
            shown = literal(head[1])
            fix = "Give the script's parameters: astra import FILE -- A B, or set it in the script."
            raise InputError("script", f"case {shown}", want=f"a value of {shown}, which decides what is run", fix=fix)
        for patterns, body in cases(lines):
            if any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns):
                self.block(body)
                return

    def _loop(self, lines: list[Statement]) -> None:
        """A for loop goes through its words; any other is gone through once."""
        words, body = lines[0].words, lines[1:-1]
        start = next((at for at, line in enumerate(body) if literal(line.words[0]) == "do"), 0)
        inner = [without_first(line, "do") for line in body[start:]]
        inner = [line for line in inner if line.words]
        names = [literal(word) for word in words]
        if names[0] != "for" or len(names) < 3 or names[2] != "in":
            test = [one for one in (lines[0]._replace(words=words[1:]), *body[:start]) if one.words]
            for _ in range(_MOST_ROUNDS):
                known = self._known(test) if names[0] == "while" else None
                before = dict(self.expander.values)
                if known is not False:
                    self.block(inner)
                if known is not True or before == self.expander.values:
                    return  # it ends, or nothing in it will ever end it
            return
        items = [part for word in words[3:] for part in self.expander.expand(word)]
        for item in items[:_MOST_ROUNDS]:
            self.expander.values[names[1]] = [item]
            self.block(inner)

    def _simple(self, statement: Statement) -> None:
        """Assignments, and the words of a command."""
        words = statement.words
        first = 0
        while first < len(words) and literal(words[first]) in _KEYWORDS:
            first += 1
            while first < len(words) and re.fullmatch(r"-[A-Za-z]+", literal(words[first])) and first < len(words) - 1:
                first += 1
        while first < len(words) and self.expander.assign(words, first):
            first = len(words) if opens_array(words[first]) else first + 1
        if first >= len(words):
            return
        if literal(words[first]) == "read" or statement.documents:
            command = [part for word in words[first:] for part in self.expander.expand(word)]
            if literal(words[first]) == "read":
                self._read(words, command)
                return
            self._written(statement, command)
        last = next(
            (
                at
                for at, word in enumerate(words)
                if at > first and not word[0].quote and _REDIRECTION.match(word[0].text)
            ),
            len(words),
        )
        command = [part for word in words[first:last] for part in self.expander.expand(word)]
        if command:
            self._start(command)

    def _read(self, words: list[Word], command: list[str]) -> None:
        """``IFS=, read -r A B <<< "$TEXT"``: the words of a text, by name."""
        given = next((at for at, part in enumerate(command) if part.startswith("<<<")), None)
        if given is None:
            return
        text = " ".join([command[given].removeprefix("<<<"), *command[given + 1 :]]).strip()
        names = [name for name in command[1:given] if not name.startswith("-")]
        marks = literal(words[0]).partition("=")[2] if literal(words[0]).startswith("IFS=") else ""
        parts = text.split(marks) if marks.strip() else text.split()
        if command[1:2] == ["-ra"] or "-a" in command[1:given]:
            self.expander.values |= dict.fromkeys(names[-1:], parts)
            return
        for place, name in enumerate(names):
            last = place == len(names) - 1
            rest = parts[place:] if last else parts[place : place + 1]
            self.expander.values[name] = [(marks.strip() or " ").join(rest)]

    def _written(self, statement: Statement, command: list[str]) -> None:
        """``cat <<EOT > file``: what a script writes for a program to read."""
        if command[0] in (*SHELLS, "sbatch", "qsub") and self._depth < _MOST_ROUNDS:
            self._depth += 1
            for document in statement.documents:
                with suppress(ScriptEnded):
                    self.block(list(statements(self.expander.text(ShellPiece(*document)))))
            self._depth -= 1
            return
        place = next((at for at, part in enumerate(command) if part in (">", ">>")), None)
        named = command[place + 1] if place is not None and place + 1 < len(command) else ""
        named = named or next((part[1:] for part in command if re.fullmatch(r">[^>&].*", part)), "")
        if named:
            text = "\n".join(self.expander.text(ShellPiece(*document)) for document in statement.documents)
            self.files[named] = text

    def _start(self, command: list[str]) -> None:
        if command[:2] == ["set", "--"]:
            self.parameters(command[2:])
            return
        if command[0] == "shift":
            given = self.expander.values.get("@", [])
            self.parameters(given[int(command[1]) if len(command) > 1 and command[1].isdigit() else 1 :])
            return
        if command[0] in self.functions and self._depth < _MOST_ROUNDS:
            before = list(self.expander.values.get("@", []))
            self._depth += 1
            self.parameters(command[1:])
            with suppress(_Returned):
                self.block(self.functions[command[0]])
            self.parameters(before)
            self._depth -= 1
            return
        inner = " ".join(command[1:]) if command[0] == "eval" else given_text(command)
        if command[0] in (*SHELLS, "sbatch", "source", "."):  # of what the script itself has written
            inner = inner or next((self.files[word] for word in command[1:] if word in self.files), None)
        if inner is not None and self._depth < _MOST_ROUNDS:
            self._depth += 1
            self.expander.spend(16 * len(inner))  # reading costs more than copying
            self._tasks(command)
            if command[0] == "eval":
                self.block(list(statements(inner)))
            else:
                with suppress(ScriptEnded):
                    self.block(list(statements(inner)))
            self._depth -= 1
            return
        if command[0] in ("exit", "return"):
            raise ScriptEnded if command[0] == "exit" else _Returned
        self.commands.append(command)

    def _said(self, inside: str) -> str | None:
        """What ``$(name ...)`` becomes where that is a function of the script, or an echo; None for other programs."""
        self.expander.spend(48 * (len(inside) + len(self.expander.values)))
        lines = list(statements(inside)) if self._depth < _MOST_ROUNDS else []
        name = literal(lines[0].words[0]) if len(lines) == 1 else ""
        if name != "echo" and name not in self.functions:
            return None
        values, commands = self.expander.values, self.commands
        self.expander.values, self.commands = {each: list(parts) for each, parts in values.items()}, []
        self._depth += 1
        with suppress(ScriptEnded, _Returned):
            self.block(lines)
        self._depth -= 1
        said, self.expander.values, self.commands = self.commands, values, commands  # a shell of its own
        if any(command[0] != "echo" for command in said):
            return None
        return "\n".join(" ".join(word for word in command[1:] if word not in ("-n", "-e")) for command in said)

    def _tasks(self, command: list[str]) -> None:
        """The sizes of a job that ``srun`` is told, in the names it gives them."""
        for word, after in pairwise(command if command[0] in ("srun", "sbatch") else []):
            option, _, value = word.lstrip("-").partition("=")
            number = value or after
            if word.startswith("-") and re.fullmatch(r"[0-9]{1,6}", number):
                self.expander.values |= {name: [number] for name in SLURM.get(option, ())}


class ScriptEnded(Exception):
    """The script goes no further."""


class _Returned(Exception):
    """The function goes no further."""


_MOST_WAYS: Final = 64
_SBATCH: Final = re.compile(r"^#SBATCH\s+--?([A-Za-z-]+)[=\s]\s*([^\s#]+)", re.MULTILINE)


class Script(NamedTuple):
    """What a script sets and runs, one way it may go."""

    variables: dict[str, str]
    commands: list[list[str]]
    decided: tuple[str, ...] = ()  # tests that could not be decided, as they were taken
    files: dict[str, str] = {}  # noqa: RUF012  what it writes from here-documents
    ended: bool = False  # by an exit


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
