"""The files of the page, read once: what comes with Astra, and the style that reports have."""

from __future__ import annotations

from hashlib import sha256
from html import escape
from importlib import resources
from typing import Final, NamedTuple

import msgspec

from astra.report.page import stylesheet

# What the form asks as it comes, letter by letter.
OPENED: Final = {"model": "llama-2-70b", "batch": "1024", "seq": "4096", "tokens": "1T", "gpus": ["64xH100-SXM5-80GB"]}
OPENING: Final = msgspec.json.encode({"verb": "plan", "request": OPENED})
_EMPTY: Final = b'<div id="result"></div>'

_HTML: Final = "text/html; charset=utf-8"
_MEDIA: Final = {
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Page(NamedTuple):
    """A file as it is sent."""

    content: bytes
    media: str
    mark: str  # its ETag


def _page(content: bytes, ending: str) -> Page:
    return Page(content, _MEDIA.get(ending, _HTML), f'"{sha256(content).hexdigest()[:20]}"')


def _read() -> dict[str, Page]:
    static = resources.files("astra.serve") / "static"
    # The style is in the page: what is seen first waits for nothing else.
    style = f"<style>{stylesheet()}{(static / 'style.css').read_text(encoding='utf-8')}</style>".encode()
    found = {"/": _page((static / "index.html").read_bytes().replace(b"<style></style>", style), "html")}
    for file in static.iterdir():
        ending = file.name.rpartition(".")[2]
        if ending in _MEDIA:
            found[f"/{file.name}"] = _page(file.read_bytes(), ending)
    return found


PAGES: Final = _read()


def opened(view: bytes) -> Page:
    """The page with the answer to what its form asks already in it, so that the first look waits for nothing."""
    begun = f'<div id="result" data-asked="{escape(OPENING.decode())}">'.encode()
    return _page(PAGES["/"].content.replace(_EMPTY, begun + view + b"</div>"), "html")
