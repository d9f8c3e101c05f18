"""A question of a study, and the key by which its answer is known again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import msgspec

import astra
from astra.catalog.hardware import catalog_hash
from astra.files import read_bytes
from astra.questions.declared import Study
from astra.spec.request import PlanRequest


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
