"""Read a plan written by ``astra plan --out``: check that it is whole and consistent, and say which field is not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from os import PathLike
from typing import Any, Final

import msgspec

from astra.answer import PLAN_SCHEMA
from astra.errors import InputError
from astra.export.base import Launch, Mesh
from astra.export.figures import figures_of
from astra.files import read_json, whole_number
from astra.spec.cluster import Pool
from astra.spec.job import Job
from astra.spec.kinds import path_text
from astra.spec.mixed import on_one_pool
from astra.spec.model import ModelSpec
from astra.spec.names import check_name
from astra.spec.record import decode
from astra.spec.strategy import Strategy, parse_strategy
from astra.spec.workload import Workload

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
    return record


def check_schema(record: Mapping[str, Any], where: str) -> None:
    """Only plans of this version; others are told what to do."""
    schema = record.get("schema")
    if schema == PLAN_SCHEMA:
        return
    name, _, number = str(schema).partition("/")
    if name == PLAN_SCHEMA.partition("/")[0] and number.isdigit():
        made = f" (made by Astra {record['version']})" if isinstance(record.get("version"), str) else ""
        fix = f"{_AGAIN} Its request and strategies are in the fields request and plans[].strategy."
        raise InputError(f"{where}: schema", schema, want=f"{PLAN_SCHEMA}, the version this Astra reads{made}", fix=fix)
    other = " An estimate has no cluster or model shape to launch." if name == "astra.estimate" else ""
    raise InputError(f"{where}: schema", schema, want=f"{PLAN_SCHEMA}, as written by astra plan.{other}", fix=_AGAIN)


def read_plan(path: str | PathLike[str], rank: int = 1) -> tuple[Launch, Job | None]:
    """One plan of a file, resolved, with the job it was made for (none for a plan over several pools)."""
    return from_record(read_record(path), rank, where=str(path))


def from_record(record: Mapping[str, Any], rank: int = 1, *, where: str = "plan") -> tuple[Launch, Job | None]:
    """One plan of a record."""
    request = _part(record, "request", dict, where)
    plan, place = plan_of(record, rank, where)
    if "pools" in request:
        alone = on_one_pool(_estimated_text(plan, place))
        if alone is None:
            return _mixed(record, request, plan, where, place), None
        (name, text), pools = alone, _pools(request, f"{where}: request")
        if name not in pools:
            raise InputError(f"{place}.strategy", name, want=f"a pool of the request: {', '.join(pools)}")
        job, strategy = _job_on(request, pools[name], f"{where}: request"), parse_strategy(text, gpus=None)
        precision = request["pools"][name].get("precision", job.workload.precision)  # an A100 has no fp8
        job = msgspec.structs.replace(job, workload=msgspec.structs.replace(job.workload, precision=precision))
    else:
        job = _job(request, f"{where}: request")
        strategy = _strategy(plan, place, job)
    job = msgspec.structs.replace(job, pool=msgspec.structs.replace(job.pool, gpus=strategy.gpus))
    from astra.search.detail import advised, layers_of, legality  # noqa: PLC0415

    broken = legality(job, strategy)
    if broken:
        raise InputError(f"{place}.strategy", str(strategy), want=f"a legal strategy; {'; '.join(broken)}")
    step_s = figure(plan, "step_s", place)
    launch = launch_of(job, strategy, layers_of(job, strategy), _version(record, where), step_s)
    launch = launch._replace(figures=figures_of(plan["estimate"]))
    if "pools" not in request:
        _check_estimate(plan["estimate"], launch, place)
    return launch._replace(warnings=tuple(advised(job, strategy))), job


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


def on_several_pools(record: Mapping[str, Any], where: str) -> bool:
    """Whether a plan was made for several pools."""
    return "pools" in _part(record, "request", dict, where)


def _mixed(
    record: Mapping[str, Any], request: Mapping[str, Any], plan: Mapping[str, Any], where: str, place: str
) -> Launch:
    """A plan over several pools."""
    from astra.catalog import runtimes  # noqa: PLC0415
    from astra.export.reading_mixed import mixed_launch  # noqa: PLC0415

    inside = f"{where}: request"
    workload: Workload = decode(Workload, _part(request, "workload", dict, inside), where=f"{inside}: workload")
    model = _model(request, _part(request, "model", str, inside), inside)
    launch = mixed_launch(_estimated_text(plan, place), _pools(request, inside), model, workload, place=place)
    runtime = runtimes.runtime(_part(request, "runtime", str, inside)).name
    step_s, figures = figure(plan, "step_s", place), figures_of(plan["estimate"])
    return launch._replace(runtime=runtime, version=_version(record, where), step_s=step_s, figures=figures)


def _version(record: Mapping[str, Any], where: str) -> str:
    """The Astra that made the plan."""
    return check_name(f"{where}: version", record.get("version", ""), empty=True)


def _pools(request: Mapping[str, Any], inside: str) -> dict[str, Pool]:
    pools = {}
    for name, pool in _part(request, "pools", dict, inside).items():
        at = f"{inside}: pools.{check_name(f'{inside}: pools', name)}"
        _part(pool, "gpus", int, at)
        pools[name] = _pool(pool, at)
    return pools


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


def request_of(record: Mapping[str, Any], where: str) -> tuple[Mapping[str, Any], Mapping[str, Any], int]:
    """The request of a plan, its workload, and the GPUs of all its pools."""
    request: Mapping[str, Any] = _part(record, "request", dict, where)
    inside = f"{where}: request"
    pools = _pools(request, inside) if "pools" in request else {"": _pool(request, inside)}
    return request, _part(request, "workload", dict, inside), sum(pool.gpus for pool in pools.values())


def _strategy(plan: Mapping[str, Any], place: str, job: Job) -> Strategy:
    text = _estimated_text(plan, place)
    strategy = job.strategy(text)
    # An objective may leave nodes out, so that a plan says itself how many GPUs it uses.
    said = str(plan["estimate"].get("gpus", "")).partition("x")[0]
    used = whole_number(said, 8)
    used = job.pool.gpus if used is None else used
    if strategy.gpus != used:
        want = f"tp*cp*pp*dp = {used:,}, the GPUs of the plan"
        raise InputError(f"{place}.strategy", text, want=want, fix="The plan was edited.")
    return strategy


def _estimated_text(plan: Mapping[str, Any], place: str) -> str:
    """The strategy, which must be the one that was estimated."""
    text: str = _part(plan, "strategy", str, place)
    estimated = _part(plan, "estimate", dict, place).get("strategy")
    if estimated != text:
        want = f"the strategy that was estimated ({estimated}): the plan was edited"
        fix = 'To cost a strategy of your own use astra estimate --strategy "...".'
        raise InputError(f"{place}.strategy", text, want=want, fix=fix)
    return text


def _job(request: Mapping[str, Any], where: str) -> Job:
    """The job of a request; a plan from before shapes were recorded is looked up by its names."""
    pool, gpus = _pool(request, where), _part(request, "gpus", int, where)
    if gpus != pool.gpus:
        raise InputError(f"{where}: gpus", gpus, want=f"the GPUs of the pool ({pool.gpus}): the plan was edited")
    return _job_on(request, pool, where)


def _job_on(request: Mapping[str, Any], pool: Pool, where: str) -> Job:
    from astra.catalog import runtimes  # noqa: PLC0415

    name = _part(request, "model", str, where)
    workload: Workload = decode(Workload, _part(request, "workload", dict, where), where=f"{where}: workload")
    model = _model(request, name, where)
    if model.name != name:
        raise InputError(f"{where}: model", name, want=f"the name in model_spec ({model.name}): the plan was edited")
    headroom = request.get("headroom", 0.08)
    if not isinstance(headroom, int | float) or isinstance(headroom, bool):
        raise InputError(f"{where}: headroom", headroom, want="a fraction")
    runtime = runtimes.runtime(_part(request, "runtime", str, where))
    return Job(model=model, pool=pool, workload=workload, runtime=runtime, headroom=float(headroom))


def _model(request: Mapping[str, Any], name: str, where: str) -> ModelSpec:
    from astra.catalog.models import model, model_names  # noqa: PLC0415

    if "model_spec" not in request:
        return model(name)
    found: ModelSpec = decode(ModelSpec, request["model_spec"], where=f"{where}: model_spec")
    if "rotary" not in request["model_spec"] and name in model_names() and _shape(model(name)) == found:
        return model(name)  # written before plans said more than the shape
    return found


def _shape(model: ModelSpec) -> ModelSpec:
    """A model without what plans once did not say of it."""
    moe = model.moe and msgspec.structs.replace(
        model.moe, score="softmax", normalized=True, weight_scale=1.0, groups=1, groups_kept=1, balance_bias=False
    )
    return msgspec.structs.replace(model, rotary=None, activation=None, norm_epsilon=None, quirks=(), moe=moe)


def _pool(request: Mapping[str, Any], where: str) -> Pool:
    if "pool" in request:
        found: Pool = decode(Pool, request["pool"], where=f"{where}: pool")
        return found
    from astra.catalog.clusters import parse_gpus  # noqa: PLC0415

    gpus, gpu = _part(request, "gpus", int, where), _part(request, "gpu", str, where)
    return parse_gpus(f"{gpus}x{gpu}", node=_part(request, "node", str, where))
