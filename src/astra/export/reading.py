"""Read a plan of ``astra plan --out`` or a choice of ``astra rent``: check that it is whole, and say what is not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from astra.answer import PLAN_SCHEMA
from astra.answer_money import RENT_SCHEMA
from astra.catalog.requests import upgraded
from astra.errors import InputError
from astra.export.base import Launch, Mesh, figures_of
from astra.files import read_json, whole_number
from astra.search.cautions import advised
from astra.search.detail import layers_of, legality
from astra.search.world import World
from astra.spec.cluster import Pool
from astra.spec.job import Job
from astra.spec.kinds import path_text
from astra.spec.mixed import Group, MixedStrategy
from astra.spec.mixed_text import on_one_pool, parse_mixed
from astra.spec.model import ModelSpec
from astra.spec.names import check_name
from astra.spec.request import FIELDS, read_request
from astra.spec.strategy import Strategy, parse_strategy
from astra.spec.strategy_fields import OVERLAPS
from astra.spec.workload import Workload


def mixed_launch(text: str, pools: Mapping[str, Pool], model: ModelSpec, workload: Workload, *, place: str) -> Launch:
    """The launch of a mixed strategy; like groups are plain data parallelism where one library joins them."""
    mixed = parse_mixed(text)
    for group in mixed.groups:
        if sum(group.layers) != model.layers or mixed.samples != workload.global_batch:
            want = f"{model.layers} layers and a batch of {workload.global_batch}: the plan was edited"
            raise InputError(f"{place}.strategy", text, want=want)
    launches = [_group_launch(mixed, group, pools, model, workload, place) for group in mixed.groups]
    if len(launches) == 1:
        return launches[0]
    meshes = tuple(mesh for launch in launches for mesh in launch.meshes)
    apart = launches[0]._replace(
        workload=workload, meshes=meshes, groups=tuple(launches), shares=mixed.shares, local=mixed.local
    )
    one_shape = len(mixed.shapes) == 1 and not mixed.shares and mixed.local == 1
    return _side_by_side(launches, workload) if one_shape and not apart.several_vendors else apart


def _group_launch(
    mixed: MixedStrategy, group: Group, pools: Mapping[str, Pool], model: ModelSpec, workload: Workload, place: str
) -> Launch:
    """One group by itself, with its samples."""
    return Launch(
        model=model,
        workload=replace(workload, global_batch=group.samples),
        strategy=_strategy(mixed, group),
        layers=group.layers,
        meshes=tuple(_mesh(group, index, pools, place) for index in range(len(group.segments))),
    )


def _side_by_side(launches: Sequence[Launch], workload: Workload) -> Launch:
    """Groups of one shape: every stage has the replicas of one, then those of the next."""
    first = launches[0]
    replicas = sum(launch.strategy.dp for launch in launches)
    stages = [[mesh._replace(pp=1) for mesh in launch.meshes for _ in range(mesh.pp)] for launch in launches]
    meshes = tuple(mesh for stage in zip(*stages, strict=True) for mesh in stage)
    strategy = replace(first.strategy, dp=replicas)
    return first._replace(workload=workload, strategy=strategy, meshes=meshes, by_replica=True)


def _strategy(mixed: MixedStrategy, group: Group) -> Strategy:
    """What all stages share, and the first segment's degrees where they differ."""
    if group.plain is not None:
        return group.plain
    first = group.segments[0]
    hidden = (*mixed.overlap, "p2p") if group.vp > 1 and group.stages > 1 else mixed.overlap
    overlap = tuple(name for name in OVERLAPS if name in hidden and (name != "p2p" or group.vp > 1))
    spread = any(segment.tp > 1 for segment in group.segments)
    fields: dict[str, Any] = {"recompute": first.recompute, "schedule": "interleaved" if group.vp > 1 else "1f1b"}
    return Strategy(
        tp=first.tp, pp=group.stages, vp=group.vp, cp=group.cp, ep=first.ep, dp=group.dp, mbs=group.mbs, sp=spread,
        zero=mixed.zero, overlap=overlap if spread else tuple(name for name in overlap if name != "tp"),
        layers=group.layers, **fields,
    )  # fmt: skip


