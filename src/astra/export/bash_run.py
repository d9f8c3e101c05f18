"""What a script would run: branches are decided where their tests are simple, loops and functions are followed.

A test that cannot be decided (a file, a program, a variable nobody sets) leaves a choice: the script is then read once
for each way it may go, and whoever reads it says whether the ways differ in what matters.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence
from itertools import product
from typing import Final, NamedTuple, cast

from astra.errors import InputError
from astra.export.bash import Expander, Statement, Word, literal, opens_array, statements

_KEYWORDS: Final = ("export", "declare", "local", "readonly", "typeset", "exec", "time", "sudo", "nohup", "eval", "!")
_SHELLS: Final = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")
_MOST_WAYS: Final = 64
_MOST_ROUNDS: Final = 32  # of a loop, and of scripts inside each other
_MOST_STATEMENTS: Final = 20_000
_OPENING: Final = ("if", "case", "for", "while", "until", "select")
_CLOSING: Final = ("fi", "esac", "done")
_REDIRECTION: Final = re.compile(r"[0-9]?>|&>|[0-9]>&[0-9]|\||<(?![A-Za-z])")  # where the words of a command end
_FUNCTION: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\(\)\{?")
_SBATCH: Final = re.compile(r"^#SBATCH\s+--?([A-Za-z-]+)[=\s]\s*([^\s#]+)", re.MULTILINE)
_SLURM: Final = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), "N": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS",), "n": ("SLURM_NTASKS",), "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
    "gres": ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"),
}  # fmt: skip


class Script(NamedTuple):
    """What a script sets and runs, one way it may go."""

    variables: dict[str, str]
    commands: list[list[str]]
    decided: tuple[str, ...] = ()  # tests that could not be decided, as they were taken


def read_script(text: str, parameters: Sequence[str] = ()) -> Script:
    """The first way a script may go."""
    return ways(text, parameters)[0]


def ways(text: str, parameters: Sequence[str] = ()) -> list[Script]:
    """Every way a script may go, as far as its tests cannot be decided."""
    whole = list(statements(text))
    batch = _slurm(text)
    first, open_tests = _follow(whole, parameters, batch, ())
    found, choices = [first], list(product(*([True, False] for _ in open_tests)))
    if len(choices) > _MOST_WAYS:
        fix = "Give its parameters behind --, or a script without so many branches."
        tests = "; ".join(dict.fromkeys(open_tests))
        raise InputError("script", None, want=f"tests that can be decided ({tests})", fix=fix)
    return [*found, *(_follow(whole, parameters, batch, choice)[0] for choice in choices[1:])]


def _follow(
    whole: list[Statement], parameters: Sequence[str], batch: dict[str, str], choice: Sequence[bool]
) -> tuple[Script, list[str]]:
    run = _Run(choice)
    run.expander.values |= {name: [value] for name, value in batch.items()}
    run.parameters(list(parameters))
    run.block(whole)
    named = {name: parts for name, parts in run.expander.values.items() if name.isidentifier()}
    variables = {name: " ".join(parts) for name, parts in named.items()}
    decided = tuple(f"{test}: {'yes' if yes else 'no'}" for test, yes in run.taken)
    return Script(variables, run.commands, decided), [test for test, _ in run.taken]


def _slurm(text: str) -> dict[str, str]:
    """The job's own sizes, from the lines that the batch system reads."""
    found = {}
    for option, value in _SBATCH.findall(text):
        number = re.search(r"([0-9]+)$", value)
        for name in _SLURM.get(option, ()):
            if number:
                found[name] = number.group(1)
    return found


