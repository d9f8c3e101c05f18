"""Jobs and pools as a TOML file declares them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from astra.catalog.clusters import parse_gpus
from astra.catalog.models import model as find_model
from astra.catalog.requests import placed, read_plain
from astra.errors import InputError, UnknownName, within
from astra.files import read_toml
from astra.sharing.problem import GOALS
from astra.spec import kinds
from astra.spec.cluster import Pool
from astra.spec.fields import read_fields
from astra.spec.money import Money
from astra.spec.names import as_name, check_keys, check_line, check_name
from astra.spec.request import PlanRequest
from astra.units import parse_seconds

MOST_JOBS: Final = 40
_KEYS: Final = ("title", "goal", "pools", "jobs", "request")
_OWN: Final = ("weight", "deadline", "start", "min_gpus", "max_gpus", "pools", "counts")  # of a job, beside its request
_TAKEN: Final = ("gpus", "cluster", "node", "objective", "budget", "baseline", "top", "strict")  # said by the sharing
_KNOWN: Final = "a key that is known here"
_WEIGHT: Final = kinds.number(0, 1e6, above=True)
_GPUS: Final = kinds.whole(1, 100_000)
_EXAMPLE: Final = {
    "pools": 'Such as [pools] and h100 = "256xH100" under it.',
    "jobs": 'Such as [jobs.chat] and model = "llama-3-8b", tokens = "300B", deadline = "14d" under it.',
}


class SharedPool(NamedTuple):
    """A pool that jobs share."""

    name: str
    pool: Pool
    money: dict[str, Any]  # what its GPUs cost, where the file says it

    @property
    def node_gpus(self) -> int:
        """GPUs that are given together: those of a server."""
        return min(self.pool.node.gpus, self.pool.gpus)

    @property
    def nodes(self) -> int:
        """Servers."""
        return self.pool.gpus // self.node_gpus

    @property
    def gpu_text(self) -> str:
        """The GPU and its server, as requests name them."""
        return f"{self.pool.device.name}@{self.pool.node.name}"


class DeclaredJob(NamedTuple):
    """A job that wants GPUs of some pools."""

    name: str
    fields: dict[str, Any]  # of its request
    tokens: float
    weight: float
    deadline_s: float
    start_s: float  # not before
    min_gpus: int
    max_gpus: int
    pools: tuple[str, ...]
    counts: tuple[int, ...]  # of GPUs to consider; empty: the usual ones


class DeclaredSharing(NamedTuple):
    """What a file declares."""

    title: str
    goal: str
    pools: dict[str, SharedPool]
    jobs: tuple[DeclaredJob, ...]


def read_sharing(path: str, goal: str | None = None) -> DeclaredSharing:
    """The jobs and pools of a TOML file; ``goal`` in place of the file's."""
    return sharing_of(read_toml(path, "jobs"), path, Path(path).parent, goal)


def sharing_of(tables: Mapping[str, Any], where: str, folder: Path, goal: str | None = None) -> DeclaredSharing:
    """The jobs and pools of plain tables; paths in them are from ``folder``."""
    check_keys(tables, _KEYS, where, _KNOWN)
    reader = _Reader(where, folder)
    pools = {name: reader.pool(name, entry) for name, entry in reader.table(tables, "pools").items()}
    shared = tables.get("request", {})
    if not isinstance(shared, dict):
        raise InputError(f"{where}: request", shared, want="a table of fields of astra plan")
    jobs = tuple(reader.job(name, entry, shared, pools) for name, entry in reader.table(tables, "jobs").items())
    if len(jobs) > MOST_JOBS:
        raise InputError(f"{where}: jobs", f"{len(jobs)} jobs", want=f"at most {MOST_JOBS}")
    chosen = goal or kinds.one_of(*GOALS).read(tables.get("goal", "completion"), f"{where}: goal")
    if chosen == "deadlines" and all(math.isinf(job.deadline_s) for job in jobs):
        raise InputError(f"{where}: goal", chosen, want="a deadline of some job", fix="Such as deadline = '14d'.")
    return DeclaredSharing(check_line(f"{where}: title", tables.get("title", Path(where).stem)), chosen, pools, jobs)


