"""A picture as PNG, by the optional resvg: colours are the light ones, since a PNG cannot follow its reader."""

from __future__ import annotations

import re
from importlib.util import find_spec
from typing import Final

from astra.errors import InputError
from astra.report.markup import LIGHT

SCALE: Final = 2  # pixels for each unit of the picture
_USED: Final = re.compile(r"var\((--[a-z0-9-]+)\)")
_PALETTES: Final = re.compile(r":root\{[^}]*\}|@media[^{]*\{:root\{[^}]*\}\}")


def check_png(where: str) -> None:
    """An error if what draws pixels is not installed; ``where`` is the option that asked for it."""
    if find_spec("resvg_py") is None:
        fix = "Install it (pip install 'astra-planner[plot]'), or ask for .svg or .html, which need nothing."
        raise InputError(where, ".png", want="resvg-py for a PNG", fix=fix)


def png(svg: str, where: str) -> bytes:
    """The picture in pixels."""
    check_png(where)
    import resvg_py  # type: ignore[import-not-found,unused-ignore] # noqa: PLC0415

    return bytes(resvg_py.svg_to_bytes(svg_string=flattened(svg), zoom=SCALE))


def flattened(svg: str) -> str:
    """The same picture without variables, which few programs but browsers know."""
    colors = dict(pair.split(":", 1) for pair in LIGHT.split(";"))
    return _USED.sub(lambda found: colors[found.group(1)], _PALETTES.sub("", svg))
