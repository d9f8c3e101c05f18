"""Blocks of a launch script: where an if, a case, a loop or a function begins and ends, its parts and its test."""

from __future__ import annotations

import fnmatch
import re
from typing import Final

from astra.export.bash import Statement, Word, literal

OPENING: Final = ("if", "case", "for", "while", "until", "select")
_CLOSING: Final = ("fi", "esac", "done")
_FUNCTION: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)\(\)\{?")


def block_end(lines: list[Statement], start: int) -> int:
    """The statement that closes the block begun at ``start``; the last if none does."""
    depth = 0
    for place in range(start, len(lines)):
        name = literal(lines[place].words[0])
        after = literal(lines[place].words[1]) if len(lines[place].words) > 1 else ""
        inner = after if name in ("then", "else", "do") else ""
        depth += (name in OPENING) + (inner in OPENING) - (name in _CLOSING) - (inner in _CLOSING)
        if depth == 0:
            return place
    return len(lines) - 1


def brace_end(lines: list[Statement], opening: int) -> int:
    """The statement that closes the brace opened at one; the last if none does."""
    depth = 0
    for place in range(opening, len(lines)):
        names = [literal(word) for word in lines[place].words]
        depth += sum(name == "{" or name.endswith("(){") for name in names) - names.count("}")
        if depth <= 0 and place > opening:
            return place
    return len(lines) - 1


def after_brace(words: list[Word], none: int | None = None) -> int:
    """The place behind a brace that opens, or what is said where there is none."""
    names = [literal(word) for word in words]
    last = len(words) if none is None else none
    return next((at + 1 for at, name in enumerate(names) if name == "{" or name.endswith("(){")), last)


def function_name(statement: Statement) -> str | None:
    """The name of a function that begins here."""
    names = [literal(word) for word in statement.words]
    if names[0] == "function" and len(names) > 1:
        return names[1].removesuffix("()")
    match = _FUNCTION.fullmatch(names[0])
    return match.group(1) if match else None


def without_first(statement: Statement, word: str) -> Statement:
    """A statement without a word that opens it, if it does."""
    return statement._replace(words=statement.words[literal(statement.words[0]) == word :])


def arms(lines: list[Statement]) -> list[tuple[list[Statement] | None, list[Statement]]]:
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
            rest = line._replace(words=line.words[1:])
            if rest.words and name != "fi":
                (test if where == "test" and test is not None else body).append(rest)
                depth += where == "body" and literal(rest.words[0]) in OPENING
            continue
        depth += (place > 0 and name in OPENING) - (name in _CLOSING)
        (test if where == "test" and test is not None else body).append(line)
    return arms


def cases(lines: list[Statement]) -> list[tuple[list[str], list[Statement]]]:
    """The patterns and bodies of a case."""
    found: list[tuple[list[str], list[Statement]]] = []
    body: list[Statement] = []
    patterns: list[str] = []
    waiting, depth = True, 0
    first = lines[0]._replace(words=lines[0].words[3:])
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
            depth += (name in OPENING) - (name in _CLOSING)
            body.append(line._replace(words=words))
        if depth == 0 and ";;" in line.ended:
            waiting = True
    return found


def decide(parts: list[str], *, missing: bool, given: bool = False) -> bool | None:
    """One test; None where a file, or a value that is not known, decides."""
    if parts and parts[0] == "!":
        inner = decide(parts[1:], missing=missing, given=given)
        return None if inner is None else not inner
    if len(parts) == 2 and parts[0] in ("-z", "-n") and parts[1] == "" and given:
        return parts[0] == "-n"
    if len(parts) == 2 and parts[0] in ("-z", "-n"):
        return None if "$" in parts[1] or "`" in parts[1] else (parts[1] == "") == (parts[0] == "-z")
    if len(parts) == 1:
        return parts[0] != ""
    if missing or len(parts) != 3 or "$" in "".join(parts) or "`" in "".join(parts):
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
