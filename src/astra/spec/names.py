"""Names and remarks that users give: what may be one, checked wherever a record is made.

A name is shown, compared, and written into scripts and files of other programs. So it is one line of characters that
can be seen: no line breaks, no escape sequences, nothing that reorders or hides its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar, get_args

import msgspec

from astra.errors import InputError, did_you_mean, shortened, visible
from astra.spec.record import finite

MOST_IN_NAME: Final = 80
MOST_IN_LINE: Final = 1000

# The name of a model, GPU, node, pool, provider, region, ...: may be empty only where a record has a default for it.
Name = Annotated[str, msgspec.Meta(extra={"most": MOST_IN_NAME})]
# A source, a remark: one line of text.
Line = Annotated[str, msgspec.Meta(extra={"most": MOST_IN_LINE})]
# Numbers above zero, whole or not; and from zero on.
Size = Annotated[int, msgspec.Meta(extra={"zero": False})]
Positive = Annotated[float, msgspec.Meta(extra={"zero": False})]
Count = Annotated[int, msgspec.Meta(extra={"zero": True})]
Amount = Annotated[float, msgspec.Meta(extra={"zero": True})]


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


def check_fields(where: str, record: msgspec.Struct, named: str = "") -> None:
    """Every field of a record holds what its type allows: names, lines and numbers, also inside tuples and as keys.

    ``named`` is how a record is called in errors once its name is known to be one.
    """
    for rule in _rules(type(record)):
        for value in _values(getattr(record, rule.field)):
            if rule.most is not None:
                _checked(f"{where}.{rule.field}", value, rule.most, empty=rule.zero)
            elif not (finite(value) and (value > 0 or (rule.zero and value == 0))):
                want = f"a finite number {'at or ' if rule.zero else ''}above zero"
                raise InputError(f"{named or where}.{rule.field}", value, want=want)


def check_keys(given: Iterable[str], known: Collection[str], where: str, want: str) -> None:
    """Refuse keys of a table that are not known, with the nearest that is."""
    for key in given:
        if key not in known:
            fix = did_you_mean(key[:80], known, f"It has {', '.join(known)}.")
            raise InputError(f"{where}: {as_name(key)}", None, want=want, fix=fix)


class _FieldRule(NamedTuple):
    field: str
    most: int | None  # letters; None: it is a number
    zero: bool  # which may be zero; of letters, that there may be none


@cache
def _rules(kind: type[msgspec.Struct]) -> tuple[_FieldRule, ...]:
    found = []
    for field in msgspec.structs.fields(kind):
        extra = _extra(field.type)
        if extra is not None:
            most = extra.get("most")
            empty = most is not None and (most > MOST_IN_NAME or not field.required)
            found.append(_FieldRule(field.name, most, extra.get("zero", empty)))
    return tuple(found)


def _extra(kind: Any) -> dict[str, Any] | None:
    """What a field's type says of its values, wherever in it; None if nothing."""
    for note in getattr(kind, "__metadata__", ()):
        if isinstance(note, msgspec.Meta) and note.extra:
            return note.extra
    return next((extra for inner in get_args(kind) if (extra := _extra(inner)) is not None), None)


def _values(value: Any) -> Iterator[Any]:
    """The values of a field: itself, its items or its keys."""
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


class _Named(Protocol):
    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=_Named)


def by_name(*entries: Entry) -> dict[str, Entry]:
    """A registry; two entries of one name are refused."""
    found = {entry.name: entry for entry in entries}
    if len(found) < len(entries):
        raise ValueError(f"two entries of {', '.join(entry.name for entry in entries)} have one name")
    return found
