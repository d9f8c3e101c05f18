"""Read what a launch script would run, without running anything: assignments, arrays and the words of commands.

A small part of bash: quotes, comments, line continuations, ``NAME=value``, ``NAME=(...)``, ``NAME+=(...)``, ``export``,
``$NAME``, ``${NAME}``, ``${NAME:-default}``, ``"${NAME[@]}"`` and whole-number ``$((...))``. Branches are not decided:
every assignment is taken in order. Anything else is left as it is written. What variables grow to is counted letter by
letter before it is made, so that no script takes long or much memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from astra.errors import InputError
from astra.files import LIMITS

_MOST_LETTERS: Final = LIMITS["launch"].most_bytes
_MOST_SPENT: Final = 1_000_000  # letters and words of everything that is expanded
_MOST_DEPTH: Final = 16  # of ${...:-${...}}
_LONGEST_SUM: Final = 200
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACES: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?::?([-=])(.*))?", re.DOTALL)
_ARRAY: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}")
_SUM: Final = re.compile(r"[0-9+*/ ()-]{1,200}")
_KEYWORDS: Final = ("export", "declare", "local", "then", "else", "exec")
_TOKEN: Final = re.compile(
    r"""(?P<join>\\\r?\n)
    | (?P<escape>\\.)
    | '(?P<single>[^']*)'?
    | (?P<double>")
    | (?P<expansion>\$[({])
    | (?P<comment>\#)
    | (?P<break>[;&|\n])
    | (?P<space>[^\S\n]+)
    | (?P<bracket>[()])
    | (?P<plain>[^\s'"\\$\#;&|()]+|.)""",
    re.VERBOSE | re.DOTALL,
)
_IN_QUOTES: Final = re.compile(r"""(?P<end>")|(?P<escape>\\.)|(?P<expansion>\$[({])""", re.DOTALL)
_SPECIAL: Final = re.compile(r"""(?P<dollar>\$)|(?P<join>\\\r?\n)|\\(?P<escape>[$"\\`])""")
_BRACKET: Final = re.compile(r"[(){}]")


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
        raise InputError("script", None, want=f"a script below {_MOST_LETTERS // 1024} KiB")
    return _Reader().run(_Lexer(text).statements())


class _Lexer:
    """The script as statements of words; ``NAME=(`` keeps everything up to ``)`` in one statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[Word] = []
        self.word: Word = []
        self.plain: list[str] = []  # what is not quoted, since the last quotes of the word
        self.in_array = False

    def statements(self) -> Iterator[list[Word]]:
        at = 0
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            assert token is not None  # the last alternative takes any letter
            at = self._take(token)
            if self._ended(token) and self.words:
                yield self._statement()
        self._end_word()
        if self.words:
            yield self._statement()

    def _statement(self) -> list[Word]:
        words, self.words = self.words, []
        return words

    def _ended(self, token: re.Match[str]) -> bool:
        """Whether a token ends a statement; the words of an array go on over lines."""
        if token.lastgroup == "bracket":
            ends, self.in_array = self.in_array and token.group() == ")", self.in_array and token.group() != ")"
            return ends
        return token.lastgroup == "break" and not (self.in_array and token.group() == "\n")

    def _take(self, token: re.Match[str]) -> int:
        """Add a token to the word, or end the word; where the next one begins."""
        kind, text, end = str(token.lastgroup), token.group(), token.end()
        if kind in ("single", "escape"):
            self._add_quoted(token.group("single") if kind == "single" else text[1], "'")
        elif kind == "double":
            return self._double(end)
        elif kind == "expansion":
            end = _closing(self.text, end - 1)
            self.plain.append(self.text[token.start() : end])
        elif kind == "comment":
            if not self.word and not self.plain:
                end = self.text.find("\n", end) % (len(self.text) + 1)
            else:
                self.plain.append(text)
        elif kind == "plain":
            self.plain.append(text)
        elif kind == "bracket":
            self._bracket(text)
        elif kind in ("break", "space"):
            self._end_word()
        return end

    def _bracket(self, text: str) -> None:
        if text == "(" and self.plain and self.plain[-1].endswith("="):
            self.plain.append("(")
            self._end_word()
            self.in_array = True
        elif text == ")" and self.in_array:
            self._end_word()
        else:
            self.plain.append(text)

    def _double(self, start: int) -> int:
        at = start
        while (token := _IN_QUOTES.search(self.text, at)) is not None and token.lastgroup != "end":
            at = _closing(self.text, token.end() - 1) if token.lastgroup == "expansion" else token.end()
        end = len(self.text) if token is None else token.start()
        self._add_quoted(self.text[start:end], '"')
        return end + 1

    def _add_quoted(self, text: str, quote: str) -> None:
        self._end_plain()
        self.word.append(Piece(text, quote))

    def _end_plain(self) -> None:
        if self.plain:
            self.word.append(Piece("".join(self.plain), ""))
            self.plain = []

    def _end_word(self) -> None:
        self._end_plain()
        if self.word:
            self.words.append(self.word)
            self.word = []


def _closing(text: str, opening: int) -> int:
    """One past the bracket that closes the one at ``opening``; the end of the text if none does."""
    first, depth = text[opening], 0
    last = {"(": ")", "{": "}"}[first]
    for bracket in _BRACKET.finditer(text, opening):
        depth += (bracket.group() == first) - (bracket.group() == last)
        if depth == 0:
            return bracket.end()
    return len(text)


class _Reader:
    """Runs assignments; keeps the words of everything else."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.spent = 0

    def run(self, statements: Iterable[list[Word]]) -> Script:
        commands = []
        for statement in statements:
            first = int(_literal(statement[0]) in _KEYWORDS)
            while first < len(statement) and self._assign(statement, first):
                first = len(statement) if _opens_array(statement[first]) else first + 1
            if first < len(statement):
                commands.append([part for word in statement[first:] for part in self._expand(word)])
        variables = {name: " ".join(parts) for name, parts in self.values.items()}
        return Script(variables, commands)

    def _assign(self, statement: list[Word], place: int) -> bool:
        word = statement[place]
        match = _ASSIGNMENT.match(word[0].text) if not word[0].quote else None
        if match is None:
            return False
        if _opens_array(word):
            value = [part for each in statement[place + 1 :] for part in self._expand(each)]
        else:
            value = ["".join(self._text(piece) for piece in (Piece(word[0].text[match.end() :], ""), *word[1:]))]
        if match.group(2):
            self.values.setdefault(match.group(1), []).extend(value)
        else:
            self.values[match.group(1)] = value
        return True

    def _expand(self, word: Word) -> list[str]:
        if len(word) == 1 and word[0].quote == '"':
            array = _ARRAY.fullmatch(word[0].text)
            if array is not None:
                parts = self._value(array.group(1))
                self._spend(sum(map(len, parts)))
                return parts
        done: list[str] = []
        last: str | None = None  # the word so far; what is not quoted ends it at white space
        for piece in word:
            text = self._text(piece)
            if piece.quote:
                last = (last or "") + text
                continue
            if text[:1].isspace() and last is not None:
                done.append(last)
                last = None
            for place, field in enumerate(text.split()):
                if place and last is not None:
                    done.append(last)
                    last = None
                last = (last or "") + field
            if text[-1:].isspace() and last is not None:
                done.append(last)
                last = None
        return done if last is None else [*done, last]

    def _value(self, name: str) -> list[str]:
        """The words of a variable; looking at them costs, be they empty."""
        parts = self.values.get(name, [])
        self._spend(len(parts))
        return parts

    def _joined(self, parts: list[str]) -> str:
        self._spend(sum(map(len, parts)))
        return " ".join(parts)

    def _spend(self, letters: int) -> None:
        self.spent += letters
        if self.spent > _MOST_SPENT:
            raise InputError("script", None, want="a script whose variables do not grow beyond reason")

    def _text(self, piece: Piece, depth: int = 0) -> str:
        self._spend(1 + len(piece.text))
        if piece.quote == "'":
            return piece.text
        if depth > _MOST_DEPTH:
            raise InputError("script", None, want=f"at most {_MOST_DEPTH} ${{...}} inside each other")
        text, out, at = piece.text, [], 0
        while (found := _SPECIAL.search(text, at)) is not None:
            out.append(text[at : found.start()])
            at = found.end()
            if found.lastgroup == "dollar":
                value, at = self._variable(text, at, depth)
                out.append(value)
            elif piece.quote == "":
                out.append(found.group())
            elif found.lastgroup == "escape":
                out.append(found.group("escape"))
        return "".join((*out, text[at:]))

    def _variable(self, text: str, at: int, depth: int) -> tuple[str, int]:
        if text.startswith("((", at):
            end = _closing(text, at)
            return self._sum(text[at + 2 : end - 2]), end
        if text.startswith("{", at):
            end = _closing(text, at)
            return self._braces(text[at + 1 : end - 1], depth), end
        name = _NAME.match(text, at)
        if name is None:
            return "$", at
        return self._joined(self._value(name.group())), name.end()

    def _braces(self, inside: str, depth: int) -> str:
        match = _BRACES.fullmatch(inside)
        if match is None:
            return ""
        parts = self._value(match.group(1))
        if any(parts):
            return self._joined(parts)
        default = match.group(4) or ""
        return self._text(Piece(default.strip('"'), '"'), depth + 1) if match.group(3) else ""

    def _sum(self, inside: str) -> str:
        if len(inside) > _LONGEST_SUM:
            return ""
        return whole_sum(_IN_SUM.sub(lambda name: self._joined(self._value(name.group(1)) or ["0"]), inside))


_IN_SUM: Final = re.compile(r"\$?\{?([A-Za-z_][A-Za-z0-9_]*)\}?")


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
