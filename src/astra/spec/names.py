"""Names and remarks that users give: what may be one, checked wherever a record is made.

A name is shown, compared, and written into scripts and files of other programs. So it is one line of characters that
can be seen: no line breaks, no escape sequences, nothing that reorders or hides its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, get_args

import msgspec

from astra.errors import InputError, did_you_mean, shortened, visible

MOST_IN_NAME: Final = 80
MOST_IN_LINE: Final = 1000

# The name of a model, GPU, node, pool, provider, region, ...: may be empty only where a record has a default for it.
Name = Annotated[str, msgspec.Meta(extra={"most": MOST_IN_NAME})]
# A source, a remark: one line of text.
Line = Annotated[str, msgspec.Meta(extra={"most": MOST_IN_LINE})]


def check_name(where: str, value: object, *, empty: bool = False) -> str:
    """The value, if it is a name; ``empty`` names pass where they mean none."""
    return _checked(where, value, MOST_IN_NAME, empty=empty)


def check_line(where: str, value: object) -> str:
    """The value, if it is one line of text."""
    return _checked(where, value, MOST_IN_LINE, empty=True)


def as_name(text: str) -> str:
    """A name made of any text, such as that of a file."""
    return shortened(visible(text).strip(), MOST_IN_NAME) or "unnamed"


def as_line(text: str) -> str:
    """One line made of any text, such as the path of a file."""
    return shortened(visible(text).strip(), MOST_IN_LINE)


def check_names(where: str, record: msgspec.Struct) -> None:
    """Every field of a record that is a `Name` or a `Line`, also inside tuples and as keys, is one."""
    for rule in _rules(type(record)):
        for value in _texts(getattr(record, rule.field)):
            _checked(f"{where}.{rule.field}", value, rule.most, empty=rule.empty)


def check_keys(given: Iterable[str], known: Collection[str], where: str, want: str) -> None:
    """Refuse keys of a table that are not known, with the nearest that is."""
    for key in given:
        if key not in known:
            fix = did_you_mean(key[:80], known, f"It has {', '.join(known)}.")
            raise InputError(f"{where}: {as_name(key)}", None, want=want, fix=fix)


class _Rule(NamedTuple):
    field: str
    most: int
    empty: bool


@cache
def _rules(kind: type[msgspec.Struct]) -> tuple[_Rule, ...]:
    fields = ((field, _most(field.type)) for field in msgspec.structs.fields(kind))
    return tuple(
        _Rule(field.name, most, empty=most > MOST_IN_NAME or not field.required)
        for field, most in fields
        if most is not None
    )


def _most(kind: Any) -> int | None:
    """The letters a field's type allows, wherever in it the text stands; None if there is none."""
    for note in getattr(kind, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and note.extra and "most" in note.extra:
            return int(note.extra["most"])
    return next((most for inner in get_args(kind) if (most := _most(inner)) is not None), None)


def _texts(value: object) -> Iterator[object]:
    """The texts of a field: itself, its items or its keys."""
    if isinstance(value, tuple | list | dict):
        yield from value
    elif value is not None:
        yield value


def _checked(where: str, value: object, most: int, *, empty: bool) -> str:
    kind = "a name" if most == MOST_IN_NAME else "one line of text"
    if not isinstance(value, str):
        raise InputError(where, value, want=f"{kind}, as text")
    trimmed = value.strip() == value or most > MOST_IN_NAME
    if len(value) <= most and value.isprintable() and trimmed and (value or empty):
        return value
    want = f"{kind} of {'at most' if empty else '1 to'} {most:,} characters that can be seen"
    raise InputError(where, value, want=want, fix=_fix(value, most))


def _fix(value: str, most: int) -> str:
    hidden = [letter for letter in value if not letter.isprintable()]
    if hidden:
        return f"Take {visible(hidden[0])} out, at position {value.index(hidden[0]) + 1}."
    if len(value) > most:
        return f"It has {len(value):,}: shorten it."
    return "Take the blanks off its ends." if value else "It is empty."
