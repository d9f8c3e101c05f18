"""Paragraphs and tables on a page of so many columns of letters: what text reports are made of.

Lines break at blanks, and a word that is longer than a line is cut. A table is as wide as its cells, or as the page:
then the widest of the columns that may wrap give way first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from astra.errors import visible_lines

Run = tuple[str, str]  # letters, and their style: words of ``_CODES``
Line = list[Run]

_WORD: Final = re.compile(r"\s*\S+\s*")
_SILENT: Final = dict.fromkeys((7, 8, 11, 12, 13))  # print nothing, and move the cursor or ring
_CODES: Final = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
_COLOURS: Final = 30  # codes from here on: the last one holds
_RULE: Final = "─"


class Text(NamedTuple):
    """Plain and styled pieces in a row; newlines break it."""

    pieces: tuple[Run, ...]
    widest: int | None = None  # columns it takes at most

    @property
    def plain(self) -> str:
        """Its letters."""
        return "".join(letters for letters, _ in self.pieces)

    def lines(self, width: int) -> Iterator[Line]:
        """Its lines on a page."""
        yield from wrapped(self, width if self.widest is None else min(width, self.widest))


class Column(NamedTuple):
    """A column of a table."""

    name: str
    right: bool = False  # numbers end below one another
    wraps: bool = False  # what is too long goes on below
    style: str = ""


class TextTable:
    """Rows of cells, one below the other; ``headed`` by the names of its columns and a rule."""

    def __init__(
        self, columns: Sequence[Column], *, gap: int = 2, headed: bool = True, widest: int | None = None
    ) -> None:
        self._columns, self._headed, self._widest = columns, headed, widest
        self._pads = [gap - 1] * (len(columns) - 1) + [0]  # of the gap a blank is what no column can give away
        self._rows: list[tuple[list[Text], str]] = []

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """One more row; cells that are left out are empty."""
        filled = (*cells, *[""] * (len(self._columns) - len(cells)))
        self._rows.append(([plain(cell) if isinstance(cell, str) else cell for cell in filled], style))

    def lines(self, width: int) -> Iterator[Line]:
        """Its lines on a page; where even the least of all columns has no room they end at its edge."""
        widths = self._widths(width if self._widest is None else min(width, self._widest))
        for line in self._all(widths):
            yield _cut(line, width)

    def _all(self, widths: Sequence[int]) -> Iterator[Line]:
        if self._headed:
            names = [plain(column.name) for column in self._columns]
            yield from self._row(names, "bold", widths, below=True)
            yield [(_RULE * (sum(widths) + len(widths) - 1), "")]
        for cells, style in self._rows:
            yield from self._row(cells, style, widths)

    def _row(self, cells: Sequence[Text], style: str, widths: Sequence[int], *, below: bool = False) -> Iterator[Line]:
        """A row as lines; short cells stand at its top, or ``below``."""
        drawn: list[list[Line]] = []
        for cell, column, width, pad in zip(cells, self._columns, widths, self._pads, strict=True):
            own = "" if below else column.style
            styled = Text(tuple((letters, f"{own} {style} {its}") for letters, its in cell.pieces))
            lines = wrapped(styled, width - pad, wraps=column.wraps, right=column.right)
            drawn.append([_placed(line, width, pad, right=column.right) for line in lines])
        height = max(map(len, drawn))
        for place in range(height):
            line: Line = []
            for cell_lines, width in zip(drawn, widths, strict=True):
                at = place - (height - len(cell_lines) if below else 0)
                line += [*(cell_lines[at] if 0 <= at < len(cell_lines) else [(" " * width, "")]), (" ", "")]
            yield line

    def _widths(self, page: int) -> list[int]:
        """What each column takes with the gap behind it, but for its last blank."""
        most = page - (len(self._columns) - 1)
        widths = [self._measured(place, most) or 1 for place in range(len(self._columns))]
        if sum(widths) <= most:
            return widths
        widths = _narrowed(widths, [column.wraps for column in self._columns], most)
        if (excess := sum(widths) - most) > 0:  # all of them, for nothing else helps
            widths = _reduced(excess, [1] * len(widths), widths, widths)
        return [self._measured(place, width) for place, width in enumerate(widths)]

    def _measured(self, place: int, most: int) -> int:
        """What the cells of a column take, at most so much."""
        pad, cells = self._pads[place], [row[place] for row, _ in self._rows]
        cells += [plain(self._columns[place].name)] if self._headed else []
        if most - pad < 1:
            return max(most, 0)
        return min(max((_widest(cell.plain) for cell in cells), default=most) + pad, most)


class LaidOut(NamedTuple):
    """Parts that were laid out already, to see how long they are."""

    found: list[Line]

    @property
    def plain(self) -> str:
        """Its letters."""
        return "\n".join("".join(letters for letters, _ in line) for line in self.found)

    def lines(self, width: int) -> Iterator[Line]:
        """Its lines, whatever the page."""
        del width
        yield from self.found


Part = Text | TextTable | LaidOut


def plain(letters: str) -> Text:
    """Text without a style."""
    return Text(((letters, ""),))


def wrapped(text: Text, width: int, *, wraps: bool = True, right: bool = False) -> Iterator[Line]:
    """The lines of a text in so many columns; what does not wrap is cut off, and blanks at the end of what is right."""
    if width < 1:
        yield []
        return
    for line in _split(text):
        letters = "".join(run for run, _ in line)
        breaks = _breaks(letters, width) if wraps else []
        for start, end in zip([0, *breaks], [*breaks, len(letters)], strict=True):
            own = _between(line, start, end)
            yield _cut(_stripped(own) if right else own, width)


def drawn(line: Line, *, color: bool) -> str:
    """A line as it is printed: colours are the page's, never those of a name, and no blanks are left at its end."""
    shown = (_coded(visible_lines(letters), style if color else "") for letters, style in _stripped(line))
    return "".join(shown).rstrip()


