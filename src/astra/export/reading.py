"""Read a plan written by ``astra plan --out``: check that it is whole and consistent, and say which field is not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

from msgspec.structs import replace

from astra.answer import PLAN_SCHEMA
from astra.catalog.plan_files import upgraded
from astra.errors import InputError
from astra.export.base import Launch, Mesh
from astra.export.figures import figures_of
from astra.export.reading_mixed import mixed_launch
from astra.files import read_json, whole_number
from astra.search.detail import advised, layers_of, legality
from astra.search.world import World
from astra.spec.job import Job
from astra.spec.kinds import path_text
from astra.spec.mixed_text import on_one_pool
from astra.spec.names import check_name
from astra.spec.request import read_request
from astra.spec.strategy import Strategy, parse_strategy

_AGAIN: Final = "Make the plan again with astra plan --out PLAN.json."


def read_record(path: str | PathLike[str]) -> dict[str, Any]:
    """The JSON record of a plan file, of a version this Astra reads."""
    shown = path_text(path, "plan", "the path of a plan file")
    try:
        record = read_json(shown, "plan")
    except InputError as error:
        raise InputError(error.where, error.got, want=error.want, fix=f"{error.fix} {_AGAIN}".strip()) from None
    if not isinstance(record, dict):
        raise InputError(shown, None, want="the record of a plan, a JSON object", fix=_AGAIN)
    check_schema(record, shown)
    return upgraded(record)


def check_schema(record: Mapping[str, Any], where: str) -> None:
    """Only plans of a format that is known; others are told what to do."""
    schema = record.get("schema")
    if schema == PLAN_SCHEMA:
        return
    name, _, number = str(schema).partition("/")
    if name == PLAN_SCHEMA.partition("/")[0] and number.isdigit():
        made = f" (made by Astra {record['version']})" if isinstance(record.get("version"), str) else ""
        fix = f"{_AGAIN} Its request and strategies are in the fields request and plans[].strategy."
        raise InputError(f"{where}: schema", schema, want=f"{PLAN_SCHEMA}, the version this Astra reads{made}", fix=fix)
    other = " An estimate has no cluster or model shape to launch." if name == "astra.estimate" else ""
    raise InputError(f"{where}: schema", schema, want=f"{PLAN_SCHEMA}, as written by astra plan{other}", fix=_AGAIN)


def read_plan(path: str | PathLike[str], rank: int = 1) -> tuple[Launch, Job | None]:
    """One plan of a file, resolved, with the job it was made for (none for a plan over several pools)."""
    return from_record(read_record(path), rank, where=str(path))


def from_record(record: Mapping[str, Any], rank: int = 1, *, where: str = "plan") -> tuple[Launch, Job | None]:
    """One plan of a record."""
    world = world_of(record, where)
    plan, place = plan_of(record, rank, where)
    text, step_s = _estimated_text(plan, place), figure(plan, "step_s", place)
    version, figures = _version(record, where), figures_of(plan["estimate"])
    if not world.several:
        job, strategy = world.job, world.job.strategy(text)
        _check_gpus(plan, place, strategy, job)
    else:
        from astra.search.fleet.plan import fleet_in  # noqa: PLC0415 - one pool does without

        fleet, _ = fleet_in(world)
        alone, pools = on_one_pool(text), dict(zip(fleet.names, fleet.cluster.pools, strict=True))
        if alone is None:
            launch = mixed_launch(text, pools, world.model, fleet.job.workload, place=place)
            return launch._replace(runtime=world.runtime.name, version=version, step_s=step_s, figures=figures), None
        if alone[0] not in pools:
            raise InputError(f"{place}.strategy", alone[0], want=f"a pool of the request: {', '.join(pools)}")
        # Each pool has its own precision: an A100 has no fp8.
        job, strategy = replace(fleet.jobs[fleet.place(alone[0])], settled=None), parse_strategy(alone[1], gpus=None)
    job = replace(job, pool=replace(job.pool, gpus=strategy.gpus))
    broken = legality(job, strategy)
    if broken:
        raise InputError(f"{place}.strategy", text, want=f"a legal strategy; {'; '.join(broken)}")
    launch = launch_of(job, strategy, layers_of(job, strategy), version, step_s)
    if not world.several:
        _check_estimate(plan["estimate"], launch, place)
    return launch._replace(figures=figures, warnings=tuple(advised(job, strategy))), job


def world_of(record: Mapping[str, Any], where: str) -> World:
    """What a plan was made for: its request, looked up again."""
    if "asked" not in record:
        fix = f"{_AGAIN} Its request and strategies are in the fields request and plans[].strategy."
        raise InputError(f"{where}: asked", None, want="the request it was made for, as newer plans have it", fix=fix)
    request = read_request("plan", _part(record, "asked", dict, where), lambda name: f"{where}: asked.{name}")
    try:
        return World.of(request)
    except InputError as error:
        raise InputError(f"{where}: asked.{error.where}", error.got, want=error.want, fix=error.fix) from None


def _check_estimate(estimate: Mapping[str, Any], launch: Launch, place: str) -> None:
    """The numbers must be of the plan they stand beside: an edit of every mention of the strategy leaves these."""
    said = estimate.get("microbatches", launch.microbatches)
    if said != launch.microbatches:
        want = f"{launch.microbatches}, as the strategy makes of the batch: the plan was edited"
        raise InputError(f"{place}.estimate.microbatches", said, want=want, fix=_AGAIN)


def figure(plan: Mapping[str, Any], name: str, place: str) -> float:
    """A number above zero of a plan's estimate."""
    value = _part(plan, "estimate", dict, place).get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"{place}.estimate.{name}", value, want="a number above zero", fix=_AGAIN)
    return float(value)


