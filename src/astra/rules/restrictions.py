"""What the user fixes, forbids or bounds before the search: ``--fix tp=8 --forbid recompute=full --max pp=16``.

Fields are those of the strategy table (``astra.columns.FIELDS``); ``overlap`` and ``modules`` (what selective recompute
repeats) stand for their switches. A degree is switched off at 1, a switch at off, a choice at its first word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from astra.columns import FIELDS
from astra.errors import InputError, nearest_names
from astra.spec.record import Spec
from astra.spec.strategy_fields import CHOICES, INTEGERS, LEAST, MODULES, OVERLAPS, STRATEGY_FIELDS, SWITCHES
from astra.spec.synonyms import field_meant

Value = bool | int | str
T = TypeVar("T")

_LARGEST: Final = 10**9 - 1  # as in the text form of a strategy
_ALIASES: Final = {"flash_attention": "flash"}
_OVERLAP: Final = {f"overlap_{name}": name for name in OVERLAPS}
# Fields that stand for several switches, each with its word.
_SETS: Final = {"overlap": _OVERLAP, "modules": {f"recompute_{name}": name for name in MODULES}}
_TRUTHS: Final = {"on": True, "off": False, "true": True, "false": False, "yes": True, "no": False}
# Fields that "off" means something for; the others must be forbidden by value.
_OFF: Final[Mapping[str, Value]] = {field.name: field.off for field in STRATEGY_FIELDS if field.off is not None}


_GROUPS: Final = "groups"  # no field of a strategy, but of how several pools share the batch


class Restrictions(Spec, frozen=True, kw_only=True):
    """Values each field may take; a field that is not named is free."""

    fixed: dict[str, tuple[bool | int | str, ...]] = msgspec.field(default_factory=dict)
    forbidden: dict[str, tuple[bool | int | str, ...]] = msgspec.field(default_factory=dict)
    maxima: dict[str, int] = msgspec.field(default_factory=dict)
    minima: dict[str, int] = msgspec.field(default_factory=dict)
    equal_replicas: bool = False  # over several pools, all replicas are: no groups of unlike ones

    def __post_init__(self) -> None:
        for option, group in (("fix", self.fixed), ("forbid", self.forbidden)):
            for field, values in group.items():
                _check_field(option, field)
                for value in values:
                    _check_value(option, field, value)
        for option, bounds in (("max", self.maxima), ("min", self.minima)):
            for field, bound in bounds.items():
                _check_field(option, field)
                _check_bound(option, field, bound)
        for field in FIELDS:
            self._check_possible(field)
        for part in STRATEGY_FIELDS:
            if part.part_of and not self.allows(part.name, part.plain) and not self.allows(*part.part_of):
                owner, value = part.part_of
                want = f"{owner}={value}, which {part.name} belongs to; these contradict each other"
                raise InputError(f"{self._options(part.name)} and {self._options(owner)}", None, want=want)

    def allows(self, field: str, value: object) -> bool:
        """Whether a field may take a value; ``overlap`` takes a tuple of names."""
        if field in _SETS:
            chosen = value if isinstance(value, (tuple, list, set, frozenset)) else (value,)
            return all(self.allows(switch, name in chosen) for switch, name in _SETS[field].items())
        field = _ALIASES.get(field, field)
        plain: Any = value.item() if hasattr(value, "item") else value
        if field in self.fixed and plain not in self.fixed[field]:
            return False
        if plain in self.forbidden.get(field, ()):
            return False
        return bool(self.minima.get(field, plain) <= plain <= self.maxima.get(field, plain))

    def filter(self, field: str, candidates: Iterable[T]) -> list[T]:
        """The candidates a field may take, in their order."""
        if not self:
            return list(candidates)
        return [value for value in candidates if self.allows(field, value)]

    def describe(self) -> list[str]:
        """One sentence per restriction; what stands for several switches is told as it was typed."""
        sets = {name: switches for name, switches in _SETS.items() if self._whole(switches)}
        whole = {switch for switches in sets.values() for switch in switches}
        lines = [f"{field} is {_listed(values)}" for field, values in self.fixed.items() if field not in whole]
        lines += [f"{name} is {self._switched_on(switches)}" for name, switches in sets.items()]
        lines += [f"{field} is not {_listed(values)}" for field, values in self.forbidden.items()]
        lines += [f"{field} is at most {bound}" for field, bound in self.maxima.items()]
        lines += [f"{field} is at least {bound}" for field, bound in self.minima.items()]
        return lines + ["there are no groups of unlike replicas"] * self.equal_replicas

    def _whole(self, switches: Mapping[str, str]) -> bool:
        """Whether every one of some switches is fixed."""
        return all(len(self.fixed.get(switch, ())) == 1 for switch in switches)

    def _switched_on(self, switches: Mapping[str, str]) -> str:
        return ",".join(name for switch, name in switches.items() if self.fixed[switch] == (True,)) or "none"

    def __bool__(self) -> bool:
        return bool(self.fixed or self.forbidden or self.maxima or self.minima or self.equal_replicas)

    def _check_possible(self, field: str) -> None:
        """Refuse restrictions that leave a field without any value."""
        domain: Iterable[Value] | None = self.fixed.get(field)
        if domain is None and field in CHOICES:
            domain = CHOICES[field]
        elif domain is None and field in SWITCHES:
            domain = (False, True)
        elif domain is None and field == "zero":
            domain = range(4)
        elif domain is None and field in INTEGERS and (field in self.minima or field in self.maxima):
            low = max(LEAST[field], self.minima.get(field, LEAST[field]))
            high = min(self.maxima.get(field, _LARGEST), low + len(self.forbidden.get(field, ())))
            domain = range(low, high + 1)
        if domain is not None and not self.filter(field, domain):
            raise InputError(self._options(field), None, want=f"{field} to keep a value; these contradict each other")

    def _options(self, field: str) -> str:
        """The options that speak of a field, as typed."""
        off = f" (or --forbid {field})" if self.fixed.get(field) == (_OFF.get(field),) else ""
        words = [f"--fix {field}={_typed(self.fixed[field])}{off}"] if field in self.fixed else []
        words += [f"--forbid {field}={_typed(self.forbidden[field])}"] if field in self.forbidden else []
        words += [f"--max {field}={self.maxima[field]}"] if field in self.maxima else []
        words += [f"--min {field}={self.minima[field]}"] if field in self.minima else []
        return " and ".join(words)


def parse_restrictions(
    fix: Sequence[str] = (), forbid: Sequence[str] = (), maximum: Sequence[str] = (), minimum: Sequence[str] = ()
) -> Restrictions:
    """Read the arguments of ``--fix``, ``--forbid``, ``--max`` and ``--min``."""
    fixed: dict[str, tuple[Value, ...]] = {}
    for text in fix:
        for field, values in _parse_fix(text).items():
            _once("fix", field, fixed, values)
    forbidden: dict[str, tuple[Value, ...]] = {}
    kept = [text for text in forbid if text.strip().lower() != _GROUPS]
    for text in kept:
        field, equals, words = _split("forbid", text)
        if not equals:
            for switched, off in _switched_off(field).items():
                _once("fix", switched, fixed, (off,), said=f"--forbid {field}")
        elif field in _SETS:
            named = _named("forbid", field, words)
            forbidden |= {switch: (True,) for switch, name in _SETS[field].items() if name in named}
        else:
            values = tuple(_parse_value("forbid", field, word) for word in words)
            forbidden[field] = tuple(dict.fromkeys((*forbidden.get(field, ()), *values)))
    return Restrictions(
        fixed=fixed,
        forbidden=forbidden,
        maxima=_parse_bounds("max", maximum),
        minima=_parse_bounds("min", minimum),
        equal_replicas=len(kept) < len(forbid),
    )


def _parse_fix(text: str) -> dict[str, tuple[Value, ...]]:
    field, equals, words = _split("fix", text)
    if not equals:
        want = f"{field}=VALUE" if field not in (*SWITCHES, *_SETS) else f"{field}=on or {field}=off"
        raise InputError("--fix", text, want=want)
    if field in _SETS:
        chosen = _named("fix", field, words)
        return {switch: (name in chosen,) for switch, name in _SETS[field].items()}
    values = tuple(_parse_value("fix", field, word) for word in words)
    return {field: tuple(dict.fromkeys(values))}


def _split(option: str, text: str) -> tuple[str, str, list[str]]:
    """``"TP = 4, 8"`` as field, ``=`` and the words after it."""
    field, equals, rest = text.partition("=")
    field = field.strip().lower().replace("-", "_")
    field = _ALIASES.get(field, field)
    if field == _GROUPS:
        raise InputError(
            f"--{option}", text, want="groups in --forbid groups alone: replicas are alike, or need not be"
        )
    if field not in _SETS:
        _check_field(option, field)
    return field, equals, [word.strip().lower() for word in rest.lstrip("=").split(",")]


def _parse_value(option: str, field: str, word: str) -> Value:
    value: Value = word
    if field in SWITCHES:
        value = _TRUTHS.get(word, word)
    elif field in INTEGERS and word.isascii() and word.isdigit() and len(word) <= 9:
        value = int(word)
    _check_value(option, field, value)
    return value


def _parse_bounds(option: str, texts: Sequence[str]) -> dict[str, int]:
    bounds: dict[str, int] = {}
    for text in texts:
        field, _, words = _split(option, text)
        word = ",".join(words)
        bound: Any = int(word) if word.isascii() and word.isdigit() and len(word) <= 9 else word
        _check_bound(option, field, bound)
        _once(option, field, bounds, bound)
    return bounds


def _once(option: str, field: str, into: dict[str, T], value: T, said: str = "") -> None:
    if into.setdefault(field, value) != value:
        spoken = said or f"--{option} {field}"
        fix = f"To allow several values: --fix {field}=A,B." if option == "fix" else ""
        raise InputError(spoken, None, want=f"{field} to be restricted once by --{option}", fix=fix)


def _named(option: str, field: str, words: Sequence[str]) -> tuple[str, ...]:
    """Names of overlaps or modules; ``none`` is the empty set."""
    known = tuple(_SETS[field].values())
    for word in words:
        if word not in known and list(words) != ["none"]:
            raise InputError(f"--{option} {field}", word, want=f"none, or some of {', '.join(known)}")
    return () if list(words) == ["none"] else tuple(words)


def _switched_off(field: str) -> dict[str, Value]:
    if field in _SETS:
        return dict.fromkeys(_SETS[field], False)
    if field not in _OFF:
        raise InputError("--forbid", field, want=f"the value to forbid, as in --forbid {field}={_example(field)}")
    return {field: _OFF[field]}


def _check_field(option: str, field: str) -> None:
    if field in FIELDS:
        return
    owner = next((name for name, choices in CHOICES.items() if field in choices), None)
    meant = field_meant(field)
    if meant and meant[0] in FIELDS:
        near = ["=".join(filter(None, meant))]
    else:
        near = [f"{owner}={field}"] if owner else nearest_names(field, (*FIELDS, *_SETS))
    fix = f"Did you mean --{option} {' or '.join(near)}?" if near else f"Fields: {', '.join((*FIELDS, *_SETS))}."
    raise InputError(f"--{option}", field, want="a field of a strategy", fix=fix)


def _check_value(option: str, field: str, value: object) -> None:
    want, known = "", CHOICES.get(field, ())
    if field in SWITCHES:
        want = "" if isinstance(value, bool) else "on or off"
    elif field in CHOICES:
        want = "" if value in known else f"one of {', '.join(known)}"
    elif isinstance(value, bool) or not isinstance(value, int):
        want = "a whole number"
    else:
        low, high = _range(field)
        want = "" if low <= value <= high else f"a whole number from {low} to {high:,}"
    if want:
        near = nearest_names(str(value), known)
        raise InputError(f"--{option} {field}", value, want=want, fix=f"Did you mean {near[0]}?" if near else "")


def _check_bound(option: str, field: str, bound: object) -> None:
    if field not in INTEGERS:
        want = f"a field that is a number: {', '.join(INTEGERS)}"
        raise InputError(f"--{option}", field, want=want, fix=f"To pick a value: --fix {field}={_example(field)}.")
    _check_value(option, field, bound)


def _range(field: str) -> tuple[int, int]:
    return (0, 3) if field == "zero" else (LEAST[field], _LARGEST)


def _example(field: str) -> str:
    return CHOICES[field][-1] if field in CHOICES else "on" if field in SWITCHES else "8"


def _typed(values: Iterable[Value]) -> str:
    return ",".join(_word(value) for value in values)


def _listed(values: Iterable[Value]) -> str:
    return " or ".join(_word(value) for value in values)


def _word(value: Value) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)