def _stripped(line: Line) -> Line:
    """A line without the blanks at its end."""
    while line and not line[-1][0].strip():
        line = line[:-1]
    return [*line[:-1], (line[-1][0].rstrip(), line[-1][1])] if line else []


def _coded(letters: str, style: str) -> str:
    codes = sorted({_CODES[word] for word in style.split()})
    last = next((_CODES[word] for word in reversed(style.split()) if _CODES[word] > _COLOURS), None)
    kept = [str(code) for code in codes if code < _COLOURS or code == last]
    return f"\x1b[{';'.join(kept)}m{letters}\x1b[0m" if kept and letters else letters


def _split(text: Text) -> list[Line]:
    """A text at its newlines."""
    lines: list[Line] = [[]]
    for letters, style in text.pieces:
        for number, piece in enumerate(letters.translate(_SILENT).expandtabs(8).split("\n")):
            if number:
                lines.append([])
            lines[-1].append((piece, style))
    return lines


def _breaks(letters: str, width: int) -> list[int]:
    """Where a line is broken so that no part is wider: before a word, or inside one that has no room on any line."""
    breaks: list[int] = []
    taken = 0
    for found in _WORD.finditer(letters):
        start, word = found.start(), found.group()
        needed = cells(word.rstrip())
        if width - taken >= needed:
            taken += cells(word)
        elif needed > width:
            chopped = _chopped(word, width)
            for piece in chopped:
                breaks += [start] if start else []
                start += len(piece)
            taken = cells(chopped[-1])
        elif taken and start:
            breaks.append(start)
            taken = cells(word)
    return breaks


def _chopped(word: str, width: int) -> list[str]:
    """Pieces of a word that fit in a line."""
    pieces, taken = [""], 0
    for letter in word:
        if taken + cells(letter) > width:
            pieces.append("")
            taken = 0
        pieces[-1] += letter
        taken += cells(letter)
    return pieces


def _between(line: Line, start: int, end: int) -> Line:
    """The runs of some letters of a line."""
    found, at = [], 0
    for letters, style in line:
        found.append((letters[max(start - at, 0) : max(end - at, 0)], style))
        at += len(letters)
    return [run for run in found if run[0]]


def _cut(line: Line, width: int) -> Line:
    """As much of a line as has room; a blank stands for half a letter."""
    if sum(cells(letters) for letters, _ in line) <= width:
        return line
    room, found = width, list[Run]()
    for letters, style in line:
        kept = _chopped(letters, room)[0]
        found.append((kept, style))
        room -= cells(kept)
        if kept != letters:
            break
    return [*found, (" " * room, "")]


def _placed(line: Line, width: int, pad: int, *, right: bool) -> Line:
    """A line of a cell in its column."""
    free = width - sum(cells(letters) for letters, _ in line)
    before = max(free - pad, 0) if right else 0
    return [(" " * before, ""), *line, (" " * (free - before), "")]


def _widest(letters: str) -> int:
    """The widest line of a text that is not broken."""
    return max((cells(line) for line in letters.translate(_SILENT).splitlines()), default=0)


def cells(letters: str) -> int:
    """Columns that letters take on a terminal."""
    return len(letters) if letters.isascii() else sum(map(_cells_of, letters))


def _cells_of(letter: str) -> int:
    if letter < "\u0300" or "\u2010" <= letter <= "\u2019" or "\u2500" <= letter <= "\u25fc":
        return 1
    import unicodedata  # noqa: PLC0415 - most reports have no such letter

    if unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1


def _narrowed(widths: list[int], wraps: Sequence[bool], most: int) -> list[int]:
    """The widest of the columns that may wrap come down to the next one, and so on."""
    while any(wraps) and (excess := sum(widths) - most) > 0:
        able = [width if may else 0 for width, may in zip(widths, wraps, strict=True)]
        highest = max(able)
        step = highest - max((width for width in able if width != highest), default=0)
        if not highest or not step:
            break
        shares = [int(width == highest) for width in able]
        widths = _reduced(excess, shares, [min(excess, step)] * len(widths), widths)
    return widths


def _reduced(total: int, shares: Sequence[int], most: Sequence[int], widths: Sequence[int]) -> list[int]:
    """Widths less a total that is dealt out by shares, each at most so much."""
    shares = [share if limit else 0 for share, limit in zip(shares, most, strict=True)]
    left, found = sum(shares), []
    for share, limit, width in zip(shares, most, widths, strict=True):
        dealt = min(limit, round(share * total / left)) if share and left > 0 else 0
        total, left = total - dealt, left - share
        found.append(width - dealt)
    return found
