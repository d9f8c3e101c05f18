"""Drawing primitives shared by the text reports: pages of rich renderables turned into a string, bars, tables."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from astra.errors import visible_lines

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment
    from rich.table import Table
    from rich.text import Text

NARROWEST: Final = 60
WIDEST: Final = 160
UNKNOWN_TERMINAL: Final = (100, 24)
PROSE: Final = 110  # longer lines are hard to follow
SCREEN_LINES: Final = 40
USUAL_PLANS, FEWEST_PLANS = 5, 3  # who asks for more sees them all

_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def page_width(width: int | None) -> int:
    """The columns to draw in: as asked, or those of the terminal, within what reads well."""
    return max(NARROWEST, width) if width is not None else _terminal_width()


def _terminal_width() -> int:
    return min(max(shutil.get_terminal_size(UNKNOWN_TERMINAL).columns, NARROWEST), WIDEST)


def on_a_screen(render: Callable[[int], str], plans: int, tight: Callable[[int], str] | None = None) -> str:
    """A text with as many plans as one screen has room for: three or more, and all that it speaks of.

    ``tight`` says less, for a terminal so low that even those have no room.
    """
    text, most = render(plans), screen_lines()
    spoken = max((int(number) for number in re.findall(r"#(\d+)", text)), default=1)
    while plans <= USUAL_PLANS and plans > max(FEWEST_PLANS, spoken) and text.count("\n") > most:
        plans -= 1
        text = render(plans)
    return tight(plans) if tight is not None and text.count("\n") > most else text


def screen_lines() -> int:
    """The lines of a screen: those of a terminal that is lower than most, beside the line for the next command."""
    if sys.stdout is None or not sys.stdout.isatty():
        return SCREEN_LINES
    return min(shutil.get_terminal_size(UNKNOWN_TERMINAL).lines - 1, SCREEN_LINES)


def days(time_days: float | None) -> str:
    """Days of training as a cell."""
    if time_days is None:
        return "-"
    return f"{time_days:.2f}" if time_days < 1 else f"{time_days:,.1f}"


def draw(parts: Iterable[RenderableType], *, width: int, color: bool) -> str:
    """The parts one under the other, as text; lines have no trailing blanks and the text ends in one newline."""
    from rich.console import Console  # noqa: PLC0415

    page = io.StringIO()
    console = Console(
        file=page,
        width=width,
        force_terminal=color,
        force_jupyter=False,
        force_interactive=False,
        color_system="standard" if color else None,
        no_color=not color,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(_Visible(part))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


class _Visible(NamedTuple):
    """A part whose letters can all be seen: colours are the page's, never those of a name."""

    part: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.part, options):
            yield segment._replace(text=visible_lines(segment.text))


def text(*pieces: str | tuple[str, str]) -> Text:
    """Plain and styled pieces in a row."""
    from rich.text import Text  # noqa: PLC0415

    return Text.assemble(*pieces, overflow="fold")


def prose(*pieces: str | tuple[str, str]) -> RenderableType:
    """A paragraph, kept narrow enough to read."""
    from rich.constrain import Constrain  # noqa: PLC0415

    return Constrain(text(*pieces), PROSE)


def remark(sentence: str | None) -> list[RenderableType]:
    """A paragraph that should be seen, or nothing."""
    return [prose((sentence, "yellow"))] if sentence else []


def blank() -> Text:
    """An empty line."""
    return text("")


def heading(title: str, note: str = "") -> RenderableType:
    """A section title with an optional remark beside it."""
    return prose((title, "bold cyan"), (f"  {note}", "dim") if note else "")


def table(*columns: tuple[str, str], gap: int = 2) -> Table:
    """A table without frames; each column is a header and ``left``, ``right`` or ``wrap`` (left, may wrap)."""
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    # The box draws one blank between columns, so the padding is the rest of the gap.
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, gap - 1, 0, 0))
    out.header_style = "bold"
    for name, side in columns:
        out.add_column(name, justify="right" if side == "right" else "left", no_wrap=side != "wrap", overflow="fold")
    return out


def bullets(sentences: Iterable[str], *, mark: str = "-", style: str = "") -> list[RenderableType]:
    """Sentences that wrap under themselves, each behind a mark."""
    from rich.constrain import Constrain  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True, style=style)
    grid.add_column(overflow="fold")
    rows = [sentence for sentence in sentences if sentence]
    for sentence in rows:
        grid.add_row(mark, sentence)
    return [Constrain(grid, PROSE)] if rows else []


def closing(warnings: Sequence[str], notes: Sequence[str]) -> list[RenderableType]:
    """What a report ends with: what to beware of, and what was assumed."""
    parts: list[RenderableType] = [blank(), *bullets(warnings, mark="!", style="yellow")] if warnings else []
    return [*parts, blank(), *bullets(notes, mark="note:", style="dim")] if notes else parts


def cut(words: str, cells: int) -> str:
    """The beginning that fits."""
    return words if len(words) <= cells else words[: max(cells - 1, 0)] + "…"


def bar(fraction: float, cells: int) -> str:
    """A bar of at most ``cells`` cells, in steps of an eighth; anything above zero shows."""
    eighths = round(min(max(fraction, 0.0), 1.0) * cells * 8)
    if fraction > 0 and eighths == 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return "█" * full + (_EIGHTHS[rest] if rest else "")


_PLAIN: Final = str.maketrans(
    {"█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": ":", "▎": ":", "▏": ":", "─": "-", "━": "-", "±": "~"}
    | {"…": ".", "│": "|", "▶": ">"}
)


def encodable(drawn: str, encoding: str | None) -> str:
    """The same text in characters the stream can carry."""
    try:
        drawn.encode(encoding or "utf-8")
    except UnicodeEncodeError:
        return drawn.translate(_PLAIN).encode(encoding or "ascii", "replace").decode(encoding or "ascii")
    except LookupError:
        return drawn.translate(_PLAIN).encode("ascii", "replace").decode("ascii")
    return drawn
