"""A web page in one file: nothing is fetched, light and dark as the reader's system, narrow screens and paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from astra.report.markup import PALETTE, quoted, tag

_STYLE: Final = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);line-height:1.45;
font:16px/1.45 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
main{max-width:76rem;margin:0 auto;padding:1.2rem 1rem 3rem}
h1{font-size:1.5rem;margin:.2rem 0}h2{font-size:1.15rem;margin:2.2rem 0 .5rem;padding-top:.4rem;
border-top:1px solid var(--rule)}h3{font-size:1rem;margin:1.2rem 0 .3rem}
p,ul{margin:.4rem 0}ul{padding-left:1.3rem}.faint{color:var(--faint)}.bad{color:var(--bad)}.warn{color:var(--warn)}
.lead{font-size:1.05rem}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.6rem;margin:1rem 0;padding:0}
.facts div{background:var(--panel);border:1px solid var(--rule);border-radius:8px;padding:.55rem .7rem}
.facts dt{color:var(--faint);font-size:.8rem}.facts dd{margin:0;font-size:1.15rem;font-weight:600}
.facts small{font-weight:400;color:var(--faint);display:block;font-size:.78rem}
.wide{overflow-x:auto}td:last-child:not(.n){overflow-wrap:break-word}td.name{white-space:nowrap}
table{border-collapse:collapse;font-size:.9rem;margin:.5rem 0;min-width:40%}
th,td{padding:.28rem .65rem;border-bottom:1px solid var(--rule);text-align:left;vertical-align:top}
th{font-weight:600;color:var(--faint)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.best td{font-weight:600}
code,pre{font:13px/1.4 ui-monospace,SFMono-Regular,Menlo,'DejaVu Sans Mono',monospace}
code{overflow-wrap:anywhere}pre{background:var(--panel);border:1px solid var(--rule);border-radius:8px;
padding:.7rem .8rem;overflow-x:auto;white-space:pre}
svg.astra{max-width:100%;height:auto;display:block}.wide>svg.astra.big{min-width:44rem}
details{margin:.6rem 0}summary{cursor:pointer;color:var(--accent)}
footer{margin-top:3rem;font-size:.85rem}
table.bars{width:100%}td.bar{width:60%;min-width:9rem;vertical-align:middle}
i.fill{display:block;height:.95em;border-radius:2px;min-width:1px;print-color-adjust:exact;-webkit-print-color-adjust:exact}
.stack{position:relative;display:flex;height:1.05em;background:var(--panel)}.stack i.fill{height:100%;border-radius:0}
.stack b.limit{position:absolute;top:-3px;bottom:-3px;width:0;border-left:2px dashed var(--bad)}
.keys span{margin-right:1rem;white-space:nowrap;font-size:.85rem;color:var(--faint)}
.keys i.key{display:inline-block;width:.8em;height:.8em;margin-right:.35em;print-color-adjust:exact}
.beyond{background:var(--slowest-node)}
@media(max-width:40rem){main{padding:.8rem .7rem 2rem}body{font-size:15px}h1{font-size:1.25rem}
th,td{padding:.25rem .3rem}td.name,td.n,th.n{white-space:normal}
td:last-child:not(.n),td.name{overflow-wrap:anywhere}
table.bars{font-size:.78rem}.bars td.n{white-space:nowrap}td.bar{min-width:1.5rem;width:40%}
table.many,.many tbody,.many tr{display:block}
.many thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.many tr{padding:.5rem 0;border-bottom:1px solid var(--rule)}.many td:empty{display:none}
.many td,.many td.n{display:flex;justify-content:space-between;gap:1rem;border:0;padding:.08rem .2rem;text-align:right;
overflow-wrap:anywhere}.many td::before{content:attr(data-head);color:var(--faint);text-align:left;flex:none;
overflow-wrap:normal}}
@media print{body{font-size:10.5pt}table{font-size:8.5pt}td,th{padding:.2rem .35rem}
main{max-width:none;padding:0}h2{break-after:avoid}summary{display:block;color:inherit;font-weight:600}
details::details-content{content-visibility:visible;display:block;height:auto}.wide{overflow:visible}.wide>svg.astra.big{min-width:0}pre{white-space:pre-wrap}
table.many{font-size:7pt}.many th.n,td.name{white-space:normal}.many td,.many th{padding:.15rem .25rem}
svg,tr,.facts{break-inside:avoid}@page{margin:16mm}}
"""
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
    return "".join([PALETTE, _STYLE, *(f".{name}{{background:var(--{name})}}" for name in _FILLED.split())])


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
    body = [
        tag(
            "tr",
            *(
                tag("td", quoted(cell), class_=kind, data_head=said)
                for cell, kind, said in zip(row, kinds, heads, strict=True)
            ),
            class_="best" if number == best else None,
        )
        for number, row in enumerate(rows)
    ]
    return wide(tag("table", tag("thead", head), tag("tbody", *body), class_="many" if many else None))


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