class _Reader(NamedTuple):
    where: str
    folder: Path

    def table(self, tables: Mapping[str, Any], key: str) -> dict[str, Any]:
        """A table of named entries, at least one."""
        found = tables.get(key)
        if not isinstance(found, dict) or not found:
            raise InputError(f"{self.where}: {key}", found, want=f"a table of {key} by name", fix=_EXAMPLE[key])
        for name in found:
            check_name(f"{self.where}: {key}", name)
        return found

    def pool(self, name: str, entry: Any) -> SharedPool:
        """A pool: ``256xH100``, or a table with ``gpus`` and what they cost."""
        place = f"{self.where}: pools.{as_name(name)}"
        fields = entry if isinstance(entry, dict) else {"gpus": entry}
        text = fields.get("gpus")
        if not isinstance(text, str):
            raise InputError(f"{place}.gpus", text, want="GPUs of one type, such as 256xH100")
        money = {key: value for key, value in fields.items() if key != "gpus"}
        read_fields(Money, money, lambda key: f"{place}.{key}")
        with within(place):
            pool = parse_gpus(text)
        return SharedPool(name, pool, placed("money", money, self.folder))

    def job(self, name: str, entry: Any, shared: Mapping[str, Any], pools: Mapping[str, SharedPool]) -> DeclaredJob:
        """A job: fields of its request, and what it wants of the fleet."""
        place = f"{self.where}: jobs.{as_name(name)}"
        if not isinstance(entry, dict):
            raise InputError(place, entry, want="a table with a model, tokens, and a deadline or a weight")
        asked = {**shared, **{key: value for key, value in entry.items() if key not in _OWN}}
        for key, value in asked.items():
            if key in _TAKEN:
                raise InputError(f"{place}.{key}", value, want="no such field: the pools and the goal say it")
            check_keys((key,), (*PlanRequest.__struct_fields__, *_OWN), place, _KNOWN)
        read = read_plain(asked, place, self.folder)
        for key in ("model", "tokens"):
            if read.get(key) is None:
                raise InputError(f"{place}.{key}", None, want=f"the {key} of the job")
        with within(place):
            find_model(read["model"])
        return DeclaredJob(
            name=name,
            fields=read,
            tokens=float(read["tokens"]),
            weight=_WEIGHT.read(entry.get("weight", 1), f"{place}.weight"),
            deadline_s=_seconds(entry.get("deadline"), f"{place}.deadline", math.inf),
            start_s=_seconds(entry.get("start"), f"{place}.start", 0.0),
            min_gpus=_GPUS.read(entry.get("min_gpus", 1), f"{place}.min_gpus"),
            max_gpus=_GPUS.read(entry.get("max_gpus", 100_000), f"{place}.max_gpus"),
            pools=_pools(entry.get("pools"), pools, f"{place}.pools"),
            counts=_counts(entry.get("counts"), f"{place}.counts"),
        )


def _seconds(value: Any, where: str, default: float) -> float:
    if value is None:
        return default
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        found = parse_seconds(str(value))
        if found is not None:
            return found
    raise InputError(where, value, want="a time from the beginning, such as 14d, 36h or 2w")


def _pools(value: Any, pools: Mapping[str, SharedPool], where: str) -> tuple[str, ...]:
    if value is None:
        return tuple(pools)
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(name, str) for name in found):
        raise InputError(where, value, want="names of pools")
    for name in found:
        if name not in pools:
            raise UnknownName(where, name, pools)
    return tuple(dict.fromkeys(found))


def _counts(value: Any, where: str) -> tuple[int, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not value:
        raise InputError(where, value, want="numbers of GPUs, such as [64, 128]")
    return tuple(sorted({_GPUS.read(count, where) for count in value}))
