"""A study as its TOML file declares it: axes of settings, each setting some fields of a request.

Every combination of one setting of each axis is a question. A setting is a text that says the main thing of its axis
(a model, GPUs, an objective, a market), or a table of fields; ``[request]`` has the fields that all questions share.
An answer is known again by its question's key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

import astra
from astra.catalog.clusters import read_cluster
from astra.catalog.hardware import catalog_hash
from astra.catalog.models import is_known
from astra.catalog.models import model as find_model
from astra.catalog.requests import read_plain
from astra.errors import InputError, within
from astra.files import read_bytes, read_toml
from astra.rules.table import rule_lines
from astra.search.world import World
from astra.spec.fields import read_fields
from astra.spec.money import MARKETS, MONEY_FIELDS, Money
from astra.spec.names import as_name, check_keys, check_line, check_name
from astra.spec.request import PlanRequest, as_meant

AXES: Final = ("models", "fleets", "workloads", "goals", "prices")
MOST_QUESTIONS: Final = 1_000_000
_KEYS: Final = ("title", "request", *AXES)
_PROBE: Final = {"model": "llama-2-7b", "gpus": ("8xH100",), "tokens": 1e9}  # what a setting by itself is tried with
_EXAMPLE: Final = {"models": '"llama-3-8b", "llama-3-70b"', "fleets": '"64xH100", "256xH100"'}


class Setting(NamedTuple):
    """One value of an axis."""

    name: str
    fields: dict[str, Any]  # of a request, in their plain forms


class Study(NamedTuple):
    """What a file declares."""

    title: str
    axes: dict[str, tuple[Setting, ...]]  # all of AXES, in their order; one that is not declared has one empty setting
    shared: dict[str, Any]

    @property
    def size(self) -> int:
        """How many questions there are."""
        return prod(len(settings) for settings in self.axes.values())

    @property
    def varied(self) -> list[str]:
        """The axes that make a difference."""
        return [axis for axis, settings in self.axes.items() if len(settings) > 1]

    def requests(self) -> Iterator[tuple[dict[str, str], PlanRequest]]:
        """Every question: the name of its setting on each axis, and its request. The last axis changes fastest."""
        for settings in product(*self.axes.values()):
            at = {axis: setting.name for axis, setting in zip(self.axes, settings, strict=True)}
            yield at, _request(self.shared, *(setting.fields for setting in settings))


def read_study(path: str) -> Study:
    """The study of a TOML file; whatever is wrong in it is told now, not after an hour."""
    return study_of(read_toml(path, "study"), path, Path(path).parent)


def study_of(tables: Mapping[str, Any], where: str, folder: Path) -> Study:
    """The study of plain tables; paths in them are from ``folder``."""
    check_keys(tables, _KEYS, where, "a key of a study")
    title = check_line(f"{where}: title", tables.get("title", Path(where).stem))
    reader = _StudyReader(where, folder)
    shared = reader.fields(tables.get("request", {}), "request")
    reader.try_(shared, shared, "request")
    axes = {axis: reader.settings(axis, tables.get(axis), shared) for axis in AXES}
    study = Study(title, axes, shared)
    _check(study, where)
    return study


class _StudyReader(NamedTuple):
    where: str
    folder: Path

    def settings(self, axis: str, declared: Any, shared: Mapping[str, Any]) -> tuple[Setting, ...]:
        """The settings of an axis: a list, or a table by name."""
        if declared is None:
            return (Setting("", {}),)
        if not isinstance(declared, dict | list) or not declared:
            want = "a list such as ['a', 'b'], or a table of names, with at least one entry"
            raise InputError(f"{self.where}: {axis}", declared, want=want)
        named = declared.items() if isinstance(declared, dict) else _named(declared)
        found = [self._setting(axis, name, entry, shared) for name, entry in named]
        names = [setting.name for setting in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            fix = "Give it another name, or leave one of them out."
            raise InputError(f"{self.where}: {axis}", twice, want="a name for each setting", fix=fix)
        return tuple(found)

    def _setting(self, axis: str, name: str, entry: Any, shared: Mapping[str, Any]) -> Setting:
        place = f"{axis}.{as_name(name)}"
        if isinstance(entry, dict):
            fields = {key: value for key, value in entry.items() if key != "name"}
            own = {"money": fields} if axis == "prices" else fields
        else:
            own = _SHORT[axis](entry, f"{self.where}: {place}")
        read = self.fields(own, place)
        self.try_(read, shared, place)
        return Setting(check_name(f"{self.where}: {place}", name), read)

    def fields(self, own: Any, place: str) -> dict[str, Any]:
        """Fields in their plain forms; what is in files is read now, once."""
        where = f"{self.where}: {place}"
        if not isinstance(own, dict):
            raise InputError(where, own, want="a table of fields of astra plan (docs/requests.md)")
        if isinstance(money := own.get("money"), dict):
            read_fields(Money, money, lambda name: f"{where}.{name}")
        read = read_plain(own, where, self.folder)
        with within(where):
            return _without_files(read)

    def try_(self, own: Mapping[str, Any], shared: Mapping[str, Any], place: str) -> None:
        """Look up the names of a setting by itself, or those of what is shared."""
        tried = {name: value for name, value in own.items() if name != "batch" or isinstance(value, int)}
        if "gpus" in own:
            tried |= {name: shared[name] for name in ("node",) if name in _kept(shared, own)}
        elif "cluster" not in own:
            tried.pop("node", None)  # of GPUs that others say
        money = {"money": {**shared.get("money", {}), **own["money"]}} if "money" in own else {}
        with within(f"{self.where}: {place}"):
            world = World.of(_request(_PROBE, tried, money))
            if own is not shared and {"objective", "budget", "deadline"} & own.keys():
                _ = world.goal


def _named(entries: list[Any]) -> Iterator[tuple[str, Any]]:
    """Names for the entries of a list: their own, or what they say."""
    for entry in entries:
        if isinstance(entry, dict):
            said = " ".join(f"{key}={value}" for key, value in entry.items())
            yield str(entry.get("name", as_name(said or "usual"))), entry
        else:
            yield as_name("+".join(map(str, entry)) if isinstance(entry, list) else str(entry)), entry


def _fleet(entry: Any, where: str) -> dict[str, Any]:
    if isinstance(entry, list):
        return {"gpus": entry}
    text = _text(entry, where, "GPUs such as 64xH100, or a cluster's TOML file")
    return {"cluster": text} if text.lower().endswith(".toml") else {"gpus": text}


def _workload(entry: Any, where: str) -> dict[str, Any]:
    raise InputError(where, entry, want="a table of fields, such as { batch = 1024, seq = 8192, tokens = '1T' }")


def _price(entry: Any, where: str) -> dict[str, Any]:
    text = _text(entry, where, "a market, a CSV file of offers, or a table of money options")
    if text.lower().endswith(".csv"):
        return {"money": {"prices": text}}
    if text not in (*MARKETS, "any"):
        fix = f"A table may have {', '.join(MONEY_FIELDS)}."
        raise InputError(where, entry, want=f"one of {', '.join((*MARKETS, 'any'))}, a .csv file, or a table", fix=fix)
    return {"money": {"market": text}}


def _text(entry: Any, where: str, want: str) -> str:
    if not isinstance(entry, str) or not entry.strip():
        raise InputError(where, entry, want=f"{want}, or a table of fields")
    return entry


_SHORT: Final[dict[str, Callable[[Any, str], dict[str, Any]]]] = {
    "models": lambda entry, where: {"model": _text(entry, where, "a model")},
    "fleets": _fleet,
    "workloads": _workload,
    "goals": lambda entry, where: {"objective": _text(entry, where, "an objective such as cheapest")},
    "prices": _price,
}


def _without_files(fields: dict[str, Any]) -> dict[str, Any]:
    """Models, clusters and rules of files as what is in them, so that a worker on another machine needs no file."""
    found = dict(fields)
    if isinstance(found.get("model"), str):
        spec = find_model(found["model"])
        found["model"] = found["model"] if is_known(spec) else spec
    if isinstance(found.get("cluster"), str):
        found["cluster"] = read_cluster(Path(found["cluster"]))
    if isinstance(found.get("rules"), str):
        found["rules"] = tuple(rule_lines(found["rules"]))
    money = found.get("money")
    if isinstance(money, dict) and isinstance(money.get("prices"), str):
        found["money"] = {**money, "prices": str(Path(money["prices"]).absolute())}
    return found


def _kept(fields: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The fields without those that a setting's GPUs replace: a node type by itself is that of all GPUs named later."""
    gone = {"gpus", "cluster", "node"} if {"gpus", "cluster"} & own.keys() else set()
    if "cluster" not in own and not {"gpus", "cluster"} & fields.keys():
        gone.discard("node")
    return {name: value for name, value in fields.items() if name not in gone}


