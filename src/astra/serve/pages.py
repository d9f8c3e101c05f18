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

_MEDIA: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Page(NamedTuple):
    """A file as it is sent."""

    content: bytes
    media: str
    mark: str  # its ETag


def _page(content: bytes, ending: str) -> Page:
    return Page(content, _MEDIA[ending], f'"{sha256(content).hexdigest()[:20]}"')


def _read() -> dict[str, Page]:
    found = {"/report.css": _page(stylesheet().encode(), "css")}
    for file in (resources.files("astra.serve") / "static").iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending in _MEDIA:
            found["/" if file.name == "index.html" else f"/{name}.{ending}"] = _page(file.read_bytes(), ending)
    return found


PAGES: Final = _read()


def opened(view: bytes) -> Page:
    """The page with the answer to what its form asks already in it, so that the first look waits for nothing."""
    begun = f'<div id="result" data-asked="{escape(OPENING.decode())}">'.encode()
    return _page(PAGES["/"].content.replace(_EMPTY, begun + view + b"</div>"), "html")
