"""The error family: what a user did or asked that cannot be answered, with advice.

Each class has its own exit code. Anything else that escapes is a bug in Astra. Text from outside is made fit to be
shown: what would move a cursor, or hide or reorder letters, is written out instead. What must not break off is held
together while an interrupt waits.
"""

from __future__ import annotations

import signal
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Final


def visible(text: str) -> str:
    r"""The text on one line, with every character that cannot be seen as its escape (``\n``, ``\x1b``, ``\u202e``)."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def visible_lines(text: str) -> str:
    """The same of text that has lines of its own."""
    return "\n".join(visible(line) for line in text.split("\n"))


def shortened(text: str, most: int) -> str:
    """The text without its middle where it is longer than ``most`` characters."""
    kept = most - 3
    return text if len(text) <= most else f"{text[: kept - kept // 2]}...{text[len(text) - kept // 2 :]}"


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_MOST_SHOWN: Final = 80  # of what was given
_MOST_PLACE: Final = 500
_MOST_SENTENCE: Final = 4000


class AstraError(Exception):
    """Base of every error meant for the user: one paragraph, no traceback."""

    exit_code: ClassVar[int] = 1


class InputError(AstraError):
    """Something given is wrong: says where, what was given, what was wanted and how to fix it."""

    exit_code = 2

    def __init__(self, where: str, got: object, *, want: str, fix: str = "", picture: str = "") -> None:
        self.where, self.got, self.want, self.fix = where, got, want, fix
        # Places and wishes quote files and names; whatever is in those, the message is one line that can be seen.
        place = shortened(visible(where), _MOST_PLACE)
        wish, advice = (shortened(visible(text), _MOST_SENTENCE) for text in (want, fix))
        shown = f"got {_shown(got)}, " if got is not None else ""
        drawn = f"\n{visible_lines(picture)}" if picture else ""  # the only lines of their own: a caret under the fault
        super().__init__(f"{place}: {shown}wanted {wish}.{' ' + advice if advice else ''}{drawn}")


@contextmanager
def within(place: str) -> Iterator[None]:
    """Put a place in front of the errors that come from inside, where they do not say it already."""
    try:
        yield
    except InputError as error:
        if error.where == place or error.where.startswith(f"{place}:"):
            raise
        inner = error.where.removeprefix(": ")
        raise InputError(f"{place}: {inner}" if inner else place, error.got, want=error.want, fix=error.fix) from None


class UnknownName(InputError):
    """A name that is not in a catalog; suggests the nearest ones."""

    def __init__(self, where: str, name: str, known: Iterable[str], *, fix: str = "") -> None:
        names = sorted(known)
        self.nearest = nearest_names(name, names)
        hint = f"Did you mean {', '.join(self.nearest)}?" if self.nearest else fix
        super().__init__(where, name, want="a known name", fix=hint if not fix or hint == fix else f"{hint} {fix}")


class NoFeasiblePlan(AstraError):
    """No strategy is legal and fits; the message says what would be needed."""

    exit_code = 3


class NoCoverage(AstraError):
    """A number could only be assumed and the user asked to be refused in that case (``--strict``)."""

    exit_code = 4


class OutputError(AstraError):
    """A result could not be written; nothing half-written is left behind."""

    exit_code = 5


def nearest_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """The ``count`` names most like ``name``, ignoring case and punctuation."""
    from difflib import get_close_matches  # noqa: PLC0415 - most names are known

    folded: dict[str, str] = {}
    for candidate in known:
        folded.setdefault(fold(candidate), candidate)
    wanted = fold(name)
    close = get_close_matches(wanted, folded, n=count, cutoff=0.75)
    inside = sorted((key for key in folded if wanted and (wanted in key or key in wanted)), key=lambda k: -len(k))
    inside = [key for key in inside if 2 * min(len(key), len(wanted)) >= len(wanted)]
    begin = sorted((key for key in folded if wanted and key.startswith(wanted)), key=lambda key: (len(key), key))
    distant = get_close_matches(wanted, folded, n=count, cutoff=0.5)
    ordered = list(dict.fromkeys([*begin, *close, *inside, *distant]))
    return [folded[key] for key in ordered[:count]]


@lru_cache(maxsize=8192)
def fold(name: str) -> str:
    """A name with case and punctuation removed, so that ``Llama-3_8B`` and ``llama3-8b`` agree."""
    return "".join(filter(str.isalnum, name.lower()))


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """The names nearest to one that is not known, as a question; something else where none is near."""
    near = nearest_names(name, known)
    return f"Did you mean {', '.join(near)}?" if near else otherwise


def _shown(got: object) -> str:
    try:
        text = visible(repr(got))
    except Exception:  # a number of thousands of digits, or an object that cannot show itself
        text = f"a value of the type {type(got).__name__}"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold an interrupt back until the end of the block, on POSIX."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