class _Run:
    """One way through a script."""

    def __init__(self, choice: Sequence[bool]) -> None:
        self.expander = Expander()
        self.commands: list[list[str]] = []
        self.taken: list[tuple[str, bool]] = []
        self.functions: dict[str, list[Statement]] = {}
        self._choice = list(choice)
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
            if first in _OPENING:
                end = _end(lines, place)
                inner = lines[place : end + 1]
                if first == "if":
                    self._if(inner)
                elif first == "case":
                    self._case(inner)
                else:
                    self._loop(inner)
                place = end + 1
                continue
            name = _function(lines[place])
            if name is not None:
                opening = place if _after_brace(lines[place].words, none=0) else place + 1
                end = _brace(lines, opening)
                head = lines[opening].words[_after_brace(lines[opening].words) :]
                self.functions[name] = [*([Statement(head, "\n")] if head else []), *lines[opening + 1 : end]]
                place = end + 1
                continue
            self._simple(lines[place])
            place += 1

    def _if(self, lines: list[Statement]) -> None:
        for test, body in _arms(lines):
            if test is None or self._holds(test):
                self.block(body)
                return

    def _known(self, test: list[Statement]) -> bool | None:
        """Whether a list of tests, joined by && and ||, holds; None where that is not known."""
        joint, known = "&&", cast(bool | None, True)
        for statement in test:
            one = self._test(statement.words)
            if joint == "&&":
                known = False if known is False or one is False else None if known is None or one is None else True
            else:
                known = True if known is True or one is True else None if known is None or one is None else False
            joint = "||" if statement.ended.startswith("||") else "&&"
        return known

    def _holds(self, test: list[Statement]) -> bool:
        """Whether tests hold; a choice where that is not known."""
        known = self._known(test)
        if known is not None:
            return known
        shown = " ".join(literal(word) for statement in test for word in statement.words)[:120]
        result = self._choice[len(self.taken)] if len(self.taken) < len(self._choice) else True
        self.taken.append((shown, result))
        return result

    def _test(self, words: list[Word]) -> bool | None:
        names = [literal(word) for word in words]
        if names and names[0] == "!":
            inner = self._test(words[1:])
            return None if inner is None else not inner
        if not names or names[0] not in ("[", "[[", "test"):
            return {"true": True, "false": False, ":": True}.get(names[0]) if names else None
        tested = words[1:-1] if names[0] != "test" else words[1:]
        self.expander.missed.clear()
        parts = ["".join(self.expander.text(piece) for piece in word) for word in tested]
        return _decide(parts, missing=bool(self.expander.missed))

    def _case(self, lines: list[Statement]) -> None:
        head = lines[0].words
        self.expander.missed.clear()
        value = "".join(self.expander.text(piece) for piece in head[1])
        if self.expander.missed:
            shown = literal(head[1])
            fix = "Give the script's parameters: astra import FILE -- A B, or set it in the script."
            raise InputError("script", f"case {shown}", want=f"a value of {shown}, which decides what is run", fix=fix)
        for patterns, body in _cases(lines):
            if any(fnmatch.fnmatchcase(value, pattern) for pattern in patterns):
                self.block(body)
                return

    def _loop(self, lines: list[Statement]) -> None:
        """A for loop goes through its words; any other is gone through once."""
        words, body = lines[0].words, lines[1:-1]
        start = next((at for at, line in enumerate(body) if literal(line.words[0]) == "do"), 0)
        inner = [_without_first(line, "do") for line in body[start:]]
        inner = [line for line in inner if line.words]
        names = [literal(word) for word in words]
        if names[0] != "for" or len(names) < 3 or names[2] != "in":
            test = [Statement(words[1:], lines[0].ended), *body[:start]]
            if names[0] != "while" or self._known([one for one in test if one.words]) is not False:
                self.block(inner)
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
        command = [part for word in words[first:] for part in self.expander.expand(word)]
        sent = next((at for at, part in enumerate(command) if _REDIRECTION.match(part)), len(command))
        if command[:sent]:
            self._start(command[:sent])

    def _start(self, command: list[str]) -> None:
        if command[0] == "shift":
            given = self.expander.values.get("@", [])
            self.parameters(given[int(command[1]) if len(command) > 1 and command[1].isdigit() else 1 :])
            return
        if command[0] in self.functions and self._depth < _MOST_ROUNDS:
            before = list(self.expander.values.get("@", []))
            self._depth += 1
            self.parameters(command[1:])
            self.block(self.functions[command[0]])
            self.parameters(before)
            self._depth -= 1
            return
        inner = _given_text(command)
        if inner is not None and self._depth < _MOST_ROUNDS:
            self._depth += 1
            self.block(list(statements(inner)))
            self._depth -= 1
            return
        self.commands.append(command)


def _given_text(command: list[str]) -> str | None:
    """The script in ``bash -c "..."``, wherever it stands in a command."""
    for place, word in enumerate(command[:-2]):
        if word in _SHELLS and re.fullmatch(r"-[a-z]*c", command[place + 1]):
            return command[place + 2]
    return None


def _decide(parts: list[str], *, missing: bool) -> bool | None:
    """One test; None where a file, or a value that is not known, decides."""
    if parts and parts[0] == "!":
        inner = _decide(parts[1:], missing=missing)
        return None if inner is None else not inner
    if len(parts) == 2 and parts[0] in ("-z", "-n"):
        return (parts[1] == "") == (parts[0] == "-z")
    if len(parts) == 1:
        return parts[0] != ""
    if missing or len(parts) != 3 or "$(" in "".join(parts) or "`" in "".join(parts):
        return None
    return _compare(*parts)


