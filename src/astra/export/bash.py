"""The words of a launch script and its blocks, without running anything.

A small part of bash: quotes, comments, line continuations, here-documents; where an if, a case, a loop or a function
begins and ends. What variables make of words is for ``bash_values``, what is run for ``bash_run``.
"""

from __future__ import annotations

import fnmatch
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
SHELLS: Final = ("bash", "sh", "/bin/bash", "/bin/sh", "/usr/bin/bash")


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


def given_text(command: list[str]) -> str | None:
    """The script in ``bash -c "..."``, wherever it stands in a command, or the one that ssh is given."""
    if command[0] == "ssh" and " " in command[-1]:
        return command[-1]
    for place, word in enumerate(command[:-2]):
        if word not in SHELLS:
            continue
        for at in range(place + 1, len(command) - 1):
            if re.fullmatch(r"-[a-z]*c", command[at]):
                return command[at + 1]
            if not command[at].startswith("-"):
                break
    return None