def _request(shared: Mapping[str, Any], *settings: Mapping[str, Any]) -> PlanRequest:
    fields: dict[str, Any] = dict(shared)
    for own in settings:
        fields = _kept(fields, own)
        money = {**fields.get("money", {}), **own.get("money", {})}
        fields = {**fields, **own, **({"money": money} if money else {})}
    return PlanRequest(**as_meant(fields))


def _check(study: Study, where: str) -> None:
    """What only the whole can be asked: a model and GPUs, no field said by two axes, not too many questions."""
    said: dict[str, str] = {}
    for axis, settings in study.axes.items():
        for name in {name for setting in settings for name in setting.fields}:
            if said.setdefault(name, axis) != axis:
                fix = f"{said[name]} and {axis} both say it: let one axis say it, or put it into [request]."
                raise InputError(f"{where}: {axis}", name, want="each field said by one axis", fix=fix)
    for axis, names in (("models", ("model",)), ("fleets", ("gpus", "cluster"))):
        for setting in study.axes[axis]:
            if not any(name in fields for name in names for fields in (setting.fields, study.shared)):
                fix = f"Such as {axis} = [{_EXAMPLE[axis]}]."
                raise InputError(f"{where}: {axis}", setting.name or None, want=f"the {axis} to plan", fix=fix)
    if study.size > MOST_QUESTIONS:
        counted = " x ".join(f"{len(settings):,} {axis}" for axis, settings in study.axes.items())
        raise InputError(where, f"{study.size:,} questions ({counted})", want=f"at most {MOST_QUESTIONS:,}")


