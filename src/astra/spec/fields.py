"""Records that are their own table of fields: name, type, default, how a value is read, flag, help and verbs.

A field is written once, as ``name: Annotated[type, Field(kind, help)] = default``, in a module whose annotations are
values, not text. Flags, keyword arguments, TOML and JSON are spellings of it, read by its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, ClassVar, NamedTuple

import msgspec

from astra.errors import InputError, did_you_mean
from astra.spec.kinds import FieldKind
from astra.spec.record import Spec


class Field(NamedTuple):
    """One field of a request."""

    kind: FieldKind
    help: str | Mapping[str, str]  # a sentence, or one for each verb
    verbs: str = "plan estimate rent"
    group: str = ""  # the heading it stands under in --help
    flag: str | None = ""  # how the command line spells it; empty: as its name; None: not at all
    typed: FieldKind | None = None  # how a flag is read, where its unit is another one
    also: str = ""  # the second field that the flag sets
    name: str = ""
    default: Any = msgspec.NODEFAULT  # it must be given

    def on(self, verb: str) -> bool:
        """Whether a verb takes it."""
        return verb in self.verbs.split()

    @property
    def spelled(self) -> str:
        """The flag."""
        return self.flag or f"--{self.name.replace('_', '-')}"

    def help_text(self, verb: str) -> str:
        """The help of a verb's flag, with the default where it says something."""
        text = self.help if isinstance(self.help, str) else self.help[verb]
        if self.default in (None, (), False, msgspec.NODEFAULT) or "default" in text:
            return text
        shown = f"{self.default:g}" if isinstance(self.default, float) else self.default
        return f"{text[:-1]}; default {shown})" if text.endswith(")") else f"{text} (default {shown})"

    def read(self, value: Any, where: str) -> Any:
        """The plain form of a value; None stands for an absence that is the default."""
        return None if value is None and self.default is None else self.kind.read(value, where)


class Fielded(Spec, frozen=True, kw_only=True):
    """A record whose fields are read by their kinds, whoever makes it."""

    place: ClassVar[str] = ""  # before the name of a field in errors

    def __post_init__(self) -> None:
        for name, field in fields_of(type(self)).items():
            value = field.read(getattr(self, name), f"{self.place}{name}")
            msgspec.structs.force_setattr(self, name, value)


@cache
def fields_of(record: type[Spec]) -> dict[str, Field]:
    """The fields of a record, in its order."""
    found = {}
    for help_text in msgspec.structs.fields(record):
        field = next(each for each in record.__annotations__[help_text.name].__metadata__ if isinstance(each, Field))
        default = help_text.default if help_text.default_factory is msgspec.NODEFAULT else help_text.default_factory()
        found[help_text.name] = field._replace(name=help_text.name, default=default)
    return found


def read_fields(
    record: type[Spec], values: Mapping[str, Any], place: Callable[[str], str] = str, taken: str = ""
) -> dict[str, Any]:
    """The plain forms of some fields; unknown ones get the nearest name. ``taken``: only what this verb takes."""
    known = {name: field for name, field in fields_of(record).items() if not taken or field.on(taken)}
    for name in values:
        if name not in known:
            raise unknown_field(str(name), known, place(str(name)), taken)
    return {name: known[name].read(value, place(name)) for name, value in values.items()}


def unknown_field(name: str, known: Mapping[str, Field], where: str, verb: str = "") -> InputError:
    """The error for a name that no field has."""
    fix = did_you_mean(name[:80], known, f"It has {', '.join(known)}.")
    return InputError(where, None, want=f"a field of {f'astra {verb}' if verb else 'a request'}", fix=fix)
