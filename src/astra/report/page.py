"""A web page in one file: nothing is fetched, light and dark as the reader's system, narrow screens and paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from astra.files import own_text
from astra.report.markup import PALETTE, quoted, tag

MANY: Final = 4  # columns; more have no room beside each other on a phone
_FILLED: Final = "compute communication idle other weights gradients optim activations buffers"
# The page may draw and style itself, and nothing else: no script, no address.
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def page(title: str, *content: str) -> str:
    """A whole page around sections."""
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width,initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("meta", name="generator", content="Astra"),
        tag("title", quoted(title)),
        tag("style", stylesheet()),
    )
    body = tag("body", tag("main", "\n".join(content)))
    return f'<!doctype html>\n<html lang="en">\n{tag("head", *head)}\n{body}\n</html>\n'


def stylesheet() -> str:
    """How pages look: colours by meaning, text, tables, bars."""
    filled = "".join(f".{name}{{background:var(--{name})}}" for name in _FILLED.split())
    return f"{PALETTE}\n{own_text(__file__, 'page.css')}{filled}"


def section(title: str, *content: str, key: str | None = None) -> str:
    """A part with a heading; nothing at all if it is empty."""
    inside = [part for part in content if part]
    return tag("section", tag("h2", quoted(title)), *inside, id=key) if inside else ""


def paragraph(words: str, kind: str | None = None) -> str:
    """A paragraph of plain words; nothing if there are none."""
    return tag("p", quoted(words), class_=kind) if words else ""


def bullets(sentences: Iterable[str], kind: str | None = None) -> str:
    """A list of plain sentences; nothing if there are none."""
    items = [tag("li", quoted(sentence)) for sentence in sentences if sentence]
    return tag("ul", *items, class_=kind) if items else ""


def facts(entries: Iterable[tuple[str, str, str]]) -> str:
    """Figures to see first: name, figure, remark."""
    boxes = [
        tag("div", tag("dt", quoted(name)), tag("dd", quoted(figure), tag("small", quoted(remark)) if remark else ""))
        for name, figure, remark in entries
    ]
    return tag("dl", *boxes, class_="facts")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: Sequence[int] = (0,), best: int = -1) -> str:
    """A table of plain words; columns are figures but for those of ``left``, and one row may stand out.

    One of many columns is, on a narrow screen, a list for each row: every cell then brings the head of its column.
    """
    many = len(headers) > MANY
    kinds = [None if place in left else "n" for place in range(len(headers))]
    if not many and kinds[0] is None:
        kinds[0] = "name"
    heads = [name if many else None for name in headers]
    head = tag("tr", *(heading(name, kind) for name, kind in zip(headers, kinds, strict=True)))
    body = []
    for number, row in enumerate(rows):
        cells = zip(row, kinds, heads, strict=True)
        columns = (tag("td", quoted(cell), class_=kind, data_head=said) for cell, kind, said in cells)
        body.append(tag("tr", *columns, class_="best" if number == best else None))
    return framed(head, body, "many" if many else None)


def framed(head: str, body: Iterable[str], kind: str | None = None) -> str:
    """A table of rows that are markup already, under the row of its heads."""
    return wide(tag("table", tag("thead", head), tag("tbody", *body), class_=kind))


def heading(name: str, kind: str | None = None) -> str:
    """The head of a column; one without a name is no heading to whoever listens to the page."""
    return tag("th" if name else "td", quoted(name), class_=kind)


def wide(content: str) -> str:
    """What may be wider than a narrow screen, and is moved sideways there, by keys too."""
    return tag("div", content, class_="wide", tabindex=0)


def folded(title: str, *content: str) -> str:
    """What is shown when it is asked for, and on paper."""
    return tag("details", tag("summary", quoted(title)), *content)


def code(words: str) -> str:
    """Lines of a program, as they are."""
    return tag("pre", "\n".join(quoted(line) for line in words.rstrip("\n").split("\n")), tabindex=0)
