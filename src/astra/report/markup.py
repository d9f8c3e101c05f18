"""HTML and SVG, the one way out for both: whatever is no markup of ours goes through ``quoted``."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from astra.errors import visible

_EMPTY = frozenset(["rect", "line", "path", "circle", "polyline", "polygon", "meta", "br", "input"])
BIG = 600.0  # from here on a picture is moved sideways on a narrow screen, and not made too small to read
# Colours by meaning, in light and dark. Kinds of work are told apart by lightness too, for print and colour blindness.
LIGHT = (
    "--paper:#fff;--ink:#1c2430;--faint:#5c6675;--rule:#d5dae1;--panel:#f5f7f9;--accent:#1d5fa8;--bad:#b3261e;"
    "--good:#1f7a45;--warn:#8a5a00;--forward:#4c8fd6;--backward:#2a9a73;--weight-gradient:#8ccfae;--p2p:#e8a33d;"
    "--bubble:#e3e6ea;--gradient-reduction:#8f6bc4;--optimizer:#c2557a;--host:#7d8794;--slowest-node:#b9c0c9;"
    "--compute:#2a9a73;--communication:#e8a33d;--idle:#c8553d;--other:#7d8794;"
    "--weights:#4c8fd6;--gradients:#8f6bc4;--optim:#c2557a;--activations:#2a9a73;--buffers:#7d8794;--held:.32"
)
_DARK = (
    "--paper:#12161c;--ink:#e4e8ee;--faint:#9aa5b4;--rule:#333c48;--panel:#1a2029;--accent:#7db4ee;--bad:#ff8a80;"
    "--good:#6fcf97;--warn:#e6b450;--forward:#3f7fc4;--backward:#258a67;--weight-gradient:#63a587;--p2p:#d39231;"
    "--bubble:#2a313b;--gradient-reduction:#8262b5;--optimizer:#b34d70;--host:#6c7683;--slowest-node:#4a5360;"
    "--compute:#258a67;--communication:#d39231;--idle:#c8553d;--other:#6c7683;"
    "--weights:#3f7fc4;--gradients:#8262b5;--optim:#b34d70;--activations:#258a67;--buffers:#6c7683;--held:.6"
)
PALETTE = f":root{{{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}@media print{{:root{{{LIGHT}}}}}"
_FILLED = (
    "forward backward weight-gradient p2p bubble gradient-reduction optimizer host slowest-node compute communication "
    "idle other weights gradients optim activations buffers accent"
)
PICTURE = (
    "svg.astra{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;background:var(--paper)}"
    "svg.astra text{fill:var(--ink)}svg.astra .faint{fill:var(--faint)}svg.astra .bold{font-weight:600}"
    "svg.astra .rule{stroke:var(--rule);stroke-width:1}svg.astra .limit{stroke:var(--bad);stroke-dasharray:4 3}"
    "svg.astra .small{font-size:10px}svg.astra .on{fill:#fff}svg.astra .end{text-anchor:end}"
    "svg.astra .mid{text-anchor:middle}svg.astra .odd{fill-opacity:.72}"
    "svg.astra .held{fill:var(--activations);fill-opacity:var(--held)}"
    + "".join(f"svg.astra .{name}{{fill:var(--{name})}}" for name in _FILLED.split())
)


def quoted(words: object) -> str:
    """Words without a meaning in HTML and SVG, in or outside a quoted attribute."""
    return escape(visible(str(words)), quote=True)


def tag(name: str, /, *content: str, **attributes: object) -> str:
    """An element; its content is markup already, attributes are quoted here.

    An underscore is a hyphen, one at the end is dropped (``class_``); an attribute of None is left out, of True is
    given without a value.
    """
    given = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    inside = "".join(content)
    return f"<{name}{given}/>" if not inside and name in _EMPTY else f"<{name}{given}>{inside}</{name}>"


def _attribute(key: str, value: object) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if value is True:
        return f" {name}"
    shown = f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else quoted(value)
    return f' {name}="{shown}"'


def joined(*content: str) -> str:
    """Elements one after another."""
    return "".join(content)


def label(words: object, x: float, y: float, **attributes: object) -> str:
    """Text of a picture."""
    return tag("text", quoted(words), x=x, y=y, **attributes)


def keys(entries: Iterable[tuple[str, str]], y: float, width: float, *, box: float = 12, letter: float = 7
         ) -> tuple[list[str], float]:  # fmt: skip
    """Words beside boxes of their colours, in as many lines as they need, and the top of the last of those."""
    parts, x = list[str](), 12.0
    for words, name in entries:
        room = 34 + letter * len(words)
        if x > 12 and x + room > width:
            x, y = 12.0, y + 20
        parts += [tag("rect", x=x, y=y, width=box, height=12, class_=name), label(words, x + box + 6, y + 10)]
        x += room
    return parts, y


def picture(width: float, height: float, title: str, *content: str, role: str = "img") -> str:
    """An SVG that stands alone or inside a page, as wide as there is room; its colours follow the reader's.

    One with links in it is no ``img`` but a ``group``, so that whoever listens can reach them.
    """
    return tag(
        "svg",
        tag("title", quoted(title)),
        tag("style", PALETTE, PICTURE),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        width=f"{width:g}",
        height=f"{height:g}",
        role=role,
        class_="astra big" if width >= BIG else "astra",
        aria_label=title,
    )