def _compare(left: str, operator: str, right: str) -> bool | None:
    if operator in ("=", "==", "!="):
        return fnmatch.fnmatchcase(left, right) != (operator == "!=")
    if not re.fullmatch(r"-?[0-9]{1,12}", left) or not re.fullmatch(r"-?[0-9]{1,12}", right):
        return None
    a, b = int(left), int(right)
    answers = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b}
    return (answers | {"<": a < b, ">": a > b}).get(operator)


def _end(lines: list[Statement], start: int) -> int:
    """The statement that closes the block begun at ``start``; the last if none does."""
    depth = 0
    for place in range(start, len(lines)):
        name = literal(lines[place].words[0])
        after = literal(lines[place].words[1]) if len(lines[place].words) > 1 else ""
        inner = after if name in ("then", "else", "do") else ""
        depth += (name in _OPENING) + (inner in _OPENING) - (name in _CLOSING) - (inner in _CLOSING)
        if depth == 0:
            return place
    return len(lines) - 1


def _brace(lines: list[Statement], opening: int) -> int:
    depth = 0
    for place in range(opening, len(lines)):
        names = [literal(word) for word in lines[place].words]
        depth += sum(name == "{" or name.endswith("(){") for name in names) - names.count("}")
        if depth <= 0 and place > opening:
            return place
    return len(lines) - 1


def _after_brace(words: list[Word], none: int | None = None) -> int:
    """The place behind a brace that opens, or what is said where there is none."""
    names = [literal(word) for word in words]
    last = len(words) if none is None else none
    return next((at + 1 for at, name in enumerate(names) if name == "{" or name.endswith("(){")), last)


def _function(statement: Statement) -> str | None:
    """The name of a function that begins here."""
    names = [literal(word) for word in statement.words]
    if names[0] == "function" and len(names) > 1:
        return names[1].removesuffix("()")
    match = _FUNCTION.fullmatch(names[0])
    return match.group(1) if match else None


def _without_first(statement: Statement, word: str) -> Statement:
    return Statement(statement.words[literal(statement.words[0]) == word :], statement.ended)


def _arms(lines: list[Statement]) -> list[tuple[list[Statement] | None, list[Statement]]]:
    """The tests and bodies of an if; the last test is None for an else."""
    arms: list[tuple[list[Statement] | None, list[Statement]]] = []
    test: list[Statement] | None = []
    body: list[Statement] = []
    where, depth = "test", 0
    for place, line in enumerate(lines):
        name = literal(line.words[0])
        if depth == 0 and (place == 0 or name in ("elif", "then", "else", "fi")):
            if name in ("elif", "else", "fi"):
                arms.append((test, body))
                test, body = ([] if name == "elif" else None), []
            where = "test" if name in ("if", "elif") else "body"
            rest = Statement(line.words[1:], line.ended)
            if rest.words and name != "fi":
                (test if where == "test" and test is not None else body).append(rest)
                depth += where == "body" and literal(rest.words[0]) in _OPENING
            continue
        depth += (place > 0 and name in _OPENING) - (name in _CLOSING)
        (test if where == "test" and test is not None else body).append(line)
    return arms


def _cases(lines: list[Statement]) -> list[tuple[list[str], list[Statement]]]:
    """The patterns and bodies of a case."""
    found: list[tuple[list[str], list[Statement]]] = []
    body: list[Statement] = []
    patterns: list[str] = []
    waiting, depth = True, 0
    first = Statement(lines[0].words[3:], lines[0].ended)
    for line in [*([first] if first.words else []), *lines[1:-1]]:
        words = line.words
        if depth == 0 and waiting:
            patterns.append(literal(words[0]).lstrip("("))
            if patterns[-1].endswith(")") or (len(words) > 1 and literal(words[1]) == ")"):
                patterns[-1] = patterns[-1].removesuffix(")")
                body = []
                found.append((patterns, body))
                patterns, waiting = [], False
                words = words[1 + (len(words) > 1 and literal(words[1]) == ")") :]
            else:
                continue
        if words:
            name = literal(words[0])
            depth += (name in _OPENING) - (name in _CLOSING)
            body.append(Statement(words, line.ended))
        if depth == 0 and ";;" in line.ended:
            waiting = True
    return found
