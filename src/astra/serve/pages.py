"""The files of the page, read once: what comes with Astra, and the style that reports have."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources
from typing import Final, NamedTuple

from astra.report.page import stylesheet

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