def _mesh(group: Group, index: int, pools: Mapping[str, Pool], place: str) -> Mesh:
    segment = group.segments[index]
    if segment.pool not in pools:
        raise InputError(f"{place}.strategy", segment.pool, want=f"a pool of the request: {', '.join(pools)}")
    return Mesh(
        pools[segment.pool], segment.tp, group.cp, segment.ep, group.dp, segment.pp, recompute=segment.recompute
    )


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
    version = check_name(f"{where}: version", record.get("version", ""), empty=True)  # the Astra that made the plan
    figures, warned = figures_of(plan["estimate"]), _warnings(plan["estimate"], place)
    if not world.several:
        job, strategy = world.job, world.job.strategy(text)
        _check_gpus(plan, place, strategy, job)
    else:
        from astra.search.fleet.plan import fleet_in  # noqa: PLC0415 - one pool does without

        fleet, _ = fleet_in(world)
        alone, pools = on_one_pool(text), dict(zip(fleet.names, fleet.cluster.pools, strict=True))
        if alone is None:
            launch = mixed_launch(text, pools, world.model, fleet.job.workload, place=place)
            launch = launch._replace(step_s=step_s, figures=figures, warnings=warned)
            return launch._replace(runtime=world.runtime.name, version=version), None
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
    return launch._replace(figures=figures, warnings=tuple(dict.fromkeys((*advised(job, strategy), *warned)))), job


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


def _warnings(estimate: Mapping[str, Any], place: str) -> tuple[str, ...]:
    """What the plan was shown with: also what is doubted of its figures."""
    said = estimate.get("warnings", [])
    if not isinstance(said, list) or not all(isinstance(sentence, str) for sentence in said):
        raise InputError(f"{place}.estimate.warnings", said, want="a list of sentences", fix=_AGAIN)
    return tuple(said)


def figure(plan: Mapping[str, Any], name: str, place: str) -> float:
    """A number above zero of a plan's estimate."""
    value = _part(plan, "estimate", dict, place).get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"{place}.estimate.{name}", value, want="a number above zero", fix=_AGAIN)
    return float(value)


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


class _OfOneType(msgspec.Struct):
    """GPUs of a choice."""

    gpus: int
    gpu: str
    node: str


class _RentedChoice(_OfOneType):
    """What a plan takes from a choice."""

    parts: list[_OfOneType]


_RENT_AGAIN: Final = "Ask again with astra rent --out RENT.json."
_GOAL: Final = ("objective", "budget", "deadline")  # the choice is made


def read_rented(path: str | PathLike[str]) -> dict[str, Any] | None:
    """The record of an answer of ``astra rent``; None if the file holds something else."""
    try:
        record = read_json(path, "plan")
    except InputError:
        return None
    return record if isinstance(record, dict) and record.get("schema") == RENT_SCHEMA else None


def plan_of_choice(record: Mapping[str, Any], pick: int | None, where: str) -> dict[str, Any]:
    """The record of a plan on the GPUs of one choice: that of a row of the front, or the one that was chosen."""
    choice, asked = _picked(record, pick, where), record.get("asked")
    try:
        read = msgspec.convert(choice, _RentedChoice)
    except msgspec.ValidationError:
        read = None
    if read is None or not isinstance(asked, dict):
        raise InputError(where, None, want="an answer of astra rent, whole", fix=_RENT_AGAIN)
    if len(read.parts) != 1:
        gpus = " ".join(f"--gpus {part.gpus}x{part.gpu}" for part in read.parts)
        fix = f"Plan it on its pools: astra plan MODEL {gpus}."
        raise InputError("--pick", pick, want="a choice of one GPU type", fix=fix)
    kept = {name: value for name, value in asked.items() if name in FIELDS and FIELDS[name].on("plan")}
    kept = {name: value for name, value in kept.items() if name not in _GOAL}
    gpus = f"{read.gpus}x{read.gpu}"
    estimate = {name: value for name, value in choice.items() if name != "gpus"} | {"gpus": gpus}
    return {
        "schema": PLAN_SCHEMA,
        "version": record.get("version", ""),
        "request": {},
        "asked": kept | {"gpus": [gpus], "node": read.node},
        "plans": [{"rank": 1, "strategy": choice.get("strategy"), "estimate": estimate}],
    }


def _picked(record: Mapping[str, Any], pick: int | None, where: str) -> Mapping[str, Any]:
    """A row of the front by its number, or the first that the goal chose; of a whole front the best trade."""
    front = record.get("front")
    if not isinstance(front, list) or not front or not all(isinstance(choice, dict) for choice in front):
        raise InputError(f"{where}: front", None, want="the choices of astra rent", fix=_RENT_AGAIN)
    if pick is not None and pick > len(front):
        raise InputError("--pick", pick, want=f"a row of the front, which has {len(front)}", fix="1 is the fastest.")
    if pick is not None:
        picked: Mapping[str, Any] = front[pick - 1]
        return picked
    chosen = record.get("chosen")
    if record.get("objective") != "pareto" and isinstance(chosen, list) and chosen and isinstance(chosen[0], dict):
        return dict(chosen[0])
    for role in ("chosen", "knee"):
        for choice in front:
            if isinstance(roles := choice.get("roles"), list) and role in roles:
                return dict(choice)
    return dict(front[0])