def _version(record: Mapping[str, Any], where: str) -> str:
    """The Astra that made the plan."""
    return check_name(f"{where}: version", record.get("version", ""), empty=True)


def launch_of(job: Job, strategy: Strategy, layers: tuple[int, ...], version: str, step_s: float | None) -> Launch:
    """A job and a strategy on one pool, ready to be exported."""
    mesh = Mesh(
        job.pool, strategy.tp, strategy.cp, strategy.ep, strategy.dp, strategy.pp, strategy.etp, strategy.recompute
    )
    return Launch(
        model=job.model,
        workload=job.workload,
        strategy=strategy,
        layers=layers,
        meshes=(mesh,),
        runtime=job.runtime.name,
        version=version,
        step_s=step_s,
    )


def _part(record: Mapping[str, Any], name: str, kind: type[Any], where: str) -> Any:
    if not isinstance(record, Mapping):
        raise InputError(where, record, want="a record", fix=_AGAIN)
    value = record.get(name)
    if not isinstance(value, kind):
        missing = name not in record
        want = "this field, which is missing: the plan was cut or edited" if missing else f"a {_KINDS[kind]}"
        raise InputError(f"{where}: {name}", None if missing else value, want=want, fix=_AGAIN)
    return value


_KINDS: Final = {dict: "record", list: "list", str: "text", int: "whole number"}


def plan_of(record: Mapping[str, Any], rank: int, where: str) -> tuple[Mapping[str, Any], str]:
    """The plan of a rank, and its place in the file."""
    plans = _part(record, "plans", list, where)
    for index, plan in enumerate(plans):
        if isinstance(plan, dict) and plan.get("rank") == rank:
            return plan, f"{where}: plans[{index}]"
    raise InputError("--rank", rank, want=f"a rank in the file, which has {len(plans)} plans", fix="1 is the best.")


def strategy_text(record: Mapping[str, Any], rank: int, *, where: str) -> str:
    """The strategy of a plan as it was estimated, on one pool or on several."""
    return _estimated_text(*plan_of(record, rank, where))


def _check_gpus(plan: Mapping[str, Any], place: str, strategy: Strategy, job: Job) -> None:
    """An objective may leave nodes out, so that a plan says itself how many GPUs it uses."""
    used = whole_number(str(plan["estimate"].get("gpus", "")).partition("x")[0], 8)
    used = job.pool.gpus if used is None else used
    if strategy.gpus != used or used > job.pool.gpus:
        want = f"tp*cp*pp*dp = {min(used, job.pool.gpus):,}, the GPUs of the plan"
        raise InputError(f"{place}.strategy", str(strategy), want=want, fix="The plan was edited.")


def _estimated_text(plan: Mapping[str, Any], place: str) -> str:
    """The strategy, which must be the one that was estimated."""
    text: str = _part(plan, "strategy", str, place)
    estimated = _part(plan, "estimate", dict, place).get("strategy")
    if estimated != text:
        want = f"the strategy that was estimated ({estimated}): the plan was edited"
        fix = 'To cost a strategy of your own use astra estimate --strategy "...".'
        raise InputError(f"{place}.strategy", text, want=want, fix=fix)
    return text
