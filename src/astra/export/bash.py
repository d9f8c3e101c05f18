"""The words of a launch script, without running anything.

A small part of bash: quotes, comments, line continuations, here-documents. What variables make of words is for
``bash_values``, what is run for ``bash_run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from astra.errors import InputError
from astra.files import LIMITS

_MOST_LETTERS: Final = LIMITS["launch"].most_bytes
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
    documents: list[ShellPiece]  # here-documents that it is given


def statements(text: str) -> Iterator[Statement]:
    """A script as statements."""
    if len(text) > _MOST_LETTERS:
        raise InputError("script", None, want=f"a script below {_MOST_LETTERS // 1024} KiB")
    return _apart(_Lexer(text).statements())


def _apart(lines: Iterator[Statement]) -> Iterator[Statement]:
    """``[[ a && b ]]`` as ``[[ a ]] && [[ b ]]``; not where && and || are mixed, which bind otherwise inside."""
    waiting: list[Statement] = []
    for line in lines:
        names = [literal(word) for word in line.words]
        if not waiting and ("[[" not in names or "]]" in names or "!" in names[: names.index("[[")]):
            yield line
            continue
        waiting.append(line)
        if "]]" in names or not line.ended.startswith(("&&", "||")):
            yield from _closed(waiting)
            waiting = []
    yield from waiting


def _closed(lines: list[Statement]) -> list[Statement]:
    """Each part of a test as a test; as they are where it is not closed, or of both kinds."""
    if len({line.ended[:2] for line in lines[:-1]}) != 1 or "]]" not in map(literal, lines[-1].words):
        return lines
    opens, closes = [ShellPiece("[[", "")], [ShellPiece("]]", "")]
    first, *rest = lines
    done = [first._replace(words=[*first.words, closes])]
    done += [line._replace(words=[opens, *line.words, closes]) for line in rest[:-1]]
    return [*done, rest[-1]._replace(words=[opens, *rest[-1].words])]


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
        return Statement(words, ended, [])

    def _skip_documents(self, statement: Statement, at: int) -> int:
        """Text up to the word that ends a here-document is no script: it is kept beside the statement."""
        for word in self.documents:
            end = literal(word).removeprefix("<<").removeprefix("-")
            if not end:
                place = next((index for index, each in enumerate(statement.words) if each is word), -1)
                end = literal(statement.words[place + 1]) if 0 <= place < len(statement.words) - 1 else ""
            found = re.compile(rf"^\t*{re.escape(end)}[ \t]*$", re.MULTILINE).search(self.text, at) if end else None
            if found is not None:
                quoted = any(piece.quote for piece in word)
                statement.documents.append(ShellPiece(self.text[at : found.start()], "'" if quoted else '"'))
                at = found.end()
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
            end = closing(self.text, end - 1)
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
            at = closing(self.text, token.end() - 1) if token.lastgroup == "expansion" else token.end()
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


def closing(text: str, opening: int) -> int:
    """One past the bracket that closes the one at ``opening``; the end of the text if none does."""
    first, depth = text[opening], 0
    last = {"(": ")", "{": "}"}[first]
    for bracket in _BRACKET.finditer(text, opening):
        depth += (bracket.group() == first) - (bracket.group() == last)
        if depth == 0:
            return bracket.end()
    return len(text)


def literal(word: Word) -> str:
    """A word as it is written, without its quotes."""
    return "".join(piece.text for piece in word)


def opens_array(word: Word) -> bool:
    """Whether a word begins ``NAME=(``."""
    return word[-1].quote == "" and word[-1].text.endswith("=(")
