"""The words of a launch script, and what variables make of them, without running anything.

A small part of bash: quotes, comments, line continuations, here-documents, ``NAME=value``, ``NAME=(...)``,
``NAME+=(...)``, ``$NAME``, ``$1``, ``${NAME}``, ``${NAME:-default}``, ``"${NAME[@]}"`` and whole-number ``$((...))``.
Anything else is left as it is written. What variables grow to is counted letter by letter before it is made, so that no
script takes long or much memory. What is run of it is for ``bash_run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from astra.errors import InputError
from astra.files import LIMITS

_MOST_LETTERS: Final = LIMITS["launch"].most_bytes
_MOST_SPENT: Final = 1_000_000  # letters and words of everything that is expanded
_MOST_DEPTH: Final = 16  # of ${...:-${...}}
_LONGEST_SUM: Final = 200
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9@#*]")
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_BRACES: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*])(\[[@*]\])?(?::?([-=])(.*))?", re.DOTALL)
_ARRAY: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\[@\]\}|\$@|\$\{@\}")
_SUM: Final = re.compile(r"[0-9+*/ ()-]{1,200}")
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


class ShellPiece(NamedTuple):
    """Part of a word, and how it was quoted."""

    text: str
    quote: str  # ' or " or nothing


Word = list[ShellPiece]


class Statement(NamedTuple):
    """Words up to an operator or the end of a line."""

    words: list[Word]
    ended: str  # by which


def statements(text: str) -> Iterator[Statement]:
    """A script as statements."""
    if len(text) > _MOST_LETTERS:
        raise InputError("script", None, want=f"a script below {_MOST_LETTERS // 1024} KiB")
    return _Lexer(text).statements()


class _Lexer:
    """The script as statements of words; ``NAME=(`` keeps everything up to ``)`` in one statement."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words: list[Word] = []
        self.word: Word = []
        self.plain: list[str] = []  # what is not quoted, since the last quotes of the word
        self.in_array = False
        self.documents: list[Word] = []  # here-documents that begin on this line

    def statements(self) -> Iterator[Statement]:
        at = 0
        before: Statement | None = None  # waits for the rest of its operator: && is two letters
        while at < len(self.text):
            token = _TOKEN.match(self.text, at)
            assert token is not None  # the last alternative takes any letter
            at = self._take(token)
            if not self._ended(token):
                continue
            if self.words:
                if before is not None:
                    yield before
                before = self._statement(token.group())
            elif before is not None:
                before = before._replace(ended=before.ended + token.group())
            if token.group() == "\n" and before is not None:
                at = self._skip_documents(before, at)
        self._end_word()
        if before is not None:
            yield before
        if self.words:
            yield self._statement("\n")

    def _statement(self, ended: str) -> Statement:
        words, self.words = self.words, []
        for word in words:
            if not word[0].quote and word[0].text.startswith("<<") and not word[0].text.startswith("<<<"):
                self.documents.append(word)
        return Statement(words, ended)

    def _skip_documents(self, statement: Statement, at: int) -> int:
        """Text up to the word that ends a here-document is no script."""
        for word in self.documents:
            end = literal(word).removeprefix("<<").removeprefix("-")
            if not end:
                place = next((index for index, each in enumerate(statement.words) if each is word), -1)
                end = literal(statement.words[place + 1]) if 0 <= place < len(statement.words) - 1 else ""
            found = re.compile(rf"^\t*{re.escape(end)}[ \t]*$", re.MULTILINE).search(self.text, at) if end else None
            at = found.end() if found else at
        self.documents = []
        return at

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
        self.word.append(ShellPiece(text, quote))

    def _end_plain(self) -> None:
        if self.plain:
            self.word.append(ShellPiece("".join(self.plain), ""))
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


class Expander:
    """Variables, and what they make of words."""

    def __init__(self) -> None:
        self.values: dict[str, list[str]] = {}
        self.missed: set[str] = set()  # variables that were asked for and never set
        self.spent = 0

    def assign(self, statement: list[Word], place: int) -> bool:
        """Set a variable, where the word at a place does that."""
        word = statement[place]
        match = _ASSIGNMENT.match(word[0].text) if not word[0].quote else None
        if match is None:
            return False
        if opens_array(word):
            value = [part for each in statement[place + 1 :] for part in self.expand(each)]
        else:
            value = ["".join(self.text(piece) for piece in (ShellPiece(word[0].text[match.end() :], ""), *word[1:]))]
        if match.group(2):
            self.values.setdefault(match.group(1), []).extend(value)
        else:
            self.values[match.group(1)] = value
        return True

    def expand(self, word: Word) -> list[str]:
        """The words that a word becomes."""
        if len(word) == 1 and word[0].quote == '"':
            array = _ARRAY.fullmatch(word[0].text)
            if array is not None:
                parts = self._value(array.group(1) or "@")
                self._spend(sum(map(len, parts)))
                return parts
        done: list[str] = []
        last: str | None = None  # the word so far; what is not quoted ends it at white space
        for piece in word:
            text = self.text(piece)
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
        if name not in self.values:
            self.missed.add(name)
        self._spend(len(parts))
        return parts

    def _joined(self, parts: list[str]) -> str:
        self._spend(sum(map(len, parts)))
        return " ".join(parts)

    def _spend(self, letters: int) -> None:
        self.spent += letters
        if self.spent > _MOST_SPENT:
            raise InputError("script", None, want="a script whose variables do not grow beyond reason")

    def text(self, piece: ShellPiece, depth: int = 0) -> str:
        """A piece of a word with its variables in place."""
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
        if match.group(3):
            self.missed.discard(match.group(1))
        return self.text(ShellPiece(default.strip('"'), '"'), depth + 1) if match.group(3) else ""

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


def literal(word: Word) -> str:
    """A word as it is written, without its quotes."""
    return "".join(piece.text for piece in word)


def opens_array(word: Word) -> bool:
    """Whether a word begins ``NAME=(``."""
    return word[-1].quote == "" and word[-1].text.endswith("=(")