class Question(NamedTuple):
    """One request of a study."""

    number: int  # in the order of the study, from 0
    at: dict[str, str]  # the setting of each axis, by name
    request: PlanRequest
    key: str


def questions_of(study: Study) -> Iterator[Question]:
    """Every question of a study."""
    for number, (at, request) in enumerate(study.requests()):
        yield Question(number, at, request, key_of(request))


def fingerprint() -> dict[str, str]:
    """What an answer depends on besides its request."""
    return {"version": astra.__version__, "catalog": catalog_hash()}


def key_of(request: PlanRequest) -> str:
    """The same for one request to the same code and catalog, whatever the study is called or however it is ordered."""
    prices = "" if request.money.prices is None else _content(request.money.prices)
    asked = msgspec.json.encode([request.plain("plan"), prices, *_planner()], order="sorted")
    return sha256(asked).hexdigest()[:32]


@lru_cache(maxsize=1)
def _planner() -> tuple[str, ...]:
    return (*fingerprint().values(), code_hash(Path(astra.__file__).parent))


def code_hash(package: Path) -> str:
    """A mark of the planner's own code: a version that is being worked on answers differently under one number."""
    digest = sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(file.relative_to(package).as_posix().encode() + b"\0")
        digest.update(file.read_bytes().replace(b"\r\n", b"\n") + b"\0")
    return digest.hexdigest()


@lru_cache(maxsize=64)
def _content(path: str) -> str:
    """A mark of what is in a file of prices."""
    return sha256(read_bytes(path, "prices")).hexdigest()
