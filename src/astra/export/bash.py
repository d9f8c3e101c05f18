"""Read what a launch script would run, without running anything: assignments, arrays and the words of commands.

A small part of bash: quotes, comments, line continuations, ``NAME=value``, ``NAME=(...)``, ``NAME+=(...)``, ``export``,
``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``"${NAME[@]}"`` and whole-number ``$((...))``. Branches are not decided:
every assignment is taken in order. Anything else is left as it is written.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from astra.errors import InputError

_MOST_LETTERS: Final = 2_000_000
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACES: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?::?([-=])(.*))?", re.DOTALL)
_SUM: Final = re.compile(r"[0-9+*/ ()-]{1,200}")
_BREAKS: Final = frozenset(";&|\n")


class Piece(NamedTuple):
    """Part of a word, and how it was quoted."""

    text: str
    quote: str  # ' or " or nothing


Word = list[Piece]


class Script(NamedTuple):
    """What a script sets and runs."""

    variables: dict[str, str]
    commands: list[list[str]]


def read_script(text: str) -> Script:
    """The variables and commands of a script, with what could be expanded."""
    if len(text) > _MOST_LETTERS:
        raise InputError("script", None, want="a script below 2 MB")
    return _Reader().run(_statements(text.replace("\\\r\n", " ").replace("\\\n", " ")))


def _statements(text: str) -> list[list[Word]]:
    """The script as statements of words; ``NAME=(`` keeps everything up to ``)`` in one statement."""
    lexer = _Lexer(text)
    while lexer.at < len(text):
        lexer.step()
    lexer.end_statement()
    return lexer.statements


class _Lexer:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.statements: list[list[Word]] = []
        self.words: list[Word] = []
        self.word: Word = []
        self.in_array = False

    def end_word(self) -> None:
        if self.word:
            self.words.append(self.word)
            self.word = []

    def end_statement(self) -> None:
        self.end_word()
        if self.words:
            self.statements.append(self.words)
            self.words = []

    def add(self, text: str, quote: str = "") -> None:
        if self.word and self.word[-1].quote == quote == "":
            self.word[-1] = Piece(self.word[-1].text + text, "")
        else:
            self.word.append(Piece(text, quote))

    def step(self) -> None:
        letter = self.text[self.at]
        if letter in "'\"":
            self._quoted(letter)
        elif letter == "\\" and self.at + 1 < len(self.text):
            self.add(self.text[self.at + 1], "'")
            self.at += 2
        elif letter == "$" and self.text.startswith(("$(", "${"), self.at):
            end = _closing(self.text, self.at + 1)
            self.add(self.text[self.at : end])
            self.at = end
        elif letter == "#" and not self.word:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        else:
            self._plain(letter)

    def _quoted(self, letter: str) -> None:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != letter:
            end += 2 if letter == '"' and self.text[end] == "\\" else 1
        self.add(self.text[self.at + 1 : end], letter)
        self.at = end + 1

    def _plain(self, letter: str) -> None:
        self.at += 1
        if letter == "(" and self.word and self.word[-1].text.endswith("="):
            self.add("(")
            self.end_word()
            self.in_array = True
        elif letter == ")" and self.in_array:
            self.in_array = False
            self.end_statement()
        elif letter in _BREAKS and not (self.in_array and letter == "\n"):
            self.end_statement()
        elif letter.isspace():
            self.end_word()
        else:
            self.add(letter)


def _closing(text: str, opening: int) -> int:
    """One past the bracket that closes the one at ``opening``; the end of the text if none does."""
    pairs, depth = {"(": ")", "{": "}"}, 0
    first = text[opening]
    for at in range(opening, len(text)):
        depth += (text[at] == first) - (text[at] == pairs[first])
        if depth == 0:
            return at + 1
    return len(text)


class _Reader:
    """Runs assignments; keeps the words of everything else."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.spent = 0

    def run(self, statements: list[list[Word]]) -> Script:
        commands = []
        for statement in statements:
            words = (
                statement[1:]
                if _literal(statement[0]) in ("export", "declare", "local", "then", "else", "exec")
                else statement
            )
            while words and self._assign(words):
                words = words[1:] if not _opens_array(words[0]) else []
            if words:
                commands.append([part for word in words for part in self._expand(word)])
        variables = {name: " ".join(parts) for name, parts in self.values.items()}
        return Script(variables, commands)

    def _assign(self, words: list[Word]) -> bool:
        match = _ASSIGNMENT.match(words[0][0].text) if not words[0][0].quote else None
        if match is None:
            return False
        name, more = match.group(1), bool(match.group(2))
        if _opens_array(words[0]):
            value = [part for word in words[1:] for part in self._expand(word)]
        else:
            rest = [Piece(words[0][0].text[match.end() :], ""), *words[0][1:]]
            value = ["".join(self._text(piece) for piece in rest)]
        self.values[name] = [*self.values.get(name, []), *value] if more else value
        return True

    def _expand(self, word: Word) -> list[str]:
        if len(word) == 1 and word[0].quote == '"':
            array = re.fullmatch(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}", word[0].text)
            if array is not None:
                return self._spend(self.values.get(array.group(1), []))
        if all(piece.quote == "" for piece in word):
            return self._spend("".join(self._text(piece) for piece in word).split())
        return self._spend(["".join(self._text(piece) for piece in word)])

    def _spend(self, parts: list[str]) -> list[str]:
        self.spent += sum(len(part) for part in parts)
        if self.spent > _MOST_LETTERS:
            raise InputError("script", None, want="a script whose variables do not grow beyond reason")
        return parts

    def _text(self, piece: Piece) -> str:
        if piece.quote == "'":
            return piece.text
        text, out, at = piece.text, [], 0
        while at < len(text):
            if piece.quote == '"' and text[at] == "\\" and text[at + 1 : at + 2] in ("$", '"', "\\", "`"):
                out.append(text[at + 1])
                at += 2
            elif text[at] == "$":
                value, at = self._variable(text, at + 1)
                out.append(value)
            else:
                out.append(text[at])
                at += 1
        return "".join(self._spend(["".join(out)]))

    def _variable(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith("((", at):
            end = _closing(text, at)
            return self._sum(text[at + 2 : end - 2]), end
        if text.startswith("{", at):
            end = _closing(text, at)
            return self._braces(text[at + 1 : end - 1]), end
        name = _NAME.match(text, at)
        if name is None:
            return "$", at
        return " ".join(self.values.get(name.group(), [])), name.end()

    def _braces(self, inside: str) -> str:
        match = _BRACES.fullmatch(inside)
        if match is None:
            return ""
        parts = self.values.get(match.group(1), [])
        if parts and any(parts):
            return " ".join(parts)
        default = match.group(4) or ""
        return self._text(Piece(default.strip('"'), '"')) if match.group(3) else ""

    def _sum(self, inside: str) -> str:
        text = re.sub(
            r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?", lambda m: " ".join(self.values.get(m.group(1), ["0"])), inside
        )
        return whole_sum(text)


def whole_sum(text: str) -> str:
    """The value of a sum of products of whole numbers, or nothing if it is anything else."""
    if not _SUM.fullmatch(text) or "(" in text or "//" in text or "**" in text:
        return ""
    total = 0
    for sign, term in re.findall(r"([+-]?)\s*([0-9][0-9*/ ]*)", text):
        value = 1
        for operator, number in re.findall(r"([*/]?)\s*([0-9]{1,12})", term):
            if operator == "/" and int(number) == 0:
                return ""
            value = value // int(number) if operator == "/" else value * int(number)
        total += -value if sign == "-" else value
    return str(total)


def _literal(word: Word) -> str:
    return "".join(piece.text for piece in word)


def _opens_array(word: Word) -> bool:
    return word[-1].quote == "" and word[-1].text.endswith("=(")
